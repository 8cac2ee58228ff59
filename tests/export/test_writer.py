# SPDX-License-Identifier: Apache-2.0
"""Whole exports: from a fitted estimator to what runs without Python."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

import skest
from skest import export
from skest import feature_columns as fc
from skest.exceptions import ExportError, NotFittedError
from skest.export import writer
from skest.export.artifact import read_artifact

ROWS = 80
X = pd.DataFrame(
    {
        "age": [25.0, 38.0, None, 44.0] * (ROWS // 4),
        "city": ["Rome", "Łódź", None, ""] * (ROWS // 4),
        "hours": np.arange(ROWS),
    }
)
LABELS = np.array(["no", "yes"] * (ROWS // 2), dtype=object)


def fitted(model, y=LABELS):
    return model.set_params(max_iter=2, random_state=0).fit(X, y)


def assert_same(found, expected):
    if np.asarray(expected).dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(found, expected)


def test_the_export_predicts_what_the_estimator_does(tmp_path):
    model = fitted(skest.DNNClassifier((8,)))
    version = model.export(tmp_path)
    loaded = export.load(tmp_path)
    assert loaded.path == version
    assert_same(loaded.predict_proba(X), model.predict_proba(X))
    recorded = json.loads((version / "warmup.json").read_text())["outputs"]
    assert set(recorded) == set(loaded.signatures["predict"]["outputs"])


def test_weights_beside_the_graph_if_they_are_large(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_LARGE", 2**14)
    model = fitted(skest.DNNClassifier((256, 128)))
    version = model.export(tmp_path)
    assert (version / "model.onnx").stat().st_size < 100_000
    assert (version / "weights.bin").stat().st_size > 4 * 256 * 128
    modes = {file.stat().st_mode for file in version.iterdir() if file.is_file()}
    assert len(modes) == 1  # who reads one file reads all
    loaded = export.load(version)
    shutil.rmtree(version)  # a server may ask it still
    assert_same(loaded.predict_proba(X), model.predict_proba(X))


def test_what_was_checked_is_what_runs(tmp_path, monkeypatch):
    model = fitted(skest.DNNClassifier((256, 128)))
    version = model.export(tmp_path)

    def read_and_replaced(*arguments):
        artifact = read_artifact(*arguments)
        (version / "model.onnx").write_bytes(b"")
        (version / "warmup.json").write_bytes(b"")
        return artifact

    monkeypatch.setattr("skest.export.runtime.read_artifact", read_and_replaced)
    assert_same(export.load(tmp_path).predict_proba(X), model.predict_proba(X))


def test_example_and_assets(tmp_path):
    (tmp_path / "words").write_text("a b")
    model = fitted(skest.LinearClassifier())
    base = tmp_path / "base"
    version = model.export(
        base, example=X[:3], assets={"words.txt": tmp_path / "words"}
    )
    warmup = json.loads((version / "warmup.json").read_text())
    assert warmup["inputs"]["city"] == [["Rome"], ["Łódź"], [""]]
    assert warmup["inputs"]["age"] == [[25.0], [38.0], [None]]
    assert (version / "assets" / "words.txt").read_text() == "a b"
    export.load(base)


def test_made_up_rows_are_none_of_the_training_data(tmp_path):
    version = fitted(skest.LinearClassifier()).export(tmp_path)
    warmup = json.loads((version / "warmup.json").read_text())
    assert len(warmup["inputs"]["age"]) == 16
    assert not set(warmup["inputs"]["age"]) & set(X["age"].dropna())
    assert {"Łódź", ""} < set(warmup["inputs"]["city"])


WEIGHTED = fc.weighted_categorical_column(
    fc.categorical_column_with_vocabulary_list("words", ["a", "b", "ü"]), "w"
)
SPLIT = fc.weighted_categorical_column(
    fc.categorical_column_with_hash_bucket("text", 9, delimiter="|"), "w"
)
SINGLE = fc.weighted_categorical_column(
    fc.categorical_column_with_hash_bucket("word", 9), "one"
)
STEPS = [
    fc.embedding_column(
        fc.sequence_categorical_column_with_hash_bucket("words", 10), 3
    ),
    fc.sequence_numeric_column("w"),
]
LISTS = pd.DataFrame(
    {
        "words": [["a", "b", "ü"], ["b"], [], ["x", "a"]] * 10,
        "text": ["a|b|ü", "b", "", "x|a"] * 10,
        "w": [[1.0, 2.0, 0.5], [3.0], [], [0.0, 1.0]] * 10,
        "word": ["a", "b", "ü", "b"] * 10,
        "one": [[1.0], [2.0], [0.5], [0.0]] * 10,
    }
)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([[1.0], [1.0]], "row 0 it has 1 for 2"),
        ([[1.0, 2.0], [1.0, 2.0]], "row 1 it has 2 for 1"),
        ([[], [1.0]], "row 0 it has 0 for 2"),
        ([None, [1.0]], "row 0 it has 0 for 2"),
    ],
)
def test_a_weight_for_each_value(tmp_path, weights, said):
    model = skest.LinearClassifier(feature_columns=[WEIGHTED], max_iter=2)
    served = export.load(model.fit(LISTS, [0, 1] * 20).export(tmp_path))
    rows = {"words": [["a", "b"], ["b"]], "w": weights}
    # Filled up beside others, what is missing could not be told from what is.
    with pytest.raises(
        ValueError, match=f"'w' must have a weight for each .*in {said}"
    ):
        served.predict_proba(rows)
    with pytest.raises(ValueError, match="Column 'w' "):
        model.predict_proba(rows)
    np.testing.assert_allclose(
        served.predict_proba(LISTS), model.predict_proba(LISTS), atol=1e-6
    )


TIED = {
    "weighted": skest.LinearClassifier(feature_columns=[WEIGHTED], max_iter=2),
    "split": skest.LinearClassifier(feature_columns=[SPLIT], max_iter=2),
    "single": skest.LinearClassifier(feature_columns=[SINGLE], max_iter=2),
    "steps": skest.RNNClassifier((4,), sequence_feature_columns=STEPS, max_iter=2),
    "numbers": skest.RNNClassifier(
        (4,), sequence_feature_columns=STEPS[1:], max_iter=2
    ),
}


@pytest.mark.filterwarnings("ignore:No feature column of")
@pytest.mark.parametrize("name", TIED)
def test_columns_whose_cells_have_one_length_in_a_row(tmp_path, name):
    example = LISTS[:4] if name in ("split", "single", "steps") else None
    model = TIED[name].fit(LISTS, [0, 1, 0, 1] * 10)
    version = model.export(tmp_path, example=example)
    loaded = export.load(tmp_path)
    assert_same(loaded.predict_proba(LISTS), model.predict_proba(LISTS))
    if example is not None and name != "single":
        inputs = json.loads((version / "warmup.json").read_text())["inputs"]
        assert inputs["w"] == LISTS["w"][:4].tolist()


def test_an_export_that_differs_does_not_appear(tmp_path, monkeypatch):
    model = fitted(skest.LinearClassifier())
    model.export(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ExportError, match=r"differ by .* and atol=1e-12 is allowed"):
        fitted(skest.DNNClassifier((64,))).export(tmp_path, atol=1e-12)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_export_with_other_classes_does_not_appear(tmp_path, monkeypatch):
    model = fitted(skest.LinearClassifier())
    monkeypatch.setattr(model._target, "answer", lambda found: ["maybe"] * 16)
    with pytest.raises(ExportError, match="gives other 'labels' than the model"):
        model.export(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("column", "label", "message"),
    [
        ("", "a", "the name '', which no input of a graph may"),
        ("a\ud800", "a", r"text '.*a\\ud800.*', which is not valid U"),
        ("s", "a\ud800", r"text '.*a\\ud800.*', which is not valid U"),
    ],
)
def test_names_that_no_graph_may_have(tmp_path, column, label, message):
    rows = {column: np.array(["u", "v"] * 4, object)}
    model = skest.LinearClassifier(max_iter=1)
    model.fit(rows, np.array([label, "b"] * 4, object))
    with pytest.raises(ExportError, match=message):
        model.export(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments(tmp_path):
    model = fitted(skest.LinearClassifier())
    for atol in (-1e-9, 0.02, float("nan")):
        with pytest.raises(ValueError, match="'atol' must be from 0 to 0.01; got"):
            model.export(tmp_path, atol=atol)
    with pytest.raises(ValueError, match=r"features \['hours'\] are missing"):
        model.export(tmp_path, example=X[["age", "city"]])
    with pytest.raises(NotFittedError):
        skest.LinearClassifier().export(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_infinite_answers_are_recorded_and_compared(tmp_path):
    model = skest.LinearRegressor(loss="poisson", max_iter=3)
    model.fit([[0.0], [1.0]] * 20, [1.0, 3.0] * 20)
    version = model.export(tmp_path, example=np.array([[1.0], [1e6]]))
    recorded = json.loads((version / "warmup.json").read_text())["outputs"]
    assert recorded["predictions"][1] == ["inf"]
    assert recorded["logits"][1][0] > 100
    assert export.load(version).predict(np.array([[1e6]])).tolist() == [np.inf]
