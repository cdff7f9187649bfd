"""Text classification with an embedding, whose sparse gradients stay sparse while they are accumulated.

What it shows: the model reads a sentence of a docstring, and says from which package of Python's standard library it
comes. (This is real text that every machine has.) A sentence is represented by the mean of the embeddings of its words.
A batch has a few hundred of the thousands of words, so the gradient of the embedding is a `tf.IndexedSlices` with the
rows of these words. `legacyga.GradientAccumulator` adds up such rows, never the whole table. Its result has each row of
the window once, even if the batches had the row several times. Four batches of 32 train as one of 128.

    rows      the average number of rows in the gradient of an update, and the number of rows of the embedding
    accuracy  on sentences that were not trained on
    distance  the largest difference of any weight from the loop over the large batches, relative to how far the weights
              of that loop moved

    python examples/embeddings.py                    tf.keras
    python examples/embeddings.py --home tf_keras    tf_keras, beside the Keras 3 of newer TensorFlows

This example needs TensorFlow 2 in eager mode. In a TensorFlow 1 graph take legacyga.wrap, which keeps sparse gradients
sparse, too.
"""

import ast
import os
import re

import numpy as np
import tensorflow as tf
from _common import check_needs, distance, first_weights, keras_of, parser, print_ending, print_title

import legacyga

K = 4
BATCH = 32
WORDS = 16  # of a sentence, the rest is left out
SIZE = 16  # of an embedding
PACKAGES = ("argparse.py", "asyncio", "decimal.py", "_pydecimal.py", "email", "http", "logging", "tarfile.py")
PACKAGES += ("tkinter", "turtle.py", "unittest", "urllib", "xml", "zipfile.py", "multiprocessing", "statistics.py")


def sentences(name):
    """The sentences of the docstrings of a module or package, in the order of its files: lists of words."""
    library = os.path.dirname(os.__file__)
    paths = [os.path.join(library, name)] if name.endswith(".py") else []
    for folder, _, names in sorted(os.walk(os.path.join(library, name))):
        if "test" not in os.path.basename(folder):
            paths += [os.path.join(folder, each) for each in sorted(names) if each.endswith(".py")]
    for path in paths:
        if not os.path.exists(path):  # a module of another version of Python
            continue
        with open(path, encoding="utf-8", errors="replace") as file:
            tree = ast.parse(file.read())
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                for sentence in re.split(r"[.:]\s|\n\s*\n", ast.get_docstring(node) or ""):
                    words = re.findall(r"[a-z]+", sentence.lower())
                    if len(words) >= 4:
                        yield words[:WORDS]


def read_data(samples):
    """Ids of the words (0: none), the share of each in its sentence, the number of the package, and all words."""
    texts = [(words, label) for label, name in enumerate(PACKAGES) for words in sentences(name)]
    np.random.RandomState(0).shuffle(texts)
    texts = texts[:samples]
    vocabulary = sorted({word for words, _ in texts for word in words})
    place = {word: i for i, word in enumerate(vocabulary, 1)}
    ids, shares = np.zeros((len(texts), WORDS), "int64"), np.zeros((len(texts), WORDS), "float32")
    for i, (words, _) in enumerate(texts):
        ids[i, : len(words)] = [place[word] for word in words]
        shares[i, : len(words)] = 1.0 / len(words)
    return ids, shares, np.array([label for _, label in texts], "int64"), vocabulary


def logits(variables, ids, shares):
    table, kernel, bias = variables
    text = tf.reduce_sum(tf.gather(table, ids) * shares[:, :, None], axis=1)
    return tf.matmul(text, kernel) + bias


def train(keras, data, start, batch, steps, epochs):
    """Train from `start` on; the weights, the optimizer, and the rows in its updates, on average."""
    variables = [tf.Variable(value) for value in start]
    optimizer = keras.optimizers.SGD(2.0, momentum=0.9)
    if hasattr(optimizer, "build"):  # newer optimizers, whose variables cannot be made within a function
        optimizer.build(variables)
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(batch)
    accumulator = legacyga.GradientAccumulator()
    rows = tf.Variable(0, dtype="int64")

    def apply(gradients):
        rows.assign_add(tf.size(tf.unique(gradients[0].indices)[0], out_type="int64"))
        optimizer.apply_gradients(zip(gradients, variables))

    def update():
        apply(accumulator.gradients)
        accumulator.reset()

    @tf.function
    def run():
        for _ in tf.range(epochs):
            for ids, shares, labels in dataset:
                with tf.GradientTape() as tape:
                    each = tf.nn.sparse_softmax_cross_entropy_with_logits(
                        labels=labels, logits=logits(variables, ids, shares)
                    )
                    loss = tf.reduce_mean(each)
                gradients = tape.gradient(loss, variables)
                if steps == 1:
                    apply(gradients)
                    continue
                accumulator(gradients, weight=tf.shape(ids)[0])
                if accumulator.step == steps:
                    update()
            if steps > 1 and accumulator.step > 0:
                update()

    run()
    updates = int(np.asarray(optimizer.iterations))
    return [variable.numpy() for variable in variables], updates, int(rows) / updates


def main():
    args = parser(__doc__, epochs=6, small="1500 sentences instead of all").parse_args()
    check_needs(__doc__, args.home, since=(2,), packages=[])
    keras = keras_of(args.home)
    ids, shares, labels, vocabulary = read_data(1500 if args.small else None)
    held_out = len(ids) // 5
    data = ids[held_out:], shares[held_out:], labels[held_out:]
    start = first_weights((len(vocabulary) + 1, SIZE), (SIZE, len(PACKAGES)), (len(PACKAGES),))
    print_title(args.home, sentences=len(data[0]), modules=len(PACKAGES), words=len(vocabulary), epochs=args.epochs)
    row = "{:<18}  {:>7}  {:>13}  {:>8}  {:>8}".format
    print(row("loop over", "updates", "rows", "accuracy", "distance"))
    large = None
    for name, batch, steps in (
        ("batches of {}".format(K * BATCH), K * BATCH, 1),
        ("{} batches of {}".format(K, BATCH), BATCH, K),
    ):
        weights, updates, rows = train(keras, data, start, batch, steps, args.epochs)
        large = large or weights
        guesses = np.argmax(logits(weights, ids[:held_out], shares[:held_out]).numpy(), axis=1)
        accuracy = "{:.4f}".format(np.mean(guesses == labels[:held_out]))
        off = distance(weights, large, start)
        rows = "{:.0f} of {}".format(rows, len(start[0]))
        print(row(name, updates, rows, accuracy, "{:.1e}".format(off)), flush=True)
    print_ending(("K = {}".format(K), off))


if __name__ == "__main__":
    main()
