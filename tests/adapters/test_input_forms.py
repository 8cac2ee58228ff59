# SPDX-License-Identifier: Apache-2.0
"""X in every form: the right result, or one clear message before training."""

from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.ensemble import BaggingClassifier
from sklearn.model_selection import cross_val_score
from skorch.helper import SliceDict

from skest import DNNClassifier, DNNRegressor, export
from tests._forms import DATE_FORMS, FORMS, REFUSED, REFUSED_TABLES
from tests.adapters.conftest import make

Y = [0, 1, 0, 1]


def small():
    return DNNClassifier((2,), max_iter=1, random_state=0)


def with_numbers(column):
    """`column` and numbers in a dict, and in a frame that holds such columns."""
    table = {"n": np.arange(4.0), "c": column}
    frames = {
        pd.Series: lambda: pd.DataFrame(table).set_axis([9, 9, 7, 8], axis=0),
        pl.Series: lambda: pl.DataFrame(table),
        pa.Array | pa.ChunkedArray: lambda: pa.table(table),
    }
    found = [make() for kind, make in frames.items() if isinstance(column, kind)]
    return [table, *found]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_as_what_it_is(form):
    make_column, kind, expected = FORMS[form]
    plain = {"n": np.arange(4.0), "c": np.empty(4, dtype=object)}
    plain["c"][:] = expected
    if kind == "numbers":
        plain["c"] = np.array(expected, dtype=float)
    for X in with_numbers(make_column()):
        model = small().fit(X, Y)
        assert np.isfinite(model.predict_proba(X)).all()
        found, same = (model.feature_columns_.encode(table) for table in (X, plain))
        are_single = np.ndim(expected) == 1 and not isinstance(expected[0], list)
        name = "categories_ids" if are_single else "c_ids"
        assert (name in found) == (kind == "categories")
        for key, values in same.items():
            np.testing.assert_array_equal(found[key], values)


def test_dates_of_every_form_are_read():
    for form in DATE_FORMS.values():
        for X in with_numbers(form()):
            model = small().fit(X, Y)
            assert "c_seconds" in {c.name for c in model.feature_columns_.active}
            assert np.isfinite(model.predict_proba(X)).all()


def test_what_cannot_be_read_is_named():
    for column, error, message in REFUSED.values():
        with pytest.raises(error, match=message):
            small().fit(with_numbers(column())[-1], Y)
    of_dict = small().fit({"a": ["a", "b", "a", "b"]}, Y)
    of_array = small().fit(np.eye(4), Y)
    for X, error, message in REFUSED_TABLES.values():
        with pytest.raises(error, match=message):
            small().fit(X(), Y)
        with pytest.raises(error, match=message):
            (of_dict if isinstance(X(), dict) else of_array).predict(X())


NUMBERS = [[1.5, 0.0], [2.5, 1.0], [0.5, 3.0], [1.0, 2.0]]
DECIMALS = [[Decimal(str(cell)) for cell in row] for row in NUMBERS]
NAMES = ["a", "b"]
FRAMES = {
    "pandas": lambda: pd.DataFrame(NUMBERS, columns=NAMES),
    "pandas, other index": lambda: pd.DataFrame(NUMBERS, [3, 3, 1, 2], NAMES),
    "pandas Float64": lambda: pd.DataFrame(NUMBERS, columns=NAMES).convert_dtypes(),
    "pandas decimals": lambda: pd.DataFrame(DECIMALS, columns=NAMES),
    "pandas long doubles": lambda: pd.DataFrame(NUMBERS, columns=NAMES).astype("g"),
    "pandas, pyarrow": lambda: pd.DataFrame(NUMBERS, columns=NAMES).astype(
        "double[pyarrow]"
    ),
    "polars": lambda: pl.DataFrame(NUMBERS, schema=NAMES, orient="row"),
    "polars decimals": lambda: pl.DataFrame(DECIMALS, schema=NAMES, orient="row"),
    "pyarrow": lambda: pa.table(dict(zip(NAMES, np.transpose(NUMBERS), strict=True))),
}


def test_frames_of_numbers_are_arrays_with_names():
    expected = small().fit(np.array(NUMBERS), Y).predict_proba(np.array(NUMBERS))
    for frame in FRAMES.values():
        X = frame()
        model = small().fit(X, Y)
        np.testing.assert_array_equal(model.predict_proba(X), expected)
        assert model.feature_names_in_.tolist() == NAMES
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(pd.DataFrame(NUMBERS, columns=["b", "a"]))
    for library in (pd.DataFrame, pl.DataFrame):
        X = library({name: np.arange(4, dtype=np.float32) for name in NAMES})
        assert small().fit(X, Y)._dtype_name == "float32"


def test_lists_of_rows_keep_their_numbers(table):
    X, y = table
    model = make(DNNClassifier, max_iter=3).fit(X, y)
    for rows in (X[:5], X[:5].assign(hours=np.nan)):
        with pytest.warns(UserWarning, match="valid feature names"):
            found = model.predict_proba(rows.to_numpy().tolist())
        np.testing.assert_array_equal(found, model.predict_proba(rows))


def test_arrays_of_any_cells_are_read_by_column(table, tmp_path):
    """Bagging, and stacking with `passthrough`, make such arrays of frames."""
    X, y = table
    mixed = X.assign(day=pd.date_range("2026-01-01", periods=len(X))).to_numpy()
    assert mixed.dtype == object
    model = make(DNNClassifier).fit(mixed, y)
    assert not hasattr(model, "feature_names_in_")
    frame = pd.DataFrame(mixed).add_prefix("x").infer_objects()
    named = make(DNNClassifier).fit(frame, y)
    exported = export.load(model.export(tmp_path))
    for predicted in (model.predict_proba(mixed), exported.predict_proba(frame)):
        np.testing.assert_allclose(predicted, named.predict_proba(frame), atol=1e-6)
    BaggingClassifier(make(DNNClassifier), 2, max_features=0.5).fit(X, y).predict(X)
    mixed[0, 0] = "a word"
    with pytest.raises(
        ValueError, match="'x0' must hold numbers; got the string 'a wo"
    ):
        model.predict(mixed)


def test_slices_of_dictionaries(table):
    X, y = table
    plain = {name: X[name].to_numpy() for name in X}
    sliced = SliceDict(**plain)
    model = make(DNNClassifier, max_iter=3)
    expected = model.fit(plain, y).predict_proba(plain)
    np.testing.assert_array_equal(model.fit(sliced, y).predict_proba(sliced), expected)
    assert cross_val_score(model, sliced, y, cv=2).shape == (2,)


@pytest.mark.parametrize(
    "form",
    [
        lambda y: y.astype(">i4"),
        lambda y: y.astype(">f8"),
        lambda y: y.astype(object),
        lambda y: pd.Series(y == 1, dtype=object),
        lambda y: np.ma.masked_array(y, mask=False),
    ],
)
def test_labels_of_any_form(form):
    X = np.arange(8.0).reshape(4, 2)
    expected = small().fit(X, Y).predict_proba(X)
    y = form(np.array(Y))
    model = small().fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), expected)
    assert model.score(X, y) == np.mean(model.predict(X) == np.array(Y))


def test_what_is_masked_is_missing():
    X = np.arange(8.0).reshape(4, 2)
    masked = np.ma.masked_array([0, 1, 0, 1], mask=[1, 0, 0, 0])
    for estimator, y in [(small(), masked), (DNNRegressor((2,)), masked * 1.5)]:
        with pytest.raises(ValueError, match="y contains NaN"):
            estimator.fit(X, y)
    with pytest.raises(ValueError, match="sample_weight contains NaN"):
        small().fit(X, Y, sample_weight=masked + 1.5)
