"""Two workers of MultiWorkerMirroredStrategy, each a process of its own, on the loopback interface."""

import json
import os
import subprocess
import sys
import time

import homes

HERE = os.path.dirname(os.path.abspath(__file__))


class Workers(object):
    """The two processes of a program.

    Args:
        script: its file. It is called with `arguments` and its number, 0 or 1.
        folder: a py.path, for what they print.
        seconds: the time that they may take.
    """

    def __init__(self, script, arguments, folder, seconds=300):
        addresses = ["127.0.0.1:{}".format(port) for port in homes.free_ports(2)]
        paths = [HERE] + sys.path + [each for each in [os.environ.get("PYTHONPATH")] if each]
        self._until, self._seconds = time.time() + seconds, seconds
        self._printed = [folder.join("printed-{}".format(worker)) for worker in (0, 1)]
        self._processes = []
        for worker, printed in enumerate(self._printed):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": worker}}
            with open(str(printed), "w") as file:
                process = subprocess.Popen(
                    [sys.executable, str(script)] + list(arguments) + [str(worker)],
                    env=dict(os.environ, TF_CONFIG=json.dumps(task), PYTHONPATH=os.pathsep.join(paths)),
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            self._processes.append(process)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self._processes:
            process.kill()
            process.wait()

    def wait(self, worker):
        """How one of them ends. An AssertionError with what both printed if it does not."""
        try:
            return self._processes[worker].wait(max(1, self._until - time.time()))
        except subprocess.TimeoutExpired:
            raise AssertionError("not done after {} s:\n{}".format(self._seconds, self.printed()))

    def check(self):
        """Wait for both, and raise where one failed."""
        # One that fails lets the other wait for ever.
        while any(process.poll() is None for process in self._processes):
            failed = [process.poll() for process in self._processes if process.poll()]
            assert not failed, "failed with {}:\n{}".format(failed, self.printed())
            assert time.time() < self._until, "not done after {} s:\n{}".format(self._seconds, self.printed())
            time.sleep(0.05)
        assert [process.returncode for process in self._processes] == [0, 0], self.printed()

    def printed(self):
        """What both have printed."""
        return "\n".join("worker {}:\n{}".format(i, each.read()) for i, each in enumerate(self._printed))


def run(script, arguments, folder, seconds=300):
    """Run a program on two workers to its end."""
    with Workers(script, arguments, folder, seconds) as workers:
        workers.check()
