# SPDX-License-Identifier: Apache-2.0
"""Weight trajectories of the original's optimizers, on fixed gradients."""

import math

import numpy as np
import pytest
import torch

from skest.optimizers.schedules import missing_function_lrs
from tests.golden._cases import (
    ATOL,
    RTOL,
    account_for_all_cases,
    cases,
    check_each,
    decode,
    groups,
    load,
)
from tests.golden._optimizers import OPTIONS, keras_optimizer

NOT_LAZY = (
    "decays the moments of all rows in every step; here a row that is not touched "
    "stays as it is (test_dense_gradients_follow_the_original)"
)
ADAM_EPSILON = (
    "adds epsilon to the root of the second moment before its bias is corrected, torch "
    "after that (test_where_adam_adds_epsilon)"
)
EPSILON_UNDER_ROOT = "rmsprop/centered_momentum"
NOT_APPLICABLE = {
    "sparse/adam": NOT_LAZY,
    "sparse/adam_amsgrad": NOT_LAZY,
    "sparse/rmsprop": NOT_LAZY,
    "adam/betas": ADAM_EPSILON,
    "adam/amsgrad": ADAM_EPSILON,
    EPSILON_UNDER_ROOT: (
        "adds epsilon under the root, torch adds it to the root "
        "(test_where_rmsprop_adds_epsilon)"
    ),
    "sgd/clipvalue": (
        "optimizers do not clip by value here (test_clipping_outside_the_optimizer)"
    ),
    "v1/rmsprop": (
        "starts the mean square at one, torch at zero "
        "(test_rmsprop_from_a_mean_square_of_one)"
    ),
    "by_name/adam_lr_None": "here names are accepted in any case",
}
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


def case_of(case_id):
    return next(c for c in load("optimizers") if c["id"] == case_id)


def run(config, w0, gradients, is_row_table=False, state=None, before_step=None):
    """Weights after every step, and the optimizer's slots at the end."""
    weight = torch.nn.Parameter(torch.tensor(w0))
    weight.is_row_table = is_row_table
    optimizer = keras_optimizer(config)([weight])
    if state is not None:
        optimizer.state[weight] = state
    schedulers = missing_function_lrs([optimizer], [])
    weights = []
    for step, gradient in enumerate(gradients, start=1):
        weight.grad = gradient
        if before_step is not None:
            before_step(optimizer.param_groups[0], step)
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
        weights.append(weight.detach().clone().numpy())
    return np.array(weights), optimizer.state.get(weight, {})


def _run(case, **options):
    """Run a case, on the sparse gradients or the dense ones that it has."""
    if "sparse_grads" in case["inputs"]:
        gradients, options = _sparse(case), {"is_row_table": True, **options}
    else:
        gradients = torch.tensor(decode(case["inputs"]["grads"]))
    return run(case["config"], decode(case["inputs"]["w0"]), gradients, **options)


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


CASES = cases("optimizers", NOT_APPLICABLE)


@groups(CASES)
def test_optimizers(cases):
    check_each(cases, check_optimizer)


def check_optimizer(case):
    config, expected = case["config"], case["expected"]
    if "error" in expected:
        assert expected["error"]["type"] == "ValueError"
        with pytest.raises(ValueError, match="initial_accumulator_value"):
            keras_optimizer(config)([torch.nn.Parameter(torch.zeros(1))])
    elif case["component"] == "get_optimizer_instance_v2":
        optimizer = keras_optimizer(config)([torch.nn.Parameter(torch.zeros(1))])
        assert type(optimizer).__name__ == expected["class"]
        _check_defaults(optimizer.defaults, dict(expected["config"]))
    else:
        _check(case, *_run(case))


def _check_defaults(ours, theirs):
    assert theirs.pop("decay") == 0
    assert ours["lr"] == theirs.pop("learning_rate")
    if "beta_1" in theirs:
        assert ours["betas"] == (theirs.pop("beta_1"), theirs.pop("beta_2"))
    assert theirs.pop("name")
    for key, value in theirs.items():
        assert math.isclose(ours[OPTIONS[key]], value), key


# Listed cases


def place_epsilon_as_keras(group, step):
    epsilon = group.setdefault("keras_epsilon", group["eps"])
    group["eps"] = epsilon / math.sqrt(1 - group["betas"][1] ** step)


@pytest.mark.parametrize(
    "case_id", [i for i, r in NOT_APPLICABLE.items() if r is NOT_LAZY]
)
def test_dense_gradients_follow_the_original(case_id):
    """But for the place of epsilon, if it is Adam."""
    case = case_of(case_id)
    is_adam = "Adam" in case["config"]["optimizer"]
    gradients = [g.to_dense() for g in _sparse(case)]
    before_step = place_epsilon_as_keras if is_adam else None
    w0 = decode(case["inputs"]["w0"])
    _check(case, *run(case["config"], w0, gradients, before_step=before_step))


@pytest.mark.parametrize(
    "case_id", [i for i, r in NOT_APPLICABLE.items() if r is ADAM_EPSILON]
)
def test_where_adam_adds_epsilon(case_id):
    case = case_of(case_id)
    _check(case, *_run(case, before_step=place_epsilon_as_keras))
    with pytest.raises(AssertionError):  # nothing else is listed
        _check(case, *_run(case))


def test_clipping_outside_the_optimizer():
    """A hook of the test clips, and then the trajectory is that of the original."""
    case = case_of("sgd/clipvalue")
    _check(case, *_run(case))


def test_rmsprop_from_a_mean_square_of_one():
    """With the slot of the original the trajectory is its own, without it another."""
    case = case_of("v1/rmsprop")
    square_avg = torch.ones(decode(case["inputs"]["w0"]).shape)
    _check(case, *_run(case, state={"step": torch.zeros(()), "square_avg": square_avg}))
    with pytest.raises(AssertionError):
        _check(case, *_run(case))


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
    case = case_of(EPSILON_UNDER_ROOT)
    expected = decode(case["expected"]["weights_per_step"])
    original = _centered_rmsprop(case, under_root=True)
    np.testing.assert_allclose(original, expected, rtol=RTOL, atol=ATOL)
    weights, _ = _run(case)
    documented = _centered_rmsprop(case, under_root=False)
    np.testing.assert_allclose(weights, documented, rtol=RTOL, atol=ATOL)


def test_every_case_is_run_or_listed():
    account_for_all_cases("optimizers", CASES, NOT_APPLICABLE)
