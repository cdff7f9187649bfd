"""The pages in `docs/`, and those beside it, read without TensorFlow: marks of code, links, and the errors they quote.

`test_docs.py` runs the code.
"""

import ast
import os
import re

import environments
import givens
import pages
import pytest

pytestmark = pytest.mark.capability("house")

PACKAGE = os.path.join(pages.ROOT, "legacyga")
LINKED = pages.names() + ["compat_matrix.md", "CONTRIBUTING.md", "CHANGELOG.md"]


# ------------------------------------------------------------------------------------------------------ the blocks


@pytest.mark.parametrize("name", pages.names())
def test_every_block_of_code_says_where_it_runs(name):
    found = pages.blocks(name)
    for block in found:
        if not block.is_code:
            continue
        assert block.mark is not None, "{} has no mark: see tests/pages.py".format(block.id)
        if "run by" in block.mark:
            with open(os.path.join(pages.ROOT, "tests", block.mark["run by"]), encoding="utf-8") as file:
                assert os.path.basename(name) in file.read(), block.id
            continue
        assert block.homes, "{} names no home".format(block.id)
        # That it runs is not enough.
        program = [each for each in found if each.is_code and each.root is block.root]
        assert any("given" in each.mark or each.expected or "assert " in each.source for each in program), block.id
        if "given" in block.mark:
            assert hasattr(givens, block.mark["given"]), block.id


@pytest.mark.parametrize("name", pages.names())
def test_what_is_printed_stands_below_what_prints_it(name):
    found = pages.blocks(name)
    printed = [block for block in found if block.language == "text"]
    assert len(printed) == sum(block.expected is not None for block in found)


@pytest.mark.parametrize("label", sorted(pages.RUNS))
def test_every_home_of_the_blocks_is_run_by_the_matrix(label):
    core = environments.runs_of_the_core()
    assert pages.RUNS[label] in core, "RUNS in tests/pages.py has {!r}: {}. The core has {}".format(
        label, pages.RUNS[label], sorted(core)
    )


def test_a_page_as_the_tests_read_it():
    text = (
        "<!-- homes: keras2, tf1; name: one -->\n\n```python\nimport keras\nprint(1)\n```\n\n```text\n1\n```\n"
        "<!-- after: one -->\n```diff\n a\n-b\n+c\n```\n\nWords.\n\n```text\n2\n```\n```python\nd\n```\n"
    )
    one, printed, two, _, three = pages.blocks("page.md", text)
    assert one.homes == two.homes == ["keras2", "tf1"] and two.root is one and three.mark is None
    assert (one.line, one.expected, two.expected, printed.language) == (4, "1\n", None, "text")
    assert one.source_for("tf1") == "from tensorflow import keras\nprint(1)\n" and two.source == "a\nc\n"
    for wrong, told in (
        ("<!-- homes: keras4 -->\n```python\n```\n", "names a home"),
        ("<!-- after: two -->\n```python\n```\n", "no block above"),
        ("<!-- house: tf1 -->\n```python\n```\n", "no mark"),
    ):
        with pytest.raises(ValueError, match=told):
            pages.blocks("page.md", wrong)


@pytest.mark.parametrize("name", LINKED)
def test_the_programs_that_are_named_exist(name):
    for path in re.findall(r"python ((?:examples|benchmarks|tests)/\S+?\.py)", pages.read(name)):
        assert os.path.exists(os.path.join(pages.ROOT, path)), path


# -------------------------------------------------------------------------------------------------------- the links


@pytest.mark.parametrize("name", LINKED)
def test_links_lead_somewhere(name):
    folder = os.path.dirname(os.path.join(pages.ROOT, name))
    for link in pages.links(pages.read(name)):
        if re.match(r"https://[\w.-]+/\S+$", link):
            continue
        assert "://" not in link and not link.startswith("/"), link
        path, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(folder, path)) if path else os.path.join(pages.ROOT, name)
        assert os.path.exists(target), "{} links to {}".format(name, link)
        if anchor:
            target = os.path.relpath(target, pages.ROOT)
            assert anchor in pages.anchors(pages.read(target)), "{} links to {}".format(name, link)


def test_the_links_and_anchors_of_a_page():
    text = (
        "# One `two` [three](four.md#five)\n\n## Same\n\n## Same\n\n[a](b.md) ![c](d.png) `[e](f.md)`\n"
        "```\n[g](h.md)\n# no heading\n```\n<!-- [i](j.md) -->\n[k]: l.md\n"
    )
    assert pages.links(text) == ["four.md#five", "b.md", "d.png", "l.md"]
    assert pages.anchors(text) == ["one-two-three", "same", "same-1"]


def test_every_page_is_in_the_sites_menu():
    """And nothing else is. `mkdocs build --strict` says so too, where mkdocs is installed."""
    menu = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", pages.read("mkdocs.yml"), re.M)
    outside = set(re.findall(r'^    "(\S+)": "(\S+)",$', pages.read("mkdocs_hooks.py"), re.M))
    assert len(menu) == len(set(menu)) and len(outside) == 4
    in_docs = {name[len("docs/") :] for name in pages.names() if name.startswith("docs/")}
    assert set(menu) == in_docs | {page for _, page in outside}


def test_the_reference_has_every_public_name():
    stub = ast.parse(pages.read("legacyga/__init__.pyi"))
    (public,) = [ast.literal_eval(node.value) for node in stub.body if isinstance(node, ast.Assign)]
    said = re.findall(r"^::: (\S+)$", pages.read("docs/reference.md"), re.M)
    wanted = ["legacyga." + name for name in public if name != "__version__"]
    assert sorted(said) == sorted(wanted + ["legacyga.optimizers.surface.AccumulatingOptimizer"])


# ------------------------------------------------------------------------------------------------------- the errors

# Texts of five words and more that are no errors and no warnings.
NO_MESSAGES = [
    "… with gradient accumulation. …",  # a class's docstring
    "Place … of the gradients",  # in an error's text
    "If lists take turns, give all variables each time",  # in a warning's text
    "Keras's LossScaleOptimizer leaves out the variables",  # in the same
    "<legacyga: … of …, accumulating … steps>",  # a repr
    # Within an error's and a warning's text: why a loss is not known to be a mean over the samples.
    "the loss …",
    "the number … of add_loss",
    "a compute_loss of the model's own",
    "a train_step of the model's own",
    "a __call__ or an activity_regularizer of the model's own",
    "an output with a mask, by which the loss is divided",
    "targets of shape …, which are broadcast to outputs of another rank",
    "an activity_regularizer, which is a sum over the batch",
    "sample weights for ",
    "sample weights, by whose sum ",
    "what add_loss is given, which has a number for each sample",
    "…, one number for a whole batch, and sample weights or masks",
]
# Errors that only a change of Keras itself, or a program that hands the package's own parts around, brings about.
INTERNAL = [
    "… has a Callback of no Keras: …",
    "… keeps no get_updates optimizers in …",
    "This is no config of an optimizer that legacyga.wrap returned.",
]


def messages():
    """Every text of the package that a user may be told, with … for what is filled in."""
    for folder, _, names in os.walk(PACKAGE):
        for name in sorted(names):
            if name.endswith(".py"):
                for text in texts(os.path.join(folder, name), os.path.basename(folder) == "cli"):
                    # "{}" and "{0!r}", not "{{".
                    filled = re.sub(r"(?<!\{)\{[^{} ]*\}", "…", text).replace("{{", "{").replace("}}", "}")
                    if not any(filled.startswith(each) for each in NO_MESSAGES):
                        yield filled


def texts(path, raised_alone):
    """The strings of five words and more of a file, without docstrings. Of the command line those that are raised."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    docstrings = [
        getattr(node, "body", [None])[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.AST) and isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body
    ]
    left_out = {id(node.value) for node in docstrings if isinstance(node, ast.Expr)}
    # Those of a namedtuple are put into its __doc__.
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    left_out |= {id(node.value) for node in assigned if getattr(node.targets[0], "attr", "") == "__doc__"}
    roots = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)] if raised_alone else [tree]
    for node in [each for root in roots for each in ast.walk(root)]:
        # Before Python 3.8 a string is an ast.Str.
        text = getattr(node, "s", None) if type(node).__name__ == "Str" else getattr(node, "value", None)
        if type(node).__name__ in ("Str", "Constant") and isinstance(text, str) and id(node) not in left_out:
            if len(text.split()) >= 5:
                yield text


def quoted():
    """The errors that the page of errors has as headings."""
    return re.findall(r"^### `(.+)`$", pages.read("docs/troubleshooting.md"), re.M)


def test_every_error_on_the_page_is_one_of_the_package():
    known = list(messages())
    assert len(quoted()) == len(set(quoted())) > 50
    for quote in quoted():
        assert any(quote in message for message in known), "no error says: {}".format(quote)


def test_every_error_of_the_package_is_on_the_page():
    quotes = quoted()
    for message in messages():
        assert any(each in message for each in quotes + INTERNAL), "docs/troubleshooting.md lacks: {}".format(message)
    for each in INTERNAL:
        assert any(each in message for message in messages()), each
