# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from skest import EstimatorSpec, ModeKeys
from skest.hooks.summary_saver import learning_rates
from tests._models import squared_loss


def spec_of(network, *groups):
    optimizer = torch.optim.SGD([{"params": params, "lr": lr} for params, lr in groups])
    return EstimatorSpec(
        ModeKeys.TRAIN, network=network, loss=squared_loss, optimizer=optimizer
    )


def test_one_group_needs_no_path():
    network = nn.Linear(2, 1)
    assert learning_rates(spec_of(network, (network.parameters(), 0.5))) == {
        "learning_rate": 0.5
    }


@pytest.mark.parametrize(
    ("split", "names"),
    [
        (lambda n: ([*n[0].parameters()], [*n[1].parameters()]), ("0", "1")),
        (lambda n: ([*n[0].parameters()], [*n[1][0].parameters()]), ("0", "1/0")),
        (lambda n: ([n[0].weight], [n[0].bias]), ("0", "1")),  # the same module
        (
            lambda n: ([n[0].weight, n[1][0].weight], [n[0].bias]),
            ("0", "1"),
        ),  # the root
        (lambda n: ([n[0].weight], [nn.Parameter(torch.ones(1))]), ("0", "1")),
    ],
)
def test_groups_have_the_path_of_their_module(split, names):
    network = nn.Sequential(
        nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    )
    first, second = split(network)
    rates = learning_rates(spec_of(network, (first, 0.5), (second, 0.25)))
    assert rates == {
        f"learning_rate/{names[0]}": 0.5,
        f"learning_rate/{names[1]}": 0.25,
    }
