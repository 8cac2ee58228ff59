# SPDX-License-Identifier: Apache-2.0

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from skest.networks import (
    ACTIVATIONS,
    DNN,
    BatchNorm,
    Combined,
    Dropout,
    get_activation,
)


def make(n=3, dtype=torch.float64, **options):
    """Return a layer whose weights are not the initial ones."""
    torch.manual_seed(0)
    layer = BatchNorm(n, **options).to(dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(0.5, 1.5)
    return layer


def normalise(x, layer):
    """The formula, written out."""
    variance = ((x - x.mean(0)) ** 2).mean(0)
    return (x - x.mean(0)) / (variance + layer.eps).sqrt() * layer.weight + layer.bias


@settings(max_examples=25, deadline=None)
@given(n_rows=st.integers(1, 9), seed=st.integers(0, 99))
def test_values_and_gradients_in_training(n_rows, seed):
    layer = make()
    x = torch.randn(n_rows, 3, dtype=torch.float64, generator=torch.manual_seed(seed))
    x.requires_grad_()
    inputs = (x, layer.weight, layer.bias)
    seen = torch.randn(n_rows, 3, dtype=torch.float64)
    ours, formula = layer(x), normalise(x, layer)
    torch.testing.assert_close(ours, formula)
    for got, expected in zip(
        torch.autograd.grad((ours * seen).sum(), inputs),
        torch.autograd.grad((formula * seen).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(got, expected)


def test_one_row_gives_the_bias_and_no_gradient_to_its_input():
    layer = make()
    x = torch.tensor([[1.0, -2.0, 1e6]], dtype=torch.float64, requires_grad=True)
    y = layer(x)
    assert torch.equal(y, layer.bias[None])
    y.sum().backward()
    assert x.grad.tolist() == [[0.0, 0.0, 0.0]]
    assert layer.weight.grad.tolist() == [0.0, 0.0, 0.0]
    assert layer.bias.grad.tolist() == [1.0, 1.0, 1.0]


def test_moving_averages_have_the_biased_variance():
    for momentum in [0.9, 0.999]:
        layer = make(momentum=momentum)
        mean, variance = (
            torch.zeros(3, dtype=torch.float64),
            torch.ones(3, dtype=torch.float64),
        )
        for n_rows in (5, 2, 1):
            x = torch.randn(n_rows, 3, dtype=torch.float64)
            layer(x)
            mean = momentum * mean + (1 - momentum) * x.mean(0)
            variance = momentum * variance + (1 - momentum) * x.var(0, correction=0)
        torch.testing.assert_close(layer.running_mean, mean)
        torch.testing.assert_close(layer.running_var, variance)


def test_out_of_training_it_is_the_layer_of_torch():
    layer = make(dtype=torch.float32)
    layer(torch.randn(8, 3))
    theirs = nn.BatchNorm1d(3, eps=layer.eps).eval()
    theirs.load_state_dict(
        {**layer.state_dict(), "num_batches_tracked": torch.tensor(0)}
    )
    before = copy.deepcopy(layer.state_dict())
    x = torch.randn(4, 3)
    assert torch.equal(layer.eval()(x), theirs(x))
    for n_rows in (1, 2):
        torch.testing.assert_close(layer(x)[:n_rows], layer(x[:n_rows]))
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name])


# Dropout


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def drop(x, p=0.5, seed=0):
    layer = Dropout(p)
    layer.generator = generator(seed)
    return layer(x)


def test_a_share_is_dropped_and_the_mean_is_kept():
    for p in [0.1, 0.5, 0.8]:
        for dtype in [torch.bfloat16, torch.float16, torch.float32, torch.float64]:
            n = 40_000
            dropped = drop(torch.ones(n, dtype=dtype), p)
            zeros = (dropped == 0).double().mean().item()
            standard_error = (p * (1 - p) / n) ** 0.5
            assert zeros == pytest.approx(p, abs=5 * standard_error)
            assert dropped.dtype == dtype
            kept = dropped[dropped != 0]
            torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - p)))


def test_wrong_probabilities_are_refused():
    for p in [-0.1, 1.0, 1.5, float("nan")]:
        with pytest.raises(ValueError, match=r"'dropout' must be in \[0, 1\)"):
            Dropout(p)


# Activations

X = torch.tensor([-2.0, -0.5, 0.0, 3.0])
EXPECTED = {
    "elu": F.elu(X),
    "gelu": F.gelu(X),
    "identity": X,
    "leaky_relu": torch.tensor([-0.4, -0.1, 0.0, 3.0]),  # the slope of tf.nn
    "logistic": 1 / (1 + (-X).exp()),
    "relu": torch.tensor([0.0, 0.0, 0.0, 3.0]),
    "selu": F.selu(X),
    "sigmoid": 1 / (1 + (-X).exp()),
    "silu": X / (1 + (-X).exp()),
    "softplus": X.exp().log1p(),
    "tanh": torch.tanh(X),
}


def test_names():
    for name in ACTIVATIONS:
        torch.testing.assert_close(get_activation(name)(X), EXPECTED[name])


def test_unknown_names_are_refused():
    for name in ["Relu6", "", None, 3]:
        with pytest.raises(ValueError, match="'activation' must be a .* or one of elu"):
            get_activation(name)


class Inputs(nn.Module):
    """Passes the dense input through."""

    def __init__(self, out_features):
        super().__init__()
        self.out_features = out_features

    def forward(self, features):
        return features


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


# Combined and Baseline


def test_both_missing():
    with pytest.raises(ValueError, match="needs a linear network or a DNN"):
        Combined(None, None)
