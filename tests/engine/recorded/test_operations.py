# SPDX-License-Identifier: Apache-2.0
"""A program of recorded operations does what they do, bit for bit, in less time."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from skest.engine.recorded.program import Program
from skest.engine.recorded.recording import NotRecordableError, Recorder
from skest.engine.recorded.simplify import (
    Storages,
    quicker_on_cpu,
    rewritten,
    simplified,
    with_tensors_for_numbers,
)
from tests._control_flow import Branches

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def programmed(function, *tensors):
    """Record a function of tensors and return it as a program, and its operations."""
    with Recorder(tensors) as recorder:
        outputs = [recorder.value_of(function(*tensors))]
    assert recorder.obstacle is None
    calls = quicker_on_cpu(rewritten(recorder.calls))
    storages = Storages(calls)
    calls, outputs = simplified(calls, outputs, storages)
    names = [call.function.overloadpacket.__name__ for call in calls]
    calls = with_tensors_for_numbers(calls)
    return Program(recorder.inputs, calls, outputs, [], storages), names


def assert_same_bits(first, second):
    assert first.shape == second.shape
    assert first.stride() == second.stride()
    assert first.dtype == second.dtype
    bits = INTEGERS[first.element_size()]
    assert torch.equal(first.view(bits), second.view(bits))


def assert_repeats(function, *tensors):
    """Check the program of a function with other tensors; return its operations."""
    program, names = programmed(function, *tensors)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        others = [torch.randn(t.shape, generator=generator) for t in tensors]
        (result,) = program(*others)
        assert_same_bits(result, function(*others))
    return names


x, y = torch.ones(4, 3), torch.ones(4, 3)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (torch.linalg.cholesky, "not positive-definite"),
        (torch.linalg.inv, "singular"),
        (lambda x: (torch._assert_async((x > 0).any()), x + 1)[1], "nonzero value"),
    ],
)
def test_checks_of_numbers_are_made_in_every_step(function, error):
    program, _ = programmed(function, torch.eye(3))
    with pytest.raises(RuntimeError, match=error):
        function(torch.zeros(3, 3))
    with pytest.raises(RuntimeError, match=error):
        program(torch.zeros(3, 3))


def all_but_a_product(x):
    x.exp().sum()  # what nobody reads
    return x * torch.ones_like(x).div(4).expand(4, 3)  # and what is always the same


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x: x.t().detach().t().view(4, 3) + 1, ["add"]),
        (lambda x: torch.cat([x.clone()], dim=1).exp(), ["exp"]),
        (lambda x: x + x.clone().mul_(2), ["clone", "mul_", "add"]),
        (all_but_a_product, ["mul"]),
    ],
)
def test_what_needs_not_be_done_is_left_out(function, left):
    assert assert_repeats(function, x) == left


def test_equal_numbers_of_other_types_are_other_arguments():
    names = assert_repeats(lambda x: (x > 1).add(1) * (x > 1).add(1.0), x)
    assert names.count("add") == 2


def test_results_take_the_place_of_what_is_no_longer_needed():
    assert_repeats(lambda x, y: ((x + y).relu() * x).tanh().sigmoid() - y, x, y)
    assert_repeats(lambda x, y: (x + y).t() * (x + y).t().contiguous(), x, y)
    assert_repeats(lambda x, y: (z := x + y).t() @ z, x, y)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sort(dim=0).values,
        lambda x: torch.cat([x[2:]])[0] - x[0],
        lambda x: torch.var_mean(x, dim=0)[1],
        lambda x: x.new_zeros(4, 3).index_add_(0, torch.tensor([0, 1, 0, 2]), x),
        lambda x: torch.zeros(2, 3).scatter_add(0, torch.zeros(4, 3).long(), x),
        lambda x: torch.empty_like(x).copy_(x).neg_(),
        lambda x: x.double().sum().float(),
        lambda x: torch.stack(list(torch._foreach_sqrt([x.abs(), x.exp()]))),
        lambda x: F.layer_norm(x, (3,)),
        lambda x: torch.where(x > 0, x, 0.0).cumsum(0)[-1],
        lambda x: x.unbind()[2] + x.chunk(2)[1].sum(),
        lambda x: (x + 1).t()[1:].masked_fill(x.t()[1:] > 0, 2.0),
    ],
)
def test_all_kinds_of_operations_are_repeated(function):
    assert_repeats(function, x)


def test_a_constant_is_read_anew_and_may_be_changed():
    total = torch.zeros(3)
    program, _ = programmed(lambda x: total.add_(x.sum(0)) * 2, x)
    total.zero_()
    assert program(torch.ones(4, 3))[0].tolist() == [8, 8, 8]
    assert program(torch.ones(4, 3))[0].tolist() == [16, 16, 16]
    total.fill_(-4)
    assert program(torch.ones(4, 3))[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("has_gradients", [False, True])
def test_autograd_takes_no_part_and_is_as_it_was_afterwards(has_gradients):
    weight = torch.ones(2, 2, requires_grad=True)
    program, _ = programmed(lambda x: torch.linalg.inv(x * weight), torch.eye(2))
    with torch.set_grad_enabled(has_gradients):
        (inverse,) = program(2 * torch.eye(2))
        assert torch.is_grad_enabled() is has_gradients
        assert (weight * 2).requires_grad is has_gradients
        with pytest.raises(torch.linalg.LinAlgError, match="singular"):
            program(torch.zeros(2, 2))
        assert torch.is_grad_enabled() is has_gradients
        assert (weight * 2).requires_grad is has_gradients
    assert not inverse.requires_grad
    assert torch.equal(inverse, torch.eye(2) / 2)


@given(
    width=st.integers(1, 5),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.float64]),
    missing=st.lists(st.booleans(), min_size=1, max_size=7),
    is_part=st.booleans(),
)
def test_zeros_are_written_over_any_bits(width, dtype, missing, is_part):
    values = [1.5, -2.0, float("nan"), float("inf"), -float("inf"), -0.0]
    numbers = torch.tensor(values, dtype=dtype).repeat(len(missing) * width)
    numbers = numbers[: len(missing) * (width + 1)].reshape(len(missing), width + 1)
    source = numbers[:, 1:] if is_part else numbers[:, 1:].clone()
    mask = torch.tensor(missing)[:, None]

    program, _ = programmed(lambda x, m: x.masked_fill(m, 0), source, mask)
    (result,) = program(source, ~mask)
    assert_same_bits(result, source.masked_fill(~mask, 0))


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize(
    "change",
    [
        lambda table, ids, rows: table.index_copy_(0, ids, rows),
        lambda table, ids, rows: table.index_add_(0, ids, rows, alpha=2),
        lambda table, ids, rows: table.index_add_(1, ids[:1] * 0, rows[:, :1]),
    ],
)
def test_rows_are_changed_in_their_table(width, change):
    table, ids = torch.zeros(3, width), torch.tensor([2, 1, 2])
    rows = torch.tensor([[1e8, 1.0], [3.0, 4.0], [-5e-3, 6.0]])[:, :width]

    program, _ = programmed(lambda ids, rows: change(table, ids, rows) * 1, ids, rows)
    other, expected = ids.flip(0) - 1, table.clone()
    (result,) = program(other, rows)
    change(expected, other, rows)
    assert_same_bits(table, expected)
    assert_same_bits(result, expected)


@given(
    operation=st.sampled_from(["add", "sub", "mul", "div"]),
    in_place=st.booleans(),
    number=st.floats(allow_nan=True) | st.integers(-(2**62), 2**62),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.float64, torch.int64]),
    shape=st.sampled_from([(), (1,), (2, 5)]),
)
def test_numbers_are_taken_as_python_means_them(
    operation, in_place, number, dtype, shape
):
    def compute(x):
        result = x.clone() if in_place else x
        return getattr(result, operation + "_" * in_place)(number)

    x = torch.linspace(-3, 7, 10)[: len(torch.zeros(shape).flatten())].to(dtype)
    x = x.reshape(shape)
    try:
        expected = compute(x.flip(-1) if shape else x + 1)
    except RuntimeError as error:  # of a result that fits no integer
        assert "cast" in str(error)
        return
    program, _ = programmed(compute, x)
    (result,) = program(x.flip(-1) if shape else x + 1)
    assert_same_bits(result, expected)


# Tensors that change their shape in place


def test_compilers_work_beside_a_recorder_and_after_it():
    module, x = Branches(), torch.ones(4, 5)
    program = torch.export.export(module, (x,), strict=False).module()
    is_inside, is_left = Event(), Event()

    def refuse():
        with pytest.raises(NotRecordableError, match="calls Python"), Recorder([x]):
            is_inside.set()
            assert is_left.wait(60)
            module(x)

    with ThreadPoolExecutor() as threads:
        with Recorder([]):
            refused = threads.submit(refuse)
            assert is_inside.wait(60)
        exported = torch.export.export(module, (x,), strict=False).module()
        is_left.set()
        refused.result()
    for found in (module, exported, torch.export.export(module, (x,)).module()):
        assert torch.equal(found(x), program(x))
