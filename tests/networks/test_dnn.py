# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from torch import nn

from skest.networks import DNN, Combined


class Inputs(nn.Module):
    """Passes the dense input through."""

    def __init__(self, out_features):
        super().__init__()
        self.out_features = out_features

    def forward(self, features):
        return features


def n_parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_order_in_a_layer():
    # tf.estimator: linear, activation, dropout, batch normalisation.
    network = DNN(
        Inputs(3), (4,), 1, activation="tanh", batch_norm=True, batch_norm_momentum=0.5
    )
    x = torch.randn(6, 3)
    expected = torch.tanh(network.hidden_0(x))
    network(x)
    torch.testing.assert_close(network.batch_norm_0.running_mean, expected.mean(0) / 2)


def test_dropout_draws_from_the_generator_of_its_layers_in_training():
    network = DNN(Inputs(8), (200, 200), 1, dropout=0.5)
    x = torch.ones(1, 8)

    def hidden(seed):
        generator = torch.Generator().manual_seed(seed)
        for i in range(2):
            getattr(network, f"dropout_{i}").generator = generator
        return network.hidden(x)

    assert torch.equal(hidden(0), hidden(0))
    assert not torch.equal(hidden(0), hidden(1))
    network.eval()
    assert torch.equal(hidden(0), hidden(1))


def test_initial_values():
    generator = torch.Generator().manual_seed(0)
    before = torch.get_rng_state()
    network = DNN(Inputs(50), (80,), 1, generator=generator)
    assert torch.equal(torch.get_rng_state(), before)
    limit = math.sqrt(6 / (50 + 80))  # Glorot
    weight = network.hidden_0.weight
    assert weight.abs().max() <= limit
    assert weight.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.05)
    assert not network.hidden_0.bias.any()
    assert not network.logits.bias.any()
    again = DNN(Inputs(50), (80,), 1, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again.hidden_0.weight, weight)


def test_the_last_layer_can_be_made_elsewhere():
    made = []

    def output(in_features, **options):
        made.append((in_features, options))
        return nn.Identity()

    network = DNN(Inputs(2), (3,), 7, dtype=torch.float64, output=output)
    x = torch.ones(2, 2, dtype=torch.float64)
    assert torch.equal(network(x), network.hidden(x))
    expected = {"dtype": torch.float64, "generator": None, "initialize": True}
    assert made == [(3, expected)]


# Combined and Baseline


def test_both_missing():
    with pytest.raises(ValueError, match="needs a linear network or a DNN"):
        Combined(None, None)
