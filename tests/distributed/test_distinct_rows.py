# SPDX-License-Identifier: Apache-2.0
import torch
from hypothesis import given
from hypothesis import strategies as st

from skest.distributed.ps.rows import distinct_rows

SIZES = [5, 3, 4]
STARTS = [0, 5, 8, 12]
# Of two tables rows are alike, and one behind the other.
SHAPES = [(2,), (2,), ()]


@given(st.data())
def test_tables_together_are_what_each_is_alone(data):
    numbers = data.draw(st.lists(st.sampled_from(range(3)), unique=True, min_size=1))
    ids, values = {}, []
    for n in sorted(numbers):
        drawn = data.draw(st.lists(st.integers(0, SIZES[n] - 1), max_size=6))
        ids[n] = torch.tensor(drawn, dtype=torch.int64)
        values.append(torch.randn(len(drawn), *SHAPES[n]))
    scratch = torch.full((12,), 77, dtype=torch.int32)
    found = distinct_rows(ids, STARTS, scratch)
    sums = found.summed(values)
    for own, kept, total, value in zip(
        ids.values(), found.ids, sums, values, strict=True
    ):
        assert sorted(kept.tolist()) == sorted(set(own.tolist()))
        expected = torch.zeros(5, *value.shape[1:]).index_add_(0, own, value)
        assert torch.equal(total, expected[kept])


def test_what_is_known_is_returned_for_the_same_ids_only():
    ids = {0: torch.tensor([4, 1, 4]), 1: torch.tensor([1])}
    scratch = torch.zeros(12, dtype=torch.int32)
    known = distinct_rows(ids, STARTS, scratch)
    assert distinct_rows(ids, STARTS, scratch, known) is known
    for other in (
        {0: torch.tensor([4, 1, 4])},
        {0: torch.tensor([4, 1, 3]), 1: torch.tensor([1])},
        {0: torch.tensor([4, 1, 4]), 2: torch.tensor([1])},
        {0: ids[0], 1: ids[1], 2: torch.tensor([], dtype=torch.int64)},
    ):
        found = distinct_rows(other, STARTS, scratch, known)
        assert found is not known
        assert found.given == [len(of_table) for of_table in other.values()]
