"""A program of a user's with TensorFlow's own objects, for mypy alone, where TensorFlow and its types are installed."""

import tensorflow as tf

import legacyga


def program() -> float:
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    optimizer = legacyga.wrap(tf.keras.optimizers.Adam(1e-3), gradient_accumulation_steps=8)
    model.compile(optimizer=optimizer, loss="mse")
    model.compile(optimizer=legacyga.MySGD(steps_per_update=8), loss="mse")
    x = tf.zeros([4, 3])
    callback: tf.keras.callbacks.Callback = legacyga.GradientAccumulationCallback({0: 2})
    model.fit(x, x, callbacks=[callback])
    legacyga.micro_batch(model, 8)
    accumulator = legacyga.GradientAccumulator()
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x)))
    accumulator(tape.gradient(loss, model.trainable_variables), weight=tf.constant(2))
    optimizer.apply_gradients(zip(accumulator.gradients, model.trainable_variables))
    legacyga.wrap(optimizer, tf.constant(8))  # type: ignore[arg-type]
    # That TensorFlow has its types here.
    tf.keras.layers.Dense(units="three")  # type: ignore[arg-type]
    return float(loss)
