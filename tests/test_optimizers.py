# SPDX-License-Identifier: Apache-2.0
"""What estimators accept as an optimizer, and its state by parameter name."""

import functools
import json

import numpy as np
import pytest
import torch
from torch import nn

from skest.exceptions import CheckpointMismatchError
from skest.ftrl import Ftrl
from skest.optimizers import load_named_state, make_optimizer, named_state
from skest.row_sparse import RowSparse

optim = torch.optim
NAMES = ["adagrad", "adam", "adamw", "ftrl", "momentum", "rmsprop", "sgd"]


class Network(nn.Module):
    """An embedding, a hidden layer and a weight that some batches do not use."""

    def __init__(self, tables=False, rows=6, dtype=torch.float32):
        super().__init__()
        gen = torch.Generator().manual_seed(0)

        def tensor(*shape):
            return nn.Parameter(torch.randn(*shape, generator=gen, dtype=dtype))

        self.table = tensor(rows, 3)
        self.table.is_row_table = tables
        self.hidden = tensor(3, 2)
        self.late = tensor(2)

    def loss(self, ids, use_late):
        is_sparse = self.table.is_row_table
        rows = nn.functional.embedding(ids, self.table, sparse=is_sparse)
        out = rows @ self.hidden
        return (out * self.late if use_late else out).square().sum()


def train(network, optimizer, start, stop):
    for step in range(start, stop):
        optimizer.zero_grad()
        gen = torch.Generator().manual_seed(step)
        ids = torch.randint(0, 6, (4,), generator=gen)
        network.loss(ids, use_late=step > 1).backward()
        optimizer.step()


def weights(network):
    return torch.cat([p.detach().ravel() for p in network.parameters()])


def saved(optimizer, network):
    """The state as a checkpoint brings it back: copied tensors, JSON."""
    tensors, scalars = named_state(optimizer, network.named_parameters())
    tensors = {key: value.clone() for key, value in tensors.items()}
    return tensors, json.loads(json.dumps(scalars))


@pytest.mark.parametrize(
    ("name", "cls", "defaults"),
    [
        (
            "adagrad",
            optim.Adagrad,
            {"lr": 0.001, "initial_accumulator_value": 0.1, "eps": 1e-7},
        ),
        ("adam", optim.Adam, {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-7}),
        ("adamw", optim.AdamW, {"lr": 0.001, "eps": 1e-7, "weight_decay": 0.0}),
        ("ftrl", Ftrl, {"lr": 0.001, "initial_accumulator_value": 0.1, "l1": 0.0}),
        ("momentum", optim.SGD, {"lr": 0.01, "momentum": 0.9}),
        ("rmsprop", optim.RMSprop, {"lr": 0.001, "alpha": 0.9, "eps": 1e-7}),
        ("sgd", optim.SGD, {"lr": 0.01, "momentum": 0}),
    ],
)
@pytest.mark.parametrize("spell", [str.lower, str.upper, str.title])
def test_names_and_their_defaults(name, cls, defaults, spell):
    optimizer = make_optimizer(spell(name), Network().parameters())
    assert type(optimizer) is cls
    group = optimizer.param_groups[0]
    assert {key: group[key] for key in defaults} == defaults


@pytest.mark.parametrize("name", NAMES)
def test_rate_and_options_replace_defaults(name):
    group = make_optimizer(name, Network().parameters(), 0.25).param_groups[0]
    assert group["lr"] == 0.25
    optimizer = make_optimizer("rmsprop", Network().parameters(), alpha=0.5)
    assert optimizer.param_groups[0]["alpha"] == 0.5


def test_class_has_its_own_defaults_but_the_given_weight_decay():
    optimizer = make_optimizer(optim.AdamW, Network().parameters())
    assert type(optimizer) is optim.AdamW
    group = optimizer.param_groups[0]
    assert (group["lr"], group["eps"], group["weight_decay"]) == (1e-3, 1e-8, 0.0)
    optimizer = make_optimizer(
        optim.AdamW, Network().parameters(), 0.5, weight_decay=0.25, amsgrad=True
    )
    group = optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"], group["amsgrad"]) == (0.5, 0.25, True)


def test_callable_makes_the_optimizer():
    factory = functools.partial(optim.SGD, lr=0.5)
    optimizer = make_optimizer(factory, Network().parameters(), 0.05)
    assert type(optimizer) is optim.SGD
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_callable_gets_plain_parameters():
    def matrices_only(params):
        return optim.SGD([p for p in params if p.ndim == 2], lr=0.5)

    optimizer = make_optimizer(matrices_only, Network().parameters())
    assert len(optimizer.param_groups[0]["params"]) == 2


@pytest.mark.parametrize("form", ["named", "groups", "generators", "one"])
def test_forms_of_params(form):
    network = Network()
    params = {
        "named": network.named_parameters(),
        "groups": [{"params": [network.table], "lr": 1.0}, {"params": [network.late]}],
        "generators": [{"params": (p for p in network.parameters())}],
        "one": [{"params": network.hidden}],
    }[form]
    optimizer = make_optimizer("sgd", params, 0.5)
    groups = optimizer.param_groups
    sizes = [len(group["params"]) for group in groups]
    assert (
        sizes == {"named": [3], "groups": [1, 1], "generators": [3], "one": [1]}[form]
    )
    assert groups[-1]["lr"] == 0.5
    assert groups[0]["lr"] == (1.0 if form == "groups" else 0.5)


@pytest.mark.parametrize("form", ["parameters", "named", "groups", "callable"])
def test_row_tables_are_wrapped(form):
    network = Network(tables=True)
    params = {
        "named": network.named_parameters(),
        "groups": [{"params": [network.late]}, {"params": [network.table]}],
    }.get(form, network.parameters())
    optimizer = optim.Adam if form == "callable" else "adam"
    assert type(make_optimizer(optimizer, params)) is RowSparse


def test_wrapped_already_stays_as_it_is():
    optimizer = make_optimizer(
        lambda params: RowSparse(optim.Adagrad(params)),
        Network(tables=True).parameters(),
    )
    assert type(optimizer.inner) is optim.Adagrad


@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize(
    ("name", "dense", "with_tables"),
    [
        ("adagrad", "fused", "fused"),
        ("adam", "fused", "foreach"),
        ("adamw", "fused", "foreach"),
        ("momentum", "foreach", "foreach"),
        ("rmsprop", "foreach", "foreach"),
    ],
)
def test_implementation(name, dense, with_tables, tables):
    optimizer = make_optimizer(name, Network(tables).parameters())
    assert optimizer.param_groups[0][with_tables if tables else dense] is True


def test_implementation_can_be_chosen():
    optimizer = make_optimizer("adam", Network().parameters(), foreach=False)
    group = optimizer.param_groups[0]
    assert (group["foreach"], group["fused"]) == (False, None)


@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_implementations_agree(name, tables):
    ours, plain = Network(tables), Network(tables)
    options = {} if name == "ftrl" else {"foreach": False}
    train(ours, make_optimizer(name, ours.parameters(), 0.05), 0, 5)
    train(plain, make_optimizer(name, plain.parameters(), 0.05, **options), 0, 5)
    torch.testing.assert_close(weights(ours), weights(plain))


def test_instance_is_refused():
    network = Network()
    with pytest.raises(TypeError, match=r"instance of Adam.*optimizer=lambda params"):
        make_optimizer(optim.Adam(network.parameters()), network.parameters())


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"optimizer": "adama"}, ValueError, r"'adama'.*'adagrad', 'adam', 'adamw'"),
        ({"optimizer": 3}, TypeError, "a name, .*class or a callable.*got 3"),
        ({"optimizer": nn.Linear}, TypeError, "a name, .*class or a callable.*Linear"),
        ({"optimizer": lambda params: None}, TypeError, "must return .*got None"),
        ({"learning_rate": 0.0}, ValueError, "'learning_rate' must be finite and > 0"),
        ({"learning_rate": -1}, ValueError, "'learning_rate' must be finite and > 0"),
        ({"learning_rate": np.inf}, ValueError, "'learning_rate'.*got inf"),
        ({"learning_rate": np.nan}, ValueError, "'learning_rate'.*got nan"),
        ({"learning_rate": "auto"}, TypeError, "'learning_rate' must be a number"),
        ({"learning_rate": True}, TypeError, "'learning_rate' must be a number"),
        ({"weight_decay": -0.1}, ValueError, "'weight_decay' must be finite and >= 0"),
        ({"weight_decay": None}, TypeError, "'weight_decay' must be a number"),
        ({"beta_1": 0.5}, TypeError, "'sgd' takes no option 'beta_1'.*'momentum'"),
        (
            {"optimizer": "ftrl", "weight_decay": 0.1},
            ValueError,
            "'ftrl' has no weight decay.*use 'l2'",
        ),
        (
            {"optimizer": optim.LBFGS, "weight_decay": 0.1},
            ValueError,
            "'LBFGS' has no weight decay, got weight_decay=0.1[.]",
        ),
        (
            {"optimizer": lambda p: optim.SGD(p), "weight_decay": 0.1},
            ValueError,
            "inside the callable",
        ),
        (
            {"optimizer": lambda p: optim.SGD(p), "momentum": 0.1},
            TypeError,
            r"\['momentum'\] cannot be passed on.*inside the callable",
        ),
    ],
)
def test_wrong_arguments(arguments, error, match):
    arguments = {"optimizer": "sgd", "params": Network().parameters(), **arguments}
    with pytest.raises(error, match=match):
        make_optimizer(**arguments)


@pytest.mark.parametrize("params", [[], iter(()), [{"params": []}]])
def test_no_parameters(params):
    with pytest.raises(ValueError, match="at least one parameter, got none"):
        make_optimizer("adam", params)


def test_one_tensor_is_no_iterable_of_parameters():
    with pytest.raises(TypeError, match="iterable of parameters, got one tensor"):
        make_optimizer("adam", Network().table)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("at", [0, 1, 3])
def test_restored_training_is_bit_identical(name, tables, dtype, at):
    """Also from before the first step and before the first gradient of `late`."""
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


def test_state_is_addressed_by_name():
    network = Network(tables=True)
    optimizer = make_optimizer("adam", network.parameters(), 0.5)
    train(network, optimizer, 0, 1)
    tensors, scalars = saved(optimizer, network)
    slots = ["exp_avg", "exp_avg_sq", "step"]
    used = ["hidden", "table"]
    assert sorted(tensors) == [f"{name}/{slot}" for name in used for slot in slots]
    assert tensors["table/exp_avg"].shape == network.table.shape
    assert tensors["table/step"].shape == ()
    assert scalars["class"] == "Adam"
    (group,) = scalars["param_groups"]
    assert group["params"] == ["table", "hidden", "late"]
    assert group["options"]["lr"] == 0.5
    assert group["options"]["betas"] == [0.9, 0.999]
    assert group["options"].keys().isdisjoint({"params", "fused", "foreach"})


def test_order_of_parameters_and_wrapper_do_not_matter():
    network = Network()
    optimizer = make_optimizer("adam", network.parameters(), 0.5)
    train(network, optimizer, 0, 3)
    twin = Network(tables=True)
    fresh = make_optimizer("adam", list(twin.parameters())[::-1])
    state = saved(optimizer, network)
    load_named_state(fresh, twin.named_parameters(), *state)
    for key, value in saved(fresh, twin)[0].items():
        assert torch.equal(value, state[0][key])


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


def test_loaded_tensors_are_copies():
    network = Network()
    optimizer = make_optimizer("adagrad", network.parameters())
    tensors, scalars = saved(optimizer, network)
    load_named_state(optimizer, network.named_parameters(), tensors, scalars)
    train(network, optimizer, 0, 3)
    assert all((tensors[f"{n}/sum"] == 0.1).all() for n in ("table", "hidden", "late"))


def test_values_that_are_no_tensors():
    network = Network()
    optimizer = make_optimizer("sgd", network.parameters())
    optimizer.state[network.late] = {"count": 3, "best": None}
    state = saved(optimizer, network)
    assert state[1]["values"] == {"late": {"count": 3, "best": None}}
    fresh = make_optimizer("sgd", network.parameters())
    load_named_state(fresh, network.named_parameters(), *state)
    assert fresh.state[network.late] == {"count": 3, "best": None}


@pytest.mark.parametrize("name", NAMES)
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


@pytest.mark.parametrize("name", ["adam", "adagrad"])
def test_missing_and_unexpected_slots(name):
    network = Network()
    optimizer = make_optimizer(name, network.parameters())
    train(network, optimizer, 0, 1)
    tensors, scalars = saved(optimizer, network)
    tensors["ghost/step"] = tensors.pop("table/step")
    fresh = make_optimizer(name, network.parameters())
    with pytest.raises(
        CheckpointMismatchError,
        match=r"missing: 'table/step'\n  unexpected: 'ghost/step'",
    ):
        load_named_state(fresh, network.named_parameters(), tensors, scalars)


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


def test_factored_slots_can_be_restored():
    network = Network()
    optimizer = make_optimizer(optim.Adafactor, network.parameters())
    train(network, optimizer, 0, 3)
    fresh = make_optimizer(optim.Adafactor, network.parameters())
    load_named_state(fresh, network.named_parameters(), *saved(optimizer, network))
    assert fresh.state[network.table]["row_var"].shape == (6, 1)


def test_parameter_without_a_name():
    network = Network()
    optimizer = make_optimizer("adam", network.parameters())
    with pytest.raises(ValueError, match=r"shape \(2,\) that 'named_parameters' does"):
        named_state(optimizer, {"table": network.table, "hidden": network.hidden})


@pytest.mark.parametrize("where", ["option 'lr'", "slot 'history' of 'late'"])
def test_what_no_checkpoint_can_hold(where):
    network = Network()
    optimizer = make_optimizer("sgd", network.parameters())
    if where.startswith("option"):
        optimizer.param_groups[0]["lr"] = object()
    else:
        optimizer.state[network.late] = {"history": [torch.zeros(3)]}
    with pytest.raises(TypeError, match=f"{where} is of type .* which no checkpoint"):
        named_state(optimizer, network.named_parameters())
