# SPDX-License-Identifier: Apache-2.0
"""What code does beside operations on tensors is noticed."""

import functools
import random

import numpy as np
import pytest
import torch
from torch import nn

from skest.execution.impurity import Impurity

TOTALS = {"calls": 0}


class Meter:
    def __init__(self):
        self.n = 0

    def __call__(self, x):
        self.n += 1
        return x


class Own(nn.Module):
    def __init__(self, function=None):
        super().__init__()
        self.function, self.meters, self.last = function, [Meter()], None

    def forward(self, x):
        return self.function(x) if self.function else x


def in_list(counts=[0]):  # noqa: B006  such a default is what is tested
    def function(x):
        counts[0] += 1
        return x

    return function


def in_dict_of_module(x):
    TOTALS["calls"] += 1
    return x


def with_default(x, *, seen=[]):  # noqa: B006
    seen.append(0)
    return x


def rebinding():
    n = 0

    def function(x):
        nonlocal n
        n += 1
        return x

    return function


CHANGING = {
    "a list of an enclosing function": in_list(),
    "a variable of an enclosing function": rebinding(),
    "a global": in_dict_of_module,
    "a default value": with_default,
    "an attribute": Meter(),
    "a method": Meter().__call__,
    "a part of it": functools.partial(with_default),
    "within others": functools.partial(lambda f, x: f(x), rebinding()),
}


@pytest.mark.parametrize("what", CHANGING)
@pytest.mark.parametrize("is_loss", [True, False])
def test_changes_of_what_functions_read(what, is_loss):
    function = CHANGING[what]
    network = None if is_loss else nn.Sequential(Own(function))
    with Impurity(network, function if is_loss else None) as impurity:
        (function if network is None else network)(torch.ones(2))
    assert impurity.obstacle == "the model changes in a step what its Python code reads"


def test_changes_of_what_modules_hold():
    network = nn.Sequential(nn.Linear(2, 2), Own())
    with Impurity(network) as impurity:
        network[1].meters[0](torch.ones(2))
    assert "what its Python code reads" in impurity.obstacle
    with Impurity(network) as impurity:
        network[1].last = torch.ones(2)
    assert "changes attributes of its modules" in impurity.obstacle


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (lambda x: x.tolist(), "tolist"),
        (lambda x: x.numpy(), "numpy"),
        (np.asarray, "__array__"),
        (np.from_dlpack, "__dlpack__"),
        (lambda x: x.apply_(abs), "apply_"),
        (lambda x: x.map_(x, max), "map_"),
        (repr, "__repr__"),
        (lambda x: f"{x.mean():.2f}", "__format__"),
        (lambda x: torch.tensor([x.mean()]), "tensor"),
        (lambda x: torch.tensor(data=[[x.mean()]]), "tensor"),
        (lambda x: torch.as_tensor((x.mean(), 1.0)), "as_tensor"),
        (lambda x: torch.asarray([x.mean()]), "asarray"),
        (lambda x: x.new_tensor([x.mean()]), "new_tensor"),
        (lambda x: torch.FloatTensor([x.mean()]), "__float__"),
        (lambda x: x.tensor_split(x[:1].long()), "tensor_split"),
        (lambda x: torch.tensor_split(x, x[:1].long()), "tensor_split"),
    ],
)
def test_numbers_that_are_read(read, name):
    with Impurity(None) as impurity:
        read(torch.ones(2))
    assert impurity.obstacle == f"'Tensor.{name}' makes Python depend on data"


class ReadInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * float(gradient.numpy().max())


def read_by_a_hook(x):
    y = x * 2
    y.register_hook(lambda gradient: gradient * max(gradient.tolist()))
    return y


@pytest.mark.parametrize(
    ("function", "name"),
    [(ReadInBackward.apply, "numpy"), (read_by_a_hook, "tolist")],
)
def test_numbers_that_are_read_in_a_backward_pass(function, name):
    x, other = torch.ones(2).requires_grad_(), torch.ones(2).requires_grad_()
    function(other).sum().backward()
    with Impurity(None) as impurity:
        function(x).sum().backward()
    assert impurity.obstacle == f"'Tensor.{name}' makes Python depend on data"
    assert torch.equal(x.grad, other.grad)


def test_backward_passes_with_options_are_taken_as_they_are():
    x = torch.ones(2).requires_grad_()
    with Impurity(None) as impurity:
        y = x * 2
        y.backward(torch.tensor([1.0, 3.0]), retain_graph=True)
        with pytest.raises(RuntimeError, match="only for scalar outputs"):
            y.backward()
    assert impurity.obstacle is None
    assert x.grad.tolist() == [2.0, 6.0]


@pytest.mark.parametrize(
    "register", ["register_hook", "register_post_accumulate_grad_hook"]
)
def test_changes_of_what_hooks_of_parameters_read(register):
    network, count = nn.Linear(2, 1), [0]

    def hook(gradient):
        count[0] += 1

    getattr(network.weight, register)(hook)
    with Impurity(network) as impurity:
        network(torch.ones(1, 2)).sum().backward()
    assert impurity.obstacle == "the model changes in a step what its Python code reads"


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.tensor(x.mean()),
        lambda x: torch.tensor([2.0]) * x,
        lambda x: torch.tensor_split(x, 2),
        lambda x: x.tensor_split([1]),
        lambda x: torch.as_tensor(x),
        lambda x: x.data.add_(1),
    ],
)
def test_tensors_that_are_made_by_operations(make):
    with Impurity(None) as impurity:
        make(torch.ones(2))
    assert impurity.obstacle is None


def test_a_tensor_in_the_place_of_another():
    with Impurity(None) as impurity:
        torch.ones(2).data = torch.zeros(2)
    assert impurity.obstacle == "'Tensor.data' is set in a step"


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_random_numbers_of_python_and_numpy(draw):
    with Impurity(None) as impurity:
        draw()
    assert impurity.obstacle == "the model draws random numbers of Python or NumPy"


def test_operations_on_tensors_are_no_obstacle():
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(), Own())
    with Impurity(network, nn.functional.mse_loss) as impurity:
        nn.functional.mse_loss(network(torch.ones(4, 2)), torch.ones(4, 3)).backward()
    assert impurity.obstacle is None


@pytest.mark.parametrize("is_trial", [True, False])
def test_numbers_are_those_without_a_watch_unless_it_is_a_trial(is_trial):
    torch.manual_seed(0)
    network = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(4, 5, 8)
    with torch.no_grad(), Impurity(network, is_trial=is_trial) as impurity:
        found = network(x)
        found.tolist()
    if is_trial:
        assert "tolist" in impurity.obstacle
    else:
        assert impurity.obstacle is None
        with torch.no_grad():
            assert torch.equal(found, network(x))


def test_many_objects_take_no_longer_than_few():
    data = [[object()] for _ in range(10_000)]

    def function(x):
        return x, data

    with Impurity(None, function) as impurity:
        function(torch.ones(2))
    assert impurity.obstacle is None
