# SPDX-License-Identifier: Apache-2.0
"""The graph of a fitted estimator says what the estimator says."""

import json
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
from sklearn.base import is_regressor

import skest
from skest.feature_columns import (
    categorical_column_with_vocabulary_list,
    crossed_column,
    embedding_column,
    indicator_column,
    numeric_column,
)
from skest.heads import BinaryClassHead, RegressionHead, SampledSoftmaxHead

pytest.importorskip("onnxruntime")
from skest.adapters.export import fitted_onnx
from skest.export.onnx.graph import IR_VERSION, OPSETS
from tests.adapters._families import small
from tests.export._feeds import feeds
from tests.export._running import session

N_ROWS = 80
CLASSES = [
    getattr(skest, name)
    for name in skest.__all__
    if name.endswith(("Classifier", "Regressor", "Estimator"))
    and not name.startswith(("ModelFn", "Estimator", "RNN"))
]
# Operators that a graph may have: no loop, no branch, no sequence, no map.
ALLOWED = set(
    "Abs Add And ArgMax BatchNormalization BitShift BitwiseOr BitwiseXor Cast "
    "Clip Concat Cos Div Elu Equal Erf Exp Expand Flatten GRU Gather GatherND Gemm "
    "Greater GreaterOrEqual Identity IsNaN LSTM LabelEncoder LayerNormalization "
    "LeakyRelu Less Log LogSoftmax MatMul Max Min Mod Mul MurmurHash3 Neg NonZero Not "
    "Or Pad Pow RNN Range Reciprocal ReduceMax ReduceSum Relu Reshape "
    "ScatterElements ScatterND Selu Shape Sign Sin Slice "
    "Softmax Softplus Sqrt Squeeze Sub Tanh TopK Transpose Unsqueeze Where".split()
)


def table():
    n_rows, rng = N_ROWS, np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "size": rng.normal(size=n_rows),
            "rooms": rng.integers(0, 9, n_rows),
            "city": rng.choice(np.array(["Rome", "Oslo", "Ürümqi", None]), n_rows),
            "street": [f"s{i}" for i in rng.integers(0, 40, n_rows)],
            "new": rng.random(n_rows) < 0.5,
            "tags": [list("abc")[:k] for k in rng.integers(0, 4, n_rows)],
        }
    )
    X.loc[3, "size"] = np.nan
    return X


def names():
    return np.random.default_rng(1).choice(["no", "maybe", "yes"], N_ROWS)


def labels_for(estimator):
    numbers = np.random.default_rng(1).normal(5, 3, N_ROWS)
    if is_regressor(estimator):
        return numbers
    if isinstance(estimator, skest.MultiHeadEstimator):
        return pd.DataFrame({"kind": names(), "price": numbers})
    return names()


def in_onnx(estimator, X):
    """The graph, and its outputs for a table as the estimator takes it."""
    graph = fitted_onnx(estimator)
    features = estimator._check_features(X, reset=False)
    loaded = session(graph.model)
    outputs = [output.name for output in loaded.get_outputs()]
    found = loaded.run(outputs, feeds(graph.inputs, features))
    return graph, dict(zip(outputs, found, strict=True))


def assert_same_answers(estimator, X):
    graph, found = in_onnx(estimator, X)
    answers = estimator.predict(X)
    if isinstance(answers, pd.DataFrame):
        assert (found["kind/labels"][:, 0] == answers["kind"]).all()
        np.testing.assert_allclose(
            found["price/predictions"][:, 0], answers["price"], rtol=1e-5, atol=1e-5
        )
        expected = estimator.predict_proba(X)[0]
        np.testing.assert_allclose(found["kind/probabilities"], expected, atol=1e-5)
    elif "predictions" in found:
        predictions = found["predictions"]
        predictions = predictions if answers.ndim == 2 else predictions[:, 0]
        np.testing.assert_allclose(predictions, answers, rtol=1e-5, atol=1e-5)
    else:
        labels = found["labels"]
        np.testing.assert_array_equal(
            labels if answers.ndim == 2 else labels[:, 0], answers
        )
        assert labels.dtype.kind == answers.dtype.kind.replace("U", "O")
        expected = estimator.predict_proba(X)
        np.testing.assert_allclose(found["probabilities"], expected, atol=1e-5)
    return graph


def assert_runs_anywhere(model):
    assert model.ir_version == IR_VERSION
    assert {o.domain: o.version for o in model.opset_import}.items() <= OPSETS.items()
    nodes = [node.name for node in model.graph.node]
    assert all(nodes) and len(set(nodes)) == len(nodes)
    assert {node.op_type for node in model.graph.node} <= ALLOWED
    assert not model.functions
    for value in (*model.graph.input, *model.graph.output):
        assert value.type.HasField("tensor_type")


@pytest.mark.parametrize("estimator_class", CLASSES, ids=lambda c: c.__name__)
def test_every_estimator_on_a_mixed_table(estimator_class):
    estimator = small(estimator_class)
    X = table()
    estimator.fit(X, labels_for(estimator))
    graph = assert_same_answers(estimator, X)
    assert_runs_anywhere(graph.model)
    for i in (0, 9, 30):  # a row stands alone
        assert_same_answers(estimator, X.iloc[i : i + 1])


@pytest.mark.parametrize("estimator_class", CLASSES, ids=lambda c: c.__name__)
def test_every_estimator_on_an_array_in_float64(estimator_class):
    estimator = small(estimator_class)
    X = np.random.default_rng(0).normal(3, 5, size=(N_ROWS, 4))
    X[::9, 2] = np.nan
    graph = assert_same_answers(estimator.fit(X, labels_for(estimator)), X)
    (spec,) = graph.inputs
    assert (spec.name, spec.shape) == (
        "x",
        (None, 4 if spec.dtype == "float64" else None),
    )


@pytest.mark.parametrize("cell_type", ["simple_rnn", "lstm", "gru"])
def test_sequences(cell_type):
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 6, N_ROWS)
    X = {
        "dose": [rng.normal(size=k).tolist() for k in lengths],
        "ward": [rng.choice(["a", "b", "c"], k).tolist() for k in lengths],
        "age": rng.normal(50, 9, N_ROWS),
    }
    estimator = small(skest.RNNClassifier, cell_type=cell_type)
    graph = assert_same_answers(estimator.fit(X, labels_for(estimator)), X)
    assert_runs_anywhere(graph.model)


def test_several_numbers_and_labels():
    X = table()
    numbers = np.random.default_rng(0).normal(7, 4, size=(N_ROWS, 2))
    assert_same_answers(small(skest.LinearRegressor).fit(X, numbers), X)
    assert_same_answers(small(skest.DNNClassifier).fit(X, (numbers > 7).astype(int)), X)


@pytest.mark.parametrize("classes", [[False, True], [1.0, 2.0, 3.0]], ids=str)
def test_labels_in_their_own_type(classes):
    X = table()
    y = np.array(classes)[np.arange(N_ROWS) % len(classes)]
    assert_same_answers(small(skest.DNNClassifier).fit(X, y), X)


def test_heads_of_the_user():
    X, rng = table(), np.random.default_rng(0)
    for head, y in (
        (BinaryClassHead(label_vocabulary=["a", "b"]), rng.choice(["a", "b"], N_ROWS)),
        (RegressionHead(), rng.normal(size=N_ROWS)),
        (SampledSoftmaxHead(30, num_sampled=5), rng.integers(0, 30, N_ROWS)),
    ):
        assert_same_answers(small(skest.DNNEstimator, head=head).fit(X, y), X)


def test_given_columns_of_wide_and_deep():
    X = table()
    city = categorical_column_with_vocabulary_list("city")
    wide = [city, crossed_column(["street", "rooms"], 50)]
    deep = [
        numeric_column("size", default_value="mean", normalizer="quantile"),
        embedding_column(categorical_column_with_vocabulary_list("street"), 3),
        indicator_column(categorical_column_with_vocabulary_list("tags")),
    ]
    estimator = small(
        skest.DNNLinearCombinedClassifier,
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        batch_norm=True,
        dnn_dropout=0.3,
    )
    graph = assert_same_answers(estimator.fit(X, labels_for(estimator)), X)
    kinds = {spec.name: (spec.dtype, spec.shape) for spec in graph.inputs}
    assert kinds == {
        "city": ("string", (None, 1)),
        "street": ("string", (None, 1)),
        "rooms": ("int64", (None, 1)),
        "size": ("float32", (None, 1)),
        "tags": ("string", (None, None)),
    }


def test_a_sparse_matrix():
    X = scipy.sparse.random_array((N_ROWS, 20), density=0.2, format="csr", rng=0)
    for estimator_class in (skest.DNNClassifier, skest.LinearRegressor):
        estimator = small(estimator_class)
        assert_same_answers(estimator.fit(X, labels_for(estimator)), X)


def test_other_kinds_of_tables():
    X = table().drop(columns="tags")
    estimator = small(skest.DNNClassifier).fit(pl.from_pandas(X), names())
    assert_same_answers(estimator, X)
    frame = X[["size", "rooms"]]
    estimator = small(skest.LinearRegressor).fit(frame, np.arange(N_ROWS))
    graph = assert_same_answers(estimator, frame)
    assert graph.inputs[0].names == ("size", "rooms")
    found = feeds(graph.inputs, frame)
    np.testing.assert_array_equal(found["x"], frame.to_numpy())


def test_saved_estimators_give_the_same_graph():
    estimator = small(skest.DNNClassifier).fit(table(), names())
    copied = pickle.loads(pickle.dumps(estimator))
    again = copied.onnx_graph().SerializeToString()
    assert again == estimator.onnx_graph().SerializeToString()


def test_writing_changes_nothing():
    estimator = small(skest.DNNClassifier).fit(table(), names())
    before = pickle.dumps(estimator)
    graph = estimator.onnx_graph().SerializeToString()
    assert pickle.dumps(estimator) == before
    # It is the model of the fit, whatever the parameters are now.
    changed = estimator.set_params(hidden_units=(3,))
    assert changed.onnx_graph().SerializeToString() == graph


def test_metadata_describe_the_graph():
    estimator = small(skest.DNNClassifier).fit(table(), names())
    model = estimator.onnx_graph(input_rank=1)
    found = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert found["skest.features"]["city"] == {
        "dtype": "string",
        "shape": [None, 1],
        "key": "city",
        "missing": "",
        "texts_only": True,
    }
    default = found["skest.signatures"]["serving_default"]
    assert default["method"] == "classify"
    assert default["inputs"]["city"]["shape"] == [None]
    outputs = {output.name for output in model.graph.output}
    for signature in found["skest.signatures"].values():
        assert {info["tensor"] for info in signature["outputs"].values()} <= outputs


def test_columns_named_like_outputs():
    X = pd.DataFrame({"logits": [1.0, 2.0] * 9, "classes": list("ab") * 9})
    estimator = small(skest.DNNClassifier).fit(X, ["no", "yes"] * 9)
    graph = fitted_onnx(estimator)
    assert graph.signatures["predict"].outputs["logits"].tensor == "logits_1"
    found = session(graph.model).run(["logits_1"], feeds(graph.inputs, X))[0]
    np.testing.assert_allclose(found[:, 0], estimator.decision_function(X), atol=1e-5)
