# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from skest.execution.batch import batch_tensors
from skest.execution.counters import join_counters
from skest.execution.memory import Arena, is_dense
from skest.execution.program import Program
from skest.execution.recording import Recorder
from skest.execution.simplification import Storages, rewritten, simplified


def programmed(function, *tensors):
    """Record a function of tensors and return it as a program, and its calls."""
    with Recorder(tensors) as recorder:
        returned = function(*tensors)
    outputs = [recorder.value_of(returned)]
    assert recorder.recording.obstacle is None
    calls = rewritten(recorder.recording.calls)
    storages = Storages(calls)
    calls, outputs = simplified(calls, outputs, storages)
    names = [call.function.overloadpacket.__name__ for call in calls]
    return Program(recorder.recording.inputs, calls, outputs, [], storages), names


def assert_repeats(function, *tensors):
    """Check the program of a function with other tensors; return its operations."""
    program, names = programmed(function, *tensors)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        others = [torch.randn(t.shape, generator=generator) for t in tensors]
        (result,) = program(*others)
        assert torch.equal(result, function(*others))
    return names


x, y = torch.ones(4, 3), torch.ones(4, 3)


def test_views_that_lead_back_are_left_out():
    assert assert_repeats(lambda x: x.t().detach().t().view(4, 3) + 1, x) == ["add"]


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


def test_copies_of_what_nobody_changes_are_left_out():
    names = assert_repeats(lambda x: torch.cat([x.clone()], dim=1).exp(), x)
    assert names == ["exp"]


def test_copies_that_are_changed_are_made():
    names = assert_repeats(lambda x: x + x.clone().mul_(2), x)
    assert names == ["clone", "mul_", "add"]


def test_what_is_computed_twice_is_computed_once():
    assert assert_repeats(lambda x: x.exp() * x.exp(), x) == ["exp", "mul"]
    # Not the same arguments: 1 and 1.0 give different types.
    names = assert_repeats(lambda x: (x > 1).add(1) * (x > 1).add(1.0), x)
    assert names.count("add") == 2


def test_what_nobody_reads_and_what_is_the_same_in_every_step_is_left_out():
    def function(x):
        x.exp().sum()
        return x * torch.ones_like(x).div(4).expand(4, 3)

    assert assert_repeats(function, x) == ["mul"]


def test_views_of_a_copy_are_not_those_of_what_was_copied():
    def function(x):
        rows = torch.cat([x[2:]])
        return rows[0] - x[0]

    assert_repeats(function, x)


def test_results_take_the_place_of_what_is_no_longer_needed():
    assert_repeats(lambda x, y: ((x + y).relu() * x).tanh().sigmoid() - y, x, y)
    assert_repeats(lambda x, y: (x + y).t() * (x + y).t().contiguous(), x, y)
    assert_repeats(lambda x, y: (z := x + y).t() @ z, x, y)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sort(dim=0).values,
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


def test_a_sparse_tensor_shares_memory_with_its_parts():
    ids = torch.tensor([[0, 2, 2, 5]])

    def function(x):
        values = x + 1
        sparse = torch.sparse_coo_tensor(ids, values, (6, 3), check_invariants=False)
        sparse._values().mul_(2)
        return sparse._values() + values.exp() + x.tanh()

    assert_repeats(function, x)


def test_a_constant_is_read_anew_and_may_be_changed():
    total = torch.zeros(3)
    program, _ = programmed(lambda x: total.add_(x.sum(0)) * 2, x)
    total.zero_()
    assert program(torch.ones(4, 3))[0].tolist() == [8, 8, 8]
    assert program(torch.ones(4, 3))[0].tolist() == [16, 16, 16]
    total.fill_(-4)
    assert program(torch.ones(4, 3))[0].tolist() == [0, 0, 0]


def test_the_source_can_be_read():
    program, _ = programmed(lambda x: (x.exp() + 1).sum(), x)
    assert program.source.startswith("def step(x0):\n    ")


def test_recording_changes_nothing():
    layer = nn.Linear(3, 1)
    layer(x).sum().backward()
    expected = layer.weight.grad.clone()
    layer.zero_grad()
    with Recorder([x]):
        layer(x).sum().backward()
    assert torch.equal(layer.weight.grad, expected)


def test_hidden_changes_of_batch_norm_are_known():
    norm = nn.BatchNorm1d(3)
    with Recorder([x]) as recorder:
        norm(x)
    (call,) = [c for c in recorder.recording.calls if len(c.args) > 5]
    written = [value.tensor for value in call.written]
    assert any(tensor is norm.running_mean for tensor in written)
    assert any(tensor is norm.running_var for tensor in written)


# The parts


def test_kinds_of_batches():
    _, kind = batch_tensors(({"a": x, "b": [y, None]}, x))
    tensors, same = batch_tensors(({"a": x + 1, "b": [y, None]}, z := y + 1))
    assert len(tensors) == 3
    assert tensors[2] is z
    assert same != kind  # there the labels were the features
    for other in (x[:2], x.double(), torch.ones(3, 4).t()):
        assert batch_tensors(other)[1] != batch_tensors(x)[1]
    with pytest.raises(TypeError, match="a batch has a str beside its tensors"):
        batch_tensors({"a": "b"})
    with pytest.raises(
        TypeError, match="a batch has a tensor of layout torch.sparse_csr"
    ):
        batch_tensors(x.to_sparse_csr())


def test_dense_tensors():
    assert is_dense(x)
    assert is_dense(x.t())
    assert not is_dense(x[:, :2])
    assert not is_dense(torch.ones(1).expand(3))
    assert not is_dense(torch.ones(0))
    assert not is_dense(x.to_sparse())


def test_memory_is_used_again_for_the_same_type_and_size():
    arena = Arena()
    first = arena.take(x)
    second = arena.take(x)
    assert first.data_ptr() != second.data_ptr()
    arena.give_back(first)
    assert arena.take(x.double()).data_ptr() != first.data_ptr()
    assert arena.take(x[:2]).data_ptr() != first.data_ptr()
    assert arena.take(x.t()).data_ptr() == first.data_ptr()


def test_counters_keep_their_values_and_are_joined_once():
    network = nn.Linear(2, 1)
    network(torch.ones(1, 2)).sum().backward()
    optimizer = torch.optim.Adam(network.parameters(), fused=True)
    for _ in range(3):
        optimizer.step()
    join_counters([optimizer])
    joined = [slots["step"] for slots in optimizer.state.values()]
    join_counters([optimizer])
    optimizer.step()
    steps = [slots["step"] for slots in optimizer.state.values()]
    assert all(a is b for a, b in zip(steps, joined, strict=True))
    assert [step.item() for step in steps] == [4, 4]
