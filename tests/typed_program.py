"""A program of a user's with types, for mypy alone: nothing runs it. What it expects to be an error is marked so."""

from typing import Any, Dict, List

import legacyga


def program(optimizer: Any, model: Any, gradients: List[Any]) -> Dict[str, Any]:
    accumulating = legacyga.wrap(optimizer, gradient_accumulation_steps=8, on_nonfinite="skip_window")
    accumulating.gradient_accumulation_steps = accumulating.gradient_accumulation_steps + 1
    with accumulating.mini_step_weight(3):
        accumulating.apply_gradients(zip(gradients, model.trainable_variables))
    accumulating.drop_windows()
    sgd = legacyga.MySGD(lr=0.1, momentum=0.9, steps_per_update=4, clipnorm=1.0)
    sgd.learning_rate = 0.5
    model.compile(sgd, "mse")
    legacyga.micro_batch(model, 8)
    legacyga.micro_batch(model, None)
    callback = legacyga.GradientAccumulationCallback({0: 2, 10: 8}, partial_window="carry")
    model.fit(callbacks=[callback, legacyga.GradientAccumulationCallback(lambda epoch: epoch + 1)])
    accumulator = legacyga.GradientAccumulator(reduction="sum")
    accumulator(gradients, weight=4)
    first = accumulator.gradients[0]
    accumulator.reset()
    legacyga.flush(sgd)
    loaded = legacyga.load_model("model.h5", custom_objects=dict(legacyga.custom_objects(), first=first), compile=True)
    legacyga.show_versions()
    version: str = legacyga.__version__
    legacyga.wrap(optimizer, "eight")  # type: ignore[arg-type]
    legacyga.MySGD(steps=4, momentum="much")  # type: ignore[arg-type]
    legacyga.no_such_thing()  # type: ignore[attr-defined]
    logs = legacyga.train_step(loaded, gradients, micro_batch_size=2)
    return dict(logs, version=version)
