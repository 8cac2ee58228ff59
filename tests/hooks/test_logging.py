# SPDX-License-Identifier: Apache-2.0
import json
import logging
import re
import sys

import numpy as np
import pytest

from skest import DNNRegressor, Estimator, RunConfig
from skest.hooks import (
    LoggingHook,
    ProfilerHook,
    ProgressBarHook,
    StepCounterHook,
    Timer,
)
from tests._models import FakeClock, assert_same_checkpoint, model_fn, table_fn

QUIET = RunConfig(log_step_count_steps=None)
ENDLESS = table_fn(num_epochs=None)


def messages(caplog):
    return [record.getMessage() for record in caplog.records]


def steps_logged(caplog):
    found = (re.match(r"step (\d+): loss = \S+", text) for text in messages(caplog))
    return [int(match[1]) for match in found if match]


def test_logs_loss_and_speed(caplog):
    config = RunConfig(log_step_count_steps=3)
    with caplog.at_level(logging.INFO, "skest"):
        Estimator(model_fn, config=config).train(ENDLESS, steps=8)
    assert steps_logged(caplog) == [1, 4, 7]
    lines = [text for text in messages(caplog) if "loss =" in text]
    assert re.fullmatch(r"step 1: loss = [\d.]+", lines[0])  # no time has passed
    assert re.fullmatch(r"step 4: loss = [\d.]+ \([\d.]+ steps/s\)", lines[1])
    assert re.fullmatch(r"step 8: final loss = [\d.]+", lines[-1])
    assert {record.name for record in caplog.records} == {"skest"}


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [
        ((), []),
        ([LoggingHook(every_steps=2)], [1, 3, 5]),
        ([LoggingHook(every_secs=3600)], [1]),
    ],
)
def test_how_often(caplog, hooks, expected):
    estimator = Estimator(model_fn, config=QUIET)
    with caplog.at_level(logging.INFO, "skest"):
        estimator.train(ENDLESS, steps=5, hooks=hooks)
    assert steps_logged(caplog) == expected


# Speed


def test_measures_the_speed_and_logs_it(caplog):
    hook = StepCounterHook(every_steps=3)
    with caplog.at_level(logging.INFO, "skest"):
        Estimator(model_fn, config=QUIET).train(ENDLESS, [hook], steps=8)
    lines = [r.getMessage() for r in caplog.records if "global_step/sec" in r.msg]
    assert [re.match(r"step (\d+): [\d.]+ global_step/sec$", s)[1] for s in lines] == [
        *("3", "6")
    ]
    assert hook.steps_per_sec > 0


def test_a_bar_shows_steps_and_loss(monkeypatch, capsys):
    bar = ProgressBarHook()
    DNNRegressor(4, max_iter=3, hooks=[bar], random_state=0).fit(
        np.eye(20), np.arange(20.0)
    )
    said = capsys.readouterr().err
    assert re.search(r"train: 100%\|█+\| 3/3 \[.* steps/s, loss=[\d.]+\]\n$", said)
    Estimator(model_fn, config=QUIET).train(ENDLESS, [ProgressBarHook(8)], steps=4)
    assert "train:  50%" in capsys.readouterr().err
    few = DNNRegressor(4, max_iter=9, max_steps=4, hooks=[bar], random_state=0)
    few.fit(np.eye(20), np.arange(20.0))
    assert re.search(r"train: 100%\|█+\| 4/4", capsys.readouterr().err)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match="pip install tqdm"):
        Estimator(model_fn).train(table_fn(), [bar])


# When it is due


def due_at(timer, steps, clock=None, secs_per_step=0.0):
    due = []
    for step in steps:
        if clock is not None:
            clock.now += secs_per_step
        if timer.is_due(step):
            timer.mark(step)
            due.append(step)
    return due


def test_every_steps():
    for every, steps, due in [
        (1, range(1, 5), [1, 2, 3, 4]),
        (3, range(1, 10), [1, 4, 7]),
        (3, range(5, 12), [5, 8, 11]),  # the first time asked, wherever that is
        (10, [1, 2, 25, 26, 35], [1, 25, 35]),  # steps may be left out
        (10, [1, 11, 12, 4, 5, 14, 15], [1, 11, 4, 14]),  # a training may go back
    ]:
        assert due_at(Timer(every_steps=every), steps) == due


def test_every_secs():
    clock = FakeClock(now=1000.0)
    timer = Timer(every_secs=1.0, clock=clock)
    assert due_at(timer, range(1, 9), clock, secs_per_step=0.5) == [1, 3, 5, 7]


def test_exactly_one_positive_interval():
    for interval, message in [
        ({}, "Exactly one of 'every_steps' and 'every_secs'.*None and None"),
        ({"every_steps": 1, "every_secs": 1.0}, "Exactly one of .*got 1 and 1.0"),
        ({"every_steps": 0}, "'every_steps' must be positive; got 0"),
        ({"every_secs": -1.0}, "'every_secs' must be positive; got -1.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            Timer(**interval)


# Profiles


def test_traces_single_steps(tmp_path):
    estimator = Estimator(model_fn, tmp_path, RunConfig(random_seed=0))
    estimator.train(ENDLESS, [ProfilerHook(save_steps=2)], steps=6)
    names = sorted(path.name for path in tmp_path.glob("trace-*"))
    assert names == ["trace-3.json", "trace-5.json"]
    events = json.loads((tmp_path / "trace-3.json").read_text())["traceEvents"]
    assert any("mm" in event.get("name", "") for event in events)
    plain = Estimator(model_fn, config=RunConfig(random_seed=0)).train(ENDLESS, steps=6)
    assert_same_checkpoint(estimator.checkpoint, plain.checkpoint)


def test_a_directory_is_needed():
    with pytest.raises(ValueError, match="ProfilerHook writes files.*'output_dir'"):
        Estimator(model_fn).train(ENDLESS, [ProfilerHook(save_steps=1)])
