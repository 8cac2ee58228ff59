# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from skest.inputs.batches import _pinned


@pytest.fixture
def no_pinned_memory(monkeypatch):
    """Let other memory be that which only a machine with a GPU has."""
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda leaf, pin_memory: empty_like(leaf))


@pytest.mark.usefixtures("no_pinned_memory")
@pytest.mark.parametrize(
    ("leaf", "n_bytes"),
    [
        (torch.arange(6.0).view(2, 3).t(), 24),
        (torch.arange(3000.0).view(3, 1000)[:, 0], 12),
        (torch.ones(1).expand(5), 20),
        (torch.empty(0, 2), 0),
    ],
    ids=["transposed", "column", "repeated", "empty"],
)
def test_all_leaves_are_pinned_in_no_more_memory_than_they_need(leaf, n_bytes):
    pinned = _pinned(leaf)
    assert torch.equal(pinned, leaf)
    assert pinned.untyped_storage().nbytes() == n_bytes


@pytest.mark.usefixtures("no_pinned_memory")
def test_what_is_pinned_is_a_copy_that_passes_gradients_on():
    leaf = torch.ones(3, requires_grad=True)
    pinned = _pinned(leaf)
    pinned.sum().backward()
    assert pinned.data_ptr() != leaf.data_ptr()
    assert leaf.grad.tolist() == [1, 1, 1]
