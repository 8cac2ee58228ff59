# SPDX-License-Identifier: Apache-2.0
import itertools
import logging
import re

import numpy as np
import pandas as pd
import pytest
import torch

from skest import DNNRegressor, Estimator, EstimatorSpec, RunConfig
from skest.exceptions import NanLossDuringTrainingError
from skest.heads import RegressionHead
from skest.hooks import NanLossHook
from skest.hooks.nan import report_on_batch
from skest.inputs import ArrayDataset
from tests._models import Recorder, model_fn, table, table_fn


def constant_loss_model_fn(features, labels, mode, params):
    network = torch.nn.Linear(3, 1)
    return EstimatorSpec(
        mode,
        network=network,
        loss=lambda labels, logits, features: logits.sum() * 0 + params["loss"],
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
    )


def estimator(loss):
    return Estimator(constant_loss_model_fn, params={"loss": loss})


def test_nan_raises_by_default():
    recorder = Recorder()
    with pytest.raises(NanLossDuringTrainingError, match=r"of step 1 is NaN\. .*Lower"):
        estimator(float("nan")).train(table_fn(), hooks=[recorder])
    assert recorder.calls == ["begin", "before_step", "after_step"]


def test_nan_can_stop_instead(caplog):
    hook = NanLossHook(fail_on_nan_loss=False)
    recorder = Recorder()
    with caplog.at_level(logging.ERROR, "skest"):
        estimator(float("nan")).train(table_fn(), hooks=[hook, recorder])
    assert recorder.calls == ["begin", "before_step", "after_step", "end"]
    assert "The loss of step 1 is NaN" in caplog.text


# What is said about the batch

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("execution", ["eager", "graph"])
def test_the_step_and_the_column_are_those_of_the_bad_batch(execution):
    x, y = table(400)
    x[4 * 57 + 2, 1] = NAN  # in the third row of the 58th batch
    config = RunConfig(random_seed=0, execution=execution)
    estimator = Estimator(model_fn, config=config)
    with pytest.raises(
        NanLossDuringTrainingError,
        match=r"step 58 is NaN.*has 1 NaN in position 1 of the features \(first in row 2\)",
    ):
        estimator.train(lambda: ArrayDataset(x, y, batch_size=4))
    assert estimator.checkpoint is None


def dict_model_fn(features, labels, mode):
    class Sum(torch.nn.Linear):
        def forward(self, inputs):
            return super().forward(torch.stack(list(inputs.values()), dim=1))

    network = Sum(2, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    head = RegressionHead()
    return head.create_estimator_spec(features, mode, network, labels, optimizer)


def batch(**columns):
    return {name: np.array(values, np.float32) for name, values in columns.items()}


def test_columns_are_named():
    for features, labels, message in [
        (batch(a=[1, 2], b=[NAN, NAN]), [0, 1], "2 NaN in column 'b' (first in row 0)"),
        (batch(a=[1, INF], b=[1, 2]), [0, 1], "1 infinite in column 'a' (first in ro"),
        (batch(a=[INF, NAN], b=[INF, 2]), [0, 1], "1 NaN and 1 infinite in column 'a'"),
    ]:
        batches = 3 * [(features, np.array(labels, np.float32)[:, None])]
        with pytest.raises(NanLossDuringTrainingError, match=re.escape(message)):
            Estimator(dict_model_fn).train(lambda batches=batches: batches)


COLUMNS = ("age", "income", "hours")


def stacking_model_fn(features, labels, mode, params):
    """A network over one tensor, which has lost the names of the columns."""

    def encode(raw):
        values = [torch.as_tensor(np.array(raw[name])) for name in COLUMNS]
        x = torch.stack(values, dim=1)
        x = x.log() if params.get("log") else x
        return {"x": x} if params.get("as_dict") else x

    network = torch.nn.Linear(3, 1)
    if params.get("as_dict"):
        network.register_forward_pre_hook(lambda _, args: (args[0]["x"],))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    return RegressionHead().create_estimator_spec(
        features, mode, network, labels, optimizer, encode=encode
    )


def raw_table(kind, value=NAN):
    x, y = table(200)
    x = abs(x)
    x[4 * 17 + 2, 1] = value
    columns = dict(zip(COLUMNS, x.T, strict=True))
    columns["word"] = np.array(["a"] * len(y))
    return pd.DataFrame(columns) if kind == "frame" else columns, y


@pytest.mark.parametrize(
    ("kind", "params"), [("dict", {}), ("frame", {"as_dict": True})]
)
def test_columns_are_those_before_encoding(kind, params):
    features, y = raw_table(kind)
    data = ArrayDataset(features, y, batch_size=4)
    for input_fn in (lambda: data, lambda: iter(list(data))):
        with pytest.raises(
            NanLossDuringTrainingError,
            match=r"step 18 is NaN.*has 1 NaN in column 'income' \(first in row 2\)\. Repl",
        ):
            Estimator(stacking_model_fn, params=params).train(input_fn)


def test_a_rate_that_is_too_high_is_told_from_bad_values():
    X = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    model = DNNRegressor((8,), optimizer="sgd", learning_rate=1e6, random_state=0)
    with pytest.raises(
        NanLossDuringTrainingError,
        match=r"All numbers of its batch are finite.*Lower the learning rate",
    ):
        model.fit(X, X[:, 0])


def test_huge_columns_are_to_be_standardised():
    features = {"pay": torch.tensor([2e9, 1.0]), "age": torch.tensor([0.3, -2.0])}
    text = report_on_batch(features, torch.tensor([1, 0]))
    assert "largest magnitudes are 2e+09 in column 'pay', 2 in column 'age'." in text
    assert "Standardise column 'pay' (normalizer=\"standard\"), lower the" in text


# On a device that is to be waited for


class Elsewhere(torch.Tensor):
    """A tensor that says it is on a GPU, and counts how often somebody waits for it."""

    n_waits = 0
    is_cpu = False

    @property
    def device(self):
        return torch.device("cuda")

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Elsewhere.n_waits += func.__name__ in ("__float__", "item", "tolist")
        return super().__torch_function__(func, types, args, kwargs)


def model_fn_elsewhere(nan_at):
    def model_fn(features, labels, mode):
        network, n = torch.nn.Linear(3, 1), itertools.count(1)

        def loss(labels, logits, features):
            factor = NAN if next(n) in nan_at else 1.0
            # Its gradient is a number, and so are the losses behind it.
            found = logits.square().mean() + (factor - logits.detach()).sum() * 0
            return found.as_subclass(Elsewhere)

        optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
        return EstimatorSpec(mode, network=network, loss=loss, optimizer=optimizer)

    return model_fn


EAGER = RunConfig(log_step_count_steps=None, execution="eager")


def test_a_gpu_is_waited_for_once_in_ten_steps():
    estimator = Estimator(model_fn_elsewhere({}), config=EAGER)
    before = Elsewhere.n_waits
    estimator.train(table_fn(num_epochs=None), steps=40)
    assert Elsewhere.n_waits - before <= 5  # one of them to save the last state


@pytest.mark.parametrize(
    ("nan_at", "n_taken", "is_table"),
    [({1}, 10, True), ({10, 11}, 10, False), ({11}, 20, False), ({25}, 25, True)],
)
def test_the_first_nan_on_a_gpu_is_named(nan_at, n_taken, is_table):
    x, y = table(400)
    x[4 * (min(nan_at) - 1) + 2, 1] = INF
    x = np.nan_to_num(x, posinf=7e5)
    data = ArrayDataset(x, y, batch_size=4)
    estimator, recorder = (
        Estimator(model_fn_elsewhere(nan_at), config=EAGER),
        Recorder(),
    )
    with pytest.raises(
        NanLossDuringTrainingError,
        match=rf"loss of step {min(nan_at)} is NaN\..*7e\+05 in position 1",
    ):
        estimator.train(
            (lambda: data) if is_table else (lambda: iter(list(data))),
            steps=25,
            hooks=[recorder],
        )
    assert recorder.calls.count("after_step") == n_taken
    assert estimator.checkpoint is None


def test_nothing_is_saved_behind_a_nan_that_nobody_has_looked_at(tmp_path, caplog):
    config = EAGER.replace(
        model_dir=tmp_path, save_checkpoints_steps=2, save_summary_steps=None
    )
    estimator = Estimator(model_fn_elsewhere({4}), config=config)
    with pytest.raises(NanLossDuringTrainingError, match="step 4 is NaN"):
        estimator.train(table_fn(num_epochs=None), steps=8)
    assert estimator.checkpoint.global_step == 2

    hook, recorder = NanLossHook(fail_on_nan_loss=False), Recorder()
    estimator = Estimator(model_fn_elsewhere({3}), config=config)
    with caplog.at_level(logging.ERROR, "skest"):
        estimator.train(table_fn(num_epochs=None), steps=20, hooks=[hook, recorder])
    assert caplog.text.count("The loss of step") == 1
    assert "The loss of step 5 is NaN" in caplog.text
    assert recorder.calls.count("after_step") == 10
    assert estimator.checkpoint.global_step == 4
