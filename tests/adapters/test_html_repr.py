# SPDX-License-Identifier: Apache-2.0
"""What a notebook shows of an estimator."""

import re
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skest.feature_columns
from skest import DNNClassifier, ModelFnClassifier
from tests.adapters._families import CLASSES, FAMILIES, rows_for, small

COLUMNS = [
    column
    for name in skest.feature_columns.__all__
    if isinstance(column := getattr(skest.feature_columns, name), type)
    and hasattr(column, "_doc_link_template")
]


def link_of(cls):
    return cls._get_doc_link(object.__new__(cls))


def longest_value(shown):
    return max(map(len, re.findall("<td>(.*?)</td>", shown)))


@pytest.mark.parametrize("cls", CLASSES + COLUMNS, ids=lambda cls: cls.__name__)
def test_links_lead_to_what_is_there(cls):
    file = Path(url2pathname(urlsplit(link_of(cls)).path))
    assert f"class {cls.__name__}(" in file.read_text(encoding="utf-8")


def test_classes_of_others_have_no_link():
    class Own(DNNClassifier):
        pass

    assert link_of(Own) == ""


@pytest.mark.parametrize("name", FAMILIES)
def test_parameters_and_fitted_attributes(name):
    estimator = clone(FAMILIES[name])
    X, y, _ = rows_for(estimator)
    with config_context(display="diagram"):
        before = estimator._repr_html_()
        estimator.fit(pd.DataFrame(X, columns=list("abc")), y)
        after = estimator._repr_html_()
    for parameter in estimator.get_params(deep=False):
        assert f">{parameter}" in re.sub(r"\s", "", before), parameter
    assert link_of(type(estimator)) in before
    assert "random_state: int" in before, "the description of a parameter"
    assert "loss_curve_" not in before
    for attribute in ("n_iter_", "loss_curve_", "estimator_", "feature_names_in_"):
        assert attribute in after
    assert "loss_curve_: list of float" in after, "the description of an attribute"
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
    assert link_of(ModelFnClassifier) in shown
    assert "with_head" in shown


def test_the_core_says_how_far_it_is(tmp_path):
    X, y, _ = rows_for(small(DNNClassifier))
    model = small(DNNClassifier).fit(X, y)
    assert repr(model.estimator_) == "Estimator(global_step=12)"
    model.set_params(config=skest.RunConfig(model_dir=tmp_path)).fit(X, y)
    shown = repr(model.estimator_)
    assert shown == f"Estimator(global_step=12, model_dir='{model.model_dir_}')"
