# SPDX-License-Identifier: Apache-2.0
"""Tests of `skest.checkpoints.format`."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skest.checkpoints.format import check_shard, gathered_rows, shard_length

SHARDS = st.integers(1, 9)


def cut(table, n):
    return [table[i::n] for i in range(n)]


@given(n_rows=st.integers(1, 60), n=SHARDS, m=SHARDS)
def test_shards_of_one_number_become_those_of_another(n_rows, n, m):
    table = torch.arange(2 * n_rows).reshape(n_rows, 2)
    again = [gathered_rows(cut(table, n), n_rows, i, m) for i in range(m)]
    for index, shard in enumerate(again):
        assert torch.equal(shard, table[index::m])
        assert len(shard) == shard_length(n_rows, index, m)
    assert torch.equal(gathered_rows(again, n_rows), table)


def test_the_result_shares_no_memory():
    table = torch.zeros(4, 2)
    gathered_rows([table], 4).fill_(1)
    assert not table.any()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            torch.zeros(1, 2),
            r"shard 1 of 2 of a table of 5 rows should have 2 of them; ",
        ),
        (torch.zeros(2, 3), r"shard 1 of 2 .* shape \(2, 3\), but shard 0 .* \(3, 2\)"),
        (torch.zeros(2, 2).double(), "torch.float64 of shape .* shard 0 torch.float32"),
        (torch.tensor(1.0), r"its shape is \(\)"),
    ],
)
def test_shards_that_do_not_fit_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        gathered_rows([torch.zeros(3, 2), changed], 5)


def test_one_shard_can_be_checked_alone():
    check_shard(torch.zeros(2, 3), 5, 1, 2)
    with pytest.raises(ValueError, match="should have 3 of them"):
        check_shard(torch.zeros(2, 3), 5, 0, 2)
