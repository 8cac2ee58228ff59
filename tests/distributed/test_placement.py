# SPDX-License-Identifier: Apache-2.0
import torch
from hypothesis import given
from hypothesis import strategies as st

from skest.distributed.ps.variables import n_rows_of, place, rows_of

SIZES = st.dictionaries(st.text(max_size=3), st.integers(0, 100), max_size=12)


@given(SIZES, st.integers(1, 5), st.randoms(use_true_random=False))
def test_placement_does_not_depend_on_the_order_of_names(sizes, num_ps, random):
    items = list(sizes.items())
    random.shuffle(items)
    assert place(dict(items), num_ps) == place(sizes, num_ps)


@given(SIZES, st.integers(1, 5))
def test_servers_differ_by_the_largest_variable_at_most(sizes, num_ps):
    load = [0] * num_ps
    for name, ps in place(sizes, num_ps).items():
        load[ps] += sizes[name]
    assert max(load) - min(load) <= max(sizes.values(), default=0)


def test_placement_is_what_it_always_was():
    sizes = {"b": 4, "a": 4, "large": 100, "c": 4, "d": 90}
    assert place(sizes, 2) == {"a": 1, "b": 1, "c": 1, "d": 1, "large": 0}


@given(st.integers(0, 20), st.integers(1, 5))
def test_every_row_has_one_place(n_rows, num_ps):
    table, whole = torch.arange(n_rows), torch.full((n_rows,), -1)
    for ps in range(num_ps):
        rows = rows_of(table, ps, num_ps)
        assert len(rows) == n_rows_of(n_rows, ps, num_ps)
        rows_of(whole, ps, num_ps).copy_(rows)
    assert torch.equal(whole, table)
