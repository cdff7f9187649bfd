"""Sets up the weights of a fit's batches, and warns if they get none."""

from legacyga.backend import features, homes
from legacyga.backend.messages import shown, warn
from legacyga.fit import model_step
from legacyga.optimizers import lookup, surface
from legacyga.slices import checks, losses

UNKNOWN = "The loss is no sum over a batch that is divided by a count, such as the number of samples."
OWN_STEP = "The model has a train_step of its own, which may call legacyga.train_step."
SEVERAL = "The model has several optimizers, and nothing counts the samples for each of them."
UNTOLD = "Keras does not tell an optimizer here how many samples a batch has."
ONE_NUMBER = (
    "The loss {} is one number for a whole batch. With sample_weight or class_weight {} multiplies it by the mean of "
    "the batch's weights. If these means differ within a window, its result differs from the large batch's. Let the "
    "loss return a number for each sample. Without sample_weight and class_weight nothing is wrong."
)


def start_fit(model, optimizers):
    """At the start of a fit, return the `TrainStep` that weights its batches by samples; None if that is impossible."""
    # In a loop of the program's own, a model of Keras 3 that is not compiled has no `optimizer`.
    compiled = lookup.optimizers_in(getattr(model, "optimizer", None))
    if not model_step.samples_are_counted(optimizers) or compiled != optimizers:
        return None
    if homes.home_of(model.optimizer) is None:
        # A list of optimizers, as WideDeepModel takes.
        return None
    if surface.home_of(optimizers[0]).graph_mode:
        _say_unequal(homes.home_of(model.optimizer), model, surface.accumulation_of(optimizers[0]))
        return None
    # A user's own train_step is left alone: it may call the optimizer any number of times per batch.
    has_step = model_step.keras_train_step(type(model)) is not None
    step = model_step.installed(model) if has_step else None
    if step is not None:
        step.count()
    return step


def say_unweighed(optimizers, reason):
    """Warn once per optimizer that all its mini-steps have equal weights, unless the program has set weights."""
    for optimizer in optimizers:
        accumulation = surface.accumulation_of(optimizer)
        is_mean = accumulation.settings.reduction == "mean"
        if is_mean and accumulation.steps.has_windows and not accumulation.weights.needs_no_warning:
            accumulation.weights.needs_no_warning = True
            warn(
                "All batches weigh alike, whatever their sizes. {} Batches of one size are exact as they are.".format(
                    reason
                )
            )


def _say_unequal(home, model, accumulation):
    """Warn once per optimizer, in graph mode, if masks or sample weights may leave a batch without an exact weight."""
    if accumulation.weights.has_warned or not accumulation.steps.has_windows:
        return
    masks = checks.dividing_masks(home, model)
    text = losses.UNEVEN.format(home) if len({id(each) for each in masks}) > 1 else None
    if not text and features.multiplies_one_number(home) and not accumulation.weights.knows_losses:
        accumulation.weights.knows_losses = True
        found = losses.loss_of_one_number_in_graph(model)
        text = None if found is None else ONE_NUMBER.format(shown(found), home)
    if text:
        accumulation.weights.has_warned = True
        warn(text)
