# SPDX-License-Identifier: Apache-2.0
"""Which part a process has in a training."""

import logging
import threading

import pytest
import torch

from skest import Estimator, RunConfig
from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.store import DirectoryStore
from skest.config.run_config import strategy_of
from skest.distributed import (
    AsyncParameterServer,
    ClusterSpec,
    LocalSGD,
    SharedMemory,
    TaskConfig,
)
from skest.distributed.ps.worker import AsyncReplica
from skest.distributed.replicas import replica_for
from skest.distributed.synchronous import LocalSGDReplica
from skest.engine.loop import Replica
from skest.inputs import InputContext
from tests._models import batches, model_fn

JOBS = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"]}


def config(kind="worker", index=0, jobs=None, **settings):
    cluster = ClusterSpec() if kind == "evaluator" else ClusterSpec(jobs or JOBS)
    return RunConfig(task=TaskConfig(kind, index, cluster), **settings)


def made(config):
    return replica_for(model_fn, batches, config)


@pytest.mark.parametrize(
    ("task", "is_chief", "context"),
    [
        (("chief", 0), True, InputContext(2, 0)),
        (("worker", 0), False, InputContext(2, 1)),
    ],
)
@pytest.mark.parametrize("strategy", [None, AsyncParameterServer(timeout=7.0)])
def test_parameter_servers_of_a_cluster_suffice(task, is_chief, context, strategy):
    settings = config(*task, train_distribute=strategy)
    assert isinstance(strategy_of(settings), AsyncParameterServer)
    replica = made(settings)
    assert isinstance(replica, AsyncReplica)
    assert replica.is_chief == is_chief
    assert replica.input_context == context
    assert replica.client.addresses == JOBS["ps"]
    assert str(replica.client.peer) == f"{task[0]} {task[1]}"


def test_a_cluster_without_servers_or_strategy_is_mentioned(caplog):
    jobs = {"chief": ["h:1"], "worker": ["h:2"]}
    assert type(made(config(jobs=jobs))) is Replica
    assert "trains alone, though it is one of 2 in its cluster" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (config("evaluator"), "an evaluator, which .* not train. .*train_and_evaluate"),
        (config("chief", jobs={"chief": ["h:1"]}, train_distribute=LocalSGD()), None),
        (
            config(
                "chief",
                jobs={"chief": ["h:1"]},
                train_distribute=AsyncParameterServer(),
            ),
            "needs parameter servers, and the cluster has none: .*'ps'",
        ),
        (
            config("chief", train_distribute=SharedMemory()),
            "a task of .* AsyncParameterServer there",
        ),
        (
            config("helper", jobs={"chief": ["h:1"], "helper": ["h:2"]}),
            "The task 'helper' of a cluster does not train",
        ),
    ],
)
def test_tasks_without_a_place(settings, message):
    if message is None:
        assert type(made(settings)) is LocalSGDReplica
        return
    with pytest.raises(ValueError, match=message):
        made(settings)


def note_end(path, step=1, reason="enough", **options):
    store = DirectoryStore(path)
    store.save(Checkpoint(step, {"w": torch.zeros(1)}))
    store.note_stop(reason, **options)


def test_a_worker_that_comes_too_late_ends(tmp_path, caplog):
    note_end(tmp_path)  # of an earlier training
    settings = config(
        "worker", model_dir=tmp_path, train_distribute=AsyncParameterServer(timeout=1.0)
    )
    timer = threading.Timer(1.0, note_end, [tmp_path, 2])
    timer.start()
    with caplog.at_level(logging.INFO, "skest"):
        Estimator(model_fn, config=settings).train(batches)
    assert DirectoryStore(tmp_path).latest_step() == 2  # the end of this one
    timer.join()
