# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from skest.networks import Combined

FEATURES = {"linear": torch.ones(4, 2), "dnn": torch.full((4, 3), 2.0)}


def test_logits_are_added():
    linear, dnn = nn.Linear(2, 1), nn.Linear(3, 1)
    both = Combined(linear, dnn)(FEATURES)
    assert torch.equal(both, linear(FEATURES["linear"]) + dnn(FEATURES["dnn"]))


@pytest.mark.parametrize("name", ["linear", "dnn"])
def test_one_may_be_missing(name):
    network = nn.Linear(FEATURES[name].shape[1], 1)
    combined = Combined(**{"linear": None, "dnn": None, name: network})
    expected = network(FEATURES[name])
    assert torch.equal(combined({name: FEATURES[name]}), expected)
    assert set(combined.state_dict()) == {f"{name}.weight", f"{name}.bias"}


def test_both_missing():
    with pytest.raises(ValueError, match="needs a linear network or a DNN"):
        Combined(None, None)
