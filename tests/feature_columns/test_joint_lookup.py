# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from skest.feature_columns.lookup import (
    Lookup,
    combined_rows,
    looked_up,
    row_lookup,
    row_lookups,
    row_table,
)


def table(n_rows, width, dtype=torch.float32):
    generator = torch.Generator().manual_seed(n_rows)
    return row_table(torch.randn(n_rows, width, generator=generator, dtype=dtype))


def gradients(outputs, tables):
    """Gradients of a loss in which every number of the outputs counts differently."""
    for t in tables:
        t.grad = None
    flat = torch.cat([output.flatten() for output in outputs])
    (flat * torch.arange(1, len(flat) + 1)).sum().backward()
    return [(t.grad._indices(), t.grad._values()) for t in tables]


def assert_same(lookups):
    tables = [lookup.weight for lookup in lookups]
    separate = [combined_rows(*lookup) for lookup in lookups]
    expected = gradients(separate, tables)
    together = looked_up(lookups)
    for first, second in zip(together, separate, strict=True):
        assert torch.equal(first, second)
    for first, second in zip(gradients(together, tables), expected, strict=True):
        assert torch.equal(first[0], second[0])
        assert torch.equal(first[1], second[1])


@settings(deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), min_size=1),
    n_rows=st.integers(1, 5),
    data=st.data(),
)
def test_tables_of_any_widths_are_looked_up_as_one_by_one(sizes, n_rows, data):
    assert_same(
        [
            Lookup(
                table(size, width),
                torch.tensor(
                    data.draw(
                        st.lists(
                            st.lists(st.integers(-1, size - 1), min_size=1, max_size=1),
                            min_size=n_rows,
                            max_size=n_rows,
                        )
                    )
                ),
                "mean",
            )
            for size, width in sizes
        ]
    )


def test_several_values_factors_and_norms_are_looked_up_as_one_by_one():
    one, two = torch.tensor([[1], [-1]]), torch.tensor([[0, 2], [-1, -1]])
    factors = torch.tensor([[0.5], [2.0]])
    assert_same(
        [
            Lookup(table(3, 2), two, "sqrtn"),
            Lookup(table(4, 2), one, "sum", 0.5),
            Lookup(table(5, 2), one, "sum", None, factors),
            Lookup(table(6, 2), one, "mean"),
            Lookup(table(7, 2, torch.float64), one, "mean"),
        ]
    )


def test_there_may_be_nothing_to_look_up():
    assert looked_up([]) == []


def test_every_table_is_asked_for_by_itself(monkeypatch):
    """Whoever keeps the rows elsewhere takes the place of `embedding`."""
    asked, look_up = [], F.embedding

    def embedding(ids, weight, sparse):
        asked.append(weight)
        return look_up(ids, weight, sparse=sparse)

    monkeypatch.setattr(F, "embedding", embedding)
    tables, ids = [table(3, 2), table(4, 2)], [torch.tensor([[1], [-1]])] * 2
    row_lookups(tables, ids)
    assert [id(weight) for weight in asked] == [id(weight) for weight in tables]


@pytest.mark.parametrize("n_tables", [1, 2])
def test_an_id_of_minus_one_gives_zeros(n_tables):
    tables = [table(3 + i, 2) for i in range(n_tables)]
    for weight, rows in zip(
        tables, row_lookups(tables, [torch.tensor([[2], [-1]])] * n_tables), strict=True
    ):
        assert torch.equal(rows, row_lookup(weight, torch.tensor([2, -1])))
        assert rows[1].tolist() == [0, 0]
