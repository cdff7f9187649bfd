"""The blocks of code in `docs/` and in the README do what the pages say. tests/pages.py says how they are marked."""

import doctest
import json
import os

import homes
import pages
import pytest
import skips
import two_workers

import legacyga

BLOCKS = pages.to_run()
HERE = os.path.dirname(os.path.abspath(__file__))


def label_of(home):
    """The name of a home in the blocks' marks, None where no block runs in it."""
    if home.is_standalone_before(2, 1):
        # A Sequential of Keras 2.0 fits ten epochs where a page's program names none.
        return None
    here = (home.name, home.mode, "{}.{}".format(*home.tf_version))
    return {where: label for label, where in pages.RUNS.items()}.get(here)


def run(label, *only):
    # The legacyga of this process, be it installed or not.
    ours = os.path.dirname(os.path.dirname(os.path.abspath(legacyga.__file__)))
    printed = homes.run(os.path.join(HERE, "run_pages.py"), [label] + list(only), [ours] if ours == pages.ROOT else [])
    return json.loads(printed.splitlines()[-1])


@pytest.fixture(scope="session")
def outcomes(home):
    """{page:line: what became of the block} of all blocks of this home, but for those that run alone."""
    return run(label_of(home))


def on_workers(label, block, folder):
    """What the two workers print, and TensorFlow beside them."""
    program = folder.join("program.py")
    program.write(block.source_for(label))
    return two_workers.run(program, [], folder)


MARKED = [
    pytest.param(block, id=block.id, marks=pytest.mark.long(only=[pages.RUNS[label] for label in block.homes]))
    for block in BLOCKS
]


@pytest.mark.capability("demo and examples")
@pytest.mark.parametrize("block", MARKED)
def test_a_block_does_what_its_page_says(home, block, request, tmpdir):
    label = label_of(home)
    if label not in block.homes:
        # With --more nothing is left out by its mark.
        skips.elsewhere("the pages' programs are run in other environments of the matrix")
    if "workers" in block.mark:
        printed = on_workers(label, block, tmpdir)
        assert printed.count(block.expected) == 2, printed
        return
    found = (run(label, block.root.id) if block.is_alone else request.getfixturevalue("outcomes"))[block.id]
    assert not found["error"], "{}\n{}".format(found["printed"], found["error"])
    if block.expected is not None:
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        told = "{} is to print\n{}\nand prints\n{}".format(block.id, block.expected, found["printed"])
        assert doctest.OutputChecker().check_output(block.expected, found["printed"], flags), told
