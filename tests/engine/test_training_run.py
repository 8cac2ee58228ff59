# SPDX-License-Identifier: Apache-2.0
"""How long a training may last, which `execution="auto"` asks before it begins."""

import pytest

from skest.engine.training import TrainingOrder
from skest.inputs.batches import Source
from tests._models import batches, table_fn

TABLE = table_fn(batch_size=4, num_epochs=3)()  # 15 steps


def order(steps=None, max_steps=None):
    return TrainingOrder(TABLE, [], [], steps, max_steps, lambda spec, random: None)


@pytest.mark.parametrize(
    ("limits", "start", "expected"),
    [
        ({}, 0, 15),
        ({"steps": 4}, 0, 4),
        ({"steps": 4}, 100, 4),
        ({"steps": 40}, 0, 15),
        ({"max_steps": 10}, 0, 10),
        ({"max_steps": 10}, 7, 3),
    ],
)
def test_the_steps_ahead_are_those_of_the_first_limit(limits, start, expected):
    assert order(**limits).steps_ahead(Source(TABLE), start) == expected


def test_nothing_is_known_of_a_stream_or_of_epochs_without_end():
    assert order().steps_ahead(Source(batches()), 0) is None
    assert order().steps_ahead(Source(table_fn(num_epochs=None)()), 0) is None
    assert order(max_steps=9).steps_ahead(Source(batches()), 2) == 7
