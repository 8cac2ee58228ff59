# SPDX-License-Identifier: Apache-2.0
"""Trainings whose call starts the other processes, in memory and with servers."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import ProcessPoolExecutor

from skest import DNNClassifier, Estimator, RunConfig
from skest.distributed import SharedMemory
from skest.distributed.local import train_locally
from skest.exceptions import PeerLostError, TaskFailedError
from tests.distributed._local import (
    STRATEGIES,
    ForkedExecutor,
    endless,
    linear_model_fn,
    slow_batches,
    train_together,
)
from tests.distributed._processes import is_running, pids, wait_for

ROOT = Path(__file__).parents[2]
SECONDS = 100.0
both = pytest.mark.parametrize("strategy", STRATEGIES)


@pytest.fixture(autouse=True)
def executor(monkeypatch):
    """Let most tests start processes that need not import torch."""

    def use(kind):
        monkeypatch.setattr("skest.distributed.processes.ProcessPoolExecutor", kind)

    use(ForkedExecutor)
    return use


@pytest.mark.parametrize(
    ("strategy", "kind"), [("memory", ProcessPoolExecutor), ("servers", ForkedExecutor)]
)
def test_both_train_and_the_last_step_is_exact(strategy, kind, executor):
    executor(kind)
    estimator = train_together(strategy, lambda *_: None, max_steps=300)
    # One more at most: that in which the other one was when the last one was taken.
    assert 300 <= estimator.checkpoint.global_step <= 301
    assert estimator.stop_reason == "reached step 300"
    prediction = next(estimator.predict(lambda: [np.float32([[1, 0]])]))
    np.testing.assert_allclose(prediction["y"], 1, atol=0.1)


@both
def test_the_chief_waits_for_the_input_of_the_others(strategy):
    def finite(input_context):
        return slow_batches(5 + 20 * input_context.input_pipeline_id)

    config = RunConfig(train_distribute=STRATEGIES[strategy])
    estimator = Estimator(linear_model_fn, config=config)
    estimator.train(finite)
    assert estimator.checkpoint.global_step == 30
    assert estimator.stop_reason == "the input ended"


@both
def test_a_killed_worker_is_started_again(strategy, caplog):
    def kill(run, processes):
        os.kill(pids(processes)["worker-1"], signal.SIGKILL)
        wait_for(lambda: "worker-1" not in pids(processes))
        kill.is_done = True

    estimator = train_together(strategy, kill, max_steps=600)
    assert kill.is_done
    assert 600 <= estimator.checkpoint.global_step <= 601
    assert "worker-1 died, and is started again" in caplog.text


def test_a_worker_that_dies_again_and_again_ends_the_training():
    def dying(input_context):
        yield from slow_batches(3)
        if input_context.input_pipeline_id == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        yield from endless()

    with pytest.raises(TaskFailedError, match="worker-1 died, after 3 restarts"):
        train_together("memory", None, dying)


def test_a_killed_server_ends_the_training_and_the_same_call_goes_on(tmp_path):
    def kill(run, processes):
        run.save_checkpoint()
        kill.step = run.global_step
        os.kill(pids(processes)["ps-0"], signal.SIGKILL)

    settings = {"model_dir": tmp_path, "save_checkpoints_steps": 10**6}
    with pytest.raises(PeerLostError, match="start all tasks of this training") as lost:
        train_together("servers", kill, max_steps=10**6, **settings)
    assert str(tmp_path) in str(lost.value)
    assert kill.step > 0
    estimator = train_together("servers", None, max_steps=kill.step + 50, **settings)
    assert kill.step + 50 <= estimator.checkpoint.global_step <= kill.step + 52


def test_ctrl_c_stops_all_and_saves():
    def press(run, processes):
        os.kill(os.getpid(), signal.SIGINT)

    estimator = train_together("servers", press)
    assert estimator.stop_reason == "interrupted by Ctrl-C"
    assert estimator.checkpoint.global_step > 0


class OwnError(Exception):
    pass


def test_an_error_of_another_process_is_raised_here():
    def failing(input_context):
        yield from slow_batches(3)
        if input_context.input_pipeline_id == 1:
            raise OwnError("a file is missing")
        yield from endless()

    with pytest.raises(OwnError, match="a file is missing") as raised:
        train_together("memory", None, failing)
    assert "in failing" in str(raised.value.__cause__)


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()

    def locked():
        with lock:
            return slow_batches(3)

    config = RunConfig(train_distribute=SharedMemory(2))
    with pytest.raises(
        TypeError, match="'input_fn' can't be sent .*'_thread.lock'.* leave out"
    ):
        Estimator(linear_model_fn, config=config).train(locked)


def make_data(n=200):
    X = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(int)


def test_threads_of_joblib_are_refused():
    X, y = make_data()
    config = RunConfig(train_distribute=SharedMemory(2))
    fit = delayed(DNNClassifier((4,), max_iter=2, config=config).fit)
    with pytest.raises(RuntimeError, match="a parallel call of joblib"):
        Parallel(n_jobs=2, backend="threading")([fit(X, y)] * 2)


def test_a_task_starts_no_tasks(monkeypatch):
    config = RunConfig(train_distribute=SharedMemory(2))
    monkeypatch.setenv("SKEST_LOCAL_TASK", "worker-1")
    with pytest.raises(RuntimeError, match="a process that it has started itself"):
        train_locally(None, None, config)


def test_hooks_and_results_of_fit_are_those_of_the_chief():
    X, y = make_data()
    model = DNNClassifier(
        (4,),
        optimizer="adagrad",
        learning_rate=0.05,
        max_iter=5,
        random_state=0,
        early_stopping=True,
        config=RunConfig(train_distribute=STRATEGIES["servers"]),
    ).fit(X, y)
    assert len(model.loss_curve_) == len(model.validation_scores_) == model.n_iter_ == 5
    assert model.score(X, y) > 0.5
    assert model.n_steps_ > 0


PROGRAM = """
    import os
    import numpy as np
    import torch
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from skest import DNNClassifier, RunConfig
    from skest.distributed import AsyncParameterServer

    class Activation:
        def __call__(self, x):
            return torch.tanh(x)

    X = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    y = X[:, 0] > 0
    config = RunConfig(train_distribute=AsyncParameterServer(2, 1))
    model = DNNClassifier(
        (8,), activation=Activation(), max_iter=20, random_state=0, config=config
    )
    model = make_pipeline(StandardScaler(), model).fit(X, y)
    print("score", model.score(X, y), model[-1].n_steps_)
    """


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("script", marks=pytest.mark.slow),
        pytest.param("stdin", marks=pytest.mark.nightly),
    ],
)
def test_no_guard_is_needed(tmp_path, way):
    text = textwrap.dedent(PROGRAM)
    path = tmp_path / "program.py"
    path.write_text(text)
    arguments = {"script": [str(path)], "stdin": ["-"]}[way]
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
        from tests.distributed._local import train_together
        from tests.distributed._processes import pids
        def tell(run, processes):
            print(*pids(processes).values(), flush=True)
        train_together("servers", tell)
        """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=ROOT,
    )
    with parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(is_running, pids))
        parent.kill()
    wait_for(lambda: not any(map(is_running, pids)), 30)
