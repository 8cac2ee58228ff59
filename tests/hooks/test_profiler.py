# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from skest import Estimator, RunConfig
from skest.hooks import ProfilerHook
from tests._models import At, assert_same_checkpoint, model_fn, raising, table_fn

ENDLESS = table_fn(num_epochs=None)
SEEDED = RunConfig(random_seed=0)


def test_traces_single_steps(tmp_path):
    estimator = Estimator(model_fn, tmp_path, SEEDED)
    estimator.train(ENDLESS, [ProfilerHook(save_steps=2)], steps=6)
    names = sorted(path.name for path in tmp_path.glob("trace-*"))
    assert names == ["trace-3.json", "trace-5.json"]
    events = json.loads((tmp_path / "trace-3.json").read_text())["traceEvents"]
    assert any("mm" in event.get("name", "") for event in events)
    plain = Estimator(model_fn, config=SEEDED).train(ENDLESS, steps=6)
    assert_same_checkpoint(estimator.checkpoint, plain.checkpoint)


def test_another_directory_by_time(tmp_path):
    hook = ProfilerHook(save_secs=1e-6, output_dir=tmp_path / "new", show_memory=True)
    Estimator(model_fn).train(ENDLESS, [hook], steps=2)
    assert (tmp_path / "new" / "trace-2.json").is_file()


def test_can_be_used_again_after_an_error(tmp_path):
    hook = ProfilerHook(save_steps=1, output_dir=tmp_path)
    estimator = Estimator(model_fn)
    with pytest.raises(OSError, match="broken"):
        estimator.train(ENDLESS, [At(2, raising(OSError("broken"))), hook])
    estimator.train(ENDLESS, [hook], steps=2)
    assert (tmp_path / "trace-4.json").is_file()


def test_a_directory_is_needed():
    with pytest.raises(ValueError, match="ProfilerHook writes files.*'output_dir'"):
        Estimator(model_fn).train(ENDLESS, [ProfilerHook(save_steps=1)])


@pytest.mark.parametrize("arguments", [{}, {"save_steps": 1, "save_secs": 1}])
def test_exactly_one_interval(arguments):
    with pytest.raises(ValueError, match="Exactly one of"):
        ProfilerHook(**arguments)
