# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from skest import EstimatorSpec, RunConfig
from skest.checkpoints.checkpoint import Checkpoint
from skest.distributed.ps.variables import Variables
from skest.distributed.ps.worker import initial_capture
from skest.hooks import Run
from skest.optimizers.row_sparse import RowSparse
from tests.distributed._allocated import Allocated


def run_of(n_rows=5, make=torch.optim.Adagrad):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Embedding(n_rows, 3, sparse=True), nn.BatchNorm1d(3))
    network.append(nn.Linear(3, 3))
    network.append(nn.Linear(3, 3))
    network[3].weight = network[2].weight
    network[3].bias.requires_grad_(False)
    trained = [p for p in network.parameters() if p.requires_grad]
    optimizers = (make(trained[:1]), torch.optim.Adam(trained[1:]))
    spec = EstimatorSpec(
        "train",
        network=network,
        loss=lambda y, z, x: z.sum(),
        predictions=lambda z: {"z": z},
        optimizer=optimizers,
    )

    def capture(run):
        return Checkpoint.capture(run.network, run.global_step, run.spec.optimizers)

    run = Run(spec, RunConfig(), global_step=3, capture=capture)
    return run, Variables.of(network, spec.optimizers, 2)


@pytest.mark.parametrize(
    "make", [torch.optim.Adagrad, lambda p: RowSparse(torch.optim.Adagrad(p))]
)
def test_it_is_a_checkpoint_like_any_other(make):
    run, variables = run_of(make=make)
    run.network(torch.tensor([1, 4])).sum().backward()
    for optimizer in run.spec.optimizers:
        optimizer.step()
    expected, found = run.capture_checkpoint(), initial_capture(run, variables)
    for ours, theirs in zip(
        (found.variables, found.optimizer),
        (expected.variables, expected.optimizer),
        strict=True,
    ):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert (found.scalars, found.global_step) == (expected.scalars, 3)
    again = run.capture_checkpoint()  # nothing was taken away
    assert again.optimizer.keys() == expected.optimizer.keys()


def test_only_what_a_worker_writes_to_is_copied():
    run, variables = run_of(n_rows=100_000)
    with Allocated() as allocated:
        found = initial_capture(run, variables)
    assert allocated.n_bytes < 10_000
    parameter = run.network[0].weight
    parameter.data = torch.zeros_like(parameter)  # as `Exchange` does
    assert found.variables["0.weight"].any()
    run.network[1].running_mean.fill_(7)
    assert not found.variables["1.running_mean"].any()
