# SPDX-License-Identifier: Apache-2.0
import logging

import numpy as np
import pytest
import torch

from skest.hooks.summaries import SummaryWriter
from tests.hooks._events import event_files, histograms, scalars


class Clock:
    """A step that moves on."""

    def __init__(self, step=1):
        self.step = step

    def __call__(self):
        return self.step


def test_scalars(tmp_path):
    clock = Clock()
    writer = SummaryWriter(tmp_path, clock)
    writer.scalar("loss", 0.5)
    writer.scalars(
        {"rate": torch.tensor(2.0, requires_grad=True), "loss": 7.0}
    )  # a step has one loss
    clock.step = 4
    writer.scalars({"loss": np.float32(0.25), "nan": float("nan")})
    writer.scalars({"loss": 0.125}, step=9)
    writer.close()
    found = scalars(tmp_path)
    assert found["loss"] == {1: 0.5, 4: 0.25, 9: 0.125}
    assert found["rate"] == {1: 2.0}
    assert np.isnan(found["nan"][4])


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6),
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6, dtype=torch.bfloat16),
        torch.arange(6.0).requires_grad_(),
        [0, 1, 2, float("nan"), 3, 4, 5, float("inf")],
        torch.sparse_coo_tensor(
            [[7, 2]], [[0.0, 1, 2], [3, 4, 5]], (10, 3), check_invariants=True
        ),
    ],
    ids=["array", "tensor", "bfloat16", "with gradients", "not finite", "sparse"],
)
def test_histograms(tmp_path, values):
    writer = SummaryWriter(tmp_path, Clock())
    writer.histogram("weights", values)
    writer.close()
    (histogram,) = histograms(tmp_path)["weights"].values()
    assert (histogram.min, histogram.max, histogram.num) == (0, 5, 6)
    assert (histogram.sum, histogram.sum_squares) == (15, 55)
    assert sum(histogram.bucket) == 6


def test_a_later_file_replaces_steps_of_earlier_ones(tmp_path):
    for first, steps in ((1, (1, 5, 9)), (6, (6, 8)), (9, (9,))):
        writer = SummaryWriter(tmp_path, Clock(), first)
        for step in steps:
            writer.scalars({"loss": 10 * first + step}, step)
        writer.close()
    assert len(event_files(tmp_path)) == 3
    assert scalars(tmp_path)["loss"] == {1: 11, 5: 15, 6: 66, 8: 68, 9: 99}


def use_all(writer):
    writer.scalar("a", 1.0)
    writer.scalars({"b": 1.0})
    writer.histogram("c", torch.ones(2))
    writer.histograms({"d": torch.ones(2)})
    writer.close()


def test_a_failure_of_writing_is_logged_once(tmp_path, caplog):
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    writer = SummaryWriter(in_the_way, Clock())
    with caplog.at_level(logging.WARNING, "skest"):
        use_all(writer)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"No summaries are written to {in_the_way}: ")
    assert not writer.is_enabled
