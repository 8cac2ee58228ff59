# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from skest.distributed import lazy_building
from skest.distributed.lazy_building import LazyBuilding
from skest.feature_columns import categorical_column_with_identity, embedding_column
from skest.feature_columns.modules import DenseFeatures, LinearFeatures
from tests.distributed._allocated import Allocated

LARGE = (1 << 20) + 1


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
        with LazyBuilding(), Allocated() as allocated:
            found = make()
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
        mask = torch.full_like(torch.empty(LARGE), 2.0)
        mask[0] = 0
    assert float(mask.sum()) == 2 * (LARGE - 1)


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
