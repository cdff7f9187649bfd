"""Two workers of MultiWorkerMirroredStrategy, each a process of its own, on the loopback interface."""

import json
import os
import subprocess
import sys
import time

import homes

HERE = os.path.dirname(os.path.abspath(__file__))
SECONDS = 300


def ends_of(script, arguments, folder):
    """([how each worker of a program ended, None if it did not], what both printed).

    The program is called with `arguments` and the worker's number, 0 or 1. One that fails lets the other wait for ever,
    and is the end of both.
    """
    addresses = ["127.0.0.1:{}".format(port) for port in homes.free_ports(2)]
    paths = [HERE] + sys.path + [each for each in [os.environ.get("PYTHONPATH")] if each]
    printed, processes = [folder.join("printed-{}".format(worker)) for worker in (0, 1)], []
    try:
        for worker, path in enumerate(printed):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": worker}}
            environ = dict(os.environ, TF_CONFIG=json.dumps(task), PYTHONPATH=os.pathsep.join(paths))
            command = [sys.executable, str(script)] + list(arguments) + [str(worker)]
            with open(str(path), "w") as file:
                processes.append(subprocess.Popen(command, env=environ, stdout=file, stderr=subprocess.STDOUT))
        until, codes = time.time() + SECONDS, [None, None]
        while None in codes and not any(codes) and time.time() < until:
            time.sleep(0.05)
            codes = [process.poll() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return codes, "\n".join("worker {}:\n{}".format(i, each.read()) for i, each in enumerate(printed))


def run(script, arguments, folder):
    """Run a program on two workers to its end; what both printed."""
    codes, printed = ends_of(script, arguments, folder)
    assert codes == [0, 0], "ended with {} (None: not in {} s):\n{}".format(codes, SECONDS, printed)
    return printed
