# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from skest import EstimatorSpec, ModeKeys
from skest.core.random import RunRandom
from skest.heads import RegressionHead
from skest.hooks.summary_saver import without_traces
from tests._models import NETWORKS, squared_loss


@pytest.mark.parametrize("name", NETWORKS)
def test_a_trial_gives_what_comes_next_and_leaves_no_trace(name):
    network = NETWORKS[name]()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    spec = EstimatorSpec(
        ModeKeys.TRAIN, network=network, loss=squared_loss, optimizer=optimizer
    )
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    network.train()
    with RunRandom(0).attach(network, squared_loss, optimizer):
        before = {k: v.clone() for k, v in network.state_dict().items()}
        with without_traces(spec):
            tried = network(x)
        assert not tried.requires_grad
        after = network.state_dict()
        assert all(torch.equal(after[k], v) for k, v in before.items())
        assert torch.equal(network(x), tried)


def test_generators_of_others_are_left_alone():
    network = NETWORKS["skest_dropout"]().train()
    spec = EstimatorSpec(
        ModeKeys.TRAIN,
        network=network,
        loss=RegressionHead().compute_loss,
        optimizer=torch.optim.SGD(network.parameters()),
    )
    state = torch.get_rng_state()
    try:
        with RunRandom(0).attach(network), without_traces(spec):
            network(torch.ones(2, 3))
            drawn = torch.rand(1)  # as another thread may
        assert not torch.equal(torch.rand(1), drawn)
    finally:
        torch.set_rng_state(state)
