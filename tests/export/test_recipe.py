# SPDX-License-Identifier: Apache-2.0
"""Exports of estimators as constructed: members, piecewise columns, a temperature."""

import numpy as np
import pandas as pd
import pytest

import skest

pytest.importorskip("onnxruntime")
from skest.export import load

N_ROWS = 120
RNG = np.random.default_rng(0)
X = pd.DataFrame(
    {
        "age": RNG.integers(18, 90, N_ROWS),
        "pay": RNG.exponential(size=N_ROWS),
        "town": RNG.choice(np.array(["Rome", "Oslo", "Łódź", None]), N_ROWS),
    }
)
X.loc[::9, "pay"] = np.nan
KIND = np.where(X["age"] > 50, "old", "young")
GROWN = np.select([X["age"] < 30, X["age"] < 60], ["few", "some"], "many")
NUMBERS = np.sqrt(X["age"]).to_numpy()
MODELS = {
    "classes": (skest.DNNClassifier, GROWN),
    "wide & deep": (skest.DNNLinearCombinedClassifier, KIND),
    "heads": (
        skest.MultiHeadEstimator,
        pd.DataFrame({"kind": GROWN, "number": NUMBERS}),
    ),
}


@pytest.fixture
def fitted(monkeypatch):
    # What rows held out ask for is tested elsewhere.
    name = "skest.adapters.targets.classes.temperature_of"
    monkeypatch.setattr(name, lambda logits, labels, weight=None: 2.0)

    def fit(name):
        estimator_class, y = MODELS[name]
        model = estimator_class(max_iter=3, random_state=0).fit(X, y)
        chosen = model.auto_params_
        assert (chosen["n_members"], chosen["early_stopping"]) == (3, True)
        return model

    return fit


def assert_same_answers(found, model):
    expected = model.predict(X)
    if isinstance(expected, pd.DataFrame):
        np.testing.assert_array_equal(found.predict(X)["kind"], expected["kind"])
        np.testing.assert_allclose(
            found.predict(X)["number"], expected["number"], atol=1e-4
        )
    elif hasattr(model, "predict_proba"):
        np.testing.assert_allclose(
            found.predict_proba(X), model.predict_proba(X), atol=1e-5
        )
    else:
        np.testing.assert_allclose(found.predict(X), expected, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_graphs_and_estimators(fitted, name, tmp_path):
    model = fitted(name)
    version = model.export(tmp_path, weights="beside")
    assert (version / "weights.safetensors").exists()
    assert_same_answers(load(version), model)
