# SPDX-License-Identifier: Apache-2.0
"""Two processes in one model_dir, and one that was killed."""

import os
import subprocess
import sys
import time

import pytest

from skest import Estimator
from skest.exceptions import ModelDirInUseError
from tests._models import At, model_fn, table_fn

SECONDS = 120
SCRIPT = """
import sys, time
from skest import Estimator
from tests._models import At, model_fn, table_fn

def wait(run):
    print("trains", flush=True)
    time.sleep(600)

Estimator(model_fn, sys.argv[1]).train(table_fn(), [At(2, wait)])
"""


@pytest.fixture
def process(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "trains\n"
    yield process
    process.kill()
    process.wait()


def test_the_second_is_refused_until_the_first_is_gone(tmp_path, process, caplog):
    estimator = Estimator(model_fn, tmp_path)
    with pytest.raises(
        ModelDirInUseError, match=f"trained in by process {process.pid} on "
    ):
        estimator.train(table_fn())
    assert estimator.checkpoint.global_step == 0  # as the other one has saved it
    process.kill()
    process.wait()
    estimator.train(table_fn())
    assert estimator.checkpoint.global_step == 5
    assert f"of process {process.pid} on" in caplog.text
    assert "was killed" in caplog.text


# The child speaks: what it does with locks in the beginning is done by then.
FORKS = (
    SCRIPT.replace("import sys, time", "import os, sys, time")
    .replace("    time.sleep(600)", "    time.sleep(5)\n    os._exit(0)")
    .replace("    print(", "    if os.fork():\n        time.sleep(600)\n    print(")
)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_that_outlives_a_killed_training_keeps_no_lock(tmp_path):
    command = [sys.executable, "-c", FORKS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "trains\n"
        process.kill()
        process.wait()
        estimator = Estimator(model_fn, tmp_path).train(table_fn())  # the child sleeps
        process.stdout.close()
    assert estimator.checkpoint.global_step == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_that_was_forked_meanwhile_keeps_no_lock(tmp_path):
    children = []

    def fork(run):
        child = os.fork()
        if child == 0:
            time.sleep(SECONDS)
            os._exit(0)
        children.append(child)

    estimator = Estimator(model_fn, tmp_path)
    try:
        estimator.train(table_fn(), [At(2, fork)])
        estimator.train(table_fn())
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)
    assert estimator.checkpoint.global_step == 10
