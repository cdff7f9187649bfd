"""What mkdocs is told beside mkdocs.yml: what it has from outside of `docs/`, and that a page loads nothing.

README.md, compat_matrix.md, CHANGELOG.md and CONTRIBUTING.md are shown where they are, on the package index and in the
repository, and are pages of the site too. A link to one, or from one to `docs/`, holds in all of these places.
"""

import glob
import os
import re

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = os.path.dirname(os.path.abspath(__file__))
# {file: page of the site}.
OUTSIDE = {
    "README.md": "readme.md",
    "compat_matrix.md": "compat_matrix.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
# {part of the menu: how much a search prefers its pages}, for whoever types "Adam" wants to use it.
BOOSTS = {"Quick start": 2, "User guide": 2, "Reference": 2, "The project": 0.25}
# {what the reference would show of a signature: what users know}.
RETURNED = '<a href="#an-optimizer-that-accumulates">AccumulatingOptimizer</a>'
KNOWN = {"_Accumulating": RETURNED, "_LR": "0.01", "_STEPS": "2"}
# What a browser loads by itself, as a link is not.
LOADS = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\ssrc=\"?(https?:)?//|<link\b[^>]*\shref=\"?(https?:)?//", re.I
)


def on_files(files, config):
    for name, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=os.path.join(ROOT, name)))
    # To be taken from the site; the repository's pages show them.
    for path in glob.glob(os.path.join(ROOT, "notebooks", "*.ipynb")):
        files.append(File.generated(config, "notebooks/" + os.path.basename(path), abs_src_path=path))
    return files


def on_page_markdown(markdown, page, config, files):
    part = (page.parent or page).title
    if part in BOOSTS:
        page.meta["search"] = {"boost": BOOSTS[part]}
    if page.file.src_uri == OUTSIDE["compat_matrix.md"]:
        # Every word of its tables stands in every row.
        page.meta["search"] = {"exclude": True}
        # Notes: "yes [1] [3]" is no link.
        markdown = re.sub(r"^\|.*", lambda row: re.sub(r"\[(\d+)\]", r"\\[\1]", row.group()), markdown, flags=re.M)
    if page.file.src_uri in OUTSIDE.values():
        return re.sub(r"\]\(docs/", "](", _to_pages(markdown, ""))
    return _to_pages(markdown, "../").replace("../notebooks/", "notebooks/")


def on_page_content(html, page, config, files):
    return re.sub(r"(?<=>)(_\w+)(?=<)", lambda name: KNOWN.get(name.group(), name.group()), html)


def _to_pages(markdown, up):
    for name, page in OUTSIDE.items():
        # A page in a folder of `docs/` has one more "../" on both sides.
        markdown = re.sub(r"\]\(((?:\.\./)*){}{}([#)])".format(up, re.escape(name)), r"](\1{}\2".format(page), markdown)
    return markdown


def on_post_page(output, page, config):
    found = LOADS.search(output)
    if found:
        raise PluginError("{} loads something from elsewhere: {}".format(page.file.src_uri, found.group(0)))
    # By this mark of the repository's link a browser would ask its host for stars.
    return output.replace(' data-md-component="source"', "")
