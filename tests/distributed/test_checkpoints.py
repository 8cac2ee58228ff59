# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of what is in parameter servers."""

import pytest
import torch
from torch import nn

from skest import Estimator, EstimatorSpec, RunConfig
from skest.distributed.ps import checkpoint as transfer
from skest.distributed.ps.optimizers import Shard
from skest.exceptions import NanLossDuringTrainingError
from skest.optimizers import make_optimizers
from tests.distributed.test_exactness import assert_same, ids_fn, squared_error


class Tied(nn.Module):
    """A table, a dense variable of two names, and a buffer."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(40, 3, sparse=True)
        self.out = nn.Linear(3, 1)
        self.same = self.out
        self.also = self.table
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, features):
        self.steps += 1
        return self.out(self.table(features["ids"]))


def tied_model(features, labels, mode):
    network = Tied()
    network.table.weight.is_row_table = True
    named = dict(network.named_parameters())
    return EstimatorSpec(
        mode,
        network=network,
        loss=squared_error,
        optimizer=make_optimizers([("table*", "adagrad"), ("*", "adam")], named, 0.05),
    )


def train(model_dir, steps=4, hooks=()):
    config = RunConfig(random_seed=3, model_dir=model_dir)
    estimator = Estimator(tied_model, config=config)
    return estimator.train(ids_fn, steps=steps, hooks=list(hooks)).checkpoint


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Let tables travel in several blocks."""
    monkeypatch.setattr(transfer, "_BLOCK_BYTES", 100)


@pytest.mark.parametrize("num_ps", [0, 1, 3])
def test_others_go_on_from_it(served, tmp_path, num_ps):
    """Two servers trained it; others, of another number or none, go on."""
    expected = [train(tmp_path / "local"), train(tmp_path / "local")]
    ours = tmp_path / "ours"
    assert_same(served(2, lambda: train(ours)), expected[0])
    assert_same(served(num_ps, lambda: train(ours)), expected[1])


def test_a_checkpoint_in_memory_is_gathered(served):
    assert_same(served(2, lambda: train(None)), train(None))


def test_variables_that_are_nan_in_a_server_are_not_saved(
    served, tmp_path, monkeypatch
):
    state = Shard.state

    def poisoned(shard, kinds):
        part = state(shard, kinds)
        table = shard._parameters["table.weight"].detach()
        if shard.ps == 1 and shard._optimizers[0].state:
            table[-1] = torch.nan
        return part

    monkeypatch.setattr(Shard, "state", poisoned)
    with pytest.raises(NanLossDuringTrainingError, match="'table.weight' is NaN"):
        served(2, lambda: train(tmp_path))
    assert [path.name for path in tmp_path.glob("*ckpt-*")] in ([], ["ckpt-0"])
