# SPDX-License-Identifier: Apache-2.0
import logging
import re

import pytest

from skest import Estimator, RunConfig
from skest.hooks import StepCounterHook
from tests._models import model_fn, table_fn

QUIET = RunConfig(log_step_count_steps=None)


def test_measures_the_speed_and_logs_it(caplog):
    hook = StepCounterHook(every_steps=3)
    with caplog.at_level(logging.INFO, "skest"):
        Estimator(model_fn, config=QUIET).train(
            table_fn(num_epochs=None), [hook], steps=8
        )
    lines = [r.getMessage() for r in caplog.records if "global_step/sec" in r.msg]
    assert [re.match(r"step (\d+): [\d.]+ global_step/sec$", s)[1] for s in lines] == [
        *("3", "6")
    ]
    assert hook.steps_per_sec > 0


def test_begins_anew_with_every_run():
    hook = StepCounterHook(every_steps=3)
    estimator = Estimator(model_fn, config=QUIET)
    estimator.train(table_fn(num_epochs=None), [hook], steps=3)
    assert hook.steps_per_sec > 0
    estimator.train(table_fn(), [hook], steps=2)
    assert hook.steps_per_sec is None


@pytest.mark.parametrize("arguments", [{"every_steps": None}, {"every_secs": 1}])
def test_exactly_one_interval(arguments):
    with pytest.raises(ValueError, match="Exactly one of 'every_steps' and"):
        StepCounterHook(**arguments)
