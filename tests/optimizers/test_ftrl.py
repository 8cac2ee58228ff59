# SPDX-License-Identifier: Apache-2.0
"""The FTRL rule against a plain NumPy one, and its place among torch's optimizers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skest.optimizers import make_optimizer
from skest.optimizers.ftrl import Ftrl, ProximalAdagrad


def parameter(values, dtype=torch.float64):
    return torch.nn.Parameter(torch.tensor(values, dtype=dtype))


def reference(weight, gradients, lr, lr_power, start, l1, l2, l2_shrinkage, beta):
    """McMahan's rule for one weight, step by step in Python floats."""
    accumulator, linear = start, 0.0
    for g in gradients:
        new = accumulator + g * g
        sigma = (new**-lr_power - accumulator**-lr_power) / lr
        linear += g + 2 * l2_shrinkage * weight - sigma * weight
        accumulator = new
        if abs(linear) <= l1:
            weight = 0.0
        else:
            denominator = (new**-lr_power + beta) / lr + 2 * l2
            weight = (np.sign(linear) * l1 - linear) / denominator
    return weight, accumulator, linear


strength = st.floats(0, 2)
gradient = st.floats(-10, 10).map(lambda g: round(g, 3))


@settings(deadline=None, max_examples=50)
@given(
    weight=st.floats(-5, 5),
    gradients=st.lists(gradient, min_size=1, max_size=5),
    lr=st.floats(0.001, 1),
    lr_power=st.sampled_from([-1.0, -0.75, -0.5, -0.3]),
    start=st.sampled_from([0.1, 1.0]),
    l1=strength,
    l2=strength,
    l2_shrinkage=strength,
    beta=strength,
)
def test_rule(weight, gradients, lr, lr_power, start, l1, l2, l2_shrinkage, beta):
    param = parameter([weight])
    optimizer = Ftrl([param], lr, lr_power, start, l1, l2, l2_shrinkage, beta)
    for g in gradients:
        param.grad = torch.full_like(param, g)
        optimizer.step()
    expected = reference(
        weight, gradients, lr, lr_power, start, l1, l2, l2_shrinkage, beta
    )
    slots = optimizer.state[param]
    ours = [param.item(), slots["accumulator"].item(), slots["linear"].item()]
    np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9)


def test_no_gradient_so_far_gives_zero_not_nan():
    param = parameter([3.0, 3.0])
    optimizer = Ftrl([param], initial_accumulator_value=0.0)
    param.grad = torch.tensor([0.0, 1.0], dtype=torch.float64)
    optimizer.step()
    assert param[0].item() == 0.0
    assert torch.isfinite(param).all()


def test_no_gradient_so_far_gives_zero_beside_parameters_of_another_type():
    params = [torch.ones(2, dtype=dtype) for dtype in (torch.float64, torch.float32)]
    optimizer = Ftrl(params, initial_accumulator_value=0.0)
    for param in params:
        param.grad = torch.zeros_like(param)
    optimizer.step()
    assert not any(param.any() for param in params)


# Contiguous or not, a single number, empty, and one that is large.
@pytest.mark.parametrize("rule", [Ftrl, ProximalAdagrad])
def test_small_parameters_are_updated_together_as_each_alone(rule):
    torch.manual_seed(0)
    values = [
        torch.randn(4, 3).T,
        torch.randn(()),
        torch.zeros(0, 2),
        torch.randn(2000),
        *torch.randn(8, 2),  # they must be some
    ]
    together, alone = ([value.clone() for value in values] for _ in range(2))
    rules = [rule(together, lr=0.1), *(rule([param], lr=0.1) for param in alone)]
    for _ in range(3):
        for one, other in zip(together, alone, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimizer in rules:
            optimizer.step()
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other)
    assert [param.stride() for param in together] == [v.stride() for v in values]


def test_argument_out_of_range():
    for option, value, match in [
        ("lr", -0.1, "'lr' of Ftrl must be .* at least 0; got -0.1"),
        ("lr", float("nan"), "'lr' of Ftrl must be .* at least 0; got nan"),
        ("lr_power", 0.5, "'lr_power' of Ftrl must be <= 0; got 0.5"),
        ("beta", -1.0, "'beta' of Ftrl must be .* at least 0; got -1.0"),
    ]:
        with pytest.raises(ValueError, match=match):
            Ftrl([parameter([1.0])], **{option: value})


@settings(deadline=None, max_examples=50)
@given(
    weight=st.floats(-5, 5).filter(lambda w: abs(w) > 0.01),
    g=gradient,
    lr=st.floats(0.001, 1),
    start=st.sampled_from([0.1, 1.0]),
)
def test_kept_weights_move_like_those_of_adagrad(weight, g, lr, start):
    kept, other = parameter([weight]), parameter([weight])
    ftrl = Ftrl([kept], lr=lr, initial_accumulator_value=start)
    adagrad = torch.optim.Adagrad([other], lr, initial_accumulator_value=start, eps=0)
    ftrl.keep_weights([kept])
    for param, optimizer in ((kept, ftrl), (other, adagrad)):
        param.grad = torch.full_like(param, g)
        optimizer.step()
    torch.testing.assert_close(kept.data, other.data, rtol=1e-6, atol=1e-9)


def test_weights_without_a_slot_cannot_be_kept():
    for options in [{"lr": 0.0}, {"initial_accumulator_value": 0.0}]:
        param = parameter([3.0])
        with pytest.raises(ValueError, match=r"Ftrl cannot keep .* Set both above 0"):
            Ftrl([param], **options).keep_weights([param])


def proximal_reference(weight, gradients, lr, l1=0.0, l2=0.0, start=0.1):
    accumulator = np.full_like(weight, start)
    for g in gradients:
        accumulator = accumulator + g * g
        rate = lr / np.sqrt(accumulator)
        moved = weight - rate * g
        shrunk = np.sign(moved) * np.maximum(np.abs(moved) - rate * l1, 0)
        weight = shrunk / (1 + rate * l2)
    return weight, accumulator


PENALTIES = pytest.mark.parametrize(
    "penalties",
    [{}, {"l1": 1.0}, {"l2": 0.5}, {"l1": 0.9, "l2": 0.1}],
    ids=["none", "l1", "l2", "both"],
)


@PENALTIES
def test_rows_of_tables(penalties):
    rng = np.random.default_rng(0)
    start, gradients = rng.normal(size=(5, 3)), rng.normal(size=(6, 2, 3))
    table = torch.nn.Parameter(torch.tensor(start))
    table.is_row_table = True
    optimizer = make_optimizer("proximaladagrad", [table], 0.2, **penalties)
    touched = [[0, 3], [3, 3], [4, 0], [1, 3], [0, 0], [4, 1]]  # a row may come twice
    of_rows = [[] for _ in start]
    for ids, values in zip(touched, gradients, strict=True):
        table.grad = torch.sparse_coo_tensor(
            [ids], values, (5, 3), check_invariants=True
        )
        for row, gradient in enumerate(table.grad.to_dense().numpy()):
            if row in ids:
                of_rows[row].append(gradient)
        optimizer.step()
    expected = [
        proximal_reference(row, of_row, 0.2, **penalties)[0]
        for row, of_row in zip(start, of_rows, strict=True)
    ]
    np.testing.assert_allclose(table.detach(), expected, rtol=1e-12, atol=1e-15)


def test_wrong_arguments():
    for options, error, message in [
        ({"lr": -1.0}, ValueError, "'lr' of ProximalAdagrad .* at least 0; got -1.0"),
        ({"l1": -1.0}, ValueError, "'l1' of ProximalAdagrad .* at least 0; got -1.0"),
        ({"l2": "much"}, TypeError, "'l2' of ProximalAdagrad .* got 'much'"),
        (
            {"initial_accumulator_value": 0.0},
            ValueError,
            "'initial_accumulator_value' of ProximalAdagrad .* greater than 0; got 0.0",
        ),
    ]:
        with pytest.raises(error, match=message):
            ProximalAdagrad([torch.nn.Parameter(torch.zeros(2))], **options)


def test_a_sparse_gradient_needs_the_wrapper():
    table = torch.nn.Parameter(torch.zeros(3, 2))
    table.grad = torch.zeros(3, 2).to_sparse(1)
    with pytest.raises(ValueError, match=r"RowSparse\(ProximalAdagrad"):
        ProximalAdagrad([table]).step()
