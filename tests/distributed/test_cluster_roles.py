# SPDX-License-Identifier: Apache-2.0
"""`train_and_evaluate` in the tasks of a cluster."""

import contextlib
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from skest import Estimator, EvalSpec, RunConfig, TrainSpec, train_and_evaluate
from skest.checkpoints.store import DirectoryStore
from skest.distributed import ClusterSpec, TaskConfig
from skest.distributed.launch import local_cluster
from skest.estimators import train_and_evaluate as train_eval_roles
from skest.estimators.train_and_evaluate import wait_before_training
from skest.export import FinalExporter
from skest.hooks import Hook
from tests._models import model_fn, table_fn

SECONDS = 200.0
EVALUATOR = TaskConfig("evaluator", 0)


endless, once = table_fn(num_epochs=None), table_fn()


class Pause(Hook):
    """Gives the other threads time, and may stop."""

    def __init__(self, stop_at=None):
        self.stop_at = stop_at

    def after_step(self, run, loss):
        threading.Event().wait(0.005)
        if self.stop_at is not None and run.global_step >= self.stop_at:
            run.request_stop("enough")


@pytest.fixture
def tasks(monkeypatch, tmp_path):
    """Return ``tasks(roles, ...)``, which runs tasks of a cluster in threads."""
    # In one process only one training at a time may draw from torch's generator; none
    # of these does.
    lock = contextlib.nullcontext()
    monkeypatch.setattr("skest.core.random._GLOBAL_GENERATOR_LOCK", lock)
    monkeypatch.setattr(train_eval_roles, "_PAUSE", 0.02)

    def run(roles, input_fn=endless, max_steps=60, stop_at=None, **settings):
        cluster = ClusterSpec(local_cluster(2, 1))

        def work(role):
            task = EVALUATOR if role == "evaluator" else TaskConfig(role, 0, cluster)
            config = RunConfig(
                model_dir=tmp_path,
                save_checkpoints_steps=20,
                session_creation_timeout_secs=60,
                task=task,
                **settings,
            )
            hooks = [Pause(stop_at if role == "chief" else None)]
            return train_and_evaluate(
                Estimator(model_fn, config=config),
                TrainSpec(input_fn, max_steps, hooks),
                EvalSpec(
                    once,
                    exporters=FinalExporter("final", format="checkpoint"),
                    start_delay_secs=60.0,
                    throttle_secs=0,
                ),
            )

        with ThreadPoolExecutor(len(roles)) as pool:
            futures = {role: pool.submit(work, role) for role in roles}
            return {role: future.result(SECONDS) for role, future in futures.items()}

    return run


ALL = ["ps", "chief", "worker", "evaluator"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "reached step 60"),
        ({"max_steps": None, "stop_at": 40}, "enough"),
        ({"max_steps": None, "input_fn": once}, "the input ended"),
    ],
)
def test_every_task_ends_by_itself(tasks, tmp_path, caplog, options, reason):
    with caplog.at_level("INFO", "skest"):
        found = tasks(ALL, **options)
    assert caplog.text.count("this task, its chief, does neither") == 1
    store = DirectoryStore(tmp_path)
    assert store.stop_reason() == reason
    metrics, exports = found.pop("evaluator")
    assert metrics["global_step"] == store.latest_step() > 0
    assert exports[0].is_dir()
    assert set(found.values()) == {(None, None)}


def evaluate(model_dir, delay=0.0, max_steps=None, **options):
    config = RunConfig(model_dir=model_dir, task=EVALUATOR)
    options = {"exporters": FinalExporter("final", format="checkpoint"), **options}
    return train_and_evaluate(
        Estimator(model_fn, config=config),
        TrainSpec(endless, max_steps),
        EvalSpec(once, start_delay_secs=delay, throttle_secs=0, **options),
    )


def trained(model_dir, steps=10, **settings):
    config = RunConfig(model_dir=model_dir, **settings)
    return Estimator(model_fn, config=config).train(endless, steps=steps)


def test_damaged_and_deleted_checkpoints_are_left_out(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(train_eval_roles, "_PAUSE", 0.02)
    trained(tmp_path)
    DirectoryStore(tmp_path).note_start()  # it goes on
    for path in (tmp_path / "ckpt-10").glob("*.safetensors"):
        path.write_bytes(b"damaged")

    def go_on():
        shutil.rmtree(tmp_path / "ckpt-10")
        trained(tmp_path, 20)

    timer = threading.Timer(1.0, go_on)
    timer.start()
    metrics, _ = evaluate(tmp_path)
    timer.join()
    assert metrics["global_step"] == 20
    assert "is not evaluated: it is deleted or damaged" in caplog.text


def test_the_last_checkpoint_is_waited_for_only_so_long(tmp_path, monkeypatch):
    monkeypatch.setattr(train_eval_roles, "_SECONDS_TO_NOTE_END", 0.1)
    trained(tmp_path)
    DirectoryStore(tmp_path).note_start()  # the chief was killed behind it
    assert evaluate(tmp_path, max_steps=10)[0]["global_step"] == 10


CLUSTER = {"chief": ["h:1"], "worker": ["h:2"]}
WITH_SERVERS = {**CLUSTER, "ps": ["h:3"]}


@pytest.mark.parametrize(
    ("task", "index", "limit", "expected"),
    [
        ("worker", 0, 60, [5.0]),
        ("worker", 1, 7, [7]),
        ("worker", 1, None, [0.0]),
        ("chief", 0, 60, []),
    ],
)
def test_workers_begin_one_after_the_other(monkeypatch, task, index, limit, expected):
    jobs = {**WITH_SERVERS, "worker": ["h:2", "h:4"]}
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    wait_before_training(
        RunConfig(
            task=TaskConfig(task, index, ClusterSpec(jobs)), max_worker_delay_secs=limit
        )
    )
    assert slept == expected
