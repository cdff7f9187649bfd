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
    if page.file.src_uri == OUTSIDE["compat_matrix.md"]:
        # Notes: "yes [1] [3]" is no link.
        markdown = re.sub(r"^\|.*", lambda row: re.sub(r"\[(\d+)\]", r"\\[\1]", row.group()), markdown, flags=re.M)
    if page.file.src_uri in OUTSIDE.values():
        return re.sub(r"\]\(docs/", "](", _to_pages(markdown, ""))
    return _to_pages(markdown, "../").replace("../notebooks/", "notebooks/")


def _to_pages(markdown, up):
    for name, page in OUTSIDE.items():
        # A page in a folder of `docs/` has one more "../" on both sides.
        markdown = re.sub(r"\]\(((?:\.\./)*){}{}([#)])".format(up, re.escape(name)), r"](\1{}\2".format(page), markdown)
    return markdown


def on_post_page(output, page, config):
    found = LOADS.search(output)
    if found:
        raise PluginError("{} loads something from elsewhere: {}".format(page.file.src_uri, found.group(0)))
    return output
