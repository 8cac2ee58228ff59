# SPDX-License-Identifier: Apache-2.0
"""Replayed predictions are the eager ones, bit for bit, for any number of rows."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch

import skest.engine.recorded.choice
from skest import DNNRegressor, Estimator
from skest.engine.evaluation import evaluated, predicted
from skest.engine.recorded.inference import Inference
from skest.engine.recorded.recording import map_leaves
from skest.keys import ModeKeys
from tests._control_flow import Branches
from tests._models import model_fn, table_fn
from tests.engine.recorded._steps import make_spec, mlp
from tests.engine.recorded.test_estimators import CASES, FIT, Net, X, Y

SIZES = (1, 2, 3, 7, 100)
# One of those that differ in training only is enough.
PREDICTED = {
    name: case
    for name, case in CASES.items()
    if not name.startswith(("net, ", "wide, ", "rate", "scheduler", "two"))
    or name in {"wide, adagrad", "net, gelu"}
}


@torch.no_grad()
def first_rows(data, n):
    return map_leaves(data, torch.Tensor, lambda t: t[:n])


def assert_same(found, expected):
    assert list(found) == list(expected)
    for key, value in expected.items():
        assert type(found[key]) is type(value)
        np.testing.assert_array_equal(found[key], value, strict=True)


@pytest.mark.parametrize("case", PREDICTED)
def test_replayed_predictions_are_the_eager_ones(case):
    make, options, features, target = PREDICTED[case]
    model = make(**{**options, **FIT, "max_iter": 1, "execution": "eager"})
    model.fit(features, Y[target])
    keys = model._target.answer_keys
    model.predict(features)
    spec = model.estimator_._kept.spec
    encoded = spec.encode(model._check_features(features, reset=False))
    infer = Inference(partial(predicted, spec), eager_calls=1)
    for _ in range(2):
        infer(first_rows(encoded, 100), keys)
    for n in SIZES:
        data = first_rows(encoded, n)
        assert_same(infer(data, keys), predicted(spec, data, keys))
    assert infer.n_replayed == len(SIZES)


@pytest.mark.parametrize(
    ("case", "weighted"),
    [("classes", True), ("number", True), ("wide, adagrad", False)],
)
def test_replayed_evaluations_are_the_eager_ones(case, weighted):
    cases = {**CASES, "number": (DNNRegressor, {}, X, "number")}
    make, options, features, target = cases[case]
    weight = np.linspace(0.5, 2, len(X)) if weighted else None
    results = []
    for execution in ("eager", "graph"):
        model = make(**{**options, **FIT, "max_iter": 1, "execution": execution})
        model.fit(features, Y[target])
        model.__class__ = type("Small", (type(model),), {"_predict_batch_size": 20})
        results.append(model.evaluate(features, Y[target], weight))
    assert results[0] == results[1]


def eval_spec(**changes):
    return make_spec(mlp().requires_grad_(False).eval(), **changes)


@pytest.mark.parametrize(
    "loss",
    [
        lambda y, z, x: (z - y).square().mean(),
        lambda y, z, x: (z - y).square().sum() / len(z),  # not replayed, for a number
    ],
)
def test_a_loss_for_any_number_of_rows(loss):
    spec = eval_spec(loss=loss, optimizer=torch.optim.SGD(mlp().parameters()))
    infer = Inference(partial(evaluated, spec), eager_calls=1)
    for n in (5, 5, 5, 4, 1):
        batch = (torch.randn(n, 3), torch.randn(n, 1))
        for found, expected in zip(infer(batch), evaluated(spec, batch), strict=True):
            assert torch.equal(found, expected)


SCALE = torch.ones(1)
BRANCHES = Branches().requires_grad_(False)
NOT_RECORDABLE = {
    "number of rows": lambda x, _: x * (2 * len(x)),
    "mean over rows": lambda x, _: x[: len(x) // 2 + 1].repeat(2, 1)[: len(x)],
    "branch": lambda x, _: x + 1 if x.sum() > 0 else x - 1,
    "data-dependent shape": lambda x, _: x[x[:, 0] > 0],
    "random": lambda x, _: torch.rand_like(x),
    "effect": lambda x, _: x * SCALE.mul_(1.0),
    "its input": lambda x, _: x,
    "a variable": lambda x, _: SCALE.expand(len(x)),
    "an array": lambda x, _: {"a": x + 1, "b": np.ones(len(x))},
    "numbers of Python": lambda x, _: x * x.sum().item(),
    "torch.cond": lambda x, _: BRANCHES(x.repeat(1, 3)[:, :5]),
    "a failure": lambda x, _: x + 1 if len(x) < 100 else torch.ones(2) + torch.ones(3),
}


def test_what_cannot_be_recorded_is_computed_every_time():
    for function in NOT_RECORDABLE.values():
        infer = Inference(function, eager_calls=1)
        for n in (3, 3, 3, 5):
            x = torch.randn(n, 2)
            torch.manual_seed(0)
            found = infer(x)
            torch.manual_seed(0)
            expected = function(x, None)
            both = (v if isinstance(v, dict) else {"a": v} for v in (found, expected))
            assert_same(*both)
        assert infer.n_replayed == 0


@pytest.mark.parametrize(
    "batch", [torch.ones(2, 3).t(), torch.ones(()), ["a"], torch.ones(0, 2)]
)
def test_batches_that_are_no_rows_are_left_to_the_function(batch):
    infer = Inference(lambda x, _: x, eager_calls=1)
    assert all(infer(batch) is batch for _ in range(4))
    assert infer.n_replayed == 0


def test_sizes_that_depend_on_the_rows_follow_them():
    def function(x, _):
        counts = torch.zeros(len(x), 4).scatter_add(1, x.long(), torch.ones_like(x))
        return counts + torch.arange(len(x))[:, None]

    infer = Inference(function, eager_calls=1)
    for n in (3, 3, 8, 1, 251):
        x = torch.arange(2.0 * n).reshape(n, 2).remainder(4)
        assert torch.equal(infer(x), function(x, None))
    assert infer.n_replayed == 3


# In an estimator


def replays(model):
    kept = model.estimator_._kept
    found = [kept.infer, kept.infer_raw]
    return sum(infer.n_replayed for infer in found if infer is not None)


@pytest.mark.parametrize("execution", ["auto", "graph"])
def test_an_estimator_replays_when_it_is_worth_it(execution):
    model = Net(**FIT, execution=execution).fit(X, Y["binary"])
    expected = model.predict_proba(X)
    for _ in range(70):
        np.testing.assert_array_equal(model.predict_proba(X), expected)
    assert replays(model) >= (1 if execution == "auto" else 60)


def test_code_of_the_users_is_replayed_on_request_only(monkeypatch):
    monkeypatch.setattr(skest.engine.recorded.choice, "_EAGER_INFERENCES", 1)
    for execution, n_replayed in (("auto", 0), ("graph", 2)):
        options = {
            **FIT,
            "execution": execution,
            "optimizer": "adamw",
            "learning_rate": 0.05,
            "activation": lambda x: x.clamp(min=0),
        }
        model = Net(**options).fit(X, Y["binary"])
        for _ in range(5):
            model.predict_proba(X)
        assert replays(model) == n_replayed


def test_a_new_checkpoint_is_seen_at_once():
    model = Net(**FIT, execution="graph").fit(X, Y["binary"])
    eager = Net(**FIT, execution="eager").fit(X, Y["binary"])
    for _ in range(3):
        for _ in range(4):
            found = model.predict_proba(X)
        np.testing.assert_array_equal(found, eager.predict_proba(X))
        model.partial_fit(X, Y["binary"])
        eager.partial_fit(X, Y["binary"])
        assert not np.array_equal(model.predict_proba(X), found)


def test_what_variables_come_to_is_computed_once():
    table = torch.arange(12.0).view(6, 2)
    infer = Inference(lambda ids, _: table.cumsum(0)[ids] * 2, eager_calls=1)
    ids = torch.tensor([0, 5, 3])
    for _ in range(2):
        expected = infer(ids)
    with torch.profiler.profile() as profiled:
        torch.testing.assert_close(infer(ids), expected)
    operations = {event.name for event in profiled.events()}
    assert "aten::mul" in operations and "aten::cumsum" not in operations
    assert infer.n_replayed == 1


def test_threads_share_a_program():
    model = Net(**FIT, execution="eager").fit(X, Y["binary"])
    expected = [model.predict_proba(X[: i % 20 + 1]) for i in range(200)]
    model = Net(**FIT, execution="graph").fit(X, Y["binary"])
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda i: model.predict_proba(X[: i % 20 + 1]), range(200))
        )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert replays(model) > 0


def test_an_impure_model_function_is_called_every_time():
    calls = []

    def counted(features, labels, mode, params):
        calls.append(mode)
        return model_fn(features, labels, mode, params)

    estimator = Estimator(counted).train(table_fn())
    for _ in range(70):
        list(estimator.predict(table_fn()))
    assert calls.count(ModeKeys.PREDICT) == 70
