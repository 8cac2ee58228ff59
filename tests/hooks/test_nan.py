# SPDX-License-Identifier: Apache-2.0
import logging

import pytest
import torch

from skest import Estimator, EstimatorSpec
from skest.exceptions import NanLossDuringTrainingError
from skest.hooks import NanLossHook
from tests._models import Recorder, table_fn


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
    with pytest.raises(
        NanLossDuringTrainingError, match=r"loss of step 1 is NaN.*Lower"
    ):
        estimator(float("nan")).train(table_fn(), hooks=[recorder])
    assert recorder.calls == ["begin", "before_step", "after_step"]


def test_nan_can_stop_instead(caplog):
    hook = NanLossHook(fail_on_nan_loss=False)
    recorder = Recorder()
    with caplog.at_level(logging.ERROR, "skest"):
        estimator(float("nan")).train(table_fn(), hooks=[hook, recorder])
    assert recorder.calls == ["begin", "before_step", "after_step", "end"]
    assert "The loss of step 1 is NaN" in caplog.text


@pytest.mark.parametrize("loss", [1.0, float("inf"), float("-inf")])
def test_other_losses_pass(loss):
    trained = estimator(loss).train(table_fn(), steps=3)
    assert trained.checkpoint.global_step == 3
