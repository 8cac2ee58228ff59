# SPDX-License-Identifier: Apache-2.0
"""The state of optimizers by parameter name."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from skest.exceptions import CheckpointMismatchError
from skest.optimizers import make_optimizer
from skest.optimizers.state import follow_parameters, load_named_state, named_state
from tests._optimizers import NAMES, Network, saved, train, weights

optim = torch.optim


@pytest.mark.parametrize("name", NAMES)
def test_restored_training_is_bit_identical(name):
    """Also from before the first step and before the first gradient of `late`."""
    for dtype in [torch.float32, torch.float64]:
        for tables in [False, True]:
            for at in [0, 1, 3]:
                network = Network(tables, dtype=dtype)
                optimizer = make_optimizer(name, network.parameters(), 0.05)
                train(network, optimizer, 0, at)
                state = saved(optimizer, network)
                twin = Network(tables, dtype=dtype)
                twin.load_state_dict(network.state_dict())
                fresh = make_optimizer(name, twin.parameters())
                load_named_state(fresh, twin.named_parameters(), *state)
                train(network, optimizer, at, at + 4)
                train(twin, fresh, at, at + 4)
                assert torch.equal(weights(network), weights(twin))
                for key, value in saved(optimizer, network)[0].items():
                    assert torch.equal(value, saved(fresh, twin)[0][key])


def test_options_come_back_in_their_types():
    network = Network()
    optimizer = make_optimizer("adam", network.parameters(), betas=(0.5, 0.25))
    optimizer.param_groups[0]["lr"] = np.float32(0.5)
    optimizer.param_groups[0]["initial_lr"] = torch.tensor(2.0)
    fresh = make_optimizer("adam", network.parameters(), foreach=False)
    fresh.param_groups[0]["initial_lr"] = torch.tensor(1.0)
    load_named_state(fresh, network.named_parameters(), *saved(optimizer, network))
    group = fresh.param_groups[0]
    assert group["betas"] == (0.5, 0.25)
    assert group["lr"] == 0.5
    assert torch.equal(group["initial_lr"], torch.tensor(2.0))
    assert (group["foreach"], group["fused"]) == (False, None)


@pytest.mark.parametrize("name", ["adam", "ftrl"])
def test_every_difference_is_listed(name):
    network = Network()
    optimizer = make_optimizer(name, network.parameters())
    train(network, optimizer, 0, 3)
    tensors, scalars = saved(optimizer, network)
    other = Network(rows=8)
    other.extra = other.late
    del other.late
    fresh = make_optimizer(name, other.parameters())
    before = saved(fresh, other)
    with pytest.raises(CheckpointMismatchError) as error:
        load_named_state(fresh, other.named_parameters(), tensors, scalars)
    lines = str(error.value).splitlines()
    assert "  missing: 'extra'" in lines
    assert "  unexpected: 'late'" in lines
    wrong = [line for line in lines if "expected (8, 3), got (6, 3)" in line]
    slots = [k for k, v in tensors.items() if k.startswith("table/") and v.ndim]
    assert len(wrong) == len(slots)
    assert saved(fresh, other)[1] == before[1]


def test_other_class_and_other_groups():
    network = Network()
    state = saved(make_optimizer("adam", network.parameters()), network)
    other = make_optimizer("sgd", network.parameters())
    with pytest.raises(CheckpointMismatchError, match=r"expected SGD, .* of Adam"):
        load_named_state(other, network.named_parameters(), *state)
    groups = [{"params": [network.table]}, {"params": [network.hidden, network.late]}]
    split = make_optimizer("adam", groups)
    with pytest.raises(CheckpointMismatchError, match=r"groups: expected 2, .* has 1"):
        load_named_state(split, network.named_parameters(), *state)
    state = saved(split, network)
    groups[0]["params"] += groups[1]["params"][-1:]
    groups[1]["params"] = [network.hidden]
    with pytest.raises(
        CheckpointMismatchError,
        match="missing in parameter group 0: 'late'\n  "
        "unexpected in parameter group 1: 'late'",
    ):
        load_named_state(
            make_optimizer("adam", groups), network.named_parameters(), *state
        )


def test_parameter_without_a_name():
    network = Network()
    optimizer = make_optimizer("adam", network.parameters())
    with pytest.raises(ValueError, match=r"shape \(2,\) that 'named_parameters' does"):
        named_state(optimizer, {"table": network.table, "hidden": network.hidden})


def test_what_no_checkpoint_can_hold():
    for where in ["option 'lr'", "slot 'history' of 'late'"]:
        network = Network()
        optimizer = make_optimizer("sgd", network.parameters())
        if where.startswith("option"):
            optimizer.param_groups[0]["lr"] = object()
        else:
            optimizer.state[network.late] = {"history": [torch.zeros(3)]}
        with pytest.raises(
            TypeError, match=f"{where} is of type .* which no checkpoint"
        ):
            named_state(optimizer, network.named_parameters())


@pytest.mark.parametrize(
    ("device", "version", "fused"),
    [
        ("cpu", "2.11.0", True),
        ("cuda", "2.11.0+cu130", None),
        ("cuda", "2.12.0", True),
        ("mps", "2.12.0", None),
        ("xpu", "2.12.0", None),
    ],
)
def test_an_update_is_fused_where_the_device_has_such_a_one(
    device, version, fused, monkeypatch
):
    monkeypatch.setattr(torch, "__version__", version)
    with FakeTensorMode():
        parameter = torch.nn.Parameter(torch.ones(2, device=device))
        optimizer = torch.optim.Adagrad([parameter])
        optimizer.param_groups[0]["fused"] = True
        follow_parameters(optimizer)
    assert optimizer.param_groups[0]["fused"] is fused
