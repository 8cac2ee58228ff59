# SPDX-License-Identifier: Apache-2.0
"""Wrong input: a clear error before training, and nothing lost."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import skest
from skest import feature_columns as fc
from tests._models import At
from tests.adapters.conftest import make


def columns():
    city = fc.categorical_column_with_vocabulary_list("city", ["Bern", "Oslo", "Rome"])
    return [fc.numeric_column("age", normalizer="standard"), fc.indicator_column(city)]


@pytest.fixture
def fitted(table):
    X, y = table
    return make(skest.DNNClassifier, feature_columns=columns(), max_iter=3).fit(X, y)


def without(column):
    return lambda X: X.drop(columns=column)


def changed(column, value, row=3):
    def change(X):
        X = X.astype({column: object})
        X.iloc[row, X.columns.get_loc(column)] = value
        return X

    return change


BAD_FEATURES = {
    "unknown column": (without("age"), "(?s)'age'.*hours|age"),
    "strings in a numeric column": (changed("age", "old"), "(?s)'age'.*'old'"),
    "NaN without a fill value": (changed("age", np.nan), "(?s)'age'.*default_value"),
    "infinity": (changed("age", np.inf), "(?s)'age'.*inf"),
    "numbers among strings": (changed("city", 7), "(?s)'city'.*7"),
    "empty table": (lambda X: X[:0], "0 sample"),
    "dates": (lambda X: X.assign(age=pd.Timestamp("2026-01-01")), "(?s)'age'.*date"),
}


@pytest.mark.parametrize("kind", BAD_FEATURES)
def test_bad_features_are_refused_and_nothing_is_lost(kind, fitted, table):
    X, y = table
    change, message = BAD_FEATURES[kind]
    before = fitted.predict_proba(X)
    bad = change(X)
    with pytest.raises((ValueError, TypeError), match=message):
        fitted.fit(bad, y[: len(bad)])
    np.testing.assert_array_equal(fitted.predict_proba(X), before)
    assert fitted.n_features_in_ == 4
    with pytest.raises((ValueError, TypeError), match=message):
        fitted.predict(bad)


def test_missing_labels(classifier_class, blobs):
    X, y = blobs
    labels = np.where(y == 1, None, "a")
    with pytest.raises(ValueError, match="40 label"):
        make(classifier_class).fit(X, labels)
    with pytest.raises(ValueError, match="NaN"):
        make(classifier_class).fit(X, np.where(y == 1, np.nan, 1.0))


@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        (["b", 1], TypeError, r"all strings .* holds 'b' \(str\) and 1 \(int\)"),
        ([True, "b"], TypeError, r"holds 'b' \(str\) and True \(bool\)\. Convert"),
        ([b"a", "b"], TypeError, r"holds 'b' \(str\) and b'a' \(bytes\)"),
        (
            [pd.Timestamp("2026"), pd.Timestamp("2027")],
            ValueError,
            "dates or durations",
        ),
        (
            [pd.Interval(0, 1), pd.Interval(1, 2)],
            ValueError,
            r"intervals, such as \(0, 1\].*pandas\.cut\(\.\.\., labels",
        ),
    ],
)
def test_labels_that_are_no_classes(y, error, message, classifier_class, blobs):
    X, _ = blobs
    for labels in (y * (len(X) // 2), pd.Series(y * (len(X) // 2), dtype=object)):
        with pytest.raises(error, match=message):
            make(classifier_class).fit(X, labels)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"hidden_units": (0,)}, "'hidden_units' must be positive integers"),
        ({"optimizer": "adagard"}, "adagard"),
        ({"device": "tpu"}, "'device' must be"),
        ({"feature_columns": []}, "non-empty"),
        ({"optimizer": "ftrl", "weight_decay": 0.1}, "weight_decay"),
        ({"hooks": (print,)}, "'hooks' must be instances of skest.hooks.Hook"),
    ],
)
def test_wrong_parameters(params, message, blobs):
    X, y = blobs
    with pytest.raises((ValueError, TypeError), match=message):
        make(skest.DNNClassifier, **params).fit(X, y)


def test_an_array_for_a_table_is_read_by_its_names(fitted, table):
    X, _ = table
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        predicted = fitted.predict_proba(X.to_numpy())
    np.testing.assert_array_equal(predicted, fitted.predict_proba(X))


def test_wrong_values_of_an_all_numeric_frame_name_the_column(blobs):
    X, y = blobs
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    model = make(skest.DNNClassifier, max_iter=1).fit(frame, y)
    with pytest.raises(ValueError, match="(?s)'b'.*'x'"):
        model.predict(frame.astype(object).assign(b="x"))
    with pytest.raises(ValueError, match="'c' holds infinity"):
        model.predict(frame.assign(c=np.inf))
    # By position: Series are not joined by their index.
    columns = {
        name: frame[name].set_axis(frame.index[::-1]) if name == "b" else frame[name]
        for name in reversed(frame.columns)
    }
    np.testing.assert_array_equal(model.predict(columns), model.predict(frame))
    with pytest.raises(ValueError, match="(?s)missing.*- b\n"):
        model.predict({"a": X[:, 0]})
    with pytest.raises(ValueError, match="must have the same number of rows"):
        model.predict({**columns, "b": frame["b"][:9]})
    of_array = make(skest.DNNClassifier, max_iter=1).fit(X, y)
    with pytest.raises(TypeError, match="was fitted on an array; got a dictionary"):
        of_array.predict({"a": X[:, 0]})
    with pytest.raises(ValueError, match="'d' holds numbers too large"):
        model.fit(frame.assign(d=1e300 * X[:, 3]), y)
    with pytest.warns(UserWarning, match="Column 'b' has no values.* left out"):
        model.fit(frame.assign(b=np.nan), y)
    assert np.isfinite(model.predict_proba(frame)).all()
    X[:, 1] = np.nan
    with pytest.warns(UserWarning, match="Column 'x1' has no values.* left out"):
        model.fit(X, y)
    np.testing.assert_array_equal(model.predict(frame.to_numpy()), model.predict(X))


def test_a_reserved_name():
    X = pd.DataFrame({"__sample_weight__": ["a"] * 4})
    with pytest.raises(ValueError, match="'__sample_weight__'.*Rename"):
        make(skest.DNNClassifier).fit(X, [0, 1, 0, 1])


def test_wrong_validation_rows_are_refused_before_training(table):
    X, y = table
    steps = []

    model = make(
        skest.DNNClassifier, feature_columns=columns(), hooks=(At(1, steps.append),)
    )
    with pytest.raises(ValueError, match="'age'"):
        model.fit(X, y, X_val=changed("age", np.nan)(X), y_val=y)
    with pytest.raises(ValueError, match="inconsistent") as refused:
        model.fit(X, y, X_val=X[:9], y_val=y[:8])
    assert refused.value.__notes__ == ["This is about 'X_val' and 'y_val'."]
    assert steps == []


def test_weights_are_no_name_of_a_column(table):
    X, y = table
    with pytest.raises(TypeError, match=r"the numbers themselves.*Give X\['age'\]"):
        skest.DNNClassifier().fit(X, y, sample_weight="age")


def test_labels_of_another_kind(classifier_class, blobs):
    X, y = blobs
    names = np.array(["a", "b", "c"])[y]
    model = make(classifier_class).partial_fit(X, names)
    with pytest.raises(ValueError, match=r"not among the classes: \[0, 1, 2\]"):
        model.partial_fit(X, y)
    with pytest.raises(ValueError, match="is not the same as in the first call"):
        model.partial_fit(X, names, classes=["a", "b"])
    with pytest.raises(AttributeError, match="no attribute 'partial_fit'") as error:
        make(classifier_class, class_weight="balanced").partial_fit(X, y)
    assert "'balanced' needs all rows at once" in str(error.value.__cause__)


@pytest.mark.parametrize("dtype", ["Int64", "boolean", "Float64", "bool[pyarrow]"])
def test_nullable_labels(dtype, blobs):
    X, y = blobs[0], pd.Series(blobs[1] > 0, dtype=dtype)
    model = make(skest.DNNClassifier, max_iter=3).fit(X, y)
    peer = LogisticRegression().fit(X, y)
    np.testing.assert_array_equal(model.classes_, peer.classes_)
    assert model.classes_.dtype.kind in "ibf"
    assert model.score(X, y) == np.mean(model.predict(X) == y.to_numpy())
    make(skest.DNNClassifier, max_iter=3).fit(X, y.array)
    y[3] = pd.NA
    for estimator in (skest.DNNClassifier, skest.DNNRegressor):
        with pytest.raises(ValueError, match=r"Input y contains NaN.*Drop"):
            make(estimator).fit(X, y)


def test_several_numbers_some_missing(blobs):
    y = np.column_stack([blobs[1], blobs[1]]).astype(float)
    y[3, 1] = np.nan
    with pytest.raises(ValueError, match="from X and y. MultiHeadEstimator takes"):
        make(skest.DNNRegressor).fit(blobs[0], y)
    with pytest.raises(ValueError, match="from X and y.$"):
        make(skest.DNNRegressor).fit(blobs[0], y[:, 1:])


def test_numbers_too_large(blobs):
    X, y = blobs
    with pytest.raises(ValueError, match="too large"):
        make(skest.DNNClassifier).fit(X * 1e300, y)
    for regressor in (skest.BaselineRegressor, skest.DNNRegressor):
        with pytest.raises(ValueError, match="y holds numbers too large to learn; got"):
            make(regressor).fit(X, y * 1e60)


DAYS = pd.Series(pd.date_range("2026-01-01", periods=120))


@pytest.mark.parametrize(
    "y",
    [
        DAYS,
        DAYS - DAYS[0],
        DAYS.where(DAYS.index != 3),
        DAYS.to_numpy(),
        DAYS.to_list(),
        DAYS.dt.tz_localize("UTC"),
        DAYS.dt.to_period("D"),
        pd.DataFrame({"begin": DAYS, "end": DAYS}),
    ],
    ids=["dates", "durations", "NaT", "array", "list", "zone", "periods", "two"],
)
def test_dates_and_durations_are_no_numbers(y, blobs):
    with pytest.raises(ValueError, match=r"y holds dates or durations.*total_seconds"):
        make(skest.DNNRegressor).fit(blobs[0], y)


def test_a_name_is_no_target(table):
    X, y = table
    message = r"'y' takes the targets.*the name 'rich'. Give X.drop\(columns='rich'\)"
    for estimator in (skest.DNNClassifier, skest.DNNRegressor):
        with pytest.raises(TypeError, match=message):
            make(estimator).fit(X.assign(rich=y), "rich")


def test_several_targets_of_a_classifier(blobs):
    X, y = blobs
    message = r"shape \(120, 2\).*skest.MultiHeadEstimator.*MultiOutputClassifier"
    frame = pd.DataFrame({"a": y, "b": y.astype(str)})
    numbers = (np.c_[y, y], np.c_[y, y / 3])
    for several in (*numbers, np.c_[y, y].astype(str), frame, frame[["b", "a"]]):
        with pytest.raises(ValueError, match=message):
            make(skest.LinearClassifier).fit(X, several)


def test_strings_in_arrays(blobs):
    X, y = blobs
    words = X.astype(object)
    words[3, 1] = "a"
    with pytest.raises(ValueError, match="'x1' must hold either strings or integers"):
        make(skest.DNNClassifier).fit(words, y)
    with pytest.raises(ValueError, match="must hold numbers; .*'a'.* set_output"):
        make(skest.DNNClassifier).fit(words.astype(str), y)
    with pytest.raises(ValueError, match="must be numbers; .*'q'"):
        make(skest.DNNRegressor).fit(X, ["q"] * len(X))


@pytest.mark.parametrize("dtype", ["M8[s]", "m8[ns]"])
def test_dates_in_an_array_of_their_type(dtype):
    X = np.arange(9).astype(dtype)[:, None]
    with pytest.raises(TypeError, match="numbers; got dtype .*dates, pass a DataFrame"):
        skest.DNNRegressor().fit(X, np.arange(9.0))


def test_cells_that_are_sets_among_rows_held_out():
    X = pd.DataFrame({"x": np.arange(1200) / 7, "tags": [{"a", "b"}, {"c"}] * 600})
    with pytest.raises(TypeError, match="'tags' holds .* Make lists of sets"):
        skest.DNNRegressor().fit(X, X["x"])


def test_sequences_without_a_name():
    X, y = np.zeros((6, 3, 2)), [0, 1] * 3
    with pytest.raises(ValueError, match=r"array with dim 3.* name: \{'x': array\}"):
        skest.RNNClassifier(4).fit(X, y)


def test_class_weights_of_unknown_classes(classifier_class, blobs):
    X, y = blobs
    with pytest.raises(ValueError, match=r"The classes, \[7\], of 'class_weight'"):
        make(classifier_class, class_weight={7: 2.0}).fit(X, y)
    for value, error in [(-1, ValueError), ("high", TypeError)]:
        said = rf"'class_weight\[1\]' of .* number of at least 0; got {value!r}"
        with pytest.raises(error, match=said):
            make(classifier_class, class_weight={1: value}).fit(X, y)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0.5, 1.25, 0.0, 1.0], "Unknown label type: continuous"),
        ([[0], [1, 0], [1], [0]], "legacy multi-label data representation"),
        ([0, 1, 2, 0], r"not among the classes: \[2\]"),
        ([0.0, 1.0, np.nan, 0.0], "Input y contains NaN"),
    ],
    ids=["continuous", "lists", "unknown", "missing"],
)
def test_labels_to_validate_on_are_of_the_classes(y, message):
    values = np.empty(4, dtype=object) if isinstance(y[0], list) else np.array(y)
    values[:] = y
    X = np.arange(8.0).reshape(4, 2)
    model = skest.DNNClassifier((2,), max_iter=1, early_stopping=True)
    with pytest.raises(ValueError, match=message):
        model.fit(X, [0, 1, 0, 1], X_val=X, y_val=values)


def with_column(cells):
    """Return a table of raw columns, one of which is wrong or of no use."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.normal(size=60), "s": rng.choice([*"abc"], 60)})
    return X.assign(c=pd.Series(cells)), rng.integers(0, 2, 60)


REFUSED = {
    "infinity": ([1.0, np.inf] * 30, "'c' holds infinity|'c' holds inf"),
    "text halfway down": ([1.5] * 30 + ["abc"] * 30, "'c' must hold .*'abc'"),
    "impossible date": (["2026-01-31", "2026-02-31"] * 30, "'c' .* got '2026-02-31'"),
    "huge integer": ([10**400] * 60, "'c' holds .* too large for a float"),
    "durations": (
        [np.timedelta64(1, "h")] * 60,
        "'c' holds .*durations.*total_seconds",
    ),
    "periods": (pd.period_range("2026", periods=60), "'c' holds .*periods.*timestamp"),
}
LEFT_OUT = {
    "no number": [np.nan] * 60,
    "no text": [None] * 60,
    "no date": [pd.NaT] * 60,
    "ids": [f"id{i}" for i in range(60)],
    "one number": [7.0] * 60,
    "one date": [pd.Timestamp("2026-11-28")] * 60,
    "one date as a text": ["2026-11-28"] * 60,
}
TAKEN = {
    "intervals": pd.cut(np.arange(60), 3),
    "one number and gaps": [7.0, None] * 30,
    "one text": ["a"] * 60,
    "one text and gaps": ["a", None] * 30,
    "early and late dates": ["0001-01-01", "9999-12-31"] * 30,
    "booleans": [True, False] * 30,
    "numbers as texts": ["12", " 3.5", "", " "] * 15,
    "late text in a column of texts": ["1.5"] * 59 + ["abc"],
}


def test_raw_columns_that_are_refused():
    for cells, message in REFUSED.values():
        X, y = with_column(cells)
        with pytest.raises(ValueError, match=message):
            make(skest.DNNLinearCombinedClassifier).fit(X, y)


def test_raw_columns_that_are_left_out():
    for cells in LEFT_OUT.values():
        X, y = with_column(cells)
        model = make(skest.DNNClassifier, max_iter=1)
        with pytest.warns(UserWarning, match="Column 'c' .* it is left out. To use it"):
            model.fit(X, y)
        read = {k for c in model.feature_columns_.active for k in c.feature_keys}
        assert read == {"x", "s"}
        assert np.isfinite(model.predict_proba(X)).all()


@pytest.mark.filterwarnings("error")
def test_raw_columns_that_are_taken():
    for cells in TAKEN.values():
        X, y = with_column(cells)
        model = make(skest.DNNClassifier, max_iter=1).fit(X, y)
        unseen = X.assign(c=pd.Series([None] * 60, dtype=object))
        for given in (X, unseen):
            assert np.isfinite(model.predict_proba(given)).all()


def test_columns_that_nobody_reads_are_told():
    X = pd.DataFrame({"age": [1.0, 2.0], "city": ["a", "b"], "hours": [3.0, 4.0]})
    columns = [fc.numeric_column(0)]
    message = "the columns 'city', 'hours' of X; they are dropped. .* remainder='infer'"
    with pytest.warns(UserWarning, match=message) as told:
        make(skest.DNNClassifier, feature_columns=columns, max_iter=1).fit(X, [0, 1])
    assert len(told) == 1


@pytest.mark.filterwarnings("error")
def test_the_remainder_is_dropped_or_inferred():
    X = pd.DataFrame({"age": [1.0, 2.0], "city": ["a", "b"], "hours": [3.0, 4.0]})
    names = {
        (skest.DNNClassifier, "drop"): ["age"],
        (skest.DNNClassifier, "infer"): ["age", "city_indicator", "hours"],
        (skest.LinearClassifier, "infer"): ["age", "city", "hours"],
    }
    for (estimator, remainder), expected in names.items():
        columns = fc.FeatureColumns([fc.numeric_column(0)], remainder=remainder)
        model = make(estimator, feature_columns=columns, max_iter=1).fit(X, [0, 1])
        read = model.feature_columns_.active
        assert [column.name.replace("0", "age") for column in read] == expected
        assert model.predict(X).shape == (2,)
        transformed = columns.fit_transform(X)
        assert transformed.shape[1] == (1 if remainder == "drop" else 4)
    columns = fc.FeatureColumns([fc.numeric_column("x1")], remainder="infer")
    array = X[["age", "hours"]].to_numpy()
    model = make(skest.DNNClassifier, feature_columns=columns, max_iter=1).fit(
        array, [0, 1]
    )
    assert [column.name for column in model.feature_columns_.active] == ["x1", "x0"]


@pytest.mark.parametrize("form", ["array", "numbers", "strings beside"])
def test_integers_that_become_alike_as_floats_are_told(form):
    numbers = 2**60 + np.arange(40)
    X = {
        "array": numbers[:, None],
        "numbers": pd.DataFrame({"n": numbers}),
        "strings beside": pd.DataFrame({"n": numbers, "s": ["a", "b"] * 20}),
    }[form]
    with pytest.warns(UserWarning, match="integers .* become alike as float64"):
        make(skest.DNNClassifier, max_iter=1).fit(X, [0, 1] * 20)


def test_batches_without_y_are_for_train():
    with pytest.raises(ValueError, match=r"target y is None.* DataLoader .* train\("):
        make(skest.DNNClassifier).fit(iter([]), None)


def test_a_row_or_a_function_in_place_of_a_table(recwarn):
    X = pd.DataFrame({"a": np.arange(30.0), "b": np.arange(30) % 3})
    model = skest.DNNClassifier((4,), max_iter=1, random_state=0).fit(X, X["b"])
    with pytest.raises(ValueError, match=r"got a Series. A row .* is X.iloc\[\[i\]\]"):
        model.predict(X.iloc[0])
    with pytest.raises(TypeError, match=r"must be a table; .* Only train\(input_fn\)"):
        model.predict(lambda: X)
    assert not recwarn
