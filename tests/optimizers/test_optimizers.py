# SPDX-License-Identifier: Apache-2.0
"""What estimators accept as an optimizer."""

import functools
import re

import pytest
import torch
from torch import nn

from skest.optimizers import make_optimizer, make_optimizers
from skest.optimizers.ftrl import Ftrl, ProximalAdagrad
from skest.optimizers.row_sparse import RowSparse
from tests._optimizers import NAMES, Network, train, weights

optim = torch.optim


def test_names_and_their_defaults():
    for name, cls, defaults in [
        (
            "adagrad",
            optim.Adagrad,
            {"lr": 0.001, "initial_accumulator_value": 0.1, "eps": 1e-7},
        ),
        ("adam", optim.Adam, {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-7}),
        ("adamw", optim.AdamW, {"lr": 0.001, "eps": 1e-7, "weight_decay": 0.0}),
        ("ftrl", Ftrl, {"lr": 0.001, "initial_accumulator_value": 0.1, "l1": 0.0}),
        ("momentum", optim.SGD, {"lr": 0.01, "momentum": 0.9}),
        (
            "proximaladagrad",
            ProximalAdagrad,
            {"lr": 0.001, "initial_accumulator_value": 0.1, "l1": 0.0, "l2": 0.0},
        ),
        ("rmsprop", optim.RMSprop, {"lr": 0.001, "alpha": 0.9, "eps": 1e-7}),
        ("sgd", optim.SGD, {"lr": 0.01, "momentum": 0}),
    ]:
        for spell in [str.lower, str.upper, str.title]:
            optimizer = make_optimizer(spell(name), Network().parameters())
            assert type(optimizer) is cls
            group = optimizer.param_groups[0]
            assert {key: group[key] for key in defaults} == defaults


def test_lr_is_another_name_of_the_rate():
    for optimizer in ["Adagrad", optim.Adagrad]:
        parameters = list(Network().parameters())
        group = make_optimizer(optimizer, parameters, lr=0.5).param_groups[0]
        assert group["lr"] == 0.5
        with pytest.raises(TypeError, match=r"twice: learning_rate=0\.1 and lr=0\.5"):
            make_optimizer(optimizer, parameters, 0.1, lr=0.5)
        with pytest.raises(ValueError, match="'learning_rate'"):
            make_optimizer(optimizer, parameters, lr=-1.0)
        with pytest.raises(TypeError, match=r"Options \['lr'\] cannot be passed on"):
            make_optimizer(lambda params: optim.SGD(params), parameters, lr=1)


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


def test_forms_of_params():
    for form in ["named", "groups", "generators", "one"]:
        network = Network()
        params = {
            "named": network.named_parameters(),
            "groups": [
                {"params": [network.table], "lr": 1.0},
                {"params": [network.late]},
            ],
            "generators": [{"params": (p for p in network.parameters())}],
            "one": [{"params": network.hidden}],
        }[form]
        optimizer = make_optimizer("sgd", params, 0.5)
        groups = optimizer.param_groups
        sizes = [len(group["params"]) for group in groups]
        assert (
            sizes
            == {"named": [3], "groups": [1, 1], "generators": [3], "one": [1]}[form]
        )
        assert groups[-1]["lr"] == 0.5
        assert groups[0]["lr"] == (1.0 if form == "groups" else 0.5)


def test_row_tables_are_wrapped():
    for form in ["parameters", "named", "groups", "callable"]:
        network = Network(tables=True)
        params = {
            "named": network.named_parameters(),
            "groups": [{"params": [network.late]}, {"params": [network.table]}],
        }.get(form, network.parameters())
        optimizer = optim.Adam if form == "callable" else "adam"
        assert type(make_optimizer(optimizer, params)) is RowSparse


@pytest.mark.parametrize("name", NAMES)
def test_implementations_agree(name):
    for tables in [False, True]:
        ours, plain = Network(tables), Network(tables)
        options = {} if name in ("ftrl", "proximaladagrad") else {"foreach": False}
        train(ours, make_optimizer(name, ours.parameters(), 0.05), 0, 5)
        train(plain, make_optimizer(name, plain.parameters(), 0.05, **options), 0, 5)
        torch.testing.assert_close(weights(ours), weights(plain))


def named(*names, tables=()):
    parameters = {name: nn.Parameter(torch.ones(2)) for name in names}
    for name in tables:
        parameters[name].is_row_table = True
    return parameters


def shares(optimizers, parameters):
    """The names of the parameters of every optimizer."""
    names = {parameter: name for name, parameter in parameters.items()}
    return [[names[p] for p in o.param_groups[0]["params"]] for o in optimizers]


def test_the_first_pattern_that_matches_takes_a_parameter():
    parameters = named("dnn.0.weight", "dnn.0.bias", "linear.bias", "Linear.x")
    pairs = [("*.bias", "sgd"), ("linear.*", "ftrl"), ["dnn.[0-9].*", "adam"]]
    parameters["linear.age"] = nn.Parameter(torch.ones(2))
    made = make_optimizers([*pairs, ("Linear.?", optim.Adam)], parameters, 0.25)
    assert shares(made, parameters) == [
        ["dnn.0.bias", "linear.bias"],
        ["linear.age"],
        ["dnn.0.weight"],
        ["Linear.x"],
    ]
    assert [type(o) for o in made] == [optim.SGD, Ftrl, optim.Adam, optim.Adam]
    assert {o.param_groups[0]["lr"] for o in made} == {0.25}


def test_an_optimizer_of_a_list_may_have_its_own_settings():
    adam = functools.partial(make_optimizer, "adam", learning_rate=0.5, amsgrad=True)
    sgd = functools.partial(make_optimizer, "sgd", learning_rate=lambda step: 0.25)
    made = make_optimizers(
        (("a", adam), ("b", sgd), ("*", "sgd")), named("a", "b", "c"), 0.125
    )
    assert [o.param_groups[0]["lr"] for o in made] == [0.5, 0.25, 0.125]
    assert made[0].param_groups[0]["amsgrad"] is True


def test_patterns_that_do_not_fit():
    for optimizer, match in [
        (
            [("bia", "sgd"), ("*", "adam")],
            "pattern 'bia' of 'optimizer' matches no .* Left are 'weight', 'bias' of",
        ),
        (
            [("*", "sgd"), ("bias", "adam")],
            "pattern 'bias' of 'optimizer' .* Left are none of 'weight', 'bias'.",
        ),
        ([("b*", "sgd")], "no pattern that matches 'weight'. Add a last pair"),
        ([], "no pattern that matches 'weight', 'bias'. Add a last pair"),
    ]:
        with pytest.raises(ValueError, match=match):
            make_optimizers(optimizer, named("weight", "bias"))


def test_a_list_holds_pairs():
    for pair in ["*", ("*",), ("*", "sgd", 0.1), (1, "sgd"), optim.SGD, None]:
        match = re.escape(f"got {pair!r}.")
        with pytest.raises(
            TypeError, match=rf"must hold pairs \(pattern, opt.*{match}"
        ):
            make_optimizers([pair], named("a"))


def test_parameters_need_names():
    for form in [list, iter]:
        parameters = form([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))])
        with pytest.raises(
            TypeError, match=r"pairs \(name, parameter\).*got a Parameter"
        ):
            make_optimizers("sgd", parameters)


def test_instance_is_refused():
    network = Network()
    with pytest.raises(TypeError, match=r"instance of Adam.*optimizer=lambda params"):
        make_optimizer(optim.Adam(network.parameters()), network.parameters())


def test_wrong_arguments():
    for arguments, error, match in [
        ({"optimizer": "adama"}, ValueError, r"'adama'.*'adagrad', 'adam', 'adamw'"),
        ({"optimizer": 3}, TypeError, "a name, .*class or a callable.*got 3"),
        ({"optimizer": lambda params: None}, TypeError, "must return .*got None"),
        ({"learning_rate": 0.0}, ValueError, "'learning_rate' .* number greater .* 0"),
        ({"learning_rate": "auto"}, TypeError, "'learning_rate' .* must be a"),
        (
            {"learning_rate": lambda step: -0.5},
            ValueError,
            "'learning_rate' of step 0 must be .* at least 0; got -0.5",
        ),
        (
            {"learning_rate": lambda step: "fast"},
            TypeError,
            "'learning_rate' of step 0 must be a finite number .* got 'fast'",
        ),
        (
            {"optimizer": lambda p: optim.SGD(p), "learning_rate": lambda step: 0.1},
            ValueError,
            r"function as 'learning_rate' .*inside the callable: functools.partial\(",
        ),
        (
            {
                "params": [{"params": [Network().late], "lr": 0.5}],
                "learning_rate": lambda step: 0.1,
            },
            ValueError,
            "'params' has groups with a rate of their own, 'lr'",
        ),
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
            {"optimizer": lambda p: optim.SGD(p), "momentum": 0.1},
            TypeError,
            r"\['momentum'\] cannot be passed on.*inside the callable",
        ),
    ]:
        arguments = {"optimizer": "sgd", "params": Network().parameters(), **arguments}
        with pytest.raises(error, match=match):
            make_optimizer(**arguments)
