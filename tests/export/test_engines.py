# SPDX-License-Identifier: Apache-2.0
"""The same files give the same answers in every engine."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("onnxruntime")
from skest import export
from skest.export.raw_values import Feature, columns_of
from tests.export import _engines, _portable

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Versions by name, each with its estimator."""
    X, targets = _portable.table(), _portable.targets()
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few steps do not converge
        for name, (model, target) in _portable.models().items():
            model.fit(X, targets[target])
            base = tmp_path_factory.mktemp(name.replace(", ", "-"))
            found[name] = model, model.export(base)
    return found


def few_rows():
    """Rows of which a server mostly gets few, of which lists are often empty."""
    X = _portable.table()
    empty, full = (
        X[(X["tags"].str.len() == 0) == is_empty] for is_empty in (True, False)
    )
    return [empty[:1], empty[:3], X[:0], full[:1], pd.concat([full[:1], empty[:1]])]


def raw_columns(version, X=None):
    """The raw columns that a version reads, as JSON can hold them."""
    features = json.loads((version / "manifest.json").read_text())["features"]
    columns = columns_of(_portable.table() if X is None else X, list(features))
    cells = {name: values.astype(object) for name, values in columns.items()}
    return {
        name: values.where(values.notna(), None).tolist()
        for name, values in cells.items()
    }


def feeds(version, X=None):
    """The tensors that a version's graph takes."""
    features = json.loads((version / "manifest.json").read_text())["features"]
    raw = raw_columns(version, X)
    return {
        name: Feature(name, spec).feed(raw[name]) for name, spec in features.items()
    }


def outputs(version, found):
    """Outputs of the signature "predict", of all tensors of a graph."""
    manifest = json.loads((version / "manifest.json").read_text())
    specs = manifest["signatures"]["predict"]["outputs"]
    return {name: found[spec["tensor"]] for name, spec in specs.items()}


def assert_same_answers(found, model, version, X=None):
    """All outputs are those of ONNX Runtime here; answers are those of the estimator."""
    here = export.load(version).run(raw_columns(version, X), "predict")
    assert set(found) == set(here)
    for name, expected in here.items():
        if expected.dtype.kind == "f":
            values = np.asarray(found[name]).reshape(expected.shape)
            np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5)
        else:
            assert np.asarray(found[name], expected.dtype).tolist() == expected.tolist()
    X = _portable.table() if X is None else X
    if len(X) == 0:
        return  # of no rows an estimator predicts nothing
    if "probabilities" in found:
        own = np.asarray(model.predict_proba(X))
        assert np.abs(np.asarray(found["probabilities"]) - own).max() <= 1e-5
    if "labels" in found:
        labels = np.asarray(found["labels"])
        answers = np.asarray(model.predict(X))
        assert labels.reshape(answers.shape).tolist() == answers.tolist()


def test_the_oldest_supported_version(exported):
    tables = [_portable.table(), *few_rows()]
    cases = [(*pair, X) for pair in exported.values() for X in tables]
    raw = [(version, raw_columns(version, X)) for _, version, X in cases]
    answered = _engines.in_the_oldest(raw)
    assert answered["engine"] == "1.17.3"
    assert answered["imported"] == []
    for case, found in zip(cases, answered["found"], strict=True):
        assert_same_answers(found, *case)


def test_the_oldest_supported_version_takes_weights_beside_the_graph(
    exported, tmp_path, monkeypatch
):
    model, _ = next(iter(exported.values()))
    monkeypatch.setattr("skest.export.writer._LARGE", 0)
    version = model.export(tmp_path)
    manifest = json.loads((version / "manifest.json").read_text())
    assert manifest["files"]["model.onnx"]["size"] < 100_000
    answered = _engines.in_the_oldest([(version, raw_columns(version))])
    assert answered["engine"] == "1.17.3"
    assert_same_answers(answered["found"][0], model, version)


@pytest.mark.parametrize("engine", ["onnxruntime-web", "onnxruntime-node"])
def test_engines_of_javascript(exported, engine, tmp_path):
    tables = [_portable.table(), *few_rows()]
    cases = [(*pair, X) for pair in exported.values() for X in tables]
    fed = [(version, feeds(version, X)) for _, version, X in cases]
    answers = _engines.in_node(engine, fed, tmp_path)
    for (model, version, X), found in zip(cases, answers, strict=True):
        assert_same_answers(outputs(version, found), model, version, X)
