"""examples/fit_train_step.py runs, and prints what it promises."""

import re

import homes
import pytest
import test_examples

ROW = re.compile(r"^(each|last) +(no weights|the callback|train_step) +(\d+) +(\d\.\d+) +(\S+)$", re.MULTILINE)


@pytest.mark.capability("demo and examples")
def test_fit_train_step(home):
    eager = [name for name, mode in homes.available() if mode == "eager" and home.tf_version >= (2, 2)]
    options = [] if home.mode == "eager" and home.name in eager else ["--graph"]
    printed = test_examples.run("fit_train_step.py", "--home", home.name, "--epochs", "3", "--images", "240", *options)
    rows = {(row[0], row[1]): row[2:] for row in ROW.findall(printed)}
    assert len(rows) == (2 if options else 6), printed
    ending = test_examples.distances_of(printed)
    for (cut, way), (updates, _, distance) in rows.items():
        # 240 are 17 times 4 + 4 + 4 + 2, and 2; and 7 times 32, and 16.
        assert int(updates) == 3 * {"each": 18, "last": 2}[cut], printed
        assert ending["{}, {}".format(cut, way)] == float(distance), printed
        if way == "no weights":
            assert float(distance) > 1e-3, printed
        else:
            assert float(distance) < 4e-6, printed
