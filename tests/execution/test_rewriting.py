# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from skest.execution.program import Program
from skest.execution.recording import Recorder
from skest.execution.rewriting import quicker_on_cpu, with_tensors_for_numbers
from skest.execution.simplification import Storages, simplified


def rewritten(function, *inputs):
    """Record a function of tensors; return it as a program, and its operations."""
    with Recorder(inputs) as recorder:
        outputs = [recorder.value_of(function(*inputs))]
    calls = quicker_on_cpu(recorder.recording.calls)
    storages = Storages(calls)
    calls, outputs = simplified(calls, outputs, storages)
    names = [call.function.overloadpacket.__name__ for call in calls]
    calls = with_tensors_for_numbers(calls)
    return Program(recorder.recording.inputs, calls, outputs, [], storages), names


INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def assert_same_bits(first, second):
    assert first.shape == second.shape
    assert first.stride() == second.stride()
    assert first.dtype == second.dtype
    bits = INTEGERS[first.element_size()]
    assert torch.equal(first.view(bits), second.view(bits))


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

    program, _ = rewritten(lambda x, m: x.masked_fill(m, 0), source, mask)
    (result,) = program(source, ~mask)
    assert_same_bits(result, source.masked_fill(~mask, 0))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: x.masked_fill(x[:, :1] > 0, 0), "bitwise_and"),
        (lambda x: x.masked_fill(x[:, :1] > 0, -0.0), "masked_fill"),
        (lambda x: x.masked_fill(x[:, :1] > 0, 1), "masked_fill"),
        (lambda x: x.masked_fill(x > 0, 0), "masked_fill"),
        (lambda x: x.masked_fill(x[:1] > 0, 0), "masked_fill"),
        (lambda x: x[:, :1].masked_fill(x[:, :1] > 0, 0), "masked_fill"),
    ],
)
def test_only_zeros_of_whole_rows_are_written_by_bits(function, name):
    x = torch.linspace(-1, 1, 12).reshape(4, 3)
    program, names = rewritten(function, x)
    assert name in names
    assert_same_bits(program(-x)[0], function(-x))


@pytest.mark.parametrize("width", [1, 3])
def test_rows_are_looked_up_in_reserved_memory(width):
    table = torch.randn(10, width)
    ids = torch.tensor([3, 9, 3])

    def function(ids):
        return F.embedding(ids, table) + table.index_select(0, ids)

    program, names = rewritten(function, ids)
    assert "embedding" not in names
    assert names.count("index_select") == 1  # both are the same
    assert_same_bits(program(ids + (ids < 9).long())[0], function(ids + (ids < 9)))


def test_other_look_ups_stay_as_they_are():
    table, ids = torch.randn(10, 3), torch.tensor([[1, 2], [0, 0]])

    def function(ids):
        return F.embedding(ids, table).sum() + table.index_select(1, ids[0]).sum()

    program, names = rewritten(function, ids)
    assert "embedding" in names
    assert_same_bits(program(1 - ids.clamp(max=1))[0], function(1 - ids.clamp(max=1)))


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

    program, _ = rewritten(lambda ids, rows: change(table, ids, rows) * 1, ids, rows)
    other, expected = ids.flip(0) - 1, table.clone()
    (result,) = program(other, rows)
    change(expected, other, rows)
    assert_same_bits(table, expected)
    assert_same_bits(result, expected)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_a_stack_is_written_without_an_allocation(dim):
    x = torch.arange(6.0).reshape(2, 3)

    def stacked(x):
        return torch.stack([x, x + 1], dim).exp()

    program, names = rewritten(stacked, x)
    assert "stack" not in names
    assert_same_bits(program(x + 3)[0], stacked(x + 3))


@pytest.mark.parametrize(
    ("function", "is_copied"),
    [
        (lambda x: torch.cat((x + 1).unbind()) * 2, False),
        (lambda x: torch.cat((x + 1).unbind()[1:]) * 2, False),
        (lambda x: torch.cat((x + 1).split(1)) * 2, False),
        (lambda x: torch.cat([(x + 1)[:1].clone(), (x + 1)[1:]]) * 2, False),
        (lambda x: torch.cat((x + 1).unbind()[::-1]) * 2, True),
        (lambda x: torch.cat((x + 1).unbind()[::2]) * 2, True),
        (lambda x: torch.cat((x + 1).unbind(1)) * 2, True),
        (lambda x: torch.cat((x + 1).split(1), 1) * 2, True),
        (lambda x: torch.cat([(x + 1)[0], (x + 2)[0]]) * 2, True),
        (lambda x: torch.cat(x.unbind()) * 2, True),  # another batch may be elsewhere
        (lambda x: torch.cat((x + 1).unbind()).add_(2), True),
        (lambda x: torch.cat((x + 1).mul_(3).unbind()) * 2, True),
    ],
)
def test_what_is_side_by_side_is_not_copied(function, is_copied):
    x = torch.arange(12.0).reshape(3, 4)
    program, names = rewritten(function, x)
    assert ("cat" in names) is is_copied
    for inputs in (x, x + 5, torch.arange(24.0)[12:].reshape(3, 4)):
        assert_same_bits(program(inputs)[0], function(inputs))


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
    program, _ = rewritten(compute, x)
    (result,) = program(x.flip(-1) if shape else x + 1)
    assert_same_bits(result, expected)


def test_numbers_become_tensors_once():
    x = torch.ones(3)
    program, _ = rewritten(lambda x: (x.exp() + 2).mul_(0.1), x)
    constants = [c for c in program.constants.values() if isinstance(c, torch.Tensor)]
    assert {float(c) for c in constants if c.ndim == 0} >= {
        2.0,
        float(torch.tensor(0.1)),
    }


@given(
    shape=st.lists(st.integers(1, 40), max_size=3),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.float64]),
    is_transposed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_mean_is_a_sum_and_a_division(shape, dtype, is_transposed, seed):
    generator = torch.Generator().manual_seed(seed)
    x, other = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    if is_transposed and len(shape) > 1:
        x, other = x.transpose(0, 1), other.transpose(0, 1)

    program, names = rewritten(lambda x: x.exp().mean(), x)
    assert ("mean" in names) is (dtype == torch.float16)
    (result,) = program(other)
    assert_same_bits(result, other.exp().mean())
    (later,) = program(x)
    assert later is not result  # losses are kept


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x.mean(dtype=torch.float64),
        lambda x: x.mean(0),
        lambda x: x.new_empty(0).mean() + x.sum(),
    ],
)
def test_other_means_are_the_same(compute):
    x = torch.arange(6.0).reshape(2, 3)
    program, _ = rewritten(compute, x)
    assert_same_bits(program(x + 1)[0].nan_to_num(), compute(x + 1).nan_to_num())
