# SPDX-License-Identifier: Apache-2.0
"""Tests of `skest.distributed.local_sgd`, with real processes."""

import os
import signal

import numpy as np
import pytest
import torch
import torch.distributed as dist

from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.store import DirectoryStore
from skest.distributed.local_sgd import LocalSGDReplica
from skest.exceptions import PeerLostError
from tests._models import At
from tests.distributed import _ranks
from tests.distributed._ranks import batches, estimator, variables
from tests.distributed.test_data_parallel import (
    SIZES,
    Trace,
    alone,
    assert_near,
    numbers,
    one_process,  # noqa: F401, a fixture
)


def trained(rank, folder, sync_every, *, hooks=(), sizes=SIZES, config=None, **params):
    made = estimator(folder, config=config, **params)
    replica = LocalSGDReplica(sync_every, "cpu", timeout=60)
    return _ranks.train(replica, made, batches(sizes, rank), hooks=hooks)


def every_step(rank, folder):
    return variables(trained(rank, folder, 1))


def every_second_step(rank, folder):
    trace = Trace()
    config = {"save_checkpoints_steps": 2}
    made = trained(rank, folder, 2, hooks=[trace], config=config)
    kept = DirectoryStore(folder)
    steps = sorted(int(path.name[5:]) for path in folder.glob("ckpt-*"))
    return variables(made), trace.end_state, (steps, kept.latest_step())


def in_graph(rank, folder):
    return variables(trained(rank, folder, 2, config={"execution": "graph"}))


def ftrl(rank, folder):
    params = {"optimizer": "ftrl", "learning_rate": 0.1}
    states = []
    hooks = [At(step, lambda run: states.append(state_of(run))) for step in (2, 3, 4)]
    trained(rank, folder, 2, hooks=hooks, **params)
    return states


def state_of(run):
    return Checkpoint.capture(run.network, run.global_step).variables["once.weight"]


def one_ends_earlier(rank, folder):
    return variables(trained(rank, folder, 2, sizes=SIZES[: 3 + 2 * rank]))


def one_is_interrupted(rank, folder):
    interrupt = At(1, lambda run: os.kill(os.getpid(), signal.SIGINT))
    hooks = [interrupt] if rank == 1 else []
    return variables(trained(rank, folder, 2, hooks=hooks))


def one_fails(rank, folder):
    def fail(run):
        raise OSError("no more paper")

    try:
        trained(rank, folder, 2, hooks=[At(3, fail)] if rank == 1 else [])
    except (OSError, PeerLostError) as error:
        return f"{type(error).__name__}: {error}"


def watched(rank, folder):
    config = {"save_summary_steps": 2}
    return variables(trained(rank, folder, 2, config=config))


TOGETHER = [
    *("every_step", "every_second_step", "in_graph", "ftrl", "one_ends_earlier"),
    *("one_is_interrupted", "one_fails", "watched"),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return _ranks.found_by_both(__name__, TOGETHER, folder)


def simulated(sync_every):
    """Train two copies of the model in this process, averaged every few steps."""
    specs = [fresh_spec() for _ in range(2)]
    specs[1].network.load_state_dict(specs[0].network.state_dict())
    parts = [list(batches(SIZES, rank)()) for rank in range(2)]
    for step in range(len(SIZES)):
        for spec, part in zip(specs, parts, strict=True):
            ids, y = map(torch.from_numpy, part[step])
            spec.optimizers[0].zero_grad()
            spec.loss(y, spec.network(ids), ids).backward()
            spec.optimizers[0].step()
        if (step + 1) % sync_every == 0 or step + 1 == len(SIZES):
            average(specs)
    return {n: v.tolist() for n, v in specs[0].network.state_dict().items()}


def fresh_spec():
    initial = Initial()
    made = estimator().train(batches(SIZES, 0), hooks=[initial], steps=1)
    spec = made.model_fn(*next(batches(SIZES)()), "train")
    spec.network.load_state_dict(initial.variables)
    return spec


class Initial(Trace):
    def begin(self, run):
        found = run.network.state_dict()
        self.variables = {n: v.clone() for n, v in found.items()}


@torch.no_grad()
def average(specs):
    one, two = (list(spec.network.parameters()) for spec in specs)
    for first, second in zip(one, two, strict=True):
        first.copy_((first + second) / 2)
        second.copy_(first)


def test_an_average_in_every_step_is_data_parallelism(results):
    found = results["every_step"][0]  # of SGD, whose step is linear in the gradient
    assert_near(found, alone())


@pytest.mark.parametrize("name", ["every_second_step", "in_graph", "watched"])
def test_processes_train_apart_between_averages(results, name):
    found = results[name][0]
    found = found[0] if isinstance(found, tuple) else found
    for variable, value in simulated(2).items():
        np.testing.assert_allclose(found[variable], value, 1e-5, 1e-6)


def test_the_chief_saves(results):
    (found, own, (steps, latest)), (_, other, _) = results["every_second_step"]
    assert own != other  # of step 5, before the last average
    assert numbers(found) != own
    assert (steps, latest) == ([0, 2, 4, 5], 5)
    assert found["step"] == 5


def test_weights_of_ftrl_stay_averaged(results):
    (own, own_next, own_last), (other, other_next, other_last) = results["ftrl"]
    assert torch.equal(own, other)
    assert not torch.equal(own_next, other_next)
    assert (own_next - other_next).abs().max() < 0.5  # each one step from their mean
    assert torch.equal(own_last, other_last)


def test_all_stop_at_an_average_where_the_input_of_one_ends(results):
    found, _ = results["one_ends_earlier"]
    assert found["step"] == 3
    assert found["stop_reason"] == "the input ended"


def test_all_stop_at_an_average_where_one_is_interrupted(results):
    found = results["one_is_interrupted"][0]
    assert found["step"] == 2
    assert found["stop_reason"] == "interrupted by Ctrl-C"


def test_the_others_are_told_of_an_error(results):
    told, own = results["one_fails"]
    assert own == "OSError: no more paper"
    assert "(rank 1: OSError: no more paper)" in told


@pytest.mark.parametrize("name", ["sgd", "adagrad", "ftrl"])
def test_one_process_trains_as_without_a_strategy(one_process, tmp_path, name):  # noqa: F811
    params = {"optimizer": name, "learning_rate": 0.0625}
    made = estimator(tmp_path, **params)
    found = _ranks.train(LocalSGDReplica(2, "cpu"), made, batches([4] * 5))
    assert numbers(variables(found)) == numbers(alone([4] * 5, **params))
    assert dist.is_initialized()  # for the next training


@pytest.mark.parametrize("sync_every", [0, 1.5])
def test_wrong_arguments(sync_every):
    with pytest.raises((ValueError, TypeError), match="'sync_every'"):
        LocalSGDReplica(sync_every)
