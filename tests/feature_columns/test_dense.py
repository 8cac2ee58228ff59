# SPDX-License-Identifier: Apache-2.0
import functools

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skest import feature_columns as fc

IDENTITY = fc.categorical_column_with_identity("c", 3)


def test_automatic_dimension():
    for num_buckets, dimension in [(1, 6), (2, 7), (16, 12), (81, 16), (10**6, 16)]:
        categorical = fc.categorical_column_with_identity("c", num_buckets)
        assert fc.embedding_column(categorical, "auto").size == dimension


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_initial_weights(dtype):
    column = fc.embedding_column(fc.categorical_column_with_identity("c", 5000), 4)
    before = torch.get_rng_state()
    first, second = (
        column.initial_weights(torch.Generator().manual_seed(1), dtype)
        for _ in range(2)
    )
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, second)
    assert first.shape == (5000, 4)
    assert first.dtype == dtype
    assert first.abs().max() <= 1.0  # two standard deviations of 1 / sqrt(4)
    expected = stats.truncnorm(-2, 2, scale=0.5)
    assert stats.kstest(first.flatten().numpy(), expected.cdf).pvalue > 0.01


init = torch.nn.init


def test_an_initializer_that_returns_another_tensor():
    column = fc.embedding_column(IDENTITY, 2, initializer=lambda t: torch.zeros(3, 2))
    with pytest.raises(TypeError, match="must fill the tensor that it is given"):
        column.initial_weights(torch.Generator(), torch.float32)


def test_initializers_draw_from_the_generator():
    for initializer in [
        init.normal_,
        functools.partial(init.trunc_normal_, std=0.1),
        lambda weights, generator: weights.normal_(generator=generator),
        lambda weights, source: weights.normal_(generator=source),
    ]:
        column = fc.embedding_column(IDENTITY, 2, initializer=initializer)
        before = torch.get_rng_state()
        first, same, other = (
            column.initial_weights(torch.Generator().manual_seed(seed), torch.float32)
            for seed in (1, 1, 2)
        )
        assert torch.equal(before, torch.get_rng_state())
        assert torch.equal(first, same)
        assert not torch.equal(first, other)


def test_transform_gives_learned_vectors():
    column = fc.embedding_column(IDENTITY, 2, combiner="sum", max_norm=5)
    X = {"c": np.array([[0, 1], [2, -1], [-1, -1]])}
    with pytest.raises(NotFittedError, match="'c_embedding' has .* .*FrozenEstimator"):
        column.fit(X).transform(X)
    column.weights_ = np.array([[1, 0], [0, 2], [6, 8]], dtype=np.float32)
    assert_allclose(column.transform(X), [[1, 2], [3, 4], [0, 0]])
    names = ["c_embedding_0", "c_embedding_1"]
    assert column.get_feature_names_out().tolist() == names


def test_learned_vectors_are_not_lost_by_another_fit():
    X = {"c": np.array([0, 2])}
    column = fc.embedding_column(IDENTITY, 1)
    columns = fc.FeatureColumns([column]).fit(X)
    fitted = columns.active[0]
    fitted.weights_ = np.array([[1.0], [2.0], [3.0]])
    for learned in (columns, fitted):
        with pytest.raises(ValueError, match=r"'c_embedding' has vectors .*Frozen"):
            learned.fit(X)
        with pytest.raises(ValueError, match=r"'c_embedding' has vectors .*Frozen"):
            learned.fit_transform(X)
        assert learned.transform(X).tolist() == [[1], [3]]
        clone(learned).fit(X)
        kept = make_pipeline(FrozenEstimator(learned), StandardScaler()).fit(X)
        assert kept.transform(X).tolist() == [[-1], [1]]


def test_parameters_refused():
    for options, error, message in [
        ({"dimension": 1.5}, TypeError, "'dimension' .*; got 1.5"),
        ({"initializer": "normal"}, TypeError, "'initializer' .* Got 'normal'"),
        (
            {"initializer": init.constant_},
            TypeError,
            "partial.* Got <function constant_",
        ),
        *[
            (
                {"initializer": function},
                TypeError,
                "a tensor and a generator; set other",
            )
            for function in (
                lambda: 0,
                lambda a, b, c: a,
                lambda a, *, scale: a,
                lambda *, generator: 0,
                init.sparse_,
            )
        ],
        ({"max_norm": 0}, ValueError, "'max_norm' .* greater than 0; got 0"),
    ]:
        with pytest.raises(error, match=message):
            fc.embedding_column(
                **{"categorical_column": IDENTITY, "dimension": 2, **options}
            )
