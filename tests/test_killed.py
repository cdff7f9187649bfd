"""A training that is killed at any moment and resumed from its file ends with the bits of one that was not."""

import os
import re
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.mark.capability("R9 state")
def test_killed_twenty_times(home, once_in_an_environment):
    command = [sys.executable, os.path.join(HERE, "killed.py"), home.name, home.mode, "20"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    printed = process.communicate()[0]
    assert process.returncode == 0, printed
    assert int(re.search(r"killed (\d+) times", printed).group(1)) >= 20, printed
    assert "the run that nobody killed: 0.0" in printed
