# SPDX-License-Identifier: Apache-2.0
import logging

import pytest
import torch

from skest.hooks.summaries import SummaryWriter
from tests.hooks._events import histograms


@pytest.mark.parametrize(
    "values",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6, dtype=torch.bfloat16),
        [0, 1, 2, float("nan"), 3, 4, 5, float("inf")],
        torch.sparse_coo_tensor(
            [[7, 2]], [[0.0, 1, 2], [3, 4, 5]], (10, 3), check_invariants=True
        ),
    ],
    ids=["tensor", "bfloat16", "not finite", "sparse"],
)
def test_histograms(tmp_path, values):
    writer = SummaryWriter(tmp_path, lambda: 1)
    writer.histogram("weights", values)
    writer.close()
    (histogram,) = histograms(tmp_path)["weights"].values()
    assert (histogram.min, histogram.max, histogram.num) == (0, 5, 6)
    assert (histogram.sum, histogram.sum_squares) == (15, 55)
    assert sum(histogram.bucket) == 6


def test_a_failure_of_writing_is_logged_once(tmp_path, caplog):
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    writer = SummaryWriter(in_the_way, lambda: 1)
    with caplog.at_level(logging.WARNING, "skest"):
        writer.scalar("a", 1.0)
        writer.scalars({"b": 1.0})
        writer.histogram("c", torch.ones(2))
        writer.histograms({"d": torch.ones(2)})
        writer.close()
    (record,) = caplog.records
    assert record.getMessage().startswith(f"No summaries are written to {in_the_way}: ")
    assert not writer.is_enabled
