# SPDX-License-Identifier: Apache-2.0
"""The network without features."""

import torch

from skest.networks import Baseline


def test_every_row_gets_the_bias():
    network = Baseline(2, torch.float64)
    assert network.bias.tolist() == [0.0, 0.0]
    torch.nn.init.constant_(network.bias, 1.5)
    logits = network({"rows": torch.empty(3, 0)})
    assert logits.dtype == torch.float64
    assert logits.tolist() == [[1.5, 1.5]] * 3


def test_the_gradient_is_the_sum_over_rows():
    network = Baseline(1)
    network({"rows": torch.empty(5, 0)}).sum().backward()
    assert network.bias.grad.tolist() == [5.0]
