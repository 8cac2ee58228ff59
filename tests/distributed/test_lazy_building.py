# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
from torch import nn

from skest.distributed.ps import lazy_tables as lazy_building
from skest.distributed.ps.lazy_tables import LazyBuilding
from skest.feature_columns import categorical_column_with_identity, embedding_column
from skest.feature_columns.modules import DenseFeatures, LinearFeatures
from skest.optimizers.row_sparse import RowSparse
from tests.distributed._allocated import Allocated

LARGE = (1 << 20) + 1
N_ROWS = 1 << 18


class Slots(torch.optim.Optimizer):
    """An optimizer that makes something when it is made."""

    def __init__(self, make):
        super().__init__([torch.zeros(1)], {})
        self.state[None] = {"made": make()}


@pytest.mark.parametrize("value", [0, 0.0, 0.1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_constants_are_what_they_would_be(value, dtype):
    table = nn.Parameter(torch.empty(LARGE, 2, dtype=dtype), requires_grad=False)
    for make in (
        lambda: torch.full_like(table, value, memory_format=torch.preserve_format),
        lambda: torch.zeros_like(table, dtype=torch.float16),
        lambda: torch.zeros(LARGE, 2, dtype=dtype),
        lambda: torch.zeros((LARGE, 2)),
        lambda: torch.zeros(size=(LARGE, 2), requires_grad=True),
        lambda: torch.zeros(3),
        lambda: torch.full_like(table.T, value),
        lambda: torch.zeros(LARGE, device="meta"),
        lambda: torch.zeros(3, out=torch.ones(3)),
    ):
        expected = make()
        with LazyBuilding() as building, Allocated() as allocated:
            optimizer = Slots(make)
        building.built([optimizer])
        found = optimizer.state[None]["made"]
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        assert found.requires_grad == expected.requires_grad
        assert found.device == expected.device
        if found.device.type == "cpu":
            assert torch.equal(found, expected)
        is_usual = found.device.type == "meta" or found.nbytes < 100
        if found.is_contiguous() and not is_usual:
            assert allocated.n_bytes < 100


def test_zeros_can_be_written_to():
    with LazyBuilding():
        slots = torch.zeros_like(torch.empty(LARGE)).add_(1)
    assert float(slots.sum()) == LARGE


def test_numbers_of_a_model_function_can_be_written_to():
    with LazyBuilding():
        for like in (torch.empty(LARGE), nn.Parameter(torch.empty(LARGE))):
            mask = torch.full_like(like, 2.0, requires_grad=False)
            mask[0] = 0
            assert float(mask.sum()) == 2 * (LARGE - 1)


@pytest.mark.parametrize("keeps_draws", [True, False])
def test_numbers_are_there_for_who_reads_or_writes_them(keeps_draws):
    table = nn.Parameter(torch.zeros(LARGE))
    with LazyBuilding(keeps_draws=keeps_draws) as building:
        mask, slot, both, unread = (torch.full_like(table, 2.0) for _ in range(4))
        rule = Slots(lambda: slot)
        rule.state[None] |= {"both": both.mul_(2), "view": unread.detach()}
        assert float(torch.sum(slot)) == 2 * LARGE
    building.built([rule])
    assert torch.equal(mask, torch.full_like(table, 2.0))
    mask.data[0] = 1  # nobody else has it
    assert float(mask.detach().sum()) == 2 * LARGE - 1
    for name, value in [("made", 2), ("both", 4), ("view", 2)]:
        assert float(rule.state[None][name].detach().sum()) == value * LARGE
    assert rule.state[None]["view"].untyped_storage().nbytes() == 4
    assert rule.state[None]["made"].untyped_storage().nbytes() == 4 * LARGE


def test_zeros_are_on_the_default_device():
    torch.set_default_device("meta")
    try:
        with LazyBuilding(keeps_draws=False):
            assert torch.zeros(LARGE).device.type == "meta"
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("optimizer", [torch.optim.Adagrad, torch.optim.Adam])
def test_slots_of_optimizers_take_no_memory(optimizer):
    table = nn.Parameter(torch.zeros(LARGE, 2))
    with LazyBuilding(), Allocated() as allocated:
        optimizer([table], lr=0.1)
    assert allocated.n_bytes < 1000


def numbers(make, **options):
    """Return what is built, and the numbers that are drawn then."""
    torch.manual_seed(3)
    with LazyBuilding(**options):
        made = make()
    return made, torch.rand(3)


@pytest.mark.parametrize("n_rows", [1 << 17, (1 << 20) - 1, (1 << 21) + 5, 3 << 20])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_values_of_embeddings_are_drawn_in_vain(n_rows, kind):
    def make():
        return kind(n_rows, 3, sparse=True), nn.Linear(3, 3)

    torch.manual_seed(3)
    expected, after = make(), torch.rand(3)
    for keeps_draws in (True, False):
        (table, dense), found = numbers(make, keeps_draws=keeps_draws)
        assert torch.equal(found, after)
        assert torch.equal(dense.weight, expected[1].weight)
        is_zero = not table.weight.any()
        assert is_zero != keeps_draws
        if keeps_draws:
            assert torch.equal(table.weight, expected[0].weight)


@pytest.mark.parametrize(
    "fill",
    [
        nn.init.uniform_,
        lambda weight: nn.init.uniform_(weight, -1, 1),
        lambda weight: nn.init.normal_(tensor=weight, mean=1.0, std=2.0),
        lambda weight: nn.init.normal_(weight, generator=torch.Generator()),
        nn.init.trunc_normal_,
        lambda weight: weight.data.uniform_(-1, 1),
        nn.init.orthogonal_,
    ],
)
def test_other_ways_to_fill_a_parameter_draw_the_same(fill):
    def make():
        weight = nn.Parameter(torch.zeros(LARGE, 2))
        with torch.no_grad():
            fill(weight)
        return weight

    torch.manual_seed(3)
    make()
    after = torch.rand(3)
    _, found = numbers(make, keeps_draws=False)
    assert torch.equal(found, after)


def test_what_is_small_or_no_parameter_has_its_values():
    small, _ = numbers(lambda: nn.Linear(10, 10), keeps_draws=False)
    assert small.weight.any()
    plain, _ = numbers(lambda: nn.init.normal_(torch.empty(LARGE)), keeps_draws=False)
    assert plain.any()


def features(n_rows):
    column = categorical_column_with_identity("c", n_rows)
    return DenseFeatures([embedding_column(column, 2)]), LinearFeatures([column])


@pytest.mark.parametrize("keeps_draws", [True, False])
def test_tables_of_columns(keeps_draws):
    """Those of a worker are zeros; nothing else depends on what they would be."""
    torch.manual_seed(3)
    expected, after = features(LARGE), torch.rand(3)
    (dense, linear), found = numbers(lambda: features(LARGE), keeps_draws=keeps_draws)
    assert torch.equal(found, after)
    (table,), (weights, *_) = dense.parameters(), linear.parameters()
    wanted = next(iter(expected[0].parameters()))
    assert torch.equal(table, wanted if keeps_draws else torch.zeros_like(wanted))
    assert not weights.any()


def test_parts_of_a_draw_are_those_of_the_whole(monkeypatch):
    """The last part is never too small, whatever the number of rows is."""
    monkeypatch.setattr(lazy_building, "_DRAWN_AT_ONCE", 32)
    monkeypatch.setattr(lazy_building, "_LARGE", 0)
    for n in range(1, 200):

        def make(n=n):
            return nn.init.normal_(nn.Parameter(torch.empty(n)))

        torch.manual_seed(3)
        make()
        after = torch.rand(3)
        _, found = numbers(make, keeps_draws=False)
        assert torch.equal(found, after), n


def build_embedding():
    return nn.Embedding(N_ROWS, 2, sparse=True)


def values_of_own_draw():
    weight = nn.Parameter(torch.zeros(N_ROWS, 2))
    return nn.init.uniform_(weight, -1, generator=torch.Generator().manual_seed(1))


READ = {
    "clone": lambda weight: weight.detach().clone(),
    "data": lambda weight: weight.data.clone(),
    "number": lambda weight: 1 / weight.detach().std(),
    "part": lambda weight: weight[5:7],
    "in a list": lambda weight: torch.cat([weight, weight]),
    "by name": lambda weight: torch.sum(input=weight),
    "copy": lambda weight: copy.deepcopy(weight),
    "numpy": lambda weight: torch.tensor(weight.detach().numpy()),
    "double": lambda weight: weight.to(torch.float64),
    "written": lambda weight: nn.init.constant_(weight[0], 3.0) * weight,
    "looked up": lambda weight: nn.functional.embedding(torch.tensor([3]), weight),
    "state": lambda weight: nn.ParameterList([weight]).state_dict()["0"] * 2,
}


@pytest.mark.parametrize("read", READ.values(), ids=READ.keys())
@pytest.mark.parametrize(
    "build",
    [
        lambda: build_embedding().weight,
        values_of_own_draw,
        lambda: nn.init.normal_(build_embedding().weight, std=2.0),
        lambda: next(features(N_ROWS)[0].parameters()),
    ],
    ids=["embedding", "own generator", "twice", "column"],
)
def test_values_are_there_for_who_reads_them(build, read):
    def make():
        with torch.no_grad():
            weight = build()
            between = torch.rand(3)
            return read(weight), weight, between

    torch.manual_seed(3)
    expected, after = make(), torch.rand(3)
    found, after_found = numbers(make, keeps_draws=False)
    assert torch.equal(after, after_found)
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)


def test_to_build_an_optimizer_reads_no_values():
    def make():
        table = build_embedding()
        table.to("cpu").requires_grad_(True)
        torch.optim.Adagrad(table.parameters())
        RowSparse(torch.optim.Adagrad(table.parameters(), 0.1))
        return table

    table, _ = numbers(make, keeps_draws=False)
    assert not table.weight.any()


def test_what_comes_from_nowhere_else_gets_its_values():
    torch.manual_seed(3)
    expected = build_embedding(), build_embedding()
    torch.manual_seed(3)
    building = LazyBuilding(keeps_draws=False)
    with building:
        known, other = build_embedding(), build_embedding()
        build_embedding()
    building.settle(known.parameters())
    assert not known.weight.any()
    assert torch.equal(other.weight, expected[1].weight)
