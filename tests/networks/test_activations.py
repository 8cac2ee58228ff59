# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F

from skest.networks import ACTIVATIONS, get_activation

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


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_names(name):
    torch.testing.assert_close(get_activation(name)(X), EXPECTED[name])


def test_functions_and_modules_are_returned():
    for function in (torch.sin, torch.nn.PReLU()):
        assert get_activation(function) is function


@pytest.mark.parametrize("name", ["Relu6", "", None, 3])
def test_unknown_names_are_refused(name):
    with pytest.raises(
        ValueError, match="'activation' must be a function or one of elu"
    ):
        get_activation(name)
