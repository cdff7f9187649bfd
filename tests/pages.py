"""The pages in `docs/` and the README, as the tests read them: blocks of code, headings and links. No TensorFlow.

A block of Python, or a diff of one, has a mark: an HTML comment on the line above it, or with one empty line between.

    <!-- homes: keras2, tf1; name: project -->      runs in these homes, and is called `project`
    <!-- after: project -->                         goes on where that block of the same page ended, in its homes
    <!-- homes: tf2; given: a_loop -->              is no program: `a_loop` of givens.py sets it up and checks it
    <!-- homes: tf2; alone -->                      runs in a process of its own
    <!-- homes: tf2; workers -->                    runs in two, the workers of a MultiWorkerMirroredStrategy
    <!-- run by: test_horovod.py -->                that test takes it from the page and runs it

Of a diff the new side is run. A line that imports a home's Keras (`IMPORTS`) stands for the same line of the home that
runs it. A block of `text` right after a block is what that one prints, with `...` for whatever it may be.
"""

import glob
import os
import re
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Where a home's blocks are run: its name, mode and TensorFlow in conftest.py's words.
RUNS = {
    "keras2": ("keras", "graph", "1.13"),
    "tf1": ("tf.keras", "graph", "1.15"),
    "tf2": ("tf.keras", "eager", "2.15"),
    "tf2-graph": ("tf.keras", "graph", "2.15"),
    "tf_keras": ("tf_keras", "eager", "2.21"),
    "keras3": ("keras", "eager", "2.21"),
}
IMPORTS = {"keras2": "import keras", "keras3": "import keras", "tf_keras": "import tf_keras as keras"}
IMPORTS.update(dict.fromkeys(["tf1", "tf2", "tf2-graph"], "from tensorflow import keras"))

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n`]*\n(?P<source>.*?)^(?P=indent)```$", re.M | re.S)
_MARK = re.compile(r"<!-- ([^\n]+?) -->\n\n?\Z")
_KEYS = {"homes", "name", "after", "given", "alone", "workers", "run by"}


class Block(object):
    """A block of code of a page.

    page, line: where it stands: a path relative to `ROOT`, and the number of its first line of code.
    language: of the fence, "" where there is none.
    source: the code; of a diff its new side.
    mark: {key: value} of its mark, None where there is none.
    homes: those that it runs in; of one that goes on after another, the first one's.
    expected: what it prints, None where the page does not say.
    """

    def __init__(self, page, line, language, source, mark):
        self.page, self.line, self.language, self.source, self.mark = page, line, language, source, mark
        self.homes, self.expected, self.root = [], None, self
        self.id, self.is_code = "{}:{}".format(page, line), language in ("python", "py", "diff")

    @property
    def is_alone(self):
        """Whether it needs processes of its own."""
        return bool({"alone", "workers"} & set(self.root.mark))

    def source_for(self, label):
        """The code as the home's project has it."""
        lines = self.source.splitlines()
        return "\n".join(IMPORTS[label] if line.strip() in IMPORTS.values() else line for line in lines) + "\n"


def names():
    """The pages with code and links, relative to `ROOT`."""
    found = glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True) + [os.path.join(ROOT, "README.md")]
    return sorted(os.path.relpath(path, ROOT).replace(os.sep, "/") for path in found)


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def parse_mark(text):
    """The dict of a mark's text. A ValueError where it is none."""
    parts = [part.partition(":") for part in text.split(";")]
    found = {key.strip(): value.strip() for key, _, value in parts}
    if set(found) - _KEYS or len(found) < len(parts):
        raise ValueError("{!r} is no mark of a block. Known are {}".format(text, ", ".join(sorted(_KEYS))))
    return found


def blocks(name, text=None):
    """Every block of a page, in order. A ValueError where a mark is wrong."""
    text = read(name) if text is None else text
    found, named, ended = [], {}, 0
    for match in _FENCE.finditer(text):
        above = text[: match.start()]
        source, marked = textwrap.dedent(match.group("source")), _MARK.search(above)
        if match.group("language") == "diff":
            source = "".join(each[1:] for each in source.splitlines(True) if each[:1] in (" ", "+"))
        mark = marked and parse_mark(marked.group(1))
        block = Block(name, above.count("\n") + 2, match.group("language"), source, mark)
        _link(block, mark or {}, named)
        if block.language == "text" and found and found[-1].is_code and not text[ended : match.start()].strip():
            found[-1].expected = match.group("source")
        ended = match.end()
        found.append(block)
    return found


def _link(block, mark, named):
    """Find where a block that goes on after another began, and its homes. `named` are those above it."""
    if "after" in mark:
        if mark["after"] not in named:
            raise ValueError("{} goes on after {!r}, which is no block above it".format(block.id, mark["after"]))
        block.root = named[mark["after"]].root
        block.homes = block.root.homes
    if "homes" in mark:
        block.homes = [each.strip() for each in mark["homes"].split(",")]
        if set(block.homes) - set(RUNS):
            raise ValueError("{} names a home that is none of {}".format(block.id, ", ".join(sorted(RUNS))))
    if named.setdefault(mark.get("name", block.id), block) is not block:
        raise ValueError("{} has the name of a block above it".format(block.id))


def to_run():
    """Every block that a home runs, of all pages."""
    return [block for name in names() for block in blocks(name) if block.is_code and block.homes]


def _without_blocks(text):
    return re.sub(r"<!--.*?-->", "", _FENCE.sub("", text), flags=re.S)


def links(text):
    """The targets of a page's links and pictures, but for those in code and comments."""
    text = re.sub(r"`[^`\n]*`", "", _without_blocks(text))
    found = re.findall(r"\]\(\s*<?([^)\s>]+)", text) + re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, re.M)
    return found + re.findall(r"(?:href|src)=\"([^\"]+)\"", text)


def anchors(text):
    """The anchors of a page's headings, as GitHub and the site make them."""
    text, found = _without_blocks(text), []
    for heading in re.findall(r"^#{1,6} +(.+?)\s*#*$", text, re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        number = sum(each == slug or re.match(re.escape(slug) + r"-\d+$", each) is not None for each in found)
        found.append("{}-{}".format(slug, number) if number else slug)
    return found + re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text)
