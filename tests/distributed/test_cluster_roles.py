# SPDX-License-Identifier: Apache-2.0
"""`train_and_evaluate` in the tasks of a cluster."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from skest import Estimator, EvalSpec, RunConfig, TrainSpec, train_and_evaluate
from skest.checkpoints.store import DirectoryStore
from skest.distributed import ClusterSpec, DataParallel, TaskConfig
from skest.distributed.launch import local_cluster
from skest.estimators import train_and_evaluate as train_eval_roles
from skest.estimators.train_and_evaluate import Role, role_of, wait_before_training
from skest.export import FinalExporter
from skest.heads import RegressionHead
from skest.hooks import Hook
from skest.inputs import ArrayDataset
from skest.optimizers import make_optimizer

ROOT = Path(__file__).parents[2]
SECONDS = 200.0
X = np.linspace(-1, 1, 20, dtype=np.float32).reshape(-1, 1)
EVALUATOR = TaskConfig("evaluator", 0)


def model_fn(features, labels, mode):
    import torch

    network = torch.nn.Linear(1, 1)
    optimizer = make_optimizer("sgd", network.parameters(), 0.05)
    return RegressionHead().create_estimator_spec(
        features, mode, network, labels, optimizer
    )


def endless():
    return ArrayDataset(X, X[:, 0], batch_size=4, num_epochs=None)


def once():
    return ArrayDataset(X, X[:, 0], batch_size=4)


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
                    exporters=FinalExporter("final"),
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


def test_nothing_is_left_to_do_in_a_second_call(tasks):
    first = tasks(ALL)
    assert tasks(ALL) == first


def test_an_evaluator_that_was_away_makes_up_for_it(tasks, tmp_path):
    tasks(["ps", "chief", "worker"], max_steps=None, stop_at=40)
    shutil.rmtree(tmp_path / "export", ignore_errors=True)
    evaluations = evaluate(tmp_path, delay=0.2)
    assert evaluations[0]["global_step"] == DirectoryStore(tmp_path).latest_step()
    assert evaluations[1][0].is_dir()


def evaluate(model_dir, delay=0.0, max_steps=None, **options):
    config = RunConfig(model_dir=model_dir, task=EVALUATOR)
    options = {"exporters": FinalExporter("final"), **options}
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


def test_errors_of_an_evaluation_are_raised(tmp_path):
    trained(tmp_path)
    DirectoryStore(tmp_path).note_start()

    def broken():
        raise ValueError("no such table")

    config = RunConfig(model_dir=tmp_path, task=EVALUATOR)
    with pytest.raises(ValueError, match="no such table"):
        train_and_evaluate(
            Estimator(model_fn, config=config),
            TrainSpec(endless),
            EvalSpec(broken, start_delay_secs=0),
        )


def test_the_last_checkpoint_is_waited_for_only_so_long(tmp_path, monkeypatch):
    monkeypatch.setattr(train_eval_roles, "_SECONDS_TO_NOTE_END", 0.1)
    trained(tmp_path)
    DirectoryStore(tmp_path).note_start()  # the chief was killed behind it
    assert evaluate(tmp_path, max_steps=10)[0]["global_step"] == 10


def test_an_evaluator_needs_a_directory():
    with pytest.raises(ValueError, match="An evaluator reads .* 'model_dir'"):
        evaluate(None, exporters=())


CLUSTER = {"chief": ["h:1"], "worker": ["h:2"]}
WITH_SERVERS = {**CLUSTER, "ps": ["h:3"]}


@pytest.mark.parametrize(
    ("jobs", "task", "strategy", "role"),
    [
        (None, "worker", None, Role.ALONE),
        (WITH_SERVERS, "chief", None, Role.TRAIN),
        (WITH_SERVERS, "worker", None, Role.TRAIN),
        (WITH_SERVERS, "ps", None, Role.TRAIN),
        (None, "evaluator", None, Role.EVALUATE),
        (CLUSTER, "chief", DataParallel(), Role.ALONE),
        (CLUSTER, "worker", DataParallel(), Role.TRAIN),
        ({"master": ["h:1"], "ps": ["h:2"]}, "master", None, Role.ALONE),
    ],
)
def test_roles(jobs, task, strategy, role):
    config = RunConfig(
        task=TaskConfig(task, 0, ClusterSpec(jobs)), train_distribute=strategy
    )
    assert role_of(config) is role


@pytest.mark.parametrize(
    ("task", "index", "limit", "expected"),
    [
        ("worker", 0, 60, [5.0]),
        ("worker", 1, 60, [10.0]),
        ("worker", 1, 7, [7]),
        ("worker", 1, None, [0.0]),
        ("chief", 0, 60, []),
        ("ps", 0, 60, []),
    ],
)
def test_workers_begin_one_after_the_other(monkeypatch, task, index, limit, expected):
    jobs = {**WITH_SERVERS, "worker": ["h:2", "h:4"]}
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    wait_before_training(
        RunConfig(
            task=TaskConfig(task, index, ClusterSpec(jobs)),
            max_worker_delay_secs=limit,
        )
    )
    assert slept == expected


def census(n=3000):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "education": rng.choice(list("abcdef"), n),
            "occupation": rng.choice(list("uvw"), n),
            "workclass": rng.choice(["p", "q"], n),
            "marital_status": rng.choice(["m", "s"], n),
            "age": rng.integers(17, 80, n).astype("float32"),
            "hours_per_week": rng.integers(10, 60, n).astype("float32"),
        }
    )
    rich = (table["education"] < "c") & (table["age"] > 35)
    return table.assign(rich=rich.astype("int64"))


@pytest.mark.slow
def test_the_example_for_a_cluster(tmp_path):
    table = census()
    for i in range(2):
        table[i::2].to_parquet(tmp_path / f"rows{i}.parquet", row_group_size=500)
    model_dir, logs = tmp_path / "model", tmp_path / "logs"
    options = ["--workers", "2", "--ps", "1", "--evaluator", "--log-dir", str(logs)]
    arguments = ["--model-dir", str(model_dir), "--data", str(tmp_path / "*.parquet")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "skest.distributed.launch", *options),
            *("examples/cluster/train.py", *arguments, "--max-steps", "300"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    told = {path.stem: path.read_text() for path in logs.iterdir()}
    assert done.returncode == 0, told
    assert set(told) == {"chief-0", "worker-0", "ps-0", "evaluator-0"}
    found = re.search(r"evaluator 0 ({.*})", told["evaluator-0"])
    metrics = json.loads(found[1].replace("'", '"'))
    assert (
        300 <= metrics["global_step"] == DirectoryStore(model_dir).latest_step() <= 301
    )
    assert metrics["auc"] > 0.95
    assert "chief 0 None" in told["chief-0"]
