# SPDX-License-Identifier: Apache-2.0
"""Pipelines with estimators of skest, converted whole by skl2onnx."""

import sys

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import skest
from skest import feature_columns as fc
from skest.export.skl2onnx import register

skl2onnx = pytest.importorskip("skl2onnx")
types = pytest.importorskip("skl2onnx.common.data_types")

ROWS = 60
NUMBERS = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
FRAME = pd.DataFrame(
    {
        "age": NUMBERS[:, 0],
        "city": ["Rome", "Łódź", "Oslo"] * (ROWS // 3),
        "level": np.arange(ROWS) % 5,
    }
)
TYPES = [
    ("age", types.FloatTensorType([None, 1])),
    ("city", types.StringTensorType([None, 1])),
    ("level", types.Int64TensorType([None, 1])),
]
LABELS = {
    "strings": np.array(["no", "yes"], object)[np.arange(ROWS) % 2],
    "integers": np.arange(ROWS) % 3 + 5,
    "booleans": NUMBERS[:, 0] > 0,
}


@pytest.fixture(autouse=True)
def registered():
    register()


def small(kind=skest.DNNClassifier, *args, **more):
    return kind(*args, max_iter=2, random_state=0, **more)


def run(graph, feeds):
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def columns(frame):
    return {
        name: frame[[name]].to_numpy(object if name == "city" else None)
        for name in frame
    }


def assert_same_answers(graph, feeds, model, X):
    labels, probabilities = run(graph, feeds).values()
    np.testing.assert_array_equal(labels, model.predict(X))
    np.testing.assert_allclose(probabilities, model.predict_proba(X), rtol=0, atol=1e-6)


def without_maps(model):
    return {id(model): {"zipmap": False}}


@pytest.mark.parametrize("y", LABELS.values(), ids=list(LABELS))
def test_a_pipeline_of_numbers(y):
    model = make_pipeline(StandardScaler(), small()).fit(NUMBERS, y)
    graph = skl2onnx.to_onnx(
        model, NUMBERS, options=without_maps(model[-1]), target_opset=18
    )
    assert_same_answers(graph, {"X": NUMBERS}, model, NUMBERS)


def test_column_transformer_and_grid_search():
    before = ColumnTransformer(
        [
            ("scaled", StandardScaler(), ["age", "level"]),
            ("city", OneHotEncoder(sparse_output=False), ["city"]),
        ]
    )
    search = GridSearchCV(
        make_pipeline(before, small()),
        {"dnnclassifier__hidden_units": [(4,), (8,)]},
        cv=2,
    ).fit(FRAME, LABELS["strings"])
    model = search.best_estimator_
    for converted in (model, search):
        graph = skl2onnx.convert_sklearn(
            converted,
            initial_types=TYPES,
            options=without_maps(model[-1]),
            target_opset=18,
        )
        assert_same_answers(graph, columns(FRAME), search, FRAME)


@pytest.mark.parametrize("alone", [True, False])
def test_texts_and_numbers_go_to_the_estimator_by_name(alone):
    city = fc.categorical_column_with_hash_bucket("city", 20)
    given = [
        fc.numeric_column("age"),
        fc.embedding_column(city, 3),
        fc.indicator_column(fc.crossed_column(["city", "level"], 30)),
    ]
    own = small(feature_columns=given)
    model = (own if alone else make_pipeline(own)).fit(FRAME, LABELS["strings"])
    graph = skl2onnx.convert_sklearn(
        model, initial_types=TYPES[::-1], options=without_maps(own), target_opset=18
    )
    assert_same_answers(graph, columns(FRAME), model, FRAME)


def converted(model, **options):
    return skl2onnx.to_onnx(
        model, NUMBERS, options={id(model): options}, target_opset=18
    )


def test_zipmap():
    model = small().fit(NUMBERS, LABELS["strings"])
    p = model.predict_proba(NUMBERS)
    mapped = run(converted(model), {"X": NUMBERS})["output_probability"]
    np.testing.assert_allclose(
        [[row["no"], row["yes"]] for row in mapped], p, atol=1e-6
    )
    found = run(converted(model, zipmap="columns"), {"X": NUMBERS})
    np.testing.assert_allclose(found["syes"], p[:, 1], atol=1e-6)


def test_regressors():
    for y in (NUMBERS[:, 0], NUMBERS[:, :2]):
        model = make_pipeline(StandardScaler(), small(skest.DNNRegressor))
        graph = skl2onnx.to_onnx(model.fit(NUMBERS, y), NUMBERS, target_opset=18)
        found = run(graph, {"X": NUMBERS})["variable"]
        expected = model.predict(NUMBERS).reshape(ROWS, -1)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_what_does_not_fit_is_named():
    model = small().fit(FRAME, LABELS["strings"])
    with pytest.raises(ValueError, match="no input for the column 'city'"):
        skl2onnx.convert_sklearn(model, initial_types=TYPES[:1], target_opset=18)
    for kind, name in (
        (types.FloatTensorType, "float"),
        (types.Int64TensorType, "int"),
    ):
        wrong = [TYPES[0], ("city", kind([None, 1])), TYPES[2]]
        with pytest.raises(
            ValueError, match=f"'city' must come as string, and comes as {name}"
        ):
            skl2onnx.convert_sklearn(model, initial_types=wrong, target_opset=18)
    numbers = small().fit(NUMBERS, LABELS["strings"])
    with pytest.raises(ValueError, match="'target_opset' must be 18 or more"):
        skl2onnx.to_onnx(numbers, NUMBERS, target_opset=15)


def test_without_skl2onnx(monkeypatch):
    monkeypatch.setitem(sys.modules, "skl2onnx", None)
    with pytest.raises(ImportError, match="pip install skl2onnx"):
        register()
