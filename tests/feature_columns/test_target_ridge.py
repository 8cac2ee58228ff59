# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score

from skest import DNNClassifier, DNNLinearCombinedRegressor
from skest import feature_columns as fc
from tests._models import single
from tests.feature_columns.conftest import assert_no_row_knows_its_label

WORDS = [f"word{i}" for i in range(60)]


def words_of(key="said"):
    return fc.categorical_column_with_vocabulary_list(key, WORDS, delimiter=" ")


def test_equal_cells_are_in_one_fold(rng):
    """Else a text that comes again tells the label, and a weight of 2 is not two rows."""
    columns = fc.FeatureColumns([fc.target_ridge_column(words_of())])
    X, y = {"said": texts_of(rng)}, rng.normal(size=300)
    weight = np.full(300, 2.0)
    columns.fit(X, y, sample_weight=weight)
    (once,) = columns.training_features(X, y, weight, seed=0).values()
    X, y = {"said": X["said"].repeat(2)}, y.repeat(2)
    (twice,) = columns.fit(X, y).training_features(X, y, seed=0).values()
    assert_allclose(twice[::2], once, atol=1e-4)


def texts_of(rng, n_rows=300, most=8):
    """Return texts of different words, some without any."""
    lengths = rng.integers(0, most, n_rows)
    return np.array(
        [" ".join(rng.choice(WORDS, n, replace=False)) for n in lengths], object
    )


def numbers_of(column, X):
    return column.encode(X)[column.name]


def test_is_ridge_regression_on_tfidf(rng):
    texts, new, y = texts_of(rng), texts_of(rng, 20), rng.normal(5, 3, 300)
    column = fc.target_ridge_column(words_of(), alpha=2.0).fit({"said": texts}, y)
    vectors = TfidfVectorizer(vocabulary=WORDS)
    ridge = Ridge(alpha=2.0).fit(vectors.fit_transform(texts), (y - y.mean()) / y.std())
    expected = ridge.predict(vectors.transform(new))
    assert_allclose(numbers_of(column, {"said": new})[:, 0], expected, atol=1e-4)


def test_a_weight_is_a_number_of_rows(rng):
    texts, y = texts_of(rng), rng.normal(size=300)
    weight = rng.integers(0, 4, 300)
    made = fc.target_ridge_column(words_of())
    weighted = made.fit({"said": texts}, y, sample_weight=weight)
    repeated = made.fit({"said": texts.repeat(weight)}, y.repeat(weight))
    new = {"said": texts_of(rng, 20)}
    assert_allclose(numbers_of(weighted, new), numbers_of(repeated, new), atol=1e-4)


def test_targets_of_all_kinds(rng):
    X = {"said": texts_of(rng, 40)}
    for y, size in [
        (None, 1),
        (np.zeros((40, 3)), 4),
        (np.array(["no", "yes"] * 20), 2),
        ({"a": np.arange(40) % 2, "b": np.where(np.arange(40) < 3, np.nan, 1.0)}, 3),
        (np.arange(40) % 5, 6),
    ]:
        columns = fc.FeatureColumns([fc.target_ridge_column(words_of())]).fit(X, y)
        assert columns.active[0].size == size == len(columns.get_feature_names_out())
        beside = columns.training_features(X, y, seed=0)
        for features in (X, X | beside):
            encoded = numbers_of(columns.active[0], features)
            assert encoded.shape == (40, size)
            assert np.isfinite(encoded).all()


def test_a_label_is_not_in_what_stands_for_its_row(rng):
    X, y = {"said": texts_of(rng)}, rng.normal(size=300)
    assert_no_row_knows_its_label(fc.target_ridge_column(words_of()), X, y)


def said_of(rng, n_rows):
    """Return texts of which a tenth of the words tell the label, and noise beside."""
    said = pd.DataFrame({"said": texts_of(rng, n_rows, 20) + " and so on and on"})
    effects = np.linspace(-2, 2, len(WORDS))
    of_words = said["said"].map(
        lambda t: sum(effects[int(w[4:])] for w in t.split()[:-5])
    )
    return said, of_words.to_numpy() + rng.normal(size=n_rows)


def test_texts_are_learned_as_constructed(rng):
    said, y = said_of(rng, 1_500)
    model = DNNLinearCombinedRegressor(random_state=0).fit(said[:1_000], y[:1_000])
    assert r2_score(y[1_000:], model.predict(said[1_000:])) > 0.8
    assert "coefficients of 100,000 levels" in model.summary()


def test_weights_of_categories(rng):
    """A weight is a number of a sparse matrix."""
    X = {
        "tags": [["a", "b"], ["a"], ["b"], []] * 30,
        "often": [[2.0, 1.0], [1.0], [3.0], []] * 30,
        "matrix": csr_array([[2.0, 1.0], [1.0, 0.0], [0.0, 3.0], [0.0, 0.0]] * 30),
    }
    tags = fc.categorical_column_with_vocabulary_list("tags", ["a", "b"])
    weighted = fc.target_ridge_column(fc.weighted_categorical_column(tags, "often"))
    (matrix,) = fc.infer_feature_columns({"matrix": X["matrix"]}, "linear").active
    sparse = fc.target_ridge_column(matrix)
    y = rng.normal(size=120)
    # Which is scaled by its greatest numbers, 2 and 3.
    X["often"] = [[1.0, 1 / 3], [0.5], [1.0], []] * 30
    found = [numbers_of(column.fit(X, y), X) for column in (weighted, sparse)]
    assert_allclose(*found, atol=1e-6)


def test_texts_of_one_length(rng):
    """Another length is not far away then."""
    column = fc.target_ridge_column(words_of())
    X = {"said": np.array([" ".join(rng.choice(WORDS, 7)) for _ in range(50)], object)}
    column = column.fit(X, rng.normal(size=50))
    assert abs(numbers_of(column, {"said": ["word1", "word2 " * 30]})).max() < 5


def test_cells_of_several_categories(rng):
    """Lists are as texts, without a column of words."""
    tags = [list(rng.choice(WORDS, 3, replace=False)) for _ in range(100)]
    names = [c.name for c in fc.infer_feature_columns({"tags": tags}).active]
    assert names == ["tags_embedding", "tags_target_ridge"]


def test_what_is_refused():
    for make, error, message in [
        (lambda: fc.target_ridge_column("said"), TypeError, "must be a categorical"),
        (
            lambda: fc.target_ridge_column(words_of(), 0),
            ValueError,
            "'alpha' of column",
        ),
    ]:
        with pytest.raises(error, match=message):
            make()


def test_export(tmp_path, rng):
    export = pytest.importorskip("skest.export")
    pytest.importorskip("onnxruntime")
    said, y = said_of(rng, 200)
    model = single(DNNClassifier, hidden_units=(8,), max_iter=2).fit(said, y > 0)
    version = model.export(tmp_path / "texts")
    new = pd.DataFrame({"said": ["Word1, word1 so!", "other words", "", None, "..."]})
    expected = model.predict_proba(new)
    assert_allclose(export.load(version).predict_proba(new), expected, atol=1e-5)
    matrix = csr_array(rng.integers(0, 2, (200, 70)) * rng.normal(size=(200, 70)))
    model.fit(matrix, y > 0)
    version = model.export(tmp_path / "matrix")
    matrix = matrix[:9].toarray()
    expected = model.predict_proba(matrix)
    assert_allclose(export.load(version).predict_proba(matrix), expected, atol=1e-5)
