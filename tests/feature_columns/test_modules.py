# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest
import torch
from torch import nn

from skest import feature_columns as fc
from skest.feature_columns.modules import parameter_name

IDENTITY = fc.categorical_column_with_identity("k", 4)
X = {"k": np.array([0, 3, -1]), "x": np.array([0.5, -1.0, 2.0])}


def dense_columns():
    number = fc.numeric_column("x")
    return fc.FeatureColumns(
        [
            number,
            fc.bucketized_column(number, [0.0]),
            fc.indicator_column(IDENTITY),
            fc.embedding_column(IDENTITY, 2),
        ]
    )


AWKWARD = ["a.b", "a%2Eb", "type", "keys", "bias", "", "é x/y", "dense", "forward"]


def test_awkward_names_of_columns():
    for name in AWKWARD:
        for make in [fc.DenseFeatures, fc.LinearFeatures]:
            categorical = fc.categorical_column_with_identity(name, 3)
            column = (
                fc.embedding_column(categorical, 2)
                if make is fc.DenseFeatures
                else categorical
            )
            module = make([column])
            assert list(module.column_parameters()) == [column.name]
            assert parameter_name(column.name) in module.state_dict()
            assert module(fc.FeatureColumns([column]).encode({name: [1]})).shape[0] == 1


def test_units_are_at_least_one():
    with pytest.raises(ValueError, match="'units' .* at least 1; got 0"):
        fc.LinearFeatures([IDENTITY], 0)


def test_the_floating_type_may_change():
    for module_class in [fc.DenseFeatures, fc.LinearFeatures]:
        columns = dense_columns()
        module = module_class(columns)
        network = nn.Sequential(module).double()
        assert network(columns.encode(X, torch.float64)).dtype == torch.float64
        assert network.float()(columns.encode(X)).dtype == torch.float32
