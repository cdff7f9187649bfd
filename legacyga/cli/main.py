"""Parse the arguments of `python -m legacyga`, and run the command that they name."""

import argparse

from legacyga.cli import demo, doctor
from legacyga.cli.homes_here import HOMES
from legacyga.cli.versions import show_versions


def _positive(text):
    value = int(text) if text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError("must be an integer of at least 1. Received: {}".format(text))
    return value


def _add_shared_options(parser, steps, default):
    parser.add_argument("--home", choices=HOMES, help="your Keras (default: {})".format(default))
    told_of_mode = "the mode to train in, if your Keras has both here (default: the mode in which it starts)"
    parser.add_argument("--mode", choices=("graph", "eager"), help=told_of_mode)
    told_of_steps = "the number of micro-batches (small batches) per update (default: {})".format(steps)
    parser.add_argument("--steps", type=_positive, default=steps, metavar="K", help=told_of_steps)


def _parser():
    parser = argparse.ArgumentParser("python -m legacyga", description="Gradient accumulation for Keras, old and new.")
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.required = True  # add_subparsers of Python 3.6 does not take this as an argument

    demo_parser = commands.add_parser(
        "demo",
        help="train on real data with and without accumulation, and compare",
        description="Train a small convolutional network on scikit-learn's digits in four ways (micro-batches of 8; "
        "micro-batches of 8 with accumulation; large batches in slices of 8; large batches), print a table and draw "
        "the loss. Exit codes: 0 accumulation, slices and the large batches agree to float32 rounding, 1 they do not, "
        "2 the demo could not run.",
    )
    _add_shared_options(demo_parser, 8, "the first that works here of standalone Keras, tf_keras and tf.keras")
    demo_parser.add_argument("--epochs", type=_positive, default=5, help="passes over the training images (default: 5)")
    demo_parser.add_argument(
        "--out", default="legacyga-demo.png", help="the picture's path (default: legacyga-demo.png)"
    )
    # The demo passes these to its processes.
    demo_parser.add_argument("--way", help=argparse.SUPPRESS)
    demo_parser.add_argument("--results", help=argparse.SUPPRESS)

    doctor_parser = commands.add_parser(
        "doctor",
        help="check whether accumulation is exact with your optimizer, your TensorFlow and your Keras",
        description="Train a small dense network in ways that must give the same weights, and print how far apart they "
        "are. Exit codes: 0 all results are exact to float32 rounding, 1 one is not, 2 the doctor could not find out.",
    )
    doctor_parser.add_argument(
        "--optimizer",
        default="mysgd",
        help="mysgd, a name that your Keras knows (adam), or module:object for your own: an optimizer, its class, or a "
        "function without arguments that makes one (default: mysgd)",
    )
    _add_shared_options(
        doctor_parser,
        4,
        "the Keras of your own optimizer; for any other optimizer, each Keras that works here, in turn",
    )
    told_of_json = "write the results to this file as JSON, too; with -, to standard output, and the report to stderr"
    doctor_parser.add_argument("--json", metavar="FILE", help=told_of_json)

    commands.add_parser("versions", help="print the versions that a bug report needs")
    return parser


def main(arguments=None):
    """Run the command that `arguments` (default: the process's own) name, and return its exit code."""
    options = _parser().parse_args(arguments)
    if options.command == "versions":
        show_versions()
        return 0
    if options.command == "doctor":
        return doctor.run(options.optimizer, options.steps, options.home, options.mode, options.json)
    if options.way:
        return demo.train_one_way(
            options.way, options.home, options.mode, options.steps, options.epochs, options.results
        )
    return demo.run(options.home, options.steps, options.epochs, options.out, options.mode)
