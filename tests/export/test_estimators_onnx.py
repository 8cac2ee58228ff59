# SPDX-License-Identifier: Apache-2.0
"""The export of a fitted estimator says what the estimator says."""

import json
import pickle

import numpy as np
import onnx
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
from sklearn.base import clone, is_regressor

import skest
from skest import feature_columns as fc
from skest.heads import RegressionHead, SampledSoftmaxHead

pytest.importorskip("onnxruntime")
from skest.export import load
from skest.export.onnx.graph import IR_VERSION, OPSETS
from skest.model_selection import EnsembleClassifier
from tests.adapters._families import small

pytestmark = pytest.mark.filterwarnings("ignore:No feature column of")

N_ROWS = 60
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
            "when": pd.date_range("2023-12-30", periods=n_rows, freq="31h"),
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


def assert_same(found, expected):
    expected = np.asarray(expected)
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(found, expected)
        assert found.dtype.kind == expected.dtype.kind.replace("U", "O")


def assert_same_answers(loaded, estimator, X):
    answers, found = estimator.predict(X), loaded.predict(X)
    if isinstance(answers, pd.DataFrame):
        assert_same(found["price"], answers["price"])
        assert found["kind"].tolist() == answers["kind"].tolist()
        found, expected = loaded.predict_proba(X), estimator.predict_proba(X)
        return assert_same(found["kind"], expected[0])
    assert_same(found, answers)
    if "probabilities" in loaded.signatures["predict"]["outputs"]:
        assert_same(loaded.predict_proba(X), estimator.predict_proba(X))
    return None


def assert_exported(tmp_path, estimator, X):
    """Export an estimator, compare it, and return what was loaded."""
    loaded = load(estimator.export(tmp_path))
    assert loaded.manifest["parity"]["max_abs_diff"] <= 1e-5
    assert_same_answers(loaded, estimator, X)
    return loaded


def assert_runs_anywhere(loaded):
    model = onnx.load(loaded.path / "model.onnx")
    assert model.ir_version == IR_VERSION
    assert {o.domain: o.version for o in model.opset_import}.items() <= OPSETS.items()
    nodes = [node.name for node in model.graph.node]
    assert all(nodes) and len(set(nodes)) == len(nodes)
    assert {node.op_type for node in model.graph.node} <= ALLOWED
    assert not model.functions
    for value in (*model.graph.input, *model.graph.output):
        assert value.type.HasField("tensor_type")


@pytest.mark.filterwarnings("error:Column 'when' had dates")
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_made_up_dates_are_near_those_of_training(zone, tmp_path):
    """Far from them rounding alone exceeds what is tolerated."""
    X = table().assign(when=lambda X: X["when"].dt.tz_localize(zone))
    version = small(skest.DNNClassifier).fit(X, names()).export(tmp_path)
    warmup = json.loads((version / "warmup.json").read_text())
    times = np.array([t for t in np.ravel(warmup["inputs"]["when"]) if t is not None])
    when = X["when"].dt.as_unit("us").astype(np.int64)
    assert np.abs(times - when.mean()).max() <= 2.01 * when.std()


@pytest.mark.parametrize("estimator_class", CLASSES, ids=lambda c: c.__name__)
def test_every_estimator_on_a_mixed_table_and_an_array(estimator_class, tmp_path):
    estimator = small(estimator_class)
    X = table()
    estimator.fit(X, labels_for(estimator))
    loaded = assert_exported(tmp_path, estimator, X)
    assert_runs_anywhere(loaded)
    for i in (0, 9, 30):  # a row stands alone
        assert_same_answers(loaded, estimator, X.iloc[i : i + 1])
    X = np.random.default_rng(0).normal(3, 5, size=(N_ROWS, 4))
    X[::9, 2] = np.nan
    loaded = assert_exported(tmp_path, estimator.fit(X, labels_for(estimator)), X)
    (name,) = loaded.features
    assert (name, loaded.features[name]["shape"][0]) == ("x", None)


@pytest.mark.parametrize(
    "estimator_class", [skest.DNNLinearCombinedClassifier, skest.MultiHeadEstimator]
)
def test_estimators_as_constructed(estimator_class, tmp_path, monkeypatch):
    """Members, piecewise columns and a temperature."""
    # What rows held out ask for is tested elsewhere.
    of_rows = "skest.adapters.targets.classes.temperature_of"
    monkeypatch.setattr(of_rows, lambda logits, labels, weight=None: 2.0)
    X = pd.concat([table()] * 2, ignore_index=True)
    estimator = estimator_class(max_iter=2, random_state=0)
    y = pd.concat([pd.DataFrame({"kind": names(), "price": X["rooms"][:N_ROWS]})] * 2)
    y = y if estimator_class is skest.MultiHeadEstimator else y["kind"]
    estimator.fit(X, y.reset_index(drop=True))
    chosen = estimator.auto_params_
    assert (chosen["n_members"], chosen["early_stopping"]) == (3, True)
    assert_exported(tmp_path, estimator, X)


def several_numbers():
    return np.random.default_rng(0).normal(7, 4, size=(N_ROWS, 2))


TARGETS = {
    "several numbers": (skest.LinearRegressor, {}, several_numbers()),
    "several labels": (skest.DNNClassifier, {}, (several_numbers() > 7).astype(int)),
    "booleans": (skest.DNNClassifier, {}, several_numbers()[:, 0] > 7),
    "floats": (skest.DNNClassifier, {}, np.arange(N_ROWS) % 3 + 1.0),
    "counts": (skest.LinearRegressor, {"loss": "poisson"}, np.arange(N_ROWS) % 7),
    "dual": (
        skest.LinearClassifier,
        {"optimizer": "sdca"},
        several_numbers()[:, 0] > 7,
    ),
    "head": (skest.DNNEstimator, {"head": RegressionHead()}, several_numbers()[:, 0]),
    "many classes": (
        skest.DNNEstimator,
        {"head": SampledSoftmaxHead(30, num_sampled=5)},
        np.arange(N_ROWS) % 30,
    ),
}


@pytest.mark.parametrize(
    ("estimator_class", "options", "y"), TARGETS.values(), ids=list(TARGETS)
)
def test_targets(estimator_class, options, y, tmp_path):
    X = table()
    assert_exported(tmp_path, small(estimator_class, **options).fit(X, y), X)


MEMBERS = skest.DNNLinearCombinedClassifier(max_iter=2, random_state=0)
SOFTPLUS = small(
    skest.DNNClassifier,
    activation="softplus",
    dtype="float64",
    feature_columns=[fc.numeric_column("a"), fc.numeric_column("b")],
)
OUTLIERS = {
    "two classes": (MEMBERS, 0),
    "labels": (MEMBERS, slice(None)),
    "softplus": (SOFTPLUS, 0),
    "ensemble": (EnsembleClassifier([("a", MEMBERS), ("b", SOFTPLUS)]), 0),
}


@pytest.mark.parametrize(("model", "target"), OUTLIERS.values(), ids=list(OUTLIERS))
def test_outliers(model, target, tmp_path):
    """Softplus of ONNX Runtime is infinite where that of PyTorch is not."""
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(300, 2)), columns=["a", "b"])
    y = (X + 0.1 > 0).to_numpy(int)[:, target]
    estimator = clone(model).fit(X, y)
    loaded = load(estimator.export(tmp_path))
    far = np.array([sign * 10.0**n for n in (3, 6, 12, 30) for sign in (1, -1)])
    rows = pd.DataFrame({"a": [*far, *far, *0 * far], "b": [*0 * far, *far, *far]})
    assert_same_answers(loaded, estimator, rows)


def test_other_kinds_of_tables(tmp_path):
    X = table().drop(columns=["tags", "when"])
    estimator = small(skest.DNNClassifier).fit(pl.from_pandas(X), names())
    loaded = load(estimator.export(tmp_path))
    assert_same(loaded.predict_proba(X), estimator.predict_proba(pl.from_pandas(X)))
    frame = X[["size", "rooms"]]
    estimator = small(skest.LinearRegressor).fit(frame, np.arange(N_ROWS))
    loaded = assert_exported(tmp_path, estimator, frame)
    assert loaded.features["x"]["columns"] == ["size", "rooms"]
    X = scipy.sparse.random_array((N_ROWS, 20), density=0.2, format="csr", rng=0)
    for estimator_class in (skest.DNNClassifier, skest.LinearClassifier):
        estimator = small(estimator_class).fit(X, names())
        loaded = load(estimator.export(tmp_path))
        for given in (X, {"x": X.toarray()}):
            assert_same(loaded.predict_proba(given), estimator.predict_proba(X))


def test_identity_columns_of_few_buckets(tmp_path):
    X = table().assign(pclass=lambda X: X["rooms"] % 3)
    pclass = fc.categorical_column_with_identity("pclass", 3)
    rooms = fc.categorical_column_with_identity("rooms", 9)
    columns = [pclass, rooms, fc.crossed_column([pclass, rooms], 20)]
    estimator = small(skest.LinearClassifier, feature_columns=columns).fit(X, names())
    assert_exported(tmp_path, estimator, X)
    X["steps"] = [[0, 2, 1][:k] for k in X["pclass"] + 1]
    steps = fc.sequence_categorical_column_with_identity("steps", 3)
    steps = fc.embedding_column(steps, 2)
    estimator = small(skest.RNNClassifier, sequence_feature_columns=[steps])
    assert_exported(tmp_path, estimator.fit(X, names()), X)


@pytest.mark.parametrize("normalizer", [np.log, lambda x: np.log1p(x)])
def test_logarithms(normalizer, tmp_path):
    X = table().assign(price=lambda X: np.exp(3 * X["size"].fillna(0)))
    columns = [fc.numeric_column("price", normalizer=normalizer)]
    estimator = small(skest.DNNClassifier, feature_columns=columns).fit(X, names())
    assert_exported(tmp_path, estimator, X)


def test_vectors_in_cells(tmp_path):
    # Such as embeddings of texts: lists, or arrays, as Parquet files are read.
    vectors = np.random.default_rng(0).normal(size=(N_ROWS, 3))
    X = pd.DataFrame({"text": vectors.tolist(), "city": table()["city"]})
    estimator = small(skest.DNNClassifier).fit(X, names())
    loaded = load(estimator.export(tmp_path, example=X.head()))
    for given in (X, X.assign(text=[*vectors]), pl.from_pandas(X)):
        assert_same(loaded.predict_proba(given), estimator.predict_proba(given))
    with pytest.raises(ValueError, match="'text' must have as many values in each row"):
        loaded.predict(X.assign(text=[[1.0], *vectors[1:]]))


def test_large_integers_beside_gaps(tmp_path):
    X = pd.DataFrame({"user": pd.array([2**53 + 1, 2**53 + 2, 2**60 + 1, 7] * 10)})
    user = fc.categorical_column_with_hash_bucket("user", 100)
    estimator = skest.LinearClassifier(feature_columns=[user], max_iter=9)
    estimator.fit(X, ["p", "q", "q", "q"] * 10)
    loaded = load(estimator.export(tmp_path))
    cells = [2**53 + 1, 2**60 + 1, None]
    gaps = pd.DataFrame({"user": pd.array(cells, dtype="Int64")})
    expected = estimator.predict_proba(gaps)
    for given in (gaps, pl.DataFrame({"user": cells}), pa.table({"user": cells})):
        assert_same(loaded.predict_proba(given), expected)


def test_gaps_of_arrow_and_of_masks(tmp_path):
    X = pd.DataFrame({"z": np.arange(40.0) % 5})
    X["c"] = pd.Categorical(["a", "b", None, "c"] * 10)
    estimator = small(skest.DNNClassifier).fit(X, ["p", "q", "q", "q"] * 10)
    loaded = load(estimator.export(tmp_path))
    for rows in (X[2:3], X[:5]):
        expected = estimator.predict_proba(rows)
        assert_same(loaded.predict_proba(pa.Table.from_pandas(rows)), expected)
    z, c = (
        np.ma.masked_array([9.0, 1.0], [1, 0]),
        np.ma.masked_array(["a", "b"], [0, 1]),
    )
    masked = {"z": z, "c": c}
    assert_same(loaded.predict_proba(masked), estimator.predict_proba(masked))
    no_value = {"z": [1.0], "c": [np.nan]}
    assert_same(loaded.predict_proba(no_value), estimator.predict_proba(no_value))


def test_intervals_are_texts(tmp_path):
    X = table().assign(band=lambda X: pd.cut(X["rooms"], 3))
    estimator = small(skest.LinearClassifier).fit(X[["band"]], names())
    loaded = load(estimator.export(tmp_path, example=X[["band"]].head()))
    expected = estimator.predict_proba(X[["band"]])
    for given in (X[["band"]], X[["band"]].astype(str)):
        np.testing.assert_allclose(loaded.predict_proba(given), expected, rtol=1e-5)


def test_writing_changes_nothing_and_saved_estimators_give_the_same_graph():
    estimator = small(skest.DNNClassifier).fit(table(), names())
    before = pickle.dumps(estimator)
    graph = estimator.onnx_graph().SerializeToString()
    assert pickle.dumps(estimator) == before
    assert pickle.loads(before).onnx_graph().SerializeToString() == graph
    # It is the model of the fit, whatever the parameters are now.
    changed = estimator.set_params(hidden_units=(3,))
    assert changed.onnx_graph().SerializeToString() == graph


def test_metadata_describe_the_graph():
    estimator = small(skest.DNNClassifier).fit(table(), names())
    model = estimator.onnx_graph()
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
    assert default["inputs"]["city"]["shape"] == [None, 1]
    when = found["skest.features"]["when"]
    assert when["unit"] == "microseconds since 1970-01-01 UTC"
    outputs = {output.name for output in model.graph.output}
    for signature in found["skest.signatures"].values():
        assert {info["tensor"] for info in signature["outputs"].values()} <= outputs
