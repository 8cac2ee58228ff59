# SPDX-License-Identifier: Apache-2.0
"""What a notebook shows of an estimator."""

import re

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skest
from skest import DNNClassifier, ModelFnClassifier
from tests.adapters._families import FAMILIES, rows_for, small


def longest_value(shown):
    return max(map(len, re.findall("<td>(.*?)</td>", shown)))


@pytest.mark.parametrize(
    "name", ["DNNClassifier", "LinearRegressor", "MultiHeadEstimator", "head"]
)
def test_parameters_and_fitted_attributes(name):
    estimator = clone(FAMILIES[name])
    X, y, _ = rows_for(estimator)
    with config_context(display="diagram"):
        before = estimator._repr_html_()
        estimator.fit(pd.DataFrame(X, columns=list("abc")), y)
        after = estimator._repr_html_()
    for parameter in estimator.get_params(deep=False):
        assert f">{parameter}" in re.sub(r"\s", "", before), parameter
    assert "href" not in after, "there is no page yet, and a path is for one reader"
    assert "loss_curve_" not in before
    for attribute in ("n_iter_", "loss_curve_", "estimator_", "feature_names_in_"):
        assert attribute in after
    assert longest_value(after) < 150


def test_values_are_short():
    rng = np.random.default_rng(0)
    words = pd.DataFrame({"w": [f"word {i}" for i in rng.integers(0, 5000, 9000)]})
    model = small(DNNClassifier, max_iter=1, batch_size=1000).fit(
        words, words["w"] > "word 5"
    )
    shown = model._repr_html_()
    assert longest_value(shown) < 150
    assert "word 4999" not in shown


def test_in_a_pipeline():
    pipeline = make_pipeline(StandardScaler(), small(ModelFnClassifier))
    shown = pipeline._repr_html_()
    assert "file:" not in shown
    assert "with_head" in shown


def test_the_core_says_how_far_it_is(tmp_path):
    X, y, _ = rows_for(small(DNNClassifier))
    model = small(DNNClassifier).fit(X, y)
    assert repr(model.estimator_) == "Estimator(global_step=12)"
    model.set_params(config=skest.RunConfig(model_dir=tmp_path)).fit(X, y)
    shown = repr(model.estimator_)
    assert shown == f"Estimator(global_step=12, model_dir='{model.model_dir_}')"
