# SPDX-License-Identifier: Apache-2.0
"""The scikit-learn face of skest."""

from skest.adapters.baseline import BaselineClassifier, BaselineRegressor
from skest.adapters.dnn import DNNClassifier, DNNRegressor
from skest.adapters.dnn_linear import (
    DNNLinearCombinedClassifier,
    DNNLinearCombinedRegressor,
)
from skest.adapters.linear import LinearClassifier, LinearRegressor
from skest.adapters.rnn import RNNClassifier, RNNRegressor

__all__ = [
    "BaselineClassifier",
    "BaselineRegressor",
    "DNNClassifier",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "LinearClassifier",
    "LinearRegressor",
    "RNNClassifier",
    "RNNRegressor",
]
