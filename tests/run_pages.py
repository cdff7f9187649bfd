"""Run blocks of the pages, each as its reader would: in a process that has imported nothing but what they import.

    python run_pages.py LABEL [PAGE:LINE]

LABEL is a home of pages.RUNS. All of its blocks are run in one process, but for those that are to be alone; with
PAGE:LINE that one. The last line is JSON: {page:line: {"printed": ..., "error": a traceback or ""}}.
"""

import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import traceback

import pages


def keras_of(label):
    """The Keras of the home, and no other: another that is imported changes what MySGD takes."""
    if label in ("keras2", "keras3", "tf_keras"):
        return importlib.import_module(label.rstrip("23"))
    return importlib.import_module("tensorflow").keras


def run_program(blocks, label, outcomes):
    """Run blocks that go on after each other, in one namespace and an empty folder."""
    namespace, checks = {"__name__": "__main__"}, iter([])
    os.chdir(tempfile.mkdtemp())
    failed = ""
    for number, block in enumerate(blocks):
        printed, error = io.StringIO(), failed and "not run, for {} failed".format(failed)
        if not error:
            try:
                with contextlib.redirect_stdout(printed):
                    if "given" in block.mark:
                        import givens

                        checks = getattr(givens, block.mark["given"])(keras_of(label))
                        # The generator's own dict: it finds there what the block makes.
                        namespace = next(checks)
                        namespace["__name__"] = "__main__"
                    # A file of its own, with the page's line numbers: AutoGraph reads a function's source.
                    path = os.path.abspath("block_{}.py".format(number))
                    source = "\n" * (block.line - 1) + block.source_for(label)
                    with open(path, "w", encoding="utf-8") as file:
                        file.write(source)
                    exec(compile(source, path, "exec"), namespace)
                    # What it asserts stands behind its yield.
                    next(checks, None)
            except BaseException:
                error, failed = traceback.format_exc(), block.id
        outcomes[block.id] = {"printed": printed.getvalue(), "error": error}


def main(label, only=None):
    outcomes = {}
    chosen = [block for block in pages.to_run() if label in block.homes]
    for root in [block for block in chosen if block.root is block]:
        if root.id == only or only is None and not root.is_alone:
            run_program([block for block in chosen if block.root is root], label, outcomes)
            if only is None:
                keras_of(label).backend.clear_session()
    print("\n" + json.dumps(outcomes))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main(*sys.argv[1:])
