"""The command line: `python -m legacyga demo` and `python -m legacyga versions`."""

import argparse
import sys


def _positive(text):
    value = int(text) if text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError("must be an integer of at least 1. Received: {}".format(text))
    return value


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m legacyga", description="Gradient accumulation for Keras, old and new."
    )
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.required = True  # not an argument of add_subparsers in Python 3.6

    demo = commands.add_parser(
        "demo",
        help="train on real data with and without accumulation, and compare",
        description="Train a small convolutional network on scikit-learn's digits three ways (micro-batches of 8; the "
        "same with accumulation; one large batch), print a table and draw the loss. Exit codes: 0 accumulation and "
        "the large batch agree to float32 rounding, 1 they do not, 2 the demo could not be run.",
    )
    demo.add_argument(
        "--home",
        choices=("keras", "tf.keras", "tf_keras"),
        help="the Keras to train with (default: the first that works)",
    )
    demo.add_argument("--steps", type=_positive, default=8, metavar="K", help="micro-batches of an update (default: 8)")
    demo.add_argument("--epochs", type=_positive, default=5, help="passes over the training images (default: 5)")
    demo.add_argument("--out", default="legacyga-demo.png", help="the picture's path (default: legacyga-demo.png)")
    demo.add_argument("--mode", choices=("graph", "eager"), help="where a home has both (default: what it starts in)")
    # What the three processes of a demo are started with.
    demo.add_argument("--way", help=argparse.SUPPRESS)
    demo.add_argument("--results", help=argparse.SUPPRESS)

    commands.add_parser("versions", help="print what a bug report needs to know")
    return parser


def main(arguments=None):
    """Run one command.

    Args:
        arguments: list of strings. Default: those of the command line.

    Returns:
        The exit code, an int.

    Raises:
        SystemExit: the arguments are wrong (code 2), or help was asked for.
    """
    options = _parser().parse_args(arguments)
    if options.command == "versions":
        from legacyga.versions import show_versions

        show_versions()
        return 0
    from legacyga import demo

    if options.way:
        return demo.train_one_way(
            options.way, options.home, options.mode, options.steps, options.epochs, options.results
        )
    return demo.run(options.home, options.steps, options.epochs, options.out, options.mode)


if __name__ == "__main__":
    sys.exit(main())
