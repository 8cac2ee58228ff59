# SPDX-License-Identifier: Apache-2.0
"""A process in training gets Ctrl-C at any moment."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from skest import Estimator, RunConfig
from tests._models import assert_same_checkpoint, model_fn, table_fn

SECONDS = 120
SCRIPT = """
import sys
from skest import Estimator, EvalSpec, RunConfig, TrainSpec, train_and_evaluate
from tests.faults.test_ctrl_c import PARAMS, endless
from tests._models import model_fn, table_fn

config = RunConfig(random_seed=0, save_checkpoints_steps=50)
estimator = Estimator(model_fn, sys.argv[1], config, PARAMS)
print("ready", flush=True)
train_and_evaluate(
    estimator,
    TrainSpec(endless, max_steps=1_000_000),
    EvalSpec(table_fn(), throttle_secs=0),
)
print(estimator.checkpoint.global_step, estimator.stop_reason, flush=True)
"""
PARAMS = {"network": "torch_dropout", "optimizer": "adam", "lr": 1e-4}


def endless():
    """Yield batches; an interrupted training goes on behind those that it has seen."""
    whole = list(table_fn()())
    for i in range(1_000_000):
        yield whole[i % len(whole)]


def interrupted(model_dir, delay):
    """Train in a process, press Ctrl-C, and return the last line that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(model_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout.readline() == "ready\n"
    wait_for_steps(model_dir)
    time.sleep(delay)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    in_step = "training stops after this step and saves a checkpoint" in err
    in_evaluation = "training stops, its checkpoint is saved" in err
    assert in_step or in_evaluation, err
    return out.strip()


def wait_for_steps(model_dir):
    estimator = Estimator(model_fn, model_dir)
    before = estimator.latest_checkpoint()
    deadline = time.monotonic() + SECONDS
    while estimator.latest_checkpoint() == before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize(
    "n_times", [1, pytest.param(5, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_ctrl_c_keeps_a_checkpoint_and_returns(tmp_path, n_times):
    delays, steps = random.Random(0), [0]
    for _ in range(n_times):
        line = interrupted(tmp_path, delays.uniform(0, 0.3))
        step, _, reason = line.partition(" ")
        assert reason == "interrupted by Ctrl-C"
        steps.append(int(step))
    assert steps == sorted(set(steps))
    # No step was cut short: the variables are those of a training without Ctrl-C.
    whole = Estimator(model_fn, config=RunConfig(random_seed=0), params=PARAMS)
    whole.train(endless, steps=steps[-1])
    estimator = Estimator(model_fn, tmp_path, params=PARAMS)
    assert_same_checkpoint(estimator.checkpoint, whole.checkpoint)
