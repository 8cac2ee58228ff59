# SPDX-License-Identifier: Apache-2.0
import logging
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from skest import Estimator, RunConfig
from skest.heads import BinaryClassHead, MultiHead, RegressionHead
from skest.hooks import Hook, LRScheduleHook, SummarySaverHook
from skest.hooks.summaries import SummaryWriter
from tests._models import (
    At,
    Recorder,
    assert_same_checkpoint,
    model_fn,
    raising,
    squared_loss,
    table,
    table_fn,
)
from tests.hooks._events import event_files, histograms, scalars

ENDLESS = table_fn(num_epochs=None)


def config(every, **settings):
    return RunConfig(random_seed=0, save_summary_steps=every, **settings)


def with_summaries(features, labels, mode, params):
    def summaries(labels, logits, features):
        return {"again": squared_loss(labels, logits, features), "logits": logits}

    spec = model_fn(features, labels, mode, params)
    return replace(spec, summaries=summaries)


def test_summaries_of_a_training(tmp_path):
    estimator = Estimator(model_fn, tmp_path, config(3))
    recorder = Recorder()
    estimator.train(ENDLESS, [recorder], steps=9)
    assert len(event_files(tmp_path)) == 1
    found = scalars(tmp_path)
    assert set(found) == {"loss", "global_step/sec", "learning_rate"}
    assert list(found["loss"]) == [1, 4, 7, 9]
    assert list(found["loss"].values()) == [
        recorder.losses[i - 1] for i in (1, 4, 7, 9)
    ]
    assert list(found["global_step/sec"]) == [4, 7]
    assert all(rate > 0 for rate in found["global_step/sec"].values())
    assert found["learning_rate"] == dict.fromkeys((1, 4, 7), pytest.approx(0.05))
    assert not histograms(tmp_path)


@pytest.mark.parametrize("network", ["skest_dropout", "batch_norm"])
def test_training_is_the_same_bit_for_bit(tmp_path, network):
    params = {"network": network}
    plain = Estimator(model_fn, config=config(None), params=params)
    shown = Estimator(with_summaries, tmp_path, config(2), params)
    hook = SummarySaverHook(save_steps=3, histograms=["variables", "gradients"])
    assert_same_checkpoint(
        plain.train(ENDLESS, steps=9).checkpoint,
        shown.train(ENDLESS, [hook], steps=9).checkpoint,
    )


def test_the_learning_rate_is_that_of_the_step(tmp_path):
    rates = [1 / 2**i for i in range(4)]
    schedule = LRScheduleHook(lambda step: rates[step])
    early = SummarySaverHook(save_steps=1, output_dir=tmp_path / "hook")
    Estimator(model_fn, tmp_path).train(ENDLESS, [early, schedule], steps=3)
    Estimator(
        model_fn,
        tmp_path / "scheduler",
        config(1),
        {"lr": 1.0, "scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5)},
    ).train(ENDLESS, steps=3)
    expected = {step: rates[step - 1] for step in (1, 2, 3)}
    for name in ("hook", "scheduler"):
        assert scalars(tmp_path / name)["learning_rate"] == expected


def test_histograms(tmp_path):
    estimator = Estimator(model_fn, tmp_path, config(100))
    gradients = {}

    class Keep(Hook):
        def after_backward(self, run):
            gradients[run.global_step + 1] = run.network.weight.grad.clone()

    hook = SummarySaverHook(save_steps=2, histograms=("variables", "gradients"))
    estimator.train(ENDLESS, [hook, Keep()], steps=3)
    found = histograms(tmp_path)
    kinds = ("variables", "gradients")
    assert set(found) == {f"{k}/{name}" for k in kinds for name in ("weight", "bias")}
    assert all(list(steps) == [1, 3] for steps in found.values())
    for step in (1, 3):
        gradient = gradients[step]
        histogram = found["gradients/weight"][step]
        assert (histogram.min, histogram.max) == (gradient.min(), gradient.max())
        assert histogram.num == 3
    weight = estimator.get_variable_value("weight")
    assert found["variables/weight"][3].max == weight.max()
    assert list(scalars(tmp_path)["loss"]) == [1, 3]  # both hooks, each value once


def test_summaries_of_the_model(tmp_path):
    params = {"network": "skest_dropout"}
    Estimator(with_summaries, tmp_path, config(2), params).train(ENDLESS, steps=5)
    found = scalars(tmp_path)
    # Those of the very step, with its variables and its dropout.
    assert found["again"] == {step: found["loss"][step] for step in (1, 3, 5)}
    assert [h.num for h in histograms(tmp_path)["logits"].values()] == [4, 4, 4]


def test_losses_of_heads(tmp_path):
    head = MultiHead([RegressionHead(name="a"), BinaryClassHead(name="b")], [2.0, 0.5])
    x, y = table()
    labels = {"a": y, "b": (y > 0).astype(int)}

    def input_fn():
        return [(x, labels)] * 3

    def model_fn(features, labels, mode):
        network = nn.Linear(3, head.logits_dimension)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        return head.create_estimator_spec(features, mode, network, labels, optimizer)

    estimator = Estimator(model_fn, tmp_path, config(1)).train(input_fn)
    found = scalars(tmp_path)
    for step in (1, 2, 3):
        parts = 2 * found["loss/a"][step] + 0.5 * found["loss/b"][step]
        assert found["loss"][step] == pytest.approx(parts, rel=1e-6)
    results = estimator.evaluate(input_fn)
    shown = {name: v[3] for name, v in scalars(estimator.eval_dir()).items()}
    del results["global_step"]
    assert shown == pytest.approx(results, rel=1e-6)
    assert "loss/a" in shown


def test_hooks_write_numbers_of_their_own(tmp_path):
    class Norm(Hook):
        def after_step(self, run, loss):
            run.summary.scalar("norm", run.global_step / 2)

        def end(self, run):
            run.summary.histogram("weights", run.network.weight)

    estimator = Estimator(model_fn, tmp_path, config(None))
    estimator.train(ENDLESS, [Norm()], steps=2)
    assert scalars(tmp_path) == {"norm": {1: 0.5, 2: 1.0}}
    assert list(histograms(tmp_path)["weights"]) == [2]
    estimator.evaluate(table_fn(), hooks=[Norm()], name="test")
    assert scalars(estimator.eval_dir("test")) == {"norm": {2: 1.0}}
    list(estimator.predict(table_fn(), hooks=[Norm()]))  # writes nothing
    assert len(event_files(tmp_path)) == 1
    Estimator(model_fn).train(ENDLESS, [Norm()], steps=1)

    class Elsewhere(Hook):
        def after_step(self, run, loss):
            run.summary_writer(tmp_path / "of_predict").scalar("norm", 1.0)

    list(estimator.predict(table_fn(), hooks=[Elsewhere()]))
    assert scalars(tmp_path / "of_predict") == {"norm": {2: 1.0}}


def test_a_training_that_goes_on_draws_one_line(tmp_path):
    estimator = Estimator(model_fn, tmp_path, config(2, save_checkpoints_steps=5))
    estimator.train(ENDLESS, steps=5)
    with pytest.raises(OSError, match="broken"):
        estimator.train(ENDLESS, [At(8, raising(OSError("broken")))])
    assert list(scalars(tmp_path)["loss"]) == [1, 3, 5, 6]
    estimator.train(ENDLESS, steps=3)
    assert list(scalars(tmp_path)["loss"]) == [1, 3, 5, 6, 9, 11]


def test_without_tensorboard(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with caplog.at_level(logging.INFO, "skest"):
        estimator = Estimator(model_fn, tmp_path).train(ENDLESS, steps=2)
        estimator.evaluate(table_fn())
    lines = [r.getMessage() for r in caplog.records if "tensorboard" in r.getMessage()]
    assert lines == [
        "No summaries are written: summaries need tensorboard. Install it with: "
        "pip install tensorboard"
    ]
    with pytest.raises(ImportError, match=r"pip install tensorboard"):
        SummarySaverHook(save_steps=1)


def test_unknown_histograms():
    message = "'histograms' of SummarySaverHook may name 'variables' and 'grad.*; got"
    for unknown in ("weights", ["variables", "activations"]):
        with pytest.raises(ValueError, match=message):
            SummarySaverHook(save_steps=1, histograms=unknown)


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
def test_histograms_of_what_is_finite(tmp_path, values):
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
