# SPDX-License-Identifier: Apache-2.0
"""What the chief reads of a checkpoint that servers go on from."""

import dataclasses
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from skest import Estimator, EstimatorSpec, RunConfig
from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.store import DirectoryStore, MemoryStore
from skest.distributed.ps.worker import Beginning
from skest.distributed.testing import LocalServers
from skest.exceptions import CheckpointMismatchError
from skest.optimizers import make_optimizer
from tests.distributed._allocated import Allocated
from tests.distributed._training import replica
from tests.distributed.test_async_replica import assert_same, ids_fn, squared_error

N_ROWS = 1 << 17


def model(n_rows=N_ROWS, optimizer=torch.optim.Adagrad):
    torch.manual_seed(1)
    network = nn.Sequential(nn.Embedding(n_rows, 4), nn.Linear(4, 2))
    return network, optimizer(network.parameters(), lr=0.1)


def saved(store, optimizer=torch.optim.Adagrad):
    network, rule = model(optimizer=optimizer)
    network(torch.arange(3)).sum().backward()
    rule.step()
    made = Checkpoint.capture(network, 7, [rule])
    store.save(made)
    return made


@pytest.fixture(params=["directory", "memory"])
def store(request, tmp_path):
    return DirectoryStore(tmp_path) if request.param == "directory" else MemoryStore()


@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.Adagrad,
        torch.optim.Adam,
        torch.optim.RMSprop,
        partial(torch.optim.SGD, momentum=0.9),
    ],
)
def test_what_is_large_is_not_read(store, optimizer):
    expected = saved(store, optimizer)
    beginning = Beginning()
    found = beginning.latest(store)
    assert beginning.goes_on
    assert (beginning.checkpoint is expected) == isinstance(store, MemoryStore)
    with beginning.building():
        network, rule = model(optimizer=optimizer)
    with Allocated() as allocated:
        found.restore(network, [rule])
        beginning.settle(network)
    assert allocated.n_bytes < 1000
    assert not network[0].weight.any()
    assert torch.equal(network[1].weight, expected.variables["1.weight"])
    for name, slot in rule.state[network[1].weight].items():
        assert torch.equal(slot, expected.optimizer[f"0:1.weight/{name}"])
    assert found.scalars == expected.scalars


@pytest.mark.parametrize("n_rows", [N_ROWS - 1, 3])
def test_what_is_large_is_compared(store, n_rows):
    saved(store)
    beginning = Beginning()
    found = beginning.latest(store)
    with beginning.building():
        network, rule = model(n_rows)
    with pytest.raises(CheckpointMismatchError, match=r"0\.weight: \(131072, 4\) in"):
        found.restore(network, [rule])


def test_what_servers_do_not_change_is_read_by_name(store):
    expected = saved(store)
    beginning = Beginning()
    found = beginning.latest(store)
    with beginning.building():
        network, rule = model()
    found.restore(network, [rule])
    beginning.settle(network)
    beginning.load(network, ["1.weight", "0.weight"])
    assert torch.equal(network[0].weight, expected.variables["0.weight"])


def test_optimizers_without_state_begin_with_all_values(store):
    store.save(dataclasses.replace(saved(MemoryStore()), optimizer={}, scalars={}))
    beginning = Beginning()
    found = beginning.latest(store)
    assert not beginning.goes_on
    assert beginning.checkpoint is None
    with beginning.building():
        network, _ = model()
    found.restore(network)
    beginning.settle(network)
    assert torch.equal(network[0].weight, store.latest().variables["0.weight"])


def test_without_a_checkpoint_values_are_drawn(store):
    beginning = Beginning()
    assert beginning.latest(store) is None
    assert not beginning.goes_on
    with beginning.building():
        network, _ = model()
    beginning.settle(network)
    assert torch.equal(network[0].weight, model()[0][0].weight)


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(N_ROWS, 4, sparse=True)
        self.table.weight.is_row_table = True
        self.out = nn.Linear(4, 1)

    def forward(self, features):
        return self.out(F.dropout(self.table(features["ids"]), training=self.training))


def large_model(features, labels, mode):
    network = Wide()
    return EstimatorSpec(
        mode,
        network=network,
        loss=squared_error,
        optimizer=make_optimizer("adam", network.parameters(), 0.05),
    )


@pytest.mark.parametrize("is_seen", [True, False])
@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("num_ps", [1, 3])
def test_training_goes_on_bit_for_bit(
    tmp_path, monkeypatch, num_ps, in_memory, is_seen
):
    """From what one process saved, and then from what servers wrote."""

    def train(name, addresses):
        directory = None if in_memory else tmp_path / name
        config = RunConfig(random_seed=3, model_dir=directory)
        estimator = Estimator(large_model, config=config).train(ids_fn, steps=2)
        for _ in range(2):
            with LocalServers(num_ps, model_dir=directory if is_seen else None) as own:
                if addresses:
                    make = replica(own.addresses)
                    monkeypatch.setattr(
                        "skest.estimators.estimator.Replica", lambda m=make: m
                    )
                estimator.train(ids_fn, steps=2)
        monkeypatch.undo()
        return estimator.checkpoint

    assert_same(train("ours", True), train("local", False))
