# SPDX-License-Identifier: Apache-2.0
"""Trainings with parameter servers that start their processes on this machine."""

import contextlib
import math
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

from skest import (
    DNNClassifier,
    DNNLinearCombinedClassifier,
    Estimator,
    LinearClassifier,
    RunConfig,
)
from skest.distributed import AsyncParameterServer, SharedMemory
from skest.distributed.job import read_job
from skest.distributed.local import InServers
from skest.exceptions import TaskFailedError
from skest.feature_columns import numeric_column
from tests.distributed._local import (
    linear_model_fn,
    nothing,
    slow_batches,
    stop,
    train_together,
)
from tests.distributed._processes import wait_for
from tests.distributed.test_local_cluster import (
    ENDLESS,
    ROOT,
    SECONDS,
    OwnError,
    make_data,
)


def served(num_workers=2, num_ps=1, timeout=10.0, **settings):
    strategy = AsyncParameterServer(num_workers, num_ps, timeout=timeout)
    return RunConfig(train_distribute=strategy, **settings)


def endless():
    return slow_batches(ENDLESS)


def train(act, input_fn=endless, max_steps=None, **settings):
    config = served(random_seed=0, **settings)
    return train_together(config, act, input_fn, max_steps)


def test_both_train(tmp_path, monkeypatch):
    monkeypatch.delenv("RES_OPTIONS", raising=False)
    estimator, hook = train(nothing, max_steps=300, model_dir=tmp_path)
    # One more at most: that in which the worker was when the last one was taken.
    assert 300 <= estimator.checkpoint.global_step <= 301
    assert estimator.stop_reason == "reached step 300"
    prediction = next(estimator.predict(lambda: [np.float32([[1, 0]])]))
    np.testing.assert_allclose(prediction["y"], 1, atol=0.1)
    assert "stopped at step 30" in (tmp_path / "logs" / "worker-1.log").read_text()
    assert (tmp_path / "logs" / "ps-0.log").exists()
    assert hook.replica.supervisor.restarts == {"ps-0": 0, "worker-1": 0}
    assert "RES_OPTIONS" not in os.environ


@pytest.mark.slow
def test_a_hook_stops_all():
    start = time.monotonic()
    estimator, _ = train(stop)
    assert estimator.stop_reason == "enough"
    assert time.monotonic() - start < SECONDS


@pytest.mark.slow
def test_ctrl_c_stops_all_and_saves():
    def press(run, replica):
        os.kill(os.getpid(), signal.SIGINT)

    estimator, _ = train(press)
    assert estimator.stop_reason == "interrupted by Ctrl-C"
    assert estimator.checkpoint is not None


@pytest.mark.slow
def test_a_killed_server_is_restarted_at_its_port(tmp_path):
    def kill(run, replica):
        run.save_checkpoint()
        addresses = replica.parts.replica.client.addresses
        os.kill(replica.supervisor.pids["ps-0"], signal.SIGKILL)
        wait_for(lambda: replica.supervisor.restarts["ps-0"] == 1)
        assert replica.parts.replica.client.addresses == addresses

    estimator, hook = train(kill, max_steps=150, model_dir=tmp_path)
    assert hook.replica.supervisor.restarts["ps-0"] == 1
    assert 150 <= estimator.checkpoint.global_step <= 151


@pytest.mark.slow
def test_a_server_that_dies_too_often_is_an_error_at_once():
    def kill(run, replica):
        replica.supervisor._max_restarts = 0
        os.kill(replica.supervisor.pids["ps-0"], signal.SIGKILL)
        wait_for(lambda: replica.supervisor.failure is not None)
        kill.at = time.monotonic()

    with pytest.raises(TaskFailedError, match="ps-0 was killed by SIGKILL, after 0"):
        train(kill)
    assert time.monotonic() - kill.at < 20  # and not 7200 s later


@pytest.mark.slow
def test_an_error_of_a_worker_is_raised_here():
    def failing(input_context):
        yield from slow_batches(3)
        if input_context.input_pipeline_id == 1:
            raise OwnError("a file is missing")
        yield from slow_batches(ENDLESS)

    with pytest.raises(OwnError, match="a file is missing") as raised:
        train(nothing, failing)
    assert "In worker-1:" in str(raised.value.__cause__)


@pytest.mark.slow
def test_the_chief_waits_for_the_input_of_the_worker():
    def finite(input_context):
        return slow_batches(5 + 20 * input_context.input_pipeline_id)

    estimator = Estimator(linear_model_fn, config=served())
    estimator.train(finite)
    assert estimator.checkpoint.global_step == 30
    assert estimator.stop_reason == "the input ended"
    estimator.train(finite, steps=10)
    assert 40 <= estimator.checkpoint.global_step <= 41


def test_servers_do_not_end_while_the_chief_is_stopped_or_busy():
    tasks = []
    parts = InServers(
        AsyncParameterServer(1, 2), SimpleNamespace(start=tasks.append), 1.0
    )
    try:
        parts.prepare(SimpleNamespace(model_dir=None))
        for task in tasks:
            job = task.arguments[task.arguments.index("--job") + 1]
            assert read_job(int(job)).keywords["orphan_timeout"] == math.inf
        assert len(tasks) == 2
    finally:
        parts.close()


def test_there_are_no_servers_before_it_begins():
    parts = InServers(AsyncParameterServer(1, 1), None, 1.0)
    with contextlib.closing(parts), pytest.raises(RuntimeError, match="not begun"):
        _ = parts.replica


@pytest.mark.slow
def test_a_parallel_search_is_refused():
    model = DNNClassifier((4,), max_iter=2, config=served())
    search = GridSearchCV(
        model, {"batch_size": [10, 20]}, n_jobs=2, error_score="raise"
    )
    with pytest.raises(RuntimeError, match=r"AsyncParameterServer\(.* n_jobs=1"):
        search.fit(*make_data())


@pytest.mark.slow
def test_results_of_fit_are_those_of_one_process():
    X, y = make_data(400)
    model = DNNLinearCombinedClassifier(
        dnn_hidden_units=(4,),
        dnn_optimizer="adagrad",
        dnn_learning_rate=0.05,
        max_iter=5,
        random_state=0,
        early_stopping=True,
        config=served(),
    ).fit(X, y)
    assert len(model.loss_curve_) == len(model.validation_scores_) == model.n_iter_ == 5
    assert model.best_validation_score_ == max(model.validation_scores_)
    assert model.score(X, y) > 0.7
    assert model.n_steps_ > 0
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [AsyncParameterServer(2, 1), SharedMemory(2)])
def test_training_out_of_core(strategy):
    def input_fn():
        X, y = make_data(400)
        for _ in range(10):
            yield {"x": X[:, 0]}, y

    model = LinearClassifier(
        feature_columns=[numeric_column("x")],
        random_state=0,
        config=RunConfig(train_distribute=strategy),
    ).train(input_fn, classes=[0, 1])
    assert model.n_steps_ == 10  # each batch once, by one of both
    assert model.n_iter_ == 1
    X, y = make_data(400)
    assert model.score({"x": X[:, 0]}, y) > 0.8


PROGRAM = """
    import numpy as np
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from skest import DNNLinearCombinedClassifier, RunConfig
    from skest.distributed import AsyncParameterServer

    class Activation:
        def __call__(self, x):
            return x.tanh()

    X = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    y = X[:, 0] > 0
    model = DNNLinearCombinedClassifier(
        dnn_hidden_units=(8,),
        dnn_activation=Activation(),
        max_iter=20,
        random_state=0,
        config=RunConfig(train_distribute=AsyncParameterServer(2, 1)),
    )
    model = make_pipeline(StandardScaler(), model).fit(X, y)
    print("score", model.score(X, y), model[-1].n_steps_)
    """


@pytest.mark.slow
def test_no_guard_is_needed(tmp_path):
    done = subprocess.run(
        [sys.executable, "-"],
        input=textwrap.dedent(PROGRAM),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    _, score, n_steps = done.stdout.split()
    assert float(score) > 0.8
    assert int(n_steps) >= 40
    assert list(Path(tmp_path).iterdir()) == []
