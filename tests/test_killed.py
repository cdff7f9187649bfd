"""A training that is killed at any moment and resumed from its file ends with the bits of one that was not."""

import os
import re
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.mark.capability("R9 state")
@pytest.mark.parametrize("times", ["20", "full"])
@pytest.mark.long(only=[("keras", "graph", "1.13"), ("keras", "eager", "2.21")])
def test_stopped(home, times):
    """Twenty times by SIGKILL; by a full disk, which leaves the last file whole."""
    command = [sys.executable, os.path.join(HERE, "killed.py"), home.name, home.mode, times]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    printed = process.communicate()[0]
    assert process.returncode == 0, printed
    assert int(re.search(r"stopped (\d+) times", printed).group(1)) >= (1 if times == "full" else 20), printed
    assert "the run that nobody stopped: 0.0" in printed
