# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from torch import nn

from skest import EstimatorSpec, ModeKeys, RunConfig
from skest.engine.evaluation import evaluate_loop, split_rows
from skest.hooks import Run
from skest.metrics import Mean


def batch(values, label=0.0):
    x = torch.tensor(values).reshape(-1, 1)
    return x, torch.full((len(x),), label)


def mean_loss(labels, logits, features):
    return (logits[:, 0] - labels).mean()


def eval_run(**fields):
    spec = EstimatorSpec(ModeKeys.EVAL, network=nn.Identity(), loss=mean_loss, **fields)
    return Run(spec, RunConfig(), global_step=9)


class Computes:
    """A metric of one result, whatever it is given."""

    def __init__(self, result):
        self.result = result

    def update(self, logits, labels):
        pass

    def compute(self):
        return self.result


def test_metrics_compute_numbers_or_arrays_of_them():
    for computed, expected in [
        (torch.tensor([[1, 2]]), np.array([[1, 2]])),
        (np.float32([0.5]), np.float32([0.5])),
        ([torch.tensor(1.0), torch.tensor(2.0)], np.float32([1.0, 2.0])),
        (torch.tensor(True), 1.0),
        (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
        (np.int64(3), 3.0),
    ]:
        run = eval_run(eval_metrics={"m": Computes(computed)})
        found = evaluate_loop(run, [batch([1.0])])["m"]
        assert type(found) is type(expected)
        np.testing.assert_array_equal(found, expected, strict=True)


def test_a_metric_that_computes_no_numbers_is_named():
    for computed in ["high", None, {"a": 1.0}, (np.ones(2), np.ones(3))]:
        run = eval_run(eval_metrics={"m": Computes(computed)})
        kind = type(computed).__name__
        with pytest.raises(
            TypeError, match=f"metric 'm' must compute .*; got {kind}. Make"
        ):
            evaluate_loop(run, [batch([1.0])])


def test_every_evaluation_has_metrics_of_its_own():
    of_logits = (Mean(), lambda labels, logits, features: (logits,))
    for metric in [Mean(), of_logits]:  # Mean takes the logits, and labels as weights
        run = eval_run(eval_metrics={"m": metric})
        found = [evaluate_loop(run, [batch([x], label=1.0)])["m"] for x in (1.0, 5.0)]
        assert found == [1, 5]


def test_rows_must_agree():
    for other in [np.ones(3), np.float32(1.0)]:
        with pytest.raises(
            ValueError, match=r"'a': \(2,\).*yield_single_examples=False"
        ):
            list(split_rows({"a": np.ones(2), "b": other}))


def test_inputs_of_a_metric_are_a_tuple():
    pair = Computes(1.0), lambda labels, logits, features: logits
    with pytest.raises(TypeError, match="inputs of Computes in 'eval_metrics' must be"):
        evaluate_loop(eval_run(eval_metrics={"m": pair}), [batch([1.0])])
