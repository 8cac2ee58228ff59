# SPDX-License-Identifier: Apache-2.0
"""Steps that are replayed together are what they are one by one."""

import contextlib
import logging
import math
import sys

import numpy as np
import pytest
import torch

from skest import DNNClassifier, Estimator, EstimatorSpec, ModeKeys, RunConfig
from skest.exceptions import NanLossDuringTrainingError
from skest.execution import GraphStep
from skest.execution.program import Program
from skest.hooks import StepCounterHook, SummarySaverHook
from skest.inputs import ArrayDataset
from tests._models import Recorder, squared_loss, table
from tests.summaries._events import scalars

rng = np.random.default_rng(0)
X = rng.normal(size=(203, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


@pytest.fixture
def stretches(monkeypatch):
    """Collect how many steps are taken together each time."""
    found = []
    together = GraphStep._together

    @contextlib.contextmanager
    def counted(step, shortcut):
        before = step.n_replayed
        with together(step, shortcut) as take:
            yield take
        found.append(step.n_replayed - before)

    monkeypatch.setattr(GraphStep, "_together", counted)
    # However busy the machine is.
    monkeypatch.setattr("skest.training._SECONDS_TOGETHER", math.inf)
    return found


def assert_same(ours, theirs):
    for part in ("variables", "optimizer"):
        mine, others = getattr(ours, part), getattr(theirs, part)
        assert mine.keys() == others.keys()
        for name, value in mine.items():
            np.testing.assert_array_equal(value, others[name], name, strict=True)


def fitted(execution, **options):
    config = RunConfig(execution=execution, log_step_count_steps=None)
    fixed = {"batch_size": 16, "max_iter": 6, "random_state": 0, "optimizer": "adam"}
    fixed["learning_rate"] = 0.05
    model = DNNClassifier((6, 4), early_stopping=False, config=config)
    return model.set_params(**{**fixed, **options}).fit(X, Y)


@pytest.mark.parametrize(
    "options",
    [{}, {"dropout": 0.3}, {"batch_norm": True}, {"clip_norm": 0.1}],
    ids=["plain", "dropout", "batch norm", "clipped"],
)
def test_a_fit_is_the_eager_one(options, stretches):
    eager, graph = fitted("eager", **options), fitted("graph", **options)
    # Thirteen steps an epoch, the last one smaller. The first three are eager, recorded
    # and compared; the next one, and the first of an epoch, are replayed by themselves.
    assert stretches == [8, 11, 11, 11, 11, 11]
    ours, theirs = eager.estimator_.checkpoint, graph.estimator_.checkpoint
    assert_same(ours, theirs)
    assert eager.loss_curve_ == graph.loss_curve_


class Named(torch.nn.Linear):
    def forward(self, features):
        return super().forward(features["x"])


def named_model_fn(features, labels, mode):
    network = Named(3, 1)
    return EstimatorSpec(
        mode,
        network=network,
        loss=squared_loss,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.05),
    )


def named_table(n_rows=203, **options):
    x, y = table(n_rows)
    return ArrayDataset({"x": x}, y, **{"batch_size": 16, **options})


def endless():
    return named_table(shuffle=True, seed=0, num_epochs=None)


def trained(execution, hooks=(), *, model_dir=None, **train):
    config = RunConfig(
        random_seed=0,
        execution=execution,
        model_dir=model_dir,
        log_step_count_steps=7,
        save_summary_steps=9,
        save_checkpoints_steps=25,
    )
    return Estimator(named_model_fn, config=config).train(endless, hooks, **train)


def test_hooks_act_at_the_same_steps(stretches, tmp_path, caplog):
    """Lines of the log, summaries and checkpoints."""
    caplog.set_level(logging.INFO, "skest")
    found = []
    for execution in ("eager", "graph"):
        caplog.clear()
        made = trained(execution, model_dir=tmp_path / execution, steps=88)
        lines = [r.getMessage().split(" (")[0] for r in caplog.records]
        losses = scalars(tmp_path / execution)["loss"]
        found.append((made, [x for x in lines if "loss =" in x], losses))
    (eager, *expected), (graph, *actual) = found
    assert actual == expected
    assert [*losses] == [*range(1, 89, 9), 88]
    assert_same(eager.checkpoint, graph.checkpoint)
    # Up to the next line of the log (7), summary (9), checkpoint (25) or smaller batch.
    assert max(stretches) <= 7
    assert sum(stretches) > 40


def test_summaries_are_written_when_seconds_have_passed(
    stretches, monkeypatch, tmp_path
):
    monkeypatch.setattr("skest.training._SECONDS_TOGETHER", -1.0)
    at_once = SummarySaverHook(save_secs=1e-9, output_dir=tmp_path)
    trained("graph", [at_once], steps=40)
    assert [*scalars(tmp_path)["loss"]] == [*range(1, 41)]


def test_a_step_counter_is_told_in_time(stretches):
    counter = StepCounterHook(every_steps=10)
    trained("graph", [counter], steps=60)
    assert counter.steps_per_sec > 0
    assert stretches


def test_an_interrupted_training_goes_on_behind_the_last_of_several_steps(
    stretches, monkeypatch
):
    whole = trained("graph", max_steps=60)

    def broken(self, run, loss):
        if run.global_step == 33:
            raise OSError("broken")

    monkeypatch.setattr(StepCounterHook, "after_step", broken)
    part = Estimator(named_model_fn, config=RunConfig(random_seed=0, execution="graph"))
    stretches.clear()
    with pytest.raises(OSError, match="broken"):
        part.train(endless, [StepCounterHook(33)])
    assert sum(stretches) > 15
    assert part.checkpoint.global_step == 33
    assert_same(whole.checkpoint, part.train(endless, max_steps=60).checkpoint)


@pytest.mark.parametrize("execution", ["eager", "graph"])
def test_the_first_loss_that_is_nan_ends_the_training(execution, stretches):
    data = named_table(400, batch_size=4)
    data.labels[4 * 57] = np.nan
    config = RunConfig(execution=execution, log_step_count_steps=None)
    estimator = Estimator(named_model_fn, config=config)
    with pytest.raises(
        NanLossDuringTrainingError, match=r"step 58 is NaN.*1 NaN .*labels .*row 0"
    ):
        estimator.train(lambda: data)
    assert sum(stretches) == (54 if execution == "graph" else 0)


def test_other_code_than_that_of_skest_is_called_around_every_step(stretches):
    recorder = Recorder()
    trained("graph", [recorder], steps=30)
    assert recorder.steps == [*range(1, 31)]
    assert stretches == []


def recorded(program=Program):
    network = Named(2, 1)
    spec = EstimatorSpec(
        ModeKeys.TRAIN,
        network=network,
        loss=squared_loss,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
    )
    options = {"is_watched": False, "has_table": True, "eager_steps": 1}
    step = GraphStep(spec, report=print, program=program, **options)
    assert step.together() is None
    for value in range(4):
        step({"x": torch.full((3, 2), float(value))}, torch.zeros(3))
    return network, step


class SingleSteps:
    """A program of another kind, as those of CUDA graphs are."""

    def __init__(self, *recorded):
        self._program = Program(*recorded)
        self.source, self.places = self._program.source, self._program.places

    def __call__(self, *inputs):
        return self._program(*inputs)


def test_other_programs_take_single_steps():
    _, step = recorded(SingleSteps)
    assert step.n_replayed == 1
    assert step.together() is None
    (replay,) = step._replays.values()
    with (
        pytest.raises(TypeError, match="SingleSteps takes single steps only"),
        replay.together(),
    ):
        pass


def test_autograd_is_as_before_behind_an_error():
    network, step = recorded()
    context = step.together()
    with pytest.raises(OSError, match="broken"), context as take:
        assert take({"x": torch.ones(2, 2)}, torch.zeros(2)) is None
        assert not torch.is_grad_enabled()
        raise OSError("broken")
    assert torch.is_grad_enabled()
    assert network({"x": torch.ones(1, 2)}).requires_grad


def test_autograd_is_as_before_behind_a_signal():
    """Signals are answered where a function begins."""
    network, step = recorded()
    batch = {"x": torch.ones(3, 2)}, torch.zeros(3)

    def interrupt(frame, event, argument):
        if next(left, None) is None:
            raise KeyboardInterrupt

    n_calls, is_interrupted = 0, True
    while is_interrupted:
        left = iter(range(n_calls))
        is_interrupted = False
        before = sys.gettrace()
        sys.settrace(interrupt)
        try:
            with step.together() as take:
                take(*batch)
        except KeyboardInterrupt:
            is_interrupted = True
        finally:
            sys.settrace(before)
        assert torch.is_grad_enabled()
        assert network(batch[0]).requires_grad
        n_calls += 1
    assert n_calls > 10
