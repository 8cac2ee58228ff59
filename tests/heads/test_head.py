# SPDX-License-Identifier: Apache-2.0
"""What all heads have in common."""

import functools

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from numpy.testing import assert_allclose

from skest import Estimator, RunConfig
from skest.feature_columns.numeric import numeric_column
from skest.heads import (
    BinaryClassHead,
    LogisticRegressionHead,
    MultiClassHead,
    MultiHead,
    MultiLabelHead,
    PoissonRegressionHead,
    RegressionHead,
)
from skest.inputs import ArrayDataset
from skest.keys import ModeKeys
from skest.losses import absolute_error

HEADS = {
    "binary": (BinaryClassHead, [0, 1, 1]),
    "multi_class": (functools.partial(MultiClassHead, 3), [2, 0, 1]),
    "multi_label": (
        functools.partial(MultiLabelHead, 3),
        np.array([[0, 1, 1], [0, 0, 0], [1, 0, 0]]),
    ),
    "regression": (RegressionHead, [0.5, -1.0, 3.0]),
    "regression_2": (
        functools.partial(RegressionHead, 2),
        [[0.5, 1.0], [-1.0, 3.0], [0.0, 0.0]],
    ),
    "logistic": (LogisticRegressionHead, [0.0, 0.25, 1.0]),
    "poisson": (PoissonRegressionHead, [0, 3, 7]),
}
each_head = pytest.mark.parametrize(
    ("make", "labels"), HEADS.values(), ids=HEADS.keys()
)


def logits_for(head, n=3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, head.logits_dimension, dtype=dtype, generator=generator)


# Labels


@each_head
def test_containers(make, labels):
    head = make()
    encoded = head.encode_labels(labels)
    assert encoded.ndim == 2
    torch.testing.assert_close(head.encode_labels(encoded), encoded, rtol=0, atol=0)
    table = np.reshape(labels, (len(labels), -1))
    frame = pl.DataFrame({str(i): table[:, i] for i in range(table.shape[1])})
    containers = [pd.DataFrame(table), frame, torch.tensor(table), table.astype(object)]
    if table.shape[1] == 1:
        containers += [pd.Series(labels), pl.Series(labels), tuple(labels)]
    for container in containers:
        actual = head.encode_labels(container).double()
        torch.testing.assert_close(actual, encoded.double(), rtol=0, atol=0)
    array = encoded.numpy().copy()
    own = head.encode_labels(array)
    array[...] = 1
    torch.testing.assert_close(own, encoded, rtol=0, atol=0)


@each_head
def test_labels_are_needed(make, labels):
    head = make()
    logits = logits_for(head)
    for call in (
        lambda: head.loss(None, logits),
        lambda: head.compute_loss(None, logits),
        lambda: head.update_metrics(head.metrics(), None, logits),
        lambda: head.create_estimator_spec({}, ModeKeys.TRAIN, torch.nn.Identity()),
    ):
        with pytest.raises(ValueError, match=rf"{type(head).__name__} needs labels"):
            call()


@each_head
def test_labels_and_arguments_of_another_kind(make, labels):
    head = make()
    with pytest.raises(TypeError, match="takes one array of labels; got a dictionary"):
        head.encode_labels({"a": labels})
    with pytest.raises(ValueError, match="one row per example; got 1"):
        head.encode_labels(1)
    for name in ("", 3):
        with pytest.raises(TypeError, match=r"'name' of .*Head must be a string"):
            make(name=name)
    with pytest.raises(ValueError, match=r"'loss_reduction' of .*Head must be one of"):
        make(loss_reduction="mean")


def test_labels_that_are_no_numbers():
    for labels in (np.array([1j]), np.array([{}]), ["a"], [None]):
        with pytest.raises(TypeError, match="RegressionHead needs labels that are num"):
            RegressionHead().encode_labels(labels)


def test_shapes_of_labels_and_logits():
    head = RegressionHead(2)
    with pytest.raises(ValueError, match=r"shape \(n, 2\); got \(3,\)"):
        head.encode_labels([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"shape \(3, 2\) for logits .* got \(4, 2\)"):
        head.compute_loss(torch.zeros(4, 2), torch.zeros(3, 2))


@each_head
def test_logits_are_checked(make, labels):
    head = make()
    n = head.logits_dimension
    wrong = [torch.zeros(3, n + 1), torch.zeros(3)]
    for logits in wrong:
        for call in (head.predictions, lambda z: head.loss(labels, z)):
            with pytest.raises(ValueError, match=rf"\(\.\.\., {n}\).* {n} output"):
                call(logits)
    for logits in (torch.zeros(3, n, dtype=torch.int64), np.zeros((3, n))):
        with pytest.raises(TypeError, match="needs logits as a tensor of floats"):
            head.predictions(logits)


# Losses and types


@each_head
def test_weights_are_repetitions(make, labels):
    head = make(weight_column="w", loss_reduction="sum")
    logits, repeated = logits_for(head), [0, 1, 1, 2, 2, 2]
    weighted = head.metrics()
    head.update_metrics(weighted, labels, logits, {"w": [1, 2, 3]})
    plain, twin = make(loss_reduction="sum"), make().metrics()
    plain.update_metrics(twin, np.array(labels)[repeated], logits[repeated])
    for key, metric in weighted.items():
        assert metric.compute() == pytest.approx(twin[key].compute()), key
    loss = head.loss(labels, logits, {"w": [1, 2, 3]})
    expected = plain.loss(np.array(labels)[repeated], logits[repeated])
    torch.testing.assert_close(loss, expected)


@each_head
def test_steps_do_not_wait_for_the_device(make, labels):
    """On the meta device, a look at any value is an error."""
    head = make(weight_column="w")
    encoded = head.encode_labels(labels).to("meta")
    features = {head.weight_key: torch.ones(3, device="meta")}
    logits = logits_for(head).to("meta")
    loss = head.compute_loss(encoded, logits, features)
    assert loss.shape == () and loss.device.type == "meta"
    head.update_metrics(head.metrics(), encoded, logits, features)


def shrinking(features, labels, mode, params):
    """A model whose only gradient is that of its penalty, if features are zeros."""
    head = params["head"]
    network = torch.nn.Linear(1, head.logits_dimension, bias=False)
    torch.nn.init.constant_(network.weight, 2.0)
    return head.create_estimator_spec(
        features,
        mode,
        network,
        labels,
        torch.optim.SGD(network.parameters(), lr=0.1),
        regularization_losses=params["losses"](network.weight),
    )


def penalties(weight):
    return [lambda: weight.square().sum() / 2, 0.125, torch.tensor(0.125)]


@pytest.mark.parametrize(
    ("head", "labels", "name", "execution"),
    [
        (RegressionHead(), [1.0] * 4, "", "eager"),
        (BinaryClassHead(name="a"), [1] * 4, "/a", "graph"),
        (MultiHead([RegressionHead(name="a")]), {"a": [1.0] * 4}, "/a", "auto"),
    ],
)
def test_regularization_losses_of_a_spec(head, labels, name, execution):
    config = RunConfig(execution=execution)
    estimator = Estimator(
        shrinking, config=config, params={"head": head, "losses": penalties}
    )
    data = ArrayDataset(np.zeros((4, 1), np.float32), labels, num_epochs=70)
    estimator.train(lambda: data, steps=4 if execution != "auto" else 70)
    steps = estimator.checkpoint.global_step
    weight = estimator.get_variable_value("weight")
    assert_allclose(weight, [[2 * 0.9**steps]], rtol=1e-5)
    found = estimator.evaluate(lambda: data, steps=1)
    penalty = weight.item() ** 2 / 2 + 0.25
    assert_allclose(found[f"regularization_loss{name}"], penalty, rtol=1e-6)
    assert_allclose(found["loss"], found[f"average_loss{name}"] + penalty, rtol=1e-6)
    assert set(found) > set(head.metrics([1.0]))


def test_tensors_of_variables_are_no_losses():
    """As lists of TensorFlow's are; a tensor of torch is not computed again."""
    params = {
        "head": RegressionHead(),
        "losses": lambda weight: [weight.square().sum()],
    }
    data = ArrayDataset(np.zeros((4, 1), np.float32), [1.0] * 4)
    with pytest.raises(TypeError, match=r"such as lambda: .* tensor .* computed once"):
        Estimator(shrinking, params=params).train(lambda: data)


# A user's own loss


def test_loss_fn_gets_what_it_names():
    given = {}

    def loss_fn(labels, logits, features, loss_reduction, scale=2):
        given.update(features=features, loss_reduction=loss_reduction)
        return scale * absolute_error(labels, logits) * features["x"]

    head = RegressionHead(loss_fn=loss_fn, loss_reduction="sum")
    features = {"x": torch.tensor([[3.0]])}
    assert head.loss([1], torch.zeros(1, 1), features).item() == 6.0
    assert given == {"features": features, "loss_reduction": "sum"}


def test_arguments_of_loss_fn():
    for loss_fn in [
        lambda y, z: z,
        lambda labels: labels,
        lambda labels, logits, w: labels,
    ]:
        with pytest.raises(ValueError, match="'loss_fn' of RegressionHead must .* arg"):
            RegressionHead(loss_fn=loss_fn)


def test_loss_fn_must_keep_the_rows():
    for reduce in [
        lambda e: e.mean(),
        lambda e: e.sum(-1),
        lambda e: e[:1],
        lambda e: e @ torch.ones(2, 3),
    ]:

        def loss_fn(labels, logits, reduce=reduce):
            return reduce(absolute_error(labels, logits))

        head = RegressionHead(2, loss_fn=loss_fn)
        with pytest.raises(ValueError, match=r"one loss .* example, of shape \(3, 1\)"):
            head.loss(np.zeros((3, 2)), torch.zeros(3, 2))

    class Scalar(RegressionHead):
        def _default_loss(self, labels, logits):
            return absolute_error(labels, logits).mean()

    with pytest.raises(ValueError, match="'_default_loss' of Scalar must return one"):
        Scalar(2).loss(np.zeros((3, 2)), torch.zeros(3, 2))


# Weights


def test_where_weights_come_from():
    for features in [
        {"w": [1.0, 3.0]},
        {"w": np.array([[1], [3]], dtype="i2")},
        {"w": torch.tensor([1.0, 3.0])},
        pd.DataFrame({"w": [1.0, 3.0]}),
        pl.DataFrame({"w": [1.0, 3.0]}),
    ]:
        head = RegressionHead(weight_column="w", loss_reduction="sum")
        assert head.loss([1.0, 2.0], torch.zeros(2, 1), features).item() == 13.0


def test_weights_from_a_column():
    column = numeric_column("w", normalizer=lambda x: x * 10)
    head = RegressionHead(weight_column=column, name="r")
    assert head.weight_key == "r/weights"
    encoded = head.encode_features({"w": [0.1, 0.3], "x": [0, 0]}, {})
    assert_allclose(encoded["r/weights"], [[1.0], [3.0]])
    with pytest.raises(ValueError, match="RegressionHead 'r' .* its weight_column 'w'"):
        head.encode_features({"x": [1.0]}, {})


def test_weights_must_be_there():
    for features in [None, {"x": [1.0]}, pd.DataFrame({"x": [1.0]})]:
        head = RegressionHead(weight_column="w")
        with pytest.raises(ValueError, match="needs its weight_column 'w' .* the feat"):
            head.loss([1.0], torch.zeros(1, 1), features)


def test_weights_must_be_finite():
    for value in [np.nan, np.inf]:
        head = RegressionHead(weight_column="w")
        with pytest.raises(ValueError, match=r"column 'w', must .* got \w+ in row 1"):
            head.encode_features({"w": [1.0, value]}, {})


def test_shapes_of_weights():
    for head, shape in [
        (MultiClassHead(3, weight_column="w"), (2, 3)),
        (MultiLabelHead(3, weight_column="w"), (2, 3)),
        (RegressionHead(3, weight_column="w"), (2, 2)),
        (RegressionHead(3, weight_column="w"), (3,)),
    ]:
        labels = torch.zeros(2, head._label_dimension, dtype=torch.int64)
        with pytest.raises(ValueError, match=r"must have shape \(2,\), \(2, 1\)"):
            head.compute_loss(labels, torch.zeros(2, 3), {"w": torch.ones(shape)})


def test_weight_column_is_a_key_or_a_column():
    for column in [1, ["w"]]:
        with pytest.raises(TypeError, match="'weight_column' of RegressionHead .* be"):
            RegressionHead(weight_column=column)


# Predictions and metrics


@each_head
def test_only_the_keys_asked_for(make, labels):
    head = make()
    logits = logits_for(head)
    everything = head.predictions(logits)
    for key in everything:
        assert list(head.predictions(logits, keys=[key])) == [key]
    assert head.predictions(logits, keys=[]) == {}
    with pytest.raises(ValueError, match=f"no prediction 'odds'; it has .*{key}"):
        head.predictions(logits, keys=["odds"])


def test_inverse_link_gives_predictions_and_their_mean():
    head = RegressionHead(inverse_link_fn=torch.exp)
    logits = torch.tensor([[0.0], [1.0]])
    predictions = head.predictions(logits)
    assert_allclose(predictions["predictions"], np.exp([[0.0], [1.0]]), rtol=1e-6)
    assert predictions["logits"] is logits
    metrics = head.metrics()
    head.update_metrics(metrics, [1.0, 2.0], logits)
    assert metrics["prediction/mean"].compute() == pytest.approx((1 + np.e) / 2)
    assert metrics["label/mean"].compute() == 1.5


def test_labels_are_finite():
    for value in [np.nan, np.inf, -np.inf]:
        for head in [RegressionHead(), PoissonRegressionHead()]:
            with pytest.raises(ValueError, match=r"needs finite labels; got \S+ in"):
                head.encode_labels([0.0, value])


def test_label_dimension():
    for dimension, error in [(0, ValueError), (1.0, TypeError), (None, TypeError)]:
        with pytest.raises(error, match="'label_dimension' of RegressionHead .* int"):
            RegressionHead(dimension)


def test_range_of_logistic_labels():
    for label in [-0.1, 1.01]:
        with pytest.raises(ValueError, match=r"\[0, 1\], probabilities; got .* row 1"):
            LogisticRegressionHead().encode_labels([0.5, label])
