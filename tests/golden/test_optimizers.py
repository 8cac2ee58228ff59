# SPDX-License-Identifier: Apache-2.0
"""Weight trajectories of the original's optimizers, on fixed gradients."""

import math

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, MultiStepLR, StepLR

from skest.optimizers import make_optimizer
from tests.golden._cases import ATOL, RTOL, decode, load, params

NOT_LAZY = (
    "decays the moments of all rows in every step; here a row that is not touched "
    "stays as it is (test_dense_gradients_follow_the_original)"
)
EPSILON_UNDER_ROOT = "rmsprop/centered_momentum"
NOT_APPLICABLE = {
    "sparse/adam": NOT_LAZY,
    "sparse/adam_amsgrad": NOT_LAZY,
    "sparse/rmsprop": NOT_LAZY,
    EPSILON_UNDER_ROOT: (
        "adds epsilon under the root, torch adds it to the root "
        "(test_where_rmsprop_adds_epsilon)"
    ),
    "by_name/adam_lr_None": "here names are accepted in any case",
}
OPTIONS = {
    "amsgrad": "amsgrad",
    "beta": "beta",
    "centered": "centered",
    "epsilon": "eps",
    "initial_accumulator_value": "initial_accumulator_value",
    "l1_regularization_strength": "l1",
    "l2_regularization_strength": "l2",
    "l2_shrinkage_regularization_strength": "l2_shrinkage",
    "learning_rate_power": "lr_power",
    "momentum": "momentum",
    "nesterov": "nesterov",
    "rho": "alpha",
}
NAMES = {"GradientDescentOptimizer": "sgd"}
SLOTS = {
    "accum": ("accumulator",),
    "accumulator": ("accumulator", "sum"),
    "linear": ("linear",),
    "m": ("exp_avg",),
    "mg": ("grad_avg",),
    "momentum": ("momentum_buffer",),
    "rms": ("square_avg",),
    "v": ("exp_avg_sq",),
    "vhat": ("max_exp_avg_sq",),
}


def run(case, gradients, is_row_table=False):
    """Weights after every step, and the optimizer's slots at the end."""
    config = case["config"]
    weight = torch.nn.Parameter(torch.tensor(decode(case["inputs"]["w0"])))
    weight.is_row_table = is_row_table
    optimizer = _optimizer(config, [weight])
    if config["optimizer"] == "RMSPropOptimizer":
        # In v1 the mean square starts at one.
        optimizer.state[weight] = {
            "step": torch.zeros(()),
            "square_avg": torch.ones_like(weight.detach()),
        }
    scheduler = _scheduler(config, optimizer)
    weights = []
    for step, gradient in enumerate(gradients, start=1):
        weight.grad = gradient
        if "Adam" in config["optimizer"]:
            _place_epsilon_as_keras(optimizer.param_groups[0], step)
        if "clipvalue" in config:
            torch.nn.utils.clip_grad_value_(weight, config["clipvalue"])
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        weights.append(weight.detach().clone().numpy())
    return np.array(weights), optimizer.state.get(weight, {})


def _place_epsilon_as_keras(group, step):
    """Keras adds epsilon to the root before its bias is corrected, torch after that."""
    epsilon = group.setdefault("keras_epsilon", group["eps"])
    group["eps"] = epsilon / math.sqrt(1 - group["betas"][1] ** step)


def _optimizer(config, parameters):
    name = config["optimizer"]
    name = NAMES.get(name, name.removesuffix("Optimizer"))
    options = {OPTIONS[k]: v for k, v in config.items() if k in OPTIONS}
    if not config.get("momentum"):
        # The original ignores it then; torch refuses it.
        options.pop("nesterov", None)
    if "beta_1" in config:
        options["betas"] = (config["beta_1"], config["beta_2"])
    if config["optimizer"] == "RMSPropOptimizer":
        options["eps"] = 1e-10
    rate = config.get("learning_rate")
    if isinstance(rate, dict):
        rate = rate.get("initial_learning_rate") or rate["values"][0]
    return make_optimizer(name, parameters, rate, **options)


def _scheduler(config, optimizer) -> LRScheduler | None:
    if "decay" in config:
        return LambdaLR(optimizer, lambda step: 1 / (1 + config["decay"] * step))
    rate = config.get("learning_rate")
    if not isinstance(rate, dict):
        return None
    if rate["schedule"] == "PiecewiseConstantDecay":
        # Every value of the case is a tenth of the one before it.
        return MultiStepLR(optimizer, [b + 1 for b in rate["boundaries"]], gamma=0.1)
    if rate.get("staircase"):
        return StepLR(optimizer, rate["decay_steps"], rate["decay_rate"])
    base, steps = rate["decay_rate"], rate["decay_steps"]
    return LambdaLR(optimizer, lambda step: base ** (step / steps))


def _sparse(case):
    shape = case["inputs"]["w0"]["shape"]
    return [
        torch.sparse_coo_tensor(
            torch.tensor(g["indices"])[None],
            torch.tensor(g["values"]),
            shape,
            check_invariants=True,
        )
        for g in decode(case["inputs"]["sparse_grads"])
    ]


def _check(case, weights, slots):
    expected = decode(case["expected"])
    np.testing.assert_allclose(
        weights, expected["weights_per_step"], rtol=RTOL, atol=ATOL
    )
    for name, value in expected["final_slots"].items():
        if name == "momentum" and not case["config"].get("momentum"):
            continue
        ours = next(slots[slot] for slot in SLOTS[name] if slot in slots)
        if name == "momentum":
            # The original multiplies by the rate before it accumulates.
            ours = case["config"]["learning_rate"] * ours
        # The original rounds 1 - beta to float32, 1.3e-5 off for 0.999.
        np.testing.assert_allclose(ours, value, rtol=2 * RTOL, atol=ATOL)


CASES = params("optimizers", NOT_APPLICABLE)


@pytest.mark.parametrize("case", CASES)
def test_optimizers(case):
    config, expected = case["config"], case["expected"]
    if "error" in expected:
        assert expected["error"]["type"] == "ValueError"
        with pytest.raises(ValueError, match="initial_accumulator_value"):
            _optimizer(config, [torch.nn.Parameter(torch.zeros(1))])
    elif case["component"] == "get_optimizer_instance_v2":
        optimizer = _optimizer(config, [torch.nn.Parameter(torch.zeros(1))])
        assert type(optimizer).__name__ == expected["class"]
        _check_defaults(optimizer.defaults, dict(expected["config"]))
    elif "sparse_grads" in case["inputs"]:
        _check(case, *run(case, _sparse(case), is_row_table=True))
    else:
        _check(case, *run(case, torch.tensor(decode(case["inputs"]["grads"]))))


def _check_defaults(ours, theirs):
    assert theirs.pop("decay") == 0
    assert ours["lr"] == theirs.pop("learning_rate")
    if "beta_1" in theirs:
        assert ours["betas"] == (theirs.pop("beta_1"), theirs.pop("beta_2"))
    assert theirs.pop("name")
    for key, value in theirs.items():
        assert math.isclose(ours[OPTIONS[key]], value), key


@pytest.mark.parametrize(
    "case_id", [i for i, r in NOT_APPLICABLE.items() if r is NOT_LAZY]
)
def test_dense_gradients_follow_the_original(case_id):
    case = next(c for c in load("optimizers") if c["id"] == case_id)
    _check(case, *run(case, [g.to_dense() for g in _sparse(case)]))


def _centered_rmsprop(case, under_root):
    """The rule in NumPy, with epsilon under the root or added to the root."""
    config = case["config"]
    weight, gradients = decode(case["inputs"]["w0"]), decode(case["inputs"]["grads"])
    square = mean = velocity = np.zeros_like(weight)
    weights = []
    for g in gradients:
        square = 0.9 * square + 0.1 * g * g
        mean = 0.9 * mean + 0.1 * g
        variance = square - mean * mean
        if under_root:
            root = np.sqrt(variance + 1e-7)
        else:
            root = np.sqrt(variance) + 1e-7
        velocity = config["momentum"] * velocity + g / root
        weight = weight - config["learning_rate"] * velocity
        weights.append(weight)
    return np.array(weights)


def test_where_rmsprop_adds_epsilon():
    case = next(c for c in load("optimizers") if c["id"] == EPSILON_UNDER_ROOT)
    expected = decode(case["expected"]["weights_per_step"])
    original = _centered_rmsprop(case, under_root=True)
    np.testing.assert_allclose(original, expected, rtol=RTOL, atol=ATOL)
    weights, _ = run(case, torch.tensor(decode(case["inputs"]["grads"])))
    documented = _centered_rmsprop(case, under_root=False)
    np.testing.assert_allclose(weights, documented, rtol=RTOL, atol=ATOL)


def test_every_case_is_run_or_listed(account_for_all_cases):
    run = [p.values[0]["id"] for p in CASES]
    account_for_all_cases("optimizers", run, NOT_APPLICABLE)
