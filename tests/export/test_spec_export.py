# SPDX-License-Identifier: Apache-2.0
"""The core Estimator and the estimators with a model function of the user's, exported."""

import pickle
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import skest
from skest import feature_columns as fc
from skest.canned.dnn import dnn_model_fn
from skest.canned.dnn_linear import dnn_linear_combined_model_fn
from skest.canned.linear import linear_model_fn
from skest.canned.rnn import rnn_model_fn
from skest.core.files import list_versions
from skest.exceptions import ExportError
from skest.export import ClassificationOutput, PredictOutput, RegressionOutput, load
from skest.heads import BinaryClassHead, MultiHead, RegressionHead

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

X = {
    "age": np.array([1.0, 2.0, 3.0, 4.0]),
    "city": np.array(["Rome", "Oslo", "Bonn", ""], object),
    "tags": np.array([["x", "y"], [], ["z"], ["x"], None], object)[:4],
}
Y = np.array([0, 1, 0, 1])
COLUMNS = fc.FeatureColumns(
    [
        fc.numeric_column("age"),
        fc.embedding_column(
            fc.categorical_column_with_vocabulary_list("city", ["Rome", "Oslo"]), 3
        ),
        fc.embedding_column(fc.categorical_column_with_hash_bucket("tags", 10), 2),
    ]
)
TENSORS = {"ids": np.array([[1, 2, 0], [3, 0, 0]]), "x": np.ones((2, 2))}


class Deep(nn.Module):
    """What is around the columns is the user's."""

    def __init__(self, size):
        super().__init__()
        self.inputs = fc.DenseFeatures(COLUMNS)
        self.cross = nn.Linear(self.inputs.out_features, self.inputs.out_features)
        self.out = nn.Linear(self.inputs.out_features, size)

    def forward(self, features):
        x = self.inputs(features)
        return self.out(x * self.cross(x) + x)


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(5, 3, padding_idx=0)
        self.out = nn.Linear(5, 2)

    def forward(self, features):
        bag = self.rows(features["ids"]).sum(1)
        return self.out(torch.cat([bag, features["x"]], 1))


def model_fn_of(features, labels, mode, head, make, encode=None):
    """What `make` returns for a number of logits is the network."""
    network = make(head.logits_dimension)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    return head.create_estimator_spec(
        features, mode, network, labels, optimizer, encode=encode
    )


of_columns = partial(model_fn_of, make=Deep, encode=COLUMNS.encode)
of_numbers = partial(model_fn_of, make=partial(nn.Linear, 2))


def of_tensors(**changes):
    def model_fn(features, labels, mode):
        network = Bags()
        spec = skest.EstimatorSpec(
            mode,
            network=network,
            loss=lambda y, z, x: (z**2).mean(),
            predictions=lambda z: {"p": z.softmax(1), "x": z[:, 0], "k": z.argmax(1)},
            optimizer=torch.optim.SGD(network.parameters(), 0.1),
        )
        return replace(spec, **changes)

    return model_fn


def trained(model_fn, features=X, labels=Y, **arguments):
    return skest.Estimator(model_fn, **arguments).train(lambda: [(features, labels)])


def test_columns_and_heads(tmp_path):
    head = MultiHead([BinaryClassHead(name="a"), RegressionHead(name="b")])
    labels = {"a": Y, "b": np.ones(4)}
    estimator = trained(partial(of_columns, head=head), labels=labels)
    model = load(estimator.export(tmp_path))
    (expected,) = estimator.predict(lambda: [X], yield_single_examples=False)
    found = model("predict", **X)
    assert model.manifest["model"] == model.manifest["model"] | {
        "estimator": "Estimator",
        "global_step": 1,
    }
    for key, values in expected.items():
        name = "/".join(key) if isinstance(key, tuple) else key
        if values.dtype != object:
            np.testing.assert_allclose(found[name], values, atol=1e-5)


CITY = fc.categorical_column_with_vocabulary_list("city", ["Rome", "Oslo"])
AGE = fc.numeric_column("age")
STEPS = fc.sequence_categorical_column_with_hash_bucket("tags", 5)
CANNED = {
    "wide and deep": partial(
        dnn_linear_combined_model_fn,
        linear_columns=[CITY, fc.crossed_column([CITY, "tags"], 10)],
        dnn_columns=[AGE, fc.embedding_column(CITY, 2)],
        dnn_hidden_units=[3],
    ),
    "wide": partial(
        dnn_linear_combined_model_fn,
        linear_columns=[CITY, AGE],
        dnn_columns=None,
        dnn_hidden_units=[3],
    ),
    "deep": partial(dnn_model_fn, columns=COLUMNS.columns, hidden_units=[3]),
    "linear": partial(linear_model_fn, columns=[AGE, CITY]),
    "sequences": partial(
        rnn_model_fn,
        sequence_columns=[fc.embedding_column(STEPS, 2)],
        context_columns=[AGE],
        units=3,
    ),
}


@pytest.mark.parametrize("model_fn", CANNED.values(), ids=CANNED)
def test_canned_model_functions(tmp_path, model_fn):
    head = BinaryClassHead(label_vocabulary=["no", "yes"])
    features = {**X, "tags": X["tags"][[0, 2, 3, 0]]}
    names = np.array(["no", "yes"])[Y]
    estimator = trained(partial(model_fn, head=head), features, names)
    version = estimator.export(tmp_path)
    model = load(version)
    (expected,) = estimator.predict(lambda: [features], yield_single_examples=False)
    read = set(model.manifest["features"])
    found = model("predict", **{key: features[key] for key in read})
    np.testing.assert_allclose(found["logits"], expected["logits"], atol=1e-5)
    assert found["classes"].tolist() == expected["classes"].tolist()


def test_tensors_and_the_outputs_that_were_asked_for(tmp_path):
    outputs = {
        "serving_default": ClassificationOutput(scores="p"),
        "number": RegressionOutput("x"),
        "predict": PredictOutput({"class": "k", "p": "p"}),
    }
    estimator = trained(of_tensors(export_outputs=outputs), TENSORS, Y[:2])
    model = load(estimator.export(tmp_path))
    (expected,) = estimator.predict(lambda: [TENSORS], yield_single_examples=False)
    found = {n: (s["method"], list(s["outputs"])) for n, s in model.signatures.items()}
    assert found == {
        "serving_default": ("classify", ["scores"]),
        "number": ("regress", ["outputs"]),
        "predict": ("predict", ["class", "p"]),
    }
    assert model("predict", **TENSORS)["class"].tolist() == expected["k"].tolist()
    for signature, name, key in (
        ("serving_default", "scores", "p"),
        ("number", "outputs", "x"),
        ("predict", "p", "p"),
    ):
        values = model(signature, **TENSORS)[name]
        np.testing.assert_allclose(values, expected[key], atol=1e-5)


@pytest.mark.parametrize(
    ("outputs", "match"),
    [
        ({"a": PredictOutput({"b": "c"})}, "'a' of 'export_outputs' .* the prediction"),
        ({"a": RegressionOutput("class_ids")}, "must be of type float; it is int64"),
    ],
)
def test_outputs_that_are_not_there(tmp_path, outputs, match):
    def model_fn(features, labels, mode):
        spec = of_numbers(features, labels, mode, head=BinaryClassHead())
        return replace(spec, export_outputs=outputs)

    estimator = trained(model_fn, np.ones((4, 2), np.float32))
    with pytest.raises(ExportError, match=match):
        estimator.export(tmp_path)
    assert list_versions(tmp_path) == []


@pytest.mark.parametrize(
    ("outputs", "error", "match"),
    [
        (3, TypeError, "'export_outputs' .* EstimatorSpec must be a dictionary; got 3"),
        ({"a": 3}, TypeError, "signature 'a' of 'export_outputs' must be a Class"),
        (
            {"a": RegressionOutput("x"), "b": RegressionOutput("x")},
            ValueError,
            "none of them is 'serving_default'",
        ),
    ],
)
def test_outputs_that_are_wrong(outputs, error, match):
    with pytest.raises(error, match=match):
        of_tensors(export_outputs=outputs)(TENSORS, None, "infer")


@pytest.mark.parametrize(
    ("kind", "value", "error", "match"),
    [
        (PredictOutput, "x", TypeError, "'tensors' of PredictOutput must be a d"),
        (PredictOutput, {0: "x"}, TypeError, "which are strings; got 'x' for 0"),
        (RegressionOutput, torch.zeros(2), TypeError, "must name predictions by"),
        (ClassificationOutput, None, ValueError, "must name at least one"),
    ],
)
def test_outputs_name_predictions(kind, value, error, match):
    with pytest.raises(error, match=match):
        kind(value)


@pytest.mark.parametrize(
    "category",
    [
        fc.crossed_column(["city", "count"], 50),
        fc.categorical_column_with_identity("count", 9),
    ],
    ids=["crossed", "identity"],
)
@pytest.mark.parametrize("gaps", [False, True])
def test_integers_that_are_numbers_and_categories(tmp_path, category, gaps):
    cells = [3, 0, None, 7] if gaps else [3, 0, 2, 7]
    # With gaps, as a frame has them.
    features = {
        "city": X["city"],
        "count": pd.Series(cells) if gaps else np.array(cells),
    }
    count = fc.numeric_column("count", default_value=1.0 if gaps else None)
    estimator = trained(
        partial(
            dnn_linear_combined_model_fn,
            head=BinaryClassHead(),
            linear_columns=[category],
            dnn_columns=[count],
            dnn_hidden_units=[4],
        ),
        features,
    )
    estimator.export(tmp_path)
    model = load(estimator.export(tmp_path, example=features))
    rows = {name: features[name] for name in model.features}
    (expected,) = estimator.predict(lambda: [features], yield_single_examples=False)
    found = model("predict", **rows)["logits"]
    np.testing.assert_allclose(found, expected["logits"], atol=1e-5)
    with pytest.raises(ValueError, match="'count' takes whole numbers.*got 1.5"):
        model(**{**rows, "count": [1.5, 0, 2, 7]})


def test_what_features_are_like(tmp_path):
    estimator = skest.Estimator(partial(of_numbers, head=RegressionHead()))
    estimator = pickle.loads(pickle.dumps(estimator))
    estimator.train(lambda: [(np.ones((4, 2), np.float32), Y)])
    again = pickle.loads(pickle.dumps(estimator))
    with pytest.raises(ExportError, match="Pass some rows of them as 'example'"):
        again.export(tmp_path)
    rows = np.ones((2, 2), np.float32)
    # One array, whatever holds it.
    for example in (rows, rows.tolist(), pd.DataFrame(rows, columns=["a", "b"])):
        model = load(again.export(tmp_path, example=example))
        assert model("predict", x=[[1.0, 2.0]])["predictions"].shape == (1, 1)


def test_what_cannot_be_exported(tmp_path):
    own = {"head": BinaryClassHead(), "encode": lambda x: COLUMNS.encode(x)}
    with pytest.raises(ExportError, match="'encode' of the EstimatorSpec, .*lambda"):
        trained(partial(of_columns, **own)).export(tmp_path)
    texts = {**TENSORS, "t": np.array(["a", "b"])}
    with pytest.raises(ExportError, match="feature 't' holds <U1, not numbers"):
        trained(of_tensors(), TENSORS, Y[:2]).export(tmp_path, example=texts)
    keys = of_tensors(predictions=lambda z: {("a", "b"): z})
    with pytest.raises(ExportError, match=r"result \('a', 'b'\) cannot be exported"):
        trained(keys, TENSORS, Y[:2]).export(tmp_path)
    assert list_versions(tmp_path) == []


class OwnHead(RegressionHead):
    """A head that nothing is known of."""


def test_own_heads(tmp_path):
    own = partial(of_numbers, head=OwnHead())
    estimator = trained(own, np.ones((4, 2), np.float32))
    with pytest.raises(ExportError, match="head OwnHead.* cannot be written as ONNX"):
        estimator.export(tmp_path)
    assert list_versions(tmp_path) == []


def test_networks_of_layers_that_skest_knows_are_not_traced(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)

    def make(size):
        return nn.Sequential(
            *(nn.Linear(2, 4), nn.ReLU(), nn.BatchNorm1d(4, affine=False)),
            *(nn.Dropout(0.5), nn.LayerNorm(4, elementwise_affine=False)),
            *(nn.GELU(), nn.Linear(4, 3), nn.Softplus(), nn.LayerNorm(3)),
            *(nn.Linear(3, size), nn.Identity()),
        ).double()

    model_fn = partial(model_fn_of, head=RegressionHead(), make=make)
    x = np.random.default_rng(0).normal(size=(4, 2))
    estimator = trained(model_fn, x, np.arange(4.0))
    (expected,) = estimator.predict(lambda: [x], yield_single_examples=False)
    found = load(estimator.export(tmp_path))("predict", x=x)["predictions"]
    np.testing.assert_allclose(found, expected["predictions"], atol=1e-6)


def test_a_dictionary_of_one_feature_stays_one(tmp_path):
    class Net(nn.Linear):
        def forward(self, features):
            return super().forward(features["x"])

    make = partial(Net, 3)
    model_fn = partial(model_fn_of, head=RegressionHead(), make=make)
    # The name that an input has which has none: as MNIST was fed to tf.estimator.
    rows = {"x": np.ones((8, 3), "float32")}
    input_fn = skest.inputs.numpy_input_fn(rows, np.ones(8), shuffle=False)
    estimator = skest.Estimator(model_fn).train(input_fn)
    expected = [row["predictions"] for row in estimator.predict(input_fn)]
    found = load(estimator.export(tmp_path)).run(rows)["outputs"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    with pytest.raises(ValueError, match="must be a path on this machine; got 's3:"):
        estimator.export("s3://bucket/model")
