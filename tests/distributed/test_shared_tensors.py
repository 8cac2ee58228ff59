# SPDX-License-Identifier: Apache-2.0
"""Tensors in common memory."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skest.distributed.job import anonymous_file
from skest.distributed.shared_memory import SharedTensors

DTYPES = [torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16]


@given(
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=8),
    dtype=st.sampled_from(DTYPES),
    n_counters=st.integers(0, 20),
)
def test_tensors_are_where_the_others_look(shapes, dtype, n_counters):
    tensors = {f"0:{i}/s": torch.ones(s).to(dtype) for i, s in enumerate(shapes)}
    first = SharedTensors.create(tensors, n_counters)
    second = SharedTensors(first.file)
    assert second.counters.tolist() == [0] * n_counters
    for i, (name, tensor) in enumerate(tensors.items()):
        assert torch.equal(second.tensors[name], tensor)
        first.tensors[name].fill_(i % 2)
    for name in tensors:
        assert torch.equal(second.tensors[name], first.tensors[name])
    first.file.close()


def test_tensors_and_counters_share_no_cache_line():
    shared = SharedTensors.create({"a": torch.ones(3), "b": torch.ones(3)}, 2)
    addresses = [tensor.data_ptr() for tensor in shared.tensors.values()]
    assert all(address % 64 == 0 for address in addresses)
    assert shared.counters.strides == (64,)
    shared.counters[1] = 7
    assert SharedTensors(shared.file).counters.tolist() == [0, 7]


def test_step_counters_of_an_optimizer_are_side_by_side():
    slots = {f"{i}:{p}/step": torch.tensor(1.0) for i in (0, 1) for p in "ab"}
    tensors = SharedTensors.create(slots, 1).tensors
    addresses = {name: slot.data_ptr() for name, slot in tensors.items()}
    assert addresses["0:b/step"] - addresses["0:a/step"] == 4
    stores = {n: t.untyped_storage().data_ptr() for n, t in tensors.items()}
    assert stores["0:a/step"] == stores["0:b/step"] != stores["1:a/step"]


def test_anonymous_files_are_no_standard_streams():
    """A child has other ones, also if this process, as some services, has none."""
    program = (
        "import os\n"
        "from skest.distributed.job import anonymous_file\n"
        "os.close(0)\n"
        "with anonymous_file(5) as file:\n"
        "    assert file.fileno() > 2\n"
        "    file.write(b'hello')\n"
        "    file.seek(0)\n"
        "    assert file.read() == b'hello'\n"
        "    assert not os.get_inheritable(file.fileno())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_anonymous_files_have_no_name_and_their_room(tmp_path):
    with anonymous_file(1000) as file:
        assert os.fstat(file.fileno()).st_size == 1000
        assert os.fstat(file.fileno()).st_nlink == 0


def test_missing_room_is_an_error_at_once(monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="needs 4,096 bytes in .*TMPDIR"):
        anonymous_file(np.int64(4096))
