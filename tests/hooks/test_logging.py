# SPDX-License-Identifier: Apache-2.0
import logging
import re

import pytest

from skest import Estimator, RunConfig
from skest.hooks import LoggingHook
from tests._models import model_fn, table_fn


def messages(caplog):
    return [record.getMessage() for record in caplog.records]


def steps_logged(caplog):
    found = (re.match(r"step (\d+): loss = \S+", text) for text in messages(caplog))
    return [int(match[1]) for match in found if match]


def test_logs_loss_and_speed(caplog):
    config = RunConfig(log_step_count_steps=3)
    with caplog.at_level(logging.INFO, "skest"):
        Estimator(model_fn, config=config).train(table_fn(num_epochs=None), steps=8)
    assert steps_logged(caplog) == [1, 4, 7]
    lines = [text for text in messages(caplog) if "loss =" in text]
    assert re.fullmatch(r"step 1: loss = [\d.]+", lines[0])  # no time has passed
    assert re.fullmatch(r"step 4: loss = [\d.]+ \([\d.]+ steps/s\)", lines[1])
    assert re.fullmatch(r"step 8: final loss = [\d.]+", lines[-1])
    assert {record.name for record in caplog.records} == {"skest"}


@pytest.mark.parametrize(
    ("config", "hooks", "expected"),
    [
        (RunConfig(log_step_count_steps=None), (), []),
        (
            RunConfig(log_step_count_steps=None),
            (LoggingHook(every_steps=2),),
            [1, 3, 5],
        ),
        (RunConfig(log_step_count_steps=None), (LoggingHook(every_secs=3600),), [1]),
    ],
)
def test_how_often(caplog, config, hooks, expected):
    estimator = Estimator(model_fn, config=config)
    with caplog.at_level(logging.INFO, "skest"):
        estimator.train(table_fn(num_epochs=None), steps=5, hooks=hooks)
    assert steps_logged(caplog) == expected


def test_a_quiet_logger_gets_nothing(caplog):
    config = RunConfig(log_step_count_steps=1)
    with caplog.at_level(logging.WARNING, "skest"):
        Estimator(model_fn, config=config).train(table_fn(), steps=3)
    assert not caplog.records


@pytest.mark.parametrize("arguments", [{}, {"every_steps": 1, "every_secs": 1}])
def test_exactly_one_interval(arguments):
    with pytest.raises(ValueError, match="Exactly one of 'every_steps' and"):
        LoggingHook(**arguments)
