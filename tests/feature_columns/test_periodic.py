# SPDX-License-Identifier: Apache-2.0
"""Periodic columns: the numbers of RealMLP's formula, and the networks that learn them."""

import copy
import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from skest.adapters import (
    DNNClassifier,
    DNNLinearCombinedClassifier,
    DNNRegressor,
    LinearClassifier,
)
from skest.exceptions import CheckpointMismatchError, NotFittedError
from skest.feature_columns import (
    DenseFeatures,
    FeatureColumns,
    LinearFeatures,
    numeric_column,
    periodic_column,
)

rng = np.random.default_rng(0)
AGE = numeric_column("age", default_value="mean", normalizer="robust")
PAIR = numeric_column("pair", 2, normalizer="standard")
X = {"age": rng.normal(40, 9, 60), "pair": rng.exponential(size=(60, 2))}
X["age"][::7] = np.nan
Y = (X["age"] > 40) ^ (X["pair"][:, 0] < 0.5)
PARAMETERS = ("frequencies", "phases", "weights", "bias")


def columns():
    return [periodic_column(AGE), periodic_column(PAIR, 3, 5, scale=2.0)]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def by_formula(x, variables):
    """Follow arXiv:2407.04491, number by number."""
    frequencies, phases, weights, bias = (variables[name] for name in PARAMETERS)
    rows = []
    for row in x:
        numbers = []
        for e, value in enumerate(row):
            waves = [
                np.cos(2 * np.pi * w * value + b)
                for w, b in zip(frequencies[e], phases[e], strict=True)
            ]
            numbers += [value, *(np.array(waves) @ weights[e] + bias[e])]
        rows.append(numbers)
    return np.array(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_are_those_of_the_paper(dtype):
    fitted = FeatureColumns(columns()).fit(X)
    dense = DenseFeatures(fitted, dtype, seeded(0))
    found = dense(fitted.encode(X, dtype)).detach()
    assert found.dtype == dtype
    assert dense.out_features == found.shape[1] == 4 + 2 * 3
    assert dense.feature_sizes == [4, 3, 3]
    state = {name: p.detach().numpy() for name, p in dense.named_parameters()}
    expected = np.hstack(
        [
            by_formula(source.fit(X).transform(X), {
                name: state[f"{source.name}_periodic.{name}"] for name in PARAMETERS
            })
            for source in (clone(AGE), clone(PAIR))
        ]
    )  # fmt: skip
    assert_allclose(found, expected, atol=1e-5 if dtype == torch.float32 else 1e-6)


def network(model=DNNClassifier, **parameters):
    settings = {"max_iter": 3, "random_state": 0, "feature_columns": columns()}
    settings |= {"optimizer": "adam", "learning_rate": 0.01}
    return model((8,), **settings | parameters)


def test_fitted_columns_transform_as_the_network_does():
    model = network().fit(X, Y)
    fitted = model.feature_columns_
    matrix = fitted.transform(X)
    dense = DenseFeatures(fitted, initialize=False)
    variables = model.estimator_.checkpoint.variables
    dense.load_state_dict(
        {name: variables[f"inputs.{name}"] for name, _ in dense.named_parameters()}
    )
    assert_allclose(matrix, dense(fitted.encode(X)).detach(), atol=1e-6)
    assert matrix.dtype == np.float32
    names = fitted.get_feature_names_out().tolist()
    assert names[:5] == [*(f"age_periodic_{i}" for i in range(4)), "pair_0_periodic_0"]
    assert len(names) == matrix.shape[1]
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.feature_columns_.transform(X), matrix)
    assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    with pytest.raises(ValueError, match="'age_periodic' has .* a network has learned"):
        copy.deepcopy(fitted).fit(X)
    for unlearned in (clone(fitted).fit(X), FeatureColumns(columns()).fit(X)):
        with pytest.raises(NotFittedError, match="because a network learns them"):
            unlearned.transform(X)


TINY = {"learning_rate": 1e-9, "max_steps": 1}


def test_a_warm_start_goes_on_from_it():
    old = network(DNNRegressor).fit(X, Y * 1.0)
    moved = X | {"age": X["age"] * 2 + 5}
    settings = {"warm_start_from": old, "random_state": 1} | TINY
    new = clone(old).set_params(**settings).fit(moved, Y * 1.0)
    assert not new.warm_start_report_.not_warm_started
    # The source has seen numbers in its own scale.
    assert_allclose(new.predict(X), old.predict(X), rtol=1e-3, atol=1e-3)
    more_waves = [periodic_column(AGE, 4, 20), columns()[1]]
    new = clone(old).set_params(feature_columns=more_waves, **settings)
    with pytest.raises(
        CheckpointMismatchError, match=r"age_periodic.phases: \(1, 16\)"
    ):
        new.fit(X, Y * 1.0)


def test_linear_models_refuse_it():
    message = "Column 'age_periodic' .* LinearFeatures cannot take.*bucketized_column"
    with pytest.raises(ValueError, match=message):
        LinearFeatures(FeatureColumns(columns()).fit(X))
    for model in (
        LinearClassifier(feature_columns=columns()),
        DNNLinearCombinedClassifier(
            linear_feature_columns=columns(), dnn_feature_columns=[PAIR]
        ),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(X, Y)


def test_parameters_refused():
    for source, options, error, message in [
        ("x", {}, TypeError, "must come from numeric_column; got 'x'"),
        (AGE, {"dimension": 1}, ValueError, "'dimension' of periodic column 'age'"),
        (AGE, {"dimension": 2.5}, TypeError, "'dimension' of periodic column 'age'"),
        (AGE, {"n_frequencies": 0}, ValueError, "'n_frequencies' of periodic column"),
        (AGE, {"scale": 0}, ValueError, "'scale' of periodic column 'age' .* be a fi"),
        (AGE, {"scale": "auto"}, TypeError, "'scale' of periodic column 'age'"),
    ]:
        with pytest.raises(error, match=message):
            periodic_column(source, **options)
