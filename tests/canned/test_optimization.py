# SPDX-License-Identifier: Apache-2.0
"""What the optimizer "auto" consists of."""

import pytest
import torch
from torch import nn

from skest.canned.optimization import Part, optimization
from skest.optimizers.schedules import CosineCycles


def rates_of(rate, step):
    network = nn.Linear(2, 1)
    network.member_scales = nn.Parameter(torch.ones(2, 2))
    made = optimization("train", None, Part.of(network, "auto", rate))
    return [
        optimizer.learning_rate_function(step)
        if callable(rate)
        else optimizer.param_groups[0]["lr"]
        for optimizer in made["optimizer"]
    ]


@pytest.mark.parametrize(
    ("rate", "times"),
    [
        (CosineCycles(0.002, 4_000), 20),
        (CosineCycles(0.002, 250), 2.5),
        (CosineCycles(0.002, 250, first_step=1_000), 12.5),
        (CosineCycles(0.002, 50), 1),
        (0.002, 1),
    ],
    ids=str,
)
def test_scales_of_members_learn_faster_in_a_long_training(rate, times):
    of_layers, of_scales = rates_of(rate, getattr(rate, "first_step", 0) + 20)
    assert of_scales == pytest.approx(times * of_layers)
    assert of_layers > 0
