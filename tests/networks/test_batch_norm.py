# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from skest.networks import DNN, BatchNorm
from tests.golden._cases import decode, load


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


@pytest.mark.parametrize("momentum", [0.9, 0.999])
def test_moving_averages_have_the_biased_variance(momentum):
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


def test_buffers_carry_no_graph():
    layer = make()
    layer(torch.randn(4, 3, dtype=torch.float64, requires_grad=True))
    assert not layer.running_mean.requires_grad
    assert not layer.running_var.requires_grad


class Columns(nn.Module):
    """The input layer of the golden case: numeric columns in the order of their names."""

    out_features = 3

    def forward(self, features):
        return torch.cat([features["x"], features["z"]], dim=1)


def test_a_network_trains_as_that_of_the_original():
    (case,) = (case for case in load("canned") if case["id"] == "dnn/batch_norm")
    config = case["config"]
    names = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
    names |= {"moving_mean": "running_mean", "moving_variance": "running_var"}

    def variables(weights):
        """Give TensorFlow's variables the names and shapes that they have here."""
        for name, value in decode(weights).items():
            layer, kind = name.split("/")[-2:]
            layer = layer.replace("hiddenlayer", "hidden").replace(
                "batchnorm", "batch_norm"
            )
            value = torch.from_numpy(value)
            yield f"{layer}.{names[kind]}", value.T if kind == "kernel" else value

    network = DNN(
        Columns(), config["hidden_units"], 1, batch_norm=True, batch_norm_momentum=0.999
    )
    network.load_state_dict(dict(variables(config["initial_weights"])))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    train, losses = case["expected"]["train"], []
    inputs = decode(case["inputs"]["train_batches"])
    for step in range(len(train["loss_per_step"])):
        batch = inputs[step % len(inputs)]
        features = {k: torch.from_numpy(batch["features"][k]) for k in ("x", "z")}
        labels = torch.from_numpy(batch["labels"]).reshape(-1, 1).float()
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(network(features), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.testing.assert_close(losses, train["loss_per_step"], rtol=1e-4, atol=1e-5)
    (last,) = (k for k in train if k == f"weights_after_{len(losses)}")
    for name, value in variables(train[last]):
        torch.testing.assert_close(
            network.state_dict()[name], value, rtol=1e-4, atol=1e-5
        )
