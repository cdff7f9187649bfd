"""What stands around the package, read from its files: the workflow, the change log, the README's links."""

import base64
import json
import os
import re
import runpy
import sys
import types

import environments
import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
pytestmark = pytest.mark.capability("house")
WORKFLOW = os.path.join(".github", "workflows", "tests.yml")


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


@pytest.fixture(scope="module")
def jobs():
    # The environments of lint have it; those of the matrix do not run this.
    import yaml

    return yaml.safe_load(read(WORKFLOW))["jobs"]


def test_the_workflow_runs_the_core_each_environment_in_its_python(jobs):
    found = {each["env"]: each["python"] for each in jobs["core"]["strategy"]["matrix"]["include"]}
    assert len(found) == len(jobs["core"]["strategy"]["matrix"]["include"])
    assert sorted(found) == sorted(environments.labels()["core"])
    for env, python in found.items():
        factor = env.split("-")[0]
        # Those of the newest TensorFlow name none: they take the newest that there is.
        assert python == (factor[2] + "." + factor[3:] if factor.startswith("py") else environments.NEWEST_PYTHON), env


def test_the_workflow_takes_actions_by_their_major_versions(jobs):
    uses = [step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step]
    assert len(uses) >= 7
    for each in uses:
        assert re.match(r"[\w.-]+/[\w.-]+@v\d+$", each), each
    assert jobs["matrix"]["needs"] == "core"


def test_the_workflow_calls_what_there_is(jobs):
    commands = "\n".join(step["run"] for job in jobs.values() for step in job["steps"] if "run" in step)
    files = re.findall(r"python (\S+\.py)", commands)
    assert len(files) == 2
    for path in files:
        assert os.path.exists(os.path.join(ROOT, path)), path
    options = {option for line in commands.splitlines() if ".py " in line for option in re.findall(r" (--\w+)", line)}
    assert options == {"--results", "--counts", "--check"}
    for option in options:
        assert '"{}"'.format(option) in read("tests", "compat_matrix.py"), option
    # What a run writes is what is kept of it.
    (kept,) = [step["with"]["path"] for step in jobs["core"]["steps"] if "path" in step.get("with", {})]
    assert kept == ".tox/results"
    assert '".tox", "results"' in read("tests", "run_homes.py")


# Those of Keep a Changelog, in its order.
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def test_the_change_log_has_a_version_at_its_head_and_kinds_under_each():
    lines = read("CHANGELOG.md").splitlines()
    assert lines[0] == "# Changelog"
    heads = [line for line in lines[1:] if line.startswith("#")]
    versions = [line for line in heads if line.startswith("## ")]
    for i, line in enumerate(versions):
        pattern = r"## \[(Unreleased|\d+\.\d+\.\d+)\]( - \d{4}-\d\d-\d\d)?$"
        found = re.match(pattern, line)
        assert found, line
        assert (found.group(1) == "Unreleased") == (found.group(2) is None), line
        assert found.group(1) != "Unreleased" or i == 0
    numbers = re.findall(r"\[(\d[\d.]*)\]", "\n".join(versions))
    version = re.search('"(.+)"', read("legacyga", "_version.py")).group(1)
    # A version is either to come, and then no head is of it, or the newest that there is.
    assert numbers[:1] == [version] or (version not in numbers and versions[0] == "## [Unreleased]")
    for part in "\n".join(lines).split("\n## ")[1:]:
        kinds = re.findall(r"^### (.+)$", part, re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds] and kinds
        for line in part.splitlines()[1:]:
            assert re.match(r"(### |- |  \S|$)", line), line


def test_the_readmes_links_and_pictures_are_files_of_the_repository():
    """An index of packages shows the README alone, with paths in their place: see test_distributions.py."""
    links = re.findall(r"\]\((?!https://)([^)#]+)", read("README.md"))
    assert len(set(links)) >= 10
    for link in links:
        assert os.path.exists(os.path.join(ROOT, link)), link


def test_the_citation_is_of_this_version():
    version = re.search('"(.+)"', read("legacyga", "_version.py")).group(1)
    assert re.findall("^version: (.+)$", read("CITATION.cff"), re.MULTILINE) == [version]
    # There is no address to name yet.
    assert "://" not in read("CITATION.cff")


def test_the_command_that_a_report_asks_for_exists(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from legacyga.cli import main

    asked = re.findall("`python -m legacyga (.+)`", read(".github", "ISSUE_TEMPLATE", "bug.yml"))
    assert asked == ["doctor --json -"]
    options = main._parser().parse_args(asked[0].split())
    assert (options.command, options.json) == ("doctor", "-")


@pytest.mark.parametrize("repository", [None, "https://example.org/us/legacyga/"])
def test_the_addresses_of_a_project_are_those_of_its_repository(repository, monkeypatch):
    given, named = {}, types.ModuleType("setuptools")
    named.setup = given.update
    monkeypatch.setitem(sys.modules, "setuptools", named)
    monkeypatch.delenv("LEGACYGA_REPOSITORY", raising=False)
    if repository:
        monkeypatch.setenv("LEGACYGA_REPOSITORY", repository)
    runpy.run_path(os.path.join(ROOT, "setup.py"))
    found = given["project_urls"]
    assert sorted(found) == (["Changelog", "Issues", "Source"] if repository else [])
    for address in found.values():
        assert address.startswith("https://example.org/us/legacyga") and "//" not in address[len("https://") :]


@pytest.mark.parametrize("name", ["fit.ipynb", "old_keras.ipynb", "slices.ipynb"])
def test_a_notebook_has_stored_what_its_cells_print_and_draw(name):
    """On the repository's pages it is shown as it is stored. `test_notebooks.py` runs it, and compares."""
    text = read("notebooks", name)
    assert len(text) < 200000
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert 4 <= len(cells) <= 8
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} == {"stream", "display_data"}
    drawn = [base64.b64decode(output["data"]["image/png"]) for output in outputs if "data" in output]
    assert drawn and all(each[:4] == b"\x89PNG" and len(each) > 10000 for each in drawn)
    printed = "".join("".join(output.get("text", "")) for output in outputs)
    exact = re.findall(r"^distance of (?:K = 8|slices of 32) from batches of \d+: (\S+)$", printed, re.MULTILINE)
    assert exact and all(0 < float(each) < 1e-6 for each in exact), printed
