# SPDX-License-Identifier: Apache-2.0
import threading

import torch
from hypothesis import given
from hypothesis import strategies as st

from skest.distributed.ps.transfer import KeptRows

N_ROWS = 9
CHANGES = st.lists(st.sets(st.integers(0, N_ROWS - 1)), max_size=6)


@given(CHANGES, CHANGES, st.lists(st.integers(0, N_ROWS), min_size=1))
def test_rows_are_those_of_the_moment(before, after, cuts):
    """Whatever changes, and whenever blocks are read in between."""
    tensors = {"table": torch.rand(N_ROWS, 2), "slot": torch.rand(N_ROWS, 2)}
    expected = {name: tensor.clone() for name, tensor in tensors.items()}
    kept = KeptRows(tensors, threading.RLock())
    frozen = kept.frozen()

    def change(ids):
        ids = torch.tensor(sorted(ids), dtype=torch.int64)
        kept.keep(ids)
        for tensor in tensors.values():
            tensor[ids] += 1

    def check():
        for name, rows in frozen.items():
            assert (rows.shape, rows.dtype) == ((N_ROWS, 2), torch.float32)
            assert torch.equal(rows[:], expected[name])
            for cut in cuts:
                assert torch.equal(rows[cut:], expected[name][cut:])
                assert torch.equal(rows[:cut], expected[name][:cut])

    for ids in before:
        change(ids)
    check()
    for ids in after:
        change(ids)
        check()


def test_a_row_is_copied_once():
    table = torch.zeros(1000, 4)
    kept = KeptRows({"table": table}, threading.RLock())
    for _ in range(3):
        kept.keep(torch.arange(10, 20))
    kept.keep(torch.arange(15, 25))
    assert sum(map(len, kept._kept["table"])) == 15


def test_what_is_read_can_be_changed():
    table = torch.zeros(4)
    frozen = KeptRows({"table": table}, threading.RLock()).frozen()["table"]
    frozen[:].fill_(1)
    assert not table.any()
