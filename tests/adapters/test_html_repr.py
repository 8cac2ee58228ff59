# SPDX-License-Identifier: Apache-2.0
"""What a notebook shows of an estimator."""

import re

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skest
from skest import DNNClassifier, ModelFnClassifier
from skest import feature_columns as fc
from tests.adapters._families import FAMILIES, rows_for, small


def longest_value(shown):
    return max(map(len, re.findall("<td>(.*?)</td>", shown)))


@pytest.mark.parametrize(
    "name", ["DNNClassifier", "SDCA", "BaselineRegressor", "MultiHeadEstimator", "head"]
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
    assert "Layers: " in estimator.summary()


def test_the_summary_of_a_fitted_estimator():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"age": rng.uniform(0, 9, 200), "<b>": rng.choice(["u&v", "w"], 200)}
    )
    model = DNNClassifier(8, max_iter=3, random_state=0)
    with pytest.raises(NotFittedError):
        model.summary()
    model.fit(table, table["age"] > 5)
    text = model.summary()
    assert text.startswith("DNNClassifier: 2 classes (False, True)\n")
    assert "the best validation loss was" in text
    for row in (
        r"batch_size +32 +larger for larger tables",
        r"column +kind +size +learned",
        r"age +numeric, piecewise linear +9 numbers +"
        r"mean 4\.\d+ fills gaps, deviation 2\.\d+; \d+ edges from .* to .*\d",
        r"<b> +indicator of vocabulary list +2 numbers +levels u&v, w",
        r"hidden_0 +8 x 11, 8 +96",
    ):
        assert re.search(f"^{row}$", text, re.M), row
    n_values = sum(v.numel() for v in model.estimator_.checkpoint.variables.values())
    assert f"Layers: {n_values:,} parameters, {n_values * 4 / 1024:.1f} KiB" in text
    shown = model._repr_html_()
    assert "<td>larger for larger tables</td>" in shown
    assert "levels u&amp;v, w" in shown
    assert "nowrap><b>" not in shown


def test_a_frame_of_numbers_has_a_line_for_each_column():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(40, 2)), columns=["size", "age"])
    table.loc[3, "age"] = np.nan
    model = DNNClassifier(4, max_iter=1, random_state=0).fit(table, [0, 1] * 20)
    text = model.summary()
    assert "feature_columns_: 2 columns" in text
    for name, n, marked in (("size", 9, ""), ("age", 10, "gaps marked; ")):
        mean = rf"{table[name].mean():.4g} fills gaps, deviation \d\.\d+"
        kind = f"numeric, piecewise linear +{n} numbers"
        assert re.search(
            rf"^{name} +{kind} +mean {mean}; {marked}\d+ edges from", text, re.M
        )
    assert "age" in model.feature_columns_._repr_html_()


def test_the_summary_of_a_wide_table_is_cut_in_a_terminal():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.choice(list("ab"), (40, 70))).add_prefix("kind_")
    model = DNNClassifier(4, max_iter=1, random_state=0).fit(table, [0, 1] * 20)
    text = model.summary()
    assert "feature_columns_: 70 columns" in text
    assert "kind_59 " in text
    assert "kind_60" not in text
    assert "\n… and 10 more; a notebook shows all\n" in text
    assert "kind_69" in model._repr_html_()


def test_parts_of_a_date_have_lines_of_their_own():
    when = pd.date_range("2025-01-01", periods=40, freq="9D")
    model = DNNClassifier(4, max_iter=1, random_state=0)
    text = model.fit(pd.DataFrame({"when": when}), [0, 1] * 20).summary()
    for part in ("seconds", "month", "day of year"):
        assert re.search(f"^when +parsed {part}, piecewise linear +9 numb", text, re.M)


def test_what_fills_gaps_if_it_is_not_the_center():
    age = fc.numeric_column("age", normalizer="robust", default_value="mean")
    shown = age.fit({"age": [1.0, 2.0, 3.0, 14.0]})._repr_html_()
    assert "median 2, spread 2; gaps become 5<" in shown


def test_a_column_over_another_one_shares_its_line():
    age = fc.numeric_column("age")
    over = [fc.piecewise_linear_column(age, [0.0, 2.0]), fc.bucketized_column(age, [1])]
    shown = fc.FeatureColumns([over[0], age, over[1]])._repr_html_()
    assert "3 feature columns" in shown
    assert "<td nowrap>piecewise linear, numeric, bucketized</td>" in shown


def test_columns_before_and_after_fit():
    city = fc.categorical_column_with_vocabulary_list("city")
    columns = fc.FeatureColumns(
        [
            fc.embedding_column(city, "auto"),
            fc.piecewise_linear_column(fc.numeric_column("age"), "quantiles:4"),
            fc.bucketized_column(fc.numeric_column("age"), [20, 40]),
        ]
    )
    before = columns._repr_html_()
    assert "3 feature columns" in before
    assert "of vocabulary list</td><td nowrap>city</td><td nowrap>open</td>" in before
    columns.fit({"city": ["Bern", "Oslo"] * 4, "age": np.arange(8.0) * 9})
    after = columns._repr_html_()
    assert "<td>levels Bern, Oslo</td>" in after
    assert "edges from 0 to 63" in after
    assert "levels Bern, Oslo" in columns.active[0]._repr_html_()


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
