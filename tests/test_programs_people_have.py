"""The diffs of docs/programs.md, on small programs of the same shape: both sides, against each other or NumPy."""

import types

import numpy as np
import oracle
import pages
import pytest
import skips
from slow import slow
from tf1 import KERNEL, X, Y, graph_of_its_own, graph_only

import legacyga

pytestmark = pytest.mark.capability("demo and examples")
RANDOM = np.random.RandomState(29)
IMAGES = RANDOM.randn(512, 3).astype("float32")
TARGETS = np.tanh(IMAGES.dot(RANDOM.randn(3, 2))).astype("float32")
START = [np.float32(RANDOM.randn(*shape) / 2.0) for shape in ((3, 4), (4,), (4, 2), (2,))]


def sides(heading):
    """(old, new) of each diff of a section."""
    (section,) = [each for each in pages.read("docs/programs.md").split("\n## ") if each.startswith(heading)]
    diffs = [each.split("```")[0].splitlines() for each in section.split("```diff\n")[1:]]
    return [["\n".join(line[1:] for line in each if line[:1] in (sign, " ")) for sign in ("-", "+")] for each in diffs]


def make(code, **names):
    """What the code makes of the names, with the names."""
    exec(code, names)
    return types.SimpleNamespace(**names)


def distance(one, other):
    return oracle.farthest(one, other)


def started(keras, outputs=2):
    layers = [keras.layers.Dense(4, activation="tanh", input_shape=(3,)), keras.layers.Dense(outputs)]
    model = keras.models.Sequential(layers)
    model.set_weights([start[..., :outputs] if i > 1 else start for i, start in enumerate(START)])
    return model


def old_keras_only(home):
    if home.name != "keras" or home.is_keras3 or home.tf_version >= (2,):
        skips.elsewhere("a program of standalone Keras on TensorFlow 1")
    home.reset()


def train_steps_only(home):
    if home.mode == "graph" or home.tf_version < (2, 2):
        skips.keras_lacks("train_step in graph mode")
    home.reset()


def mask_rcnn(home, compiled, configured, scale=0.01):
    """The weights after two epochs, whose steps are those of the Config times `scale`."""
    keras, config = home.keras, make(configured)
    settings = types.SimpleNamespace(config=types.SimpleNamespace(GRADIENT_CLIP_NORM=0.5))
    names = dict(keras=keras, legacyga=legacyga, self=settings, learning_rate=config.LEARNING_RATE, momentum=0.9)
    optimizer = make(compiled, **names).optimizer
    inputs, truth = keras.layers.Input((3,)), keras.layers.Input((2,))
    body = started(keras)
    error = keras.layers.Lambda(lambda each: keras.backend.square(each[0] - each[1]))([body(inputs), truth])
    model = keras.models.Model([inputs, truth], error)
    # As there: losses that the model holds, of which one is a penalty, and none of compile.
    model.add_loss(keras.backend.mean(error) + 0.001 * keras.backend.sum(keras.backend.square(body.weights[0])))
    model.compile(optimizer=optimizer, loss=[None])
    size, steps = config.GPU_COUNT * config.IMAGES_PER_GPU, int(config.STEPS_PER_EPOCH * scale)

    def batches():
        while True:
            for i in range(0, 160, size):
                yield [IMAGES[i : i + size], TARGETS[i : i + size]], []

    model.fit_generator(batches(), steps_per_epoch=steps, epochs=2, verbose=0)
    return body.get_weights()


def test_mask_rcnn(home):
    old_keras_only(home)
    compiled, configured = sides("Mask R-CNN")
    large, small = [mask_rcnn(home, *each) for each in zip(compiled, configured)]
    assert distance(large, START) > 1e-2
    assert distance(small, large) < 2e-6
    # The old compile on batches of 2 is another training.
    assert distance(mask_rcnn(home, compiled[0], configured[1]), large) > 1e-2


def yolo(home, code):
    """(weights when the second stage begins, and after two updates of 32)."""
    keras = home.keras
    inputs, truth, body = keras.layers.Input((3,)), keras.layers.Input((2,)), started(keras)

    def error(each):
        return keras.backend.mean(keras.backend.square(each[0] - each[1]), axis=-1, keepdims=True)

    loss = keras.layers.Lambda(error, name="yolo_loss")([body(inputs), truth])
    model = keras.models.Model([inputs, truth], loss)
    body.layers[0].trainable = False
    adam = keras.optimizers.Adam
    model.compile(optimizer=adam(lr=1e-3), loss={"yolo_loss": lambda y_true, y_pred: y_pred})
    model.fit([IMAGES[:64], TARGETS[:64]], np.zeros((64, 1)), batch_size=32, epochs=1, verbose=0)
    before = body.get_weights()
    body.layers[0].trainable = True
    made = make(code, legacyga=legacyga, model=model, Adam=adam)
    size = made.batch_size
    model.fit([IMAGES[:64], TARGETS[:64]], np.zeros((64, 1)), batch_size=size, epochs=1, shuffle=False, verbose=0)
    return before, body.get_weights()


def test_keras_yolo3(home):
    """Against NumPy: Keras's own Adam races with itself."""
    old_keras_only(home)
    if home.tf_version < (1, 11):
        skips.we_lack("wrap needs TF 1.11 or newer for the v1 API")
    ((old, new),) = sides("keras-yolo3")
    before, found = yolo(home, new)
    adam, wanted = oracle.Adam(1e-4), oracle.double(before)
    for i in (0, 32):
        wanted = adam.update(wanted, oracle.gradients(wanted, IMAGES[i : i + 32], TARGETS[i : i + 32]))
    assert distance(before[:2], START[:2]) == 0 and distance(before, START) > 1e-3
    assert distance(found[:2], before[:2]) > 1e-4
    assert distance(found, wanted) < 2e-6
    # The old compile on batches of 4 is another training.
    before, found = yolo(home, old.replace("batch_size = 32", "batch_size = 4"))
    assert distance(found, before) > 5e-4


@pytest.mark.parametrize("side, updates", [slow(0, 48), (1, 6)])
def test_bert(home, side, updates):
    """The steps that `run_classifier.py` makes of a batch size of 3: its run ends, and its rate is 0, after so many."""
    graph_only(home)
    if home.name != "tf.keras":
        skips.elsewhere("in the run of tf.keras")
    code = sides("BERT")[0][side]
    flags = types.SimpleNamespace(train_batch_size=3, num_train_epochs=1.5, warmup_proportion=0.0)
    made = make(code, train_examples=range(96), FLAGS=flags)
    assert made.num_train_steps == updates
    if not side:
        return
    with graph_of_its_own(home) as (v1, session):
        kernel, step = v1.get_variable("kernel", initializer=KERNEL), v1.train.get_or_create_global_step()
        x, y = v1.placeholder("float32", [None, X.shape[1]]), v1.placeholder("float32", [None, Y.shape[1]])
        rate = v1.train.polynomial_decay(0.05, step, made.num_train_steps, 0.0)
        optimizer = legacyga.wrap(v1.train.GradientDescentOptimizer(rate), 8)
        train = optimizer.minimize(home.tf.reduce_mean(home.tf.square(home.tf.matmul(x, kernel) - y)), step)
        session.run(v1.global_variables_initializer())
        batches = 0
        while session.run(step) < made.num_train_steps:
            rows = slice(3 * (batches % 8), 3 * (batches % 8) + 3)
            session.run(train, {x: X[rows], y: Y[rows]})
            batches += 1
        found = session.run(kernel)
    assert batches * 3 == 1.5 * 96
    wanted = KERNEL.astype("float64")
    for update in range(6):
        wanted = wanted - 0.05 * (1 - update / 6.0) * 2.0 * X.T.dot(X.dot(wanted) - Y) / Y.size
    np.testing.assert_allclose(found, wanted, rtol=0, atol=4e-6)


def test_loops_like_tftrainer(home):
    train_steps_only(home)
    tf, model = home.tf, started(home.keras)
    ((_, new),) = sides("Loops like")

    def gradients_of(features, labels):
        with tf.GradientTape() as tape:
            losses = tf.reduce_mean(tf.square(model(features) - labels), axis=-1)
            loss = tf.reduce_sum(losses) / 32.0
        return tape.gradient(loss, model.trainable_variables)

    batches = [(IMAGES[i : i + 4], TARGETS[i : i + 4]) for i in range(0, 96, 4)]
    optimizer = home.keras.optimizers.SGD(0.5)
    made = dict(tf=tf, legacyga=legacyga, model=model, batches=batches, gradients_of=gradients_of)
    made = make(new, optimizer=optimizer, max_grad_norm=0.1, **made)
    assert int(home.value(optimizer.iterations)) == 3 and int(made.gradient_accumulator.step) == 0
    sgd, wanted, clipped = oracle.SGD(0.5), oracle.double(START), 0
    for i in range(0, 96, 32):
        found = oracle.gradients(wanted, IMAGES[i : i + 32], TARGETS[i : i + 32])
        clipped += sum((np.abs(each) > 0.1).sum() for each in found)
        wanted = sgd.update(wanted, [np.clip(each, -0.1, 0.1) for each in found])
    assert clipped
    assert distance(model.get_weights(), wanted) < 4e-6


def two_towers(home, code):
    home.reset()
    tf, keras = home.tf, home.keras
    towers = [started(keras), started(keras)]
    inputs = keras.layers.Input((6,))
    halves = [keras.layers.Dense(3, trainable=False, use_bias=False)(inputs) for _ in towers]
    joined = keras.layers.Concatenate()([tower(half) for tower, half in zip(towers, halves)])
    model = keras.models.Model(inputs, joined)
    model.layers[1].set_weights([np.eye(6, 3)])
    model.layers[2].set_weights([np.eye(6, 3, -3)])

    def contrastive_loss(_, found):
        one, other = tf.split(found, 2, axis=1)
        logits = tf.matmul(one, other, transpose_b=True)
        # In both directions. In one, the gradient of a bias is zero but for rounding, which Adam makes a whole step of.
        return sum(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.range(tf.shape(each)[0]), logits=each)
            for each in (logits, tf.transpose(logits))
        )

    names = dict(keras=keras, legacyga=legacyga, model=model, contrastive_loss=contrastive_loss, epochs=2)
    make(code, pairs=np.hstack([IMAGES[:256], IMAGES[:256] ** 2]), labels=np.zeros((256, 1), "float32"), **names)
    return [weight for tower in towers for weight in tower.get_weights()]


@pytest.mark.slow
def test_a_two_tower_model(home):
    train_steps_only(home)
    ((old, new),) = sides("A two-tower model")
    whole, slices = two_towers(home, old), two_towers(home, new)
    assert distance(whole, START + START) > 5e-3
    assert distance(slices, whole) < 1e-5
    # wrap on batches of 8 has another loss.
    wrapped = old.replace("keras.optimizers.Adam(1e-3)", "legacyga.wrap(keras.optimizers.Adam(1e-3), 8)")
    assert distance(two_towers(home, wrapped.replace("batch_size=64", "batch_size=8")), whole) > 1e-3


def dcgan(home, code):
    """As in TensorFlow's tutorial: both gradients, then both updates."""
    home.reset()
    tf, keras = home.tf, home.keras
    made = make(code, tf=types.SimpleNamespace(keras=keras), legacyga=legacyga)
    generator, discriminator = started(keras), started(keras, 1)
    models = [generator, discriminator]
    discriminator.set_weights([0.5 * weight[::-1] for weight in discriminator.get_weights()])
    critic = keras.models.Sequential([keras.layers.Dense(3, use_bias=False, input_shape=(2,)), discriminator])
    critic.layers[0].set_weights([np.eye(2, 3)])
    for i in range(0, 512, made.BATCH_SIZE):
        noise, images = IMAGES[i : i + made.BATCH_SIZE], TARGETS[i : i + made.BATCH_SIZE]
        with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
            fake, real = critic(generator(noise)), critic(images)
            gen_loss = tf.reduce_mean(tf.square(fake - 1.0))
            disc_loss = tf.reduce_mean(tf.square(fake)) + tf.reduce_mean(tf.square(real - 1.0))
        taken = [gen_tape.gradient(gen_loss, generator.trainable_variables)]
        taken += [disc_tape.gradient(disc_loss, discriminator.trainable_variables)]
        for optimizer, found, model in zip([made.generator_optimizer, made.discriminator_optimizer], taken, models):
            optimizer.apply_gradients(zip(found, model.trainable_variables))
    return [weight for model in models for weight in model.get_weights()]


def test_a_gan_in_a_loop(home):
    train_steps_only(home)
    old, new = sides("A GAN")[0]
    large, small = dcgan(home, old), dcgan(home, new)
    assert distance(small, large) < 4e-6
    assert distance(dcgan(home, old.replace("256", "32")), large) > 1e-3


def fitted_gan(home, code):
    """As in Keras's example: the discriminator's update, and then the generator's gradients."""
    home.reset()
    tf, keras = home.tf, home.keras

    class GAN(keras.Model):
        def __init__(self):
            super(GAN, self).__init__()
            self.generator, self.discriminator = started(keras), started(keras, 1)
            self.widen = tf.constant(np.eye(2, 3, dtype="float32"))

        def compile(self, d_optimizer, g_optimizer):
            super(GAN, self).compile()
            self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

        def train_step(self, images):
            images = images[0] if isinstance(images, tuple) else images
            noise = tf.random.stateless_normal([tf.shape(images)[0], 3], [1, 2])
            fake = tf.matmul(self.generator(noise), self.widen)
            with tf.GradientTape() as tape:
                scores = self.discriminator(tf.concat([fake, images], 0))
                halves = tf.split(scores, 2)
                d_loss = tf.reduce_mean(tf.square(halves[0])) + tf.reduce_mean(tf.square(halves[1] - 1.0))
            variables = self.discriminator.trainable_variables
            self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, variables), variables))
            with tf.GradientTape() as tape:
                fake = tf.matmul(self.generator(noise), self.widen)
                g_loss = tf.reduce_mean(tf.square(self.discriminator(fake) - 1.0))
            variables = self.generator.trainable_variables
            self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, variables), variables))
            return {"d_loss": d_loss, "g_loss": g_loss}

    gan = GAN()
    gan.built = True
    optimizers = [home.keras.optimizers.SGD(0.1) for _ in range(2)]
    names = dict(zip(("d_optimizer", "g_optimizer"), optimizers), gan=gan, legacyga=legacyga)
    make(code, images=IMAGES[:256], epochs=2, **names)
    return gan.generator.get_weights() + gan.discriminator.get_weights()


def test_a_gan_in_fit(home):
    train_steps_only(home)
    if home.tf_version < (2, 4):
        skips.keras_lacks("models within a model, by name")
    old, new = sides("A GAN")[1]
    whole, slices = fitted_gan(home, old), fitted_gan(home, new)
    assert distance(whole[:4], START) > 1e-2
    assert distance(slices, whole) < 4e-6
