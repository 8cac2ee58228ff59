# SPDX-License-Identifier: Apache-2.0
"""MLflow models of exported models.

What MLflow documents of a loader module, ``_load_pyfunc(path)`` and ``predict``, is tested
always; MLflow itself where it is installed.
"""

import subprocess
import sys
from pathlib import Path

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


_ELSEWHERE = """
import sys
import mlflow.pyfunc
import pandas as pd
loaded = mlflow.pyfunc.load_model(sys.argv[1])
print(loaded.predict(pd.read_pickle(sys.argv[2])).tolist())
print(sys.modules["skest"].__file__)
print({"torch", "sklearn"} & set(sys.modules))
"""


def test_an_environment_needs_nothing_that_only_a_checkout_has(tmp_path, model):
    pytest.importorskip("mlflow.pyfunc")
    model.export(tmp_path / "versions")
    flavour.save_model(tmp_path / "versions", tmp_path / "saved")
    wanted = (tmp_path / "saved" / "requirements.txt").read_text().splitlines()
    names = {line.partition("==")[0] for line in wanted}
    assert {"numpy", "onnxruntime", "pandas"} <= names
    assert not any("skest" in name for name in names)
    X.astype({"hours": float}).to_pickle(tmp_path / "rows")
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, "saved", "rows"],
        cwd=tmp_path,
        env={"PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    predicted, used, imported = done.stdout.splitlines()
    assert Path(used).is_relative_to(tmp_path / "saved" / "code")
    assert imported == "set()"
    assert predicted == str(model.predict(X).tolist())


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
