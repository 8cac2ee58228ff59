# SPDX-License-Identifier: Apache-2.0
"""`add_metrics`, and metrics that are not skest's own."""

import pytest
import torch
from torch import nn

import skest
from skest import Estimator, EstimatorSpec, RunConfig, add_metrics
from skest.metrics import Accuracy, Mean
from tests._models import N_FEATURES, model_fn, squared_loss, table, table_fn


class Count:
    """A metric as torchmetrics has them: update, and compute that gives a tensor."""

    def __init__(self):
        self.total = torch.tensor(0)

    def update(self, values, target=None):
        self.total = self.total + values.numel()

    def compute(self):
        return self.total


def trained(fn=model_fn, input_fn=None, model_dir=None, params=None):
    config = RunConfig(random_seed=0)
    estimator = Estimator(fn, model_dir, config, {} if params is None else params)
    return estimator.train(input_fn or table_fn())


# Beside a model's own metrics


def test_beside_the_metrics_of_a_specification():
    estimator = trained()

    def metric_fn(labels, predictions):
        error = (predictions["y"] - labels).square()
        return {"mse": (Mean(), error), "n": (Count(), labels)}

    own = estimator.evaluate(table_fn(6))
    results = add_metrics(estimator, metric_fn).evaluate(table_fn(6))
    assert results["n"] == 20
    _, y = table()
    (z,) = (
        p["y"] for p in estimator.predict(table_fn(20), yield_single_examples=False)
    )
    assert results["mse"] == pytest.approx(((z - y) ** 2).mean(), rel=1e-5)
    assert {name: results[name] for name in own} == own
    assert list(results) == sorted(results)


# What metric_fn gets


def test_predictions_are_computed_only_if_named():
    def bare_model_fn(features, labels, mode):
        network = nn.Linear(N_FEATURES, 1)
        return EstimatorSpec(
            mode,
            network=network,
            loss=squared_loss,
            optimizer=torch.optim.SGD(network.parameters(), 0.1),
        )

    estimator = Estimator(bare_model_fn).train(table_fn())
    extended = add_metrics(estimator, lambda labels: {"n": (Count(), labels)})
    assert extended.evaluate(table_fn())["n"] == 20
    extended = add_metrics(estimator, lambda predictions: {})
    with pytest.raises(ValueError, match="takes 'predictions', but .* mode 'eval' has"):
        extended.evaluate(table_fn())


# The new Estimator


def test_both_have_the_same_checkpoints(tmp_path):
    params = {"lr": 0.01}
    estimator = trained(model_dir=tmp_path, params=params)
    extended = add_metrics(estimator, lambda labels: {"n": (Count(), labels)})
    assert type(extended) is Estimator
    assert extended.model_dir == estimator.model_dir
    assert extended.config == estimator.config
    assert extended.params == params
    assert extended.latest_checkpoint() == estimator.latest_checkpoint()
    extended.train(table_fn(), steps=2)
    results = extended.evaluate(table_fn())
    assert results["global_step"] == estimator.evaluate(table_fn())["global_step"] == 7
    estimator.train(table_fn(), steps=1)
    assert extended.evaluate(table_fn())["global_step"] == 8
    assert len(list(extended.predict(table_fn()))) == 20


# What it refuses


def test_wrong_arguments():
    with pytest.raises(TypeError, match="must be a skest.Estimator; got DNNClassifier"):
        add_metrics(skest.DNNClassifier(), lambda labels: {})
    estimator = Estimator(model_fn, params={})
    with pytest.raises(TypeError, match="'metric_fn' must be a function; got dict"):
        add_metrics(estimator, {"accuracy": Accuracy()})
    with pytest.raises(ValueError, match="metric_fn requires 'logits', but only feat"):
        add_metrics(estimator, lambda labels, logits: {})


def test_wrong_results():
    for returned, error, match in [
        ([1], TypeError, r"dictionary of tuples \(metric, \*inputs\); got list"),
        ({"n": Count()}, TypeError, r"a tuple \(metric, \*inputs\) for 'n'.*got Count"),
        ({"n": ()}, TypeError, "for 'n'"),
        ({"n": (3, 4)}, TypeError, "'n' must have the methods update and compute"),
        ({"loss": (Mean(), 3)}, ValueError, "The metric name 'loss' is taken"),
    ]:
        extended = add_metrics(trained(), lambda labels, r=returned: r)
        with pytest.raises(error, match=match):
            extended.evaluate(table_fn())


def test_a_metric_of_the_users_starts_anew_in_every_evaluation():
    mean = Mean()
    mean.update(torch.tensor(100.0))
    estimator = add_metrics(trained(), lambda labels: {"mean": (mean, labels)})
    first = estimator.evaluate(table_fn())["mean"]
    assert estimator.evaluate(table_fn())["mean"] == first
    assert mean.compute() == 100
    assert first < 10
