"""What stands around the package, read from its files: the workflow, the change log, the README's links."""

import os
import re

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
