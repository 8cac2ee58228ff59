# SPDX-License-Identifier: Apache-2.0
"""Estimators leave the process as it was, and do not get in each other's way."""

import logging
import os
import random
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from skest import DNNClassifier
from skest.hooks import Hook
from tests._models import At, raising
from tests.adapters._families import FAMILIES, rows_for, small


def state_of_process():
    """Return what a library may change for everyone, in comparable form."""
    logs = [logging.root, *map(logging.getLogger, ("skest", "torch", "sklearn"))]
    return {
        "random": random.getstate(),
        "NumPy's generator": [str(part) for part in np.random.get_state()],
        "torch's generator": torch.get_rng_state().tolist(),
        "threads": torch.get_num_threads(),
        "inter-op threads": torch.get_num_interop_threads(),
        "default dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "warnings": list(warnings.filters),
        "showwarning": warnings.showwarning,
        "floating-point errors": np.geterr(),
        "printing": np.get_printoptions(),
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "logging": [(log.level, log.propagate, list(log.handlers)) for log in logs],
        "recursion limit": sys.getrecursionlimit(),
    }


@pytest.fixture(scope="module", autouse=True)
def first_optimizer():
    """The first optimizer of a process imports SymPy, which adds a filter of warnings."""
    torch.optim.SGD([torch.zeros(1)])


@pytest.fixture
def two_threads():
    """More than one thread, so that a change would be seen."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["dropout", "loss of the user's", "RNNClassifier"])
def test_the_process_stays_as_it_was(name, two_threads):
    estimator = clone(FAMILIES[name]).set_params(random_state=None)
    X, y, weight = rows_for(estimator)
    before = state_of_process()
    estimator.fit(X, y, weight)
    estimator.set_params(early_stopping=True).fit(X, y)
    estimator.predict(X)
    estimator.evaluate(X, y)
    estimator.score(X, y)
    if hasattr(estimator, "predict_proba"):
        estimator.predict_proba(X)
    if hasattr(estimator, "partial_fit"):
        estimator.set_params(early_stopping=False).partial_fit(X, y)
    after = state_of_process()
    for what, value in before.items():
        assert after[what] == value, what


def test_a_fit_that_fails_leaves_no_trace(two_threads):
    X, y, _ = rows_for(DNNClassifier())
    before = state_of_process()
    failing = At(1, raising(RuntimeError("on purpose")))
    # An activation of the user's may draw, so torch's global generator is lent.
    model = small(DNNClassifier, hooks=(failing,), activation=lambda x: torch.relu(x))
    with pytest.raises(RuntimeError, match="on purpose"):
        model.fit(X, y)
    assert state_of_process() == before


@pytest.mark.slow
def test_importing_changes_nothing():
    script = """
import logging, os, random, sys, warnings
import numpy, pandas, sklearn.base, sklearn.model_selection, torch
from tests.adapters.test_side_effects import state_of_process
for name in [name for name in sys.modules if name.partition(".")[0] == "skest"]:
    del sys.modules[name]
before = state_of_process()
import skest
for name in (*skest.__all__, *skest._SUBPACKAGES):
    getattr(skest, name)
after = state_of_process()
print([name for name in before if before[name] != after[name]])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def outcome(estimator):
    """Fit, and return what can be told of it."""
    X, y, weight = rows_for(estimator)
    estimator.fit(X, y, weight)
    return estimator.loss_curve_, estimator.predict(X).tolist()


def test_fits_of_several_threads_are_those_in_turn():
    names = ("dropout", "SDCA", "ModelFnClassifier", "RNNRegressor", "head")
    jobs = [clone(FAMILIES[name]) for name in names]
    in_turn = [outcome(clone(job)) for job in jobs]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            at_once = list(pool.map(outcome, jobs))
    finally:
        sys.setswitchinterval(interval)
    for job, one, two in zip(jobs, in_turn, at_once, strict=True):
        assert one == two, job


class NoteThreads(Hook):
    """Writes the number of threads of every step to a file of the process."""

    def __init__(self, directory):
        self.directory = directory

    def before_step(self, run):
        with open(f"{self.directory}/{os.getpid()}", "a") as file:
            file.write(f"{torch.get_num_threads()}\n")


@pytest.mark.slow
def test_a_search_of_two_processes_takes_no_more_threads_than_cores(
    tmp_path, two_threads
):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 20)).astype(np.float32)
    y = (X[:, 0] > 0).astype(int)
    # A step of so much work takes two threads, where two are allowed.
    model = DNNClassifier(
        (512, 256), batch_size=1500, max_iter=1, hooks=(NoteThreads(str(tmp_path)),)
    )

    def noted():
        return {
            int(path.name): set(map(int, path.read_text().split()))
            for path in tmp_path.iterdir()
        }

    model.fit(X, y)
    assert noted() == {os.getpid(): {2}}
    GridSearchCV(model, {"max_iter": [1]}, cv=2, n_jobs=2, refit=False).fit(X, y)
    of_workers = [n for process, n in noted().items() if process != os.getpid()]
    assert 1 <= len(of_workers) <= 2
    assert 2 * max(map(max, of_workers)) <= max(2, os.cpu_count())
