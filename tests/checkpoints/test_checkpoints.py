# SPDX-License-Identifier: Apache-2.0
"""The state of a run, captured and restored."""

import pickle

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from skest.checkpoints.checkpoint import Checkpoint, load_variables
from skest.checkpoints.store import DirectoryStore, MemoryStore
from skest.core.random import RunRandom
from skest.exceptions import CheckpointMismatchError
from skest.optimizers import make_optimizer
from tests._models import assert_same_checkpoint


def test_variables_are_loaded():
    network = nn.Linear(2, 3)
    variables = {
        "weight": torch.ones(3, 2),
        "bias": torch.arange(3, dtype=torch.float64),
    }
    load_variables(network, variables)
    assert torch.equal(network.weight, torch.ones(3, 2))
    assert network.bias.tolist() == [0.0, 1.0, 2.0]


def test_all_differences_are_listed_and_nothing_is_loaded():
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    variables = {
        "0.weight": torch.ones(4, 2),
        "0.bias": torch.ones(3),
        "1.weight": torch.ones(1, 3),
        "2.bias": torch.ones(7),
    }
    with pytest.raises(CheckpointMismatchError) as error:
        load_variables(network, variables)
    assert str(error.value).splitlines()[1:4] == [
        "  0.weight: (4, 2) in the checkpoint, (3, 2) in the network",
        "  1.bias: missing in the checkpoint, the network has (1,)",
        "  2.bias: (7,) in the checkpoint, not in the network",
    ]
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


def state_of(network, optimizer, scheduler=None, random=None):
    schedulers = () if scheduler is None else (scheduler,)
    return Checkpoint.capture(network, 3, (optimizer,), schedulers, random)


def test_capture_copies():
    network = nn.BatchNorm1d(2)
    optimizer = make_optimizer("adagrad", network.parameters(), 0.1)
    checkpoint = state_of(network, optimizer, random=RunRandom(0))
    copied = pickle.loads(pickle.dumps(checkpoint))
    network(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    assert_same_checkpoint(checkpoint, copied)
    assert int(checkpoint.variables["num_batches_tracked"]) == 0


def test_tied_variables_can_be_saved(tmp_path):
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    network[1].weight = network[0].weight
    optimizer = make_optimizer("adam", network.parameters(), 0.1)
    store = DirectoryStore(tmp_path)
    store.save(state_of(network, optimizer))
    fresh = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    store.latest().restore(fresh)
    assert torch.equal(fresh[1].weight, network[0].weight)


@pytest.mark.parametrize("n_optimizers", [1, 3])
def test_another_number_of_optimizers_is_refused(n_optimizers):
    network = nn.Linear(2, 1)
    optimizers = [make_optimizer("sgd", [p]) for p in network.parameters()]
    checkpoint = Checkpoint.capture(network, 3, optimizers)
    given = [make_optimizer("sgd", network.parameters()) for _ in range(n_optimizers)]
    with pytest.raises(
        CheckpointMismatchError, match=rf"holds 2 optimizer.*model has {n_optimizers}"
    ):
        checkpoint.restore(network, given)
    checkpoint.restore(network)  # prediction has none


SCHEDULERS = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, gamma=0.5),
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, [2, 4, 6], gamma=0.5),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 8),
    "one_cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=9),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o,
        [
            lr_scheduler.LinearLR(o, 0.1, total_iters=2),
            lr_scheduler.MultiStepLR(o, [1, 3]),
        ],
        milestones=[2],
    ),
}


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("kind", ["memory", "directory"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_go_on(name, kind, tmp_path):
    def build():
        network = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.4)
        return network, optimizer, SCHEDULERS[name](optimizer)

    def rates(optimizer, scheduler, steps):
        for _ in range(steps):
            scheduler.step()
            yield optimizer.param_groups[0]["lr"]

    _, optimizer, scheduler = build()
    expected = list(rates(optimizer, scheduler, 7))
    network, optimizer, scheduler = build()
    first = list(rates(optimizer, scheduler, 3))
    store = MemoryStore() if kind == "memory" else DirectoryStore(tmp_path)
    store.save(state_of(network, optimizer, scheduler))
    network, optimizer, scheduler = build()
    store.latest().restore(network, [optimizer], [scheduler])
    assert [*first, *rates(optimizer, scheduler, 4)] == expected


def test_a_scheduler_whose_state_is_no_json_is_refused():
    network = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.4)
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    scheduler.memory = {1, 2}
    with pytest.raises(
        TypeError, match=r"The state of StepLR can't be saved as JSON.*set"
    ):
        state_of(network, optimizer, scheduler)
