# SPDX-License-Identifier: Apache-2.0
"""Categories that were one-hot encoded before are found in arrays and dummies."""

import pickle
import re
from functools import partial

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skest import (
    DNNClassifier,
    DNNLinearCombinedRegressor,
    DNNRegressor,
    LinearRegressor,
    export,
)
from skest.feature_columns.matrix_parts import OneHotColumn, parts_of
from tests._models import single

N = 3000
TOWNS = [f"t{i}" for i in range(30)]


def one_hot(rng, n_levels, n_rows=N):
    return np.eye(n_levels)[rng.integers(n_levels, size=n_rows)]


def found(matrix):
    parts = parts_of(matrix)
    ends = [(block[0], block[-1], len(block)) for block in parts.blocks]
    return ends, parts.numbers.tolist(), parts.flags.tolist()


def test_blocks_among_numbers_and_flags(rng):
    flags = (rng.random((N, 3)) < 0.1) * 1.0
    unused = np.zeros((N, 1))  # a level that no row has
    first = one_hot(rng, 20)
    without_one = one_hot(rng, 12)[:, 1:]  # as OneHotEncoder(drop="first")
    matrix = np.hstack(
        [
            *(rng.normal(size=(N, 2)), flags, first[:, :9], unused, first[:, 9:]),
            *(one_hot(rng, 4), without_one, flags[:, ::-1]),
        ]
    )
    flags = [2, 3, 4, 14, 26, 27, 28, 29, 41, 42, 43]
    expected = ([(5, 25, 20), (30, 40, 11)], [0, 1], flags)
    assert found(matrix) == expected
    assert found(scipy.sparse.csr_array(matrix)) == expected
    scaled = StandardScaler().fit_transform(matrix)
    assert found(np.asfortranarray(scaled)) == expected


def test_words_and_flags_are_no_blocks(rng):
    words = (rng.random((N, 500)) < 1 / np.arange(1, 501)) * 1.0
    assert found(words)[0] == []
    rare = scipy.sparse.csr_array((rng.random((N, 500)) < 0.004) * 1.0)
    assert found(rare) == ([], [], [])


def towns(rng, n_rows=N):
    """A table of a category of many levels, and what each of them says."""
    X = pd.DataFrame({"size": rng.normal(size=n_rows)})
    X["town"] = rng.choice(TOWNS, n_rows)
    X["kind"] = rng.choice(["a", "b", "c"], n_rows)
    effect = dict(zip(TOWNS, rng.normal(size=30), strict=True))
    return X, X["town"].map(effect) * (X["kind"] != "c") + 0.3 * X["size"]


def encoder(sparse, form="default"):
    return make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=sparse), ["town"]),
        (OneHotEncoder(sparse_output=sparse), ["kind"]),
        (StandardScaler(), make_column_selector(dtype_include="number")),
        sparse_threshold=float(sparse),
    ).set_output(transform=form)


@pytest.mark.parametrize("form", ["array", "sparse", "frame", "dummies", "nullable"])
def test_a_category_is_found_again(rng, form, tmp_path):
    X, y = towns(rng)
    if form == "dummies":
        encode = pd.get_dummies
    elif form == "nullable":
        encode = partial(pd.get_dummies, dtype="boolean")
    else:
        own = encoder(form == "sparse", "pandas" if form == "frame" else "default")
        own.fit(X[["town", "kind", "size"]])
        encode = own.transform
    matrix = encode(X)
    model = single(DNNRegressor, max_iter=6, learning_rate=0.01)
    model.fit(matrix[:2000], y[:2000])
    assert model.score(matrix[2000:], y[2000:]) > 0.9
    # Neither what was dense nor the type of flags counts.
    answers = model.predict(matrix)
    dense = matrix.toarray() if form == "sparse" else matrix.astype(np.float64)
    np.testing.assert_allclose(model.predict(dense), answers, rtol=1e-6)
    # The rounding of one float32 near 1: the answer of this row is near 0.
    np.testing.assert_allclose(
        model.predict(matrix[:1]), answers[:1], rtol=1e-5, atol=1.2e-7
    )
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.predict(matrix), answers)
    # What has no level, or several, is unknown.
    odd = np.asarray(dense)[:3].copy()
    inner = (getattr(c, "categorical", None) for c in model.feature_columns_.active)
    column = next(c for c in inner if isinstance(c, OneHotColumn))
    places = column.elements
    odd[:, places] = [[0], [1], [np.nan]]
    if isinstance(dense, pd.DataFrame):
        odd = pd.DataFrame(odd, columns=dense.columns)
    served = export.load(model.export(tmp_path))
    for rows in (dense, odd):
        np.testing.assert_allclose(
            served.predict(rows).ravel(), model.predict(rows), rtol=1e-4, atol=1e-5
        )
    names = {
        "array": "x0_to_x29",
        "sparse": "x0_to_x29",
        "frame": "onehotencoder-1__town",
    }
    assert column.name == names.get(form, "town")
    assert "embedding of one hot" in model.summary()


def test_wide_and_deep_and_linear_models(rng):
    X, y = towns(rng)
    matrix = encoder(sparse=True).fit_transform(X)
    deep = single(DNNLinearCombinedRegressor, max_iter=10).fit(matrix, y)
    assert deep.score(matrix, y) > 0.9
    assert "x0_to_x29_embedding" in [c.name for c in deep.dnn_feature_columns_.active]
    # Of a linear model it is the same; numbers that are missing are refused as before.
    linear = LinearRegressor(random_state=0).fit(matrix, y)
    assert [type(c).__name__ for c in linear.feature_columns_.active] == [
        "SparseMatrixColumn"
    ]
    matrix.data[0] = np.nan
    for use in (DNNRegressor().fit, deep.score):
        with pytest.raises(ValueError, match="sparse matrix 'x' holds NaN"):
            use(matrix, y)


def test_words_beside_a_table(rng):
    X, y = towns(rng)
    words = scipy.sparse.random_array((N, 300), density=0.02, rng=rng)
    y = y + 5 * np.asarray(words[:, [0]].sum(axis=1))
    matrix = scipy.sparse.hstack([encoder(sparse=True).fit_transform(X), words]).tocsr()
    model = single(DNNClassifier, max_iter=2).fit(matrix, y > 0)
    assert [column.name for column in model.feature_columns_.active] == [
        *("x", "x_flags", "x0_to_x29_embedding", "x0_to_x29_target_statistics"),
        *("x_embedding", "x_target_ridge", "x_ple"),
    ]


def test_a_warm_start_and_folds_keep_the_category(rng):
    X, y = towns(rng, 300)
    matrix = encoder(sparse=False).fit_transform(X)
    model = DNNRegressor((8,), n_members=1, max_iter=3, random_state=0).fit(matrix, y)
    assert len(model.fold_estimators_) == 5
    names = [c.name for c in model.feature_columns_.active]
    assert "x0_to_x29_embedding" in names
    later = model.set_params(warm_start=True).fit(matrix[:200], y[:200])
    assert [c.name for c in later.feature_columns_.active] == names


@pytest.mark.parametrize(
    "model", [DNNRegressor, LinearRegressor, DNNLinearCombinedRegressor]
)
def test_names_in_an_array(rng, model, tmp_path):
    shop = rng.integers(60, size=1500)
    X = np.c_[rng.normal(size=(1500, 2)), shop]
    y = rng.normal(size=60)[shop] + X[:, 0]
    model = single(model, max_iter=25).fit(X, y)
    assert model.score(X, y) > 0.9
    assert re.search("^x2 +.*numbered vocabulary", model.summary(), re.MULTILINE)
    odd = X[:4].copy()
    odd[:, 2] = [np.nan, 7.5, 1e5, -1]
    served = export.load(model.export(tmp_path))
    np.testing.assert_allclose(
        served.predict(odd).ravel(), model.predict(odd), rtol=1e-4, atol=1e-5
    )


def test_names_of_parts_are_free(rng):
    X = {"x": np.c_[np.arange(N), one_hot(rng, 12)], "x3": rng.choice(["a", "b"], N)}
    model = single(DNNRegressor, max_iter=1).fit(X, rng.normal(size=N))
    names = [column.name for column in model.feature_columns_.active]
    assert "x_1_to_x_12_embedding" in names


def test_names_beside_dummies(rng):
    X, y = towns(rng)
    X["shop"] = rng.integers(60, size=N)
    y = y + rng.normal(size=60)[X["shop"]]
    model = single(DNNRegressor, max_iter=1).fit(pd.get_dummies(X), y)
    names = [column.name for column in model.feature_columns_.active]
    assert {"shop_level_embedding", "town_embedding"} <= set(names)


@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_array])
def test_what_the_first_batch_has_not_is_learned_later(rng, form):
    late = rng.integers(0, 3, (N, 1))
    late[:600] = 0
    X = form(np.hstack([rng.normal(size=(N, 2)), one_hot(rng, 20), late]))
    y = 5 * late[:, 0] + rng.normal(size=N)
    model = single(DNNRegressor, hidden_units=(16,), learning_rate=0.02)
    for start in [*range(0, N, 300)] * 2:
        model.partial_fit(X[start : start + 300], y[start : start + 300])
    assert model.score(X, y) > 0.7


def test_words_of_few_texts_and_one_row_stay_sparse(rng):
    words = scipy.sparse.random_array((8, 2**12), density=0.005, rng=rng).tolil()
    words[:, [7]] = 1.0  # a word that all have
    for rows in (words.tocsr(), words.tocsr()[:1], words.tocsr()[:, :3] * 0):
        model = single(DNNRegressor).partial_fit(rows, np.arange(rows.shape[0]))
        names = [column.name for column in model.feature_columns_.active]
        assert "x_embedding" in names
    ones = scipy.sparse.csr_array(np.ones((50, 3)))
    assert single(DNNRegressor, max_iter=1).fit(ones, np.arange(50)).predict(ones).any()


def test_odd_names_values_and_ids(rng):
    X, y = towns(rng)
    dummies = pd.get_dummies(X.drop(columns="kind")).rename(columns={"size": "x"})
    model = single(DNNRegressor, max_iter=1).fit(dummies, y)
    assert "town_embedding" in [c.name for c in model.feature_columns_.active]
    noise = np.where(rng.random(N) < 0.5, 0.1 * 3, 0.3)  # no number is in between
    matrix = np.c_[noise, np.where(noise > 0.3, 1.7e308, 1e308), one_hot(rng, 12)]
    (parts,) = [parts_of(matrix)]
    assert parts.flags.tolist() == [0, 1]
    assert [block.tolist() for block in parts.blocks] == [[*range(2, 14)]]
    dummies.insert(0, "customer_id", rng.permutation(N) + 10**6)
    floats = dummies.astype({name: float for name in dummies.columns[1:]})
    with pytest.warns(UserWarning, match="'customer_id' has another value in each row"):
        single(DNNRegressor, max_iter=1).fit(floats, y)


def test_width_and_infinity_of_an_entry(rng):
    X = {"m": one_hot(rng, 20), "z": rng.normal(size=N)}
    model = single(DNNRegressor, max_iter=1).fit(X, X["z"])
    infinite = np.where(np.arange(20) == 3, np.inf, X["m"])
    wide = np.tile(X["m"], 2)
    for m, error in (
        (wide, r"'m' must have shape \(20,\), as in fit; got \(40,\)"),
        (X["m"][:, :10], r"'m' must have shape \(20,\), as in fit; got \(10,\)"),
        (scipy.sparse.csr_array(wide), r"must have shape \(20,\)"),
        (infinite, r"'m0' to 'm19' hold infinity"),
    ):
        with pytest.raises(ValueError, match=error):
            model.predict({"m": m, "z": X["z"]})
