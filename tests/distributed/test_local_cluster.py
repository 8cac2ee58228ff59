# SPDX-License-Identifier: Apache-2.0
"""Trainings that start processes on this machine."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from joblib import Parallel, delayed
from sklearn.model_selection import GridSearchCV

from skest import DNNClassifier, Estimator
from skest.distributed import SharedMemory
from skest.distributed.local import LocalChief, train_locally
from skest.exceptions import NanLossDuringTrainingError
from tests.distributed._local import (
    linear_model_fn,
    nothing,
    shared,
    slow_batches,
    stop,
    train_together,
)
from tests.distributed._processes import is_running, wait_for

ROOT = Path(__file__).parents[2]
SECONDS = 100.0
ENDLESS = 10**9


def input_fn(input_context):
    assert input_context.num_input_pipelines == 2
    return slow_batches(ENDLESS)


def train(act, input_fn=input_fn, max_steps=None, **settings):
    config = shared(2, random_seed=0, **settings)
    return train_together(config, act, input_fn, max_steps)


def test_both_train_and_the_last_step_is_exact(tmp_path):
    estimator, hook = train(nothing, max_steps=300, model_dir=tmp_path)
    steps = hook.replica.parts.replica._steps
    assert all(steps > 50)
    # One more at most: that in which the other one was when the last one was taken.
    assert 300 <= estimator.checkpoint.global_step == steps.sum() <= 301
    assert estimator.checkpoint.input_position is None
    assert estimator.stop_reason == "reached step 300"
    prediction = next(estimator.predict(lambda: [np.float32([[1, 0]])]))
    np.testing.assert_allclose(prediction["y"], 1, atol=0.1)
    assert "stopped at step 30" in (tmp_path / "logs" / "worker-1.log").read_text()


@pytest.mark.slow
def test_the_chief_waits_for_the_input_of_the_others():
    def finite(input_context):
        return slow_batches(30)

    estimator = Estimator(linear_model_fn, config=shared(2))
    estimator.train(finite)
    assert estimator.checkpoint.global_step == 60
    assert estimator.stop_reason == "the input ended"
    estimator.train(finite, steps=10)
    assert 70 <= estimator.checkpoint.global_step <= 71


@pytest.mark.slow
def test_a_killed_process_is_restarted():
    def kill(run, replica):
        os.kill(replica.supervisor.pids["worker-1"], signal.SIGKILL)
        wait_for(lambda: replica.supervisor.restarts["worker-1"] == 1)
        before = replica.parts.replica._steps[1]
        wait_for(lambda: replica.parts.replica._steps[1] > before)
        stop(run, replica)

    estimator, hook = train(kill)
    assert hook.replica.supervisor.restarts == {"worker-1": 1}
    assert estimator.stop_reason == "enough"
    assert estimator.checkpoint.global_step > 0


@pytest.mark.slow
def test_ctrl_c_stops_all_and_saves():
    def press(run, replica):
        os.kill(os.getpid(), signal.SIGINT)

    estimator, _ = train(press)
    assert estimator.stop_reason == "interrupted by Ctrl-C"
    assert estimator.checkpoint.global_step > 0


@pytest.mark.slow
def test_ctrl_c_while_the_chief_waits_for_the_others(monkeypatch):
    def unequal(input_context):
        index = input_context.input_pipeline_id
        return slow_batches(ENDLESS if index else 5)

    wait, timers = LocalChief._wait_for_input_of_others, []

    def pressed(chief, run):
        press = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
        timers.append(press)
        press.start()
        wait(chief, run)

    monkeypatch.setattr(LocalChief, "_wait_for_input_of_others", pressed)
    estimator = Estimator(linear_model_fn, config=shared(2))
    with pytest.raises(KeyboardInterrupt):
        estimator.train(unequal)
    (press,) = timers
    press.join()
    assert estimator.stop_reason == "interrupted by Ctrl-C"
    assert estimator.checkpoint.global_step >= 5


class OwnError(Exception):
    pass


@pytest.mark.slow
def test_an_error_of_another_process_is_raised_here():
    def failing(input_context):
        yield from slow_batches(3)
        if input_context.input_pipeline_id == 1:
            raise OwnError("a file is missing")
        yield from slow_batches(ENDLESS)

    estimator = Estimator(linear_model_fn, config=shared(2))
    with pytest.raises(OwnError, match="a file is missing") as raised:
        estimator.train(failing)
    assert "In worker-1:" in str(raised.value.__cause__)
    assert "in failing" in str(raised.value.__cause__)
    assert estimator.checkpoint.global_step > 0  # what was reached is saved
    assert estimator.stop_reason == "OwnError: a file is missing"


@pytest.mark.slow
def test_a_loss_that_is_nan_elsewhere_is_an_error_here():
    def nan(input_context):
        index = input_context.input_pipeline_id
        for X, y in slow_batches(ENDLESS):
            yield X, y * (np.nan if index else 1)

    # Of which process depends on who is first to see it: the variables are common.
    with pytest.raises(NanLossDuringTrainingError, match="NaN"):
        train(nothing, nan)


def test_errors_of_the_model_come_before_any_process():
    def broken(features, labels, mode):
        raise OwnError("no model")

    estimator = Estimator(broken, config=shared(2))
    with pytest.raises(OwnError, match="no model") as raised:
        estimator.train(lambda: slow_batches(3))
    assert raised.value.__cause__ is None


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()

    def locked():
        with lock:
            return slow_batches(3)

    estimator = Estimator(linear_model_fn, config=shared(2))
    with pytest.raises(TypeError, match="variable 'lock' of 'input_fn' can't be sent"):
        estimator.train(locked)


def make_data(n=200):
    X = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(int)


@pytest.mark.slow
def test_a_parallel_search_is_refused():
    model = DNNClassifier((4,), max_iter=2, config=shared(2))
    search = GridSearchCV(
        model, {"batch_size": [10, 20]}, n_jobs=2, error_score="raise"
    )
    with pytest.raises(RuntimeError, match=r"num_workers=2.* n_jobs=1"):
        search.fit(*make_data())


def test_threads_of_joblib_are_refused():
    X, y = make_data()
    fit = delayed(DNNClassifier((4,), max_iter=2, config=shared(2)).fit)
    with pytest.raises(RuntimeError, match="a parallel call of joblib"):
        Parallel(n_jobs=2, backend="threading")([fit(X, y)] * 2)


def test_a_task_starts_no_tasks(monkeypatch):
    monkeypatch.setenv("SKEST_LOCAL_TASK", "worker-1")
    with pytest.raises(RuntimeError, match="a process that it has started itself"):
        train_locally(None, None, None, shared(2))


def test_a_task_of_a_cluster_is_refused():
    cluster = {"chief": ["here:1"], "worker": ["there:1"]}
    config = SimpleNamespace(train_distribute=SharedMemory(2), cluster_spec=cluster)
    with pytest.raises(ValueError, match="a task of .*here:1.* AsyncParameterServer"):
        train_locally(None, None, None, config)


@pytest.mark.slow
def test_hooks_and_results_of_fit_are_those_of_the_chief():
    X, y = make_data()
    model = DNNClassifier(
        (4,),
        optimizer="adagrad",
        learning_rate=0.05,
        max_iter=5,
        random_state=0,
        early_stopping=True,
        config=shared(2),
    ).fit(X, y)
    assert len(model.loss_curve_) == len(model.validation_scores_) == model.n_iter_ == 5
    assert model.score(X, y) > 0.5
    assert model.n_steps_ > 0


PROGRAM = """
    import numpy as np
    import torch
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from skest import DNNClassifier, ModelFnClassifier
    from tests.distributed._local import shared

    class Network(torch.nn.Linear):
        pass

    class Activation:
        def __call__(self, x):
            return torch.tanh(x)

    X = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    y = X[:, 0] > 0
    model = DNNClassifier(
        (8,), activation=Activation(), max_iter=20, random_state=0, config=shared(2)
    )
    model = make_pipeline(StandardScaler(), model).fit(X, y)
    print("score", model.score(X, y), model[-1].n_steps_)
    """


@pytest.mark.slow
@pytest.mark.parametrize("way", ["script", "stdin", "-c"])
def test_no_guard_is_needed(tmp_path, way):
    text = textwrap.dedent(PROGRAM)
    path = tmp_path / "program.py"
    path.write_text(text)
    arguments = {"script": [str(path)], "stdin": ["-"], "-c": ["-c", text]}[way]
    done = subprocess.run(
        [sys.executable, *arguments],
        input=text if way == "stdin" else "",
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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_is_left_by_a_killed_parent(tmp_path):
    text = """
        import os
        from skest import Estimator
        from tests.distributed import test_local_cluster as t
        def tell(run, replica):
            print(*replica.supervisor.pids.values(), flush=True)
        t.train(tell)
        """
    places = [Path("/dev/shm"), tmp_path]
    before = [set(place.iterdir()) for place in places]
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=ROOT,
    )
    with parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert pids
        assert all(map(is_running, pids))
        parent.kill()
    wait_for(lambda: not any(map(is_running, pids)), 5)
    # Other programs use the first place, too, but not under names of ours.
    left = [
        set(place.iterdir()) - names
        for place, names in zip(places, before, strict=True)
    ]
    assert not left[1]
    assert not [path for path in left[0] if "skest" in path.name]
