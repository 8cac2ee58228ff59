# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skest.feature_columns.lookup import (
    COMBINERS,
    Lookup,
    combined_rows,
    looked_up,
    row_lookup,
    row_table,
)

IDS = torch.tensor([[0, 2, 2], [-1, 1, -1], [-1, -1, -1]])


def table(n=3, dtype=torch.float64):
    values = torch.arange(n * 2, dtype=dtype).reshape(n, 2) + 1
    return row_table(values)


def reference(weight, ids, combiner, factors):
    """The same by a dense matrix of factors."""
    one_hot = torch.nn.functional.one_hot(ids + 1, len(weight) + 1)[..., 1:]
    factors = torch.where(ids < 0, 0, factors.to(weight.dtype))
    if combiner != "sum":
        factors = factors.clamp(min=0)
    by_id = (factors.unsqueeze(-1) * one_hot).sum(dim=1)
    divisor = {
        "sum": torch.ones(len(ids), 1, dtype=weight.dtype),
        "mean": factors.sum(dim=1, keepdim=True),
        "sqrtn": factors.square().sum(dim=1, keepdim=True).sqrt(),
    }[combiner]
    return by_id @ weight / torch.where(divisor == 0, 1, divisor)


FACTORS = {
    "no factors": None,
    "factors": torch.tensor([[0.5, 2, 1], [1, 3, 1], [1, 1, 1]], dtype=torch.float64),
    "not positive": torch.tensor([[0, 2, -3], [1, -2, 1], [1, 1, 1]]),
}


@pytest.mark.parametrize("factors", FACTORS.values(), ids=FACTORS)
@pytest.mark.parametrize("combiner", COMBINERS)
def test_values_and_gradient(factors, combiner):
    for width in (slice(None), slice(1, 2)):
        weight, ids = table(), IDS[:, width]
        used = None if factors is None else factors[:, width]
        given = torch.ones(ids.shape) if used is None else used
        result = combined_rows(weight, ids, combiner, factors=used)
        expected = reference(weight, ids, combiner, given)
        assert result.dtype == weight.dtype
        torch.testing.assert_close(result, expected)
        upstream = torch.randn(result.shape, dtype=result.dtype)
        (gradient,) = torch.autograd.grad(result, weight, upstream)
        dense = torch.autograd.grad(expected, weight, upstream)
        assert gradient.is_sparse
        torch.testing.assert_close(gradient.to_dense(), dense[0])


def test_an_example_without_ids_touches_row_0_with_zero():
    """As tf.nn.safe_embedding_lookup_sparse."""
    weight = table()
    row_lookup(weight, torch.tensor([-1])).sum().backward()
    assert weight.grad._indices().tolist() == [[0]]
    assert weight.grad.to_dense().tolist() == [[0, 0]] * 3


def test_max_norm_clips_with_its_gradient():
    weight = row_table(torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=torch.float64))
    ids = torch.tensor([[0], [1], [-1]])
    result = combined_rows(weight, ids, "sum", max_norm=1.0)
    torch.testing.assert_close(
        result, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0, 0]], dtype=torch.float64)
    )
    (gradient,) = torch.autograd.grad(result[:, 0].sum(), weight)
    # d(x / |x|) / dx = (1 - x xᵀ / |x|²) / |x| where the row is clipped
    expected = torch.tensor([[0.128, -0.096], [1, 0]], dtype=torch.float64)
    torch.testing.assert_close(gradient.to_dense(), expected)


# Several tables at once


def random_table(n_rows, width, dtype=torch.float32):
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


@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), min_size=1),
    n_rows=st.integers(1, 5),
    data=st.data(),
)
def test_tables_of_any_widths_are_looked_up_as_one_by_one(sizes, n_rows, data):
    assert_same(
        [
            Lookup(
                random_table(size, width),
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
