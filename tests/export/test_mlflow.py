# SPDX-License-Identifier: Apache-2.0
"""MLflow models of exported models.

What MLflow documents of a loader module, ``_load_pyfunc(path)`` and ``predict``, is tested
always; MLflow itself where it is installed.
"""

import sys

import numpy as np
import pandas as pd
import pytest

import skest
from skest.export import mlflow as flavour
from skest.feature_columns import categorical_column_with_vocabulary_list
from tests.export.test_declaration import X, fitted


@pytest.fixture
def model():
    return fitted(skest.DNNClassifier((4,)))


def test_the_loader_module(tmp_path, model):
    version = model.export(tmp_path)
    for path in (version, tmp_path):
        loaded = flavour._load_pyfunc(str(path))
        np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    found = loaded.predict(X, params={"method": "predict_proba"})
    np.testing.assert_allclose(found, model.predict_proba(X), rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="'method' must be 'predict'"):
        loaded.predict(X, params={"method": "score"})


def test_round_trip(tmp_path, model):
    pytest.importorskip("mlflow.pyfunc")
    model.export(tmp_path / "versions")
    flavour.save_model(tmp_path / "versions", tmp_path / "saved")
    loaded = flavour.load_model(str(tmp_path / "saved"))
    rows = X.astype({"hours": float})  # MLflow converts no whole numbers
    np.testing.assert_array_equal(loaded.predict(rows), model.predict(X))
    inputs = loaded.metadata.get_input_schema()
    assert set(inputs.input_names()) == set(X)
    found = loaded.predict(rows, params={"method": "predict_proba"})
    np.testing.assert_allclose(found, model.predict_proba(X), rtol=0, atol=1e-6)


def test_lists_have_no_columns_but_methods(tmp_path):
    pytest.importorskip("mlflow.pyfunc")
    rows = pd.DataFrame({"tags": [["a", "b"], []] * 20})
    tags = categorical_column_with_vocabulary_list("tags", ["a", "b"])
    model = skest.LinearClassifier(feature_columns=[tags], max_iter=2)
    model.fit(rows, [0, 1] * 20).export(tmp_path / "versions")
    flavour.save_model(tmp_path / "versions", tmp_path / "saved")
    loaded = flavour.load_model(str(tmp_path / "saved"))
    np.testing.assert_array_equal(loaded.predict(rows), model.predict(rows))
    found = loaded.predict(rows, params={"method": "predict_proba"})
    np.testing.assert_allclose(found, model.predict_proba(rows), rtol=0, atol=1e-6)


def test_without_mlflow(tmp_path, model, monkeypatch):
    model.export(tmp_path)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    for call in (
        lambda: flavour.save_model(tmp_path, tmp_path / "saved"),
        lambda: flavour.log_model(tmp_path, "model"),
        lambda: flavour.load_model("runs:/none"),
    ):
        with pytest.raises(ImportError, match="pip install mlflow-skinny"):
            call()
