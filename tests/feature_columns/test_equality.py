# SPDX-License-Identifier: Apache-2.0
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone

from skest import feature_columns as fc
from skest.feature_columns.columns import same

VOCABULARY = ["a", "b"]
LISTS = {
    "list": VOCABULARY,
    "tuple": tuple(VOCABULARY),
    "ndarray": np.array(VOCABULARY),
    "objects": np.array(VOCABULARY, dtype=object),
    "Series": pd.Series(VOCABULARY, index=[7, 8]),
    "Index": pd.Index(VOCABULARY),
    "extension": pd.array(VOCABULARY, dtype="string"),
    "polars": pl.Series(VOCABULARY),
}
X = pd.DataFrame({"x": [1.0, 2.0], "c": VOCABULARY, "n": [0, 1]})


def power(x, exponents, scale=1):
    return x ** exponents[0] * scale


class Shift:
    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return x + self.by

    def __eq__(self, other):
        return isinstance(other, Shift) and other.by == self.by

    __hash__ = None


NORMALIZERS = {
    "none": None,
    "name": "standard",
    "ufunc": np.log1p,
    "builtin": abs,
    "lambda": lambda x: x / 2,
    "partial": partial(power, exponents=np.array([2])),
    "nested partial": partial(partial(power, exponents=[2]), scale=3),
    "object": Shift(1),
}


def numeric(**options):
    return fc.bucketized_column(fc.numeric_column("x", **options), [1.5])


def listed(vocabulary, **options):
    return fc.categorical_column_with_vocabulary_list("c", vocabulary, **options)


COLUMNS = {
    **{f"normalizer: {k}": numeric(normalizer=v) for k, v in NORMALIZERS.items()},
    "dtype": numeric(dtype=np.float64),
    "default": numeric(default_value="mean"),
    "boundaries": fc.bucketized_column(fc.numeric_column("x"), np.array([1, 2])),
    "quantiles": fc.bucketized_column(fc.numeric_column("x"), "quantiles:2"),
    "learned": listed(None, min_frequency=0.1, max_categories=2),
    "unknown": listed(VOCABULARY, num_oov_buckets=2),
    "delimiter": listed(VOCABULARY, delimiter="|"),
    "identity": fc.categorical_column_with_identity("n", 3, default_value=0),
    "hash": fc.categorical_column_with_hash_bucket("c", 3, "string"),
    "cross": fc.crossed_column([listed(pd.Series(VOCABULARY)), "n"], 9, 7),
    "weighted": fc.weighted_categorical_column(
        listed(pd.Index(VOCABULARY)), "x", np.float32
    ),
    "sequence": fc.sequence_categorical_column_with_vocabulary_list(
        "c", np.array(VOCABULARY)
    ),
}


@pytest.mark.parametrize("source", COLUMNS.values(), ids=COLUMNS.keys())
def test_two_columns_over_one_source(source):
    """Estimators clone their columns, each for itself."""
    assert same(source, clone(source))
    pair = [fc.indicator_column(source), fc.embedding_column(clone(source), 2)]
    for columns in (fc.FeatureColumns(pair), clone(fc.FeatureColumns(pair))):
        assert source.encoded_key in columns.fit(X).encode(X)


def test_shared_tables_of_cloned_columns():
    for vocabulary in LISTS.values():
        keys = [
            listed(vocabulary),
            fc.weighted_categorical_column(listed(vocabulary), "n"),
        ]
        columns = clone(fc.FeatureColumns(fc.shared_embeddings(keys, 2)))
        assert len(columns.fit(X).encode(X)) == 3
