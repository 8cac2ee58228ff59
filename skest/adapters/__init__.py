# SPDX-License-Identifier: Apache-2.0
"""The scikit-learn face of skest.

`fit` reads ``X`` and ``y`` into validated rows, finds the head for ``y`` (`targets`), fits
the feature columns and trains a core `Estimator` with a canned model function; `predict`
and its kin ask that Estimator. Everything else here is parameters, and what scikit-learn
asks of an estimator.
"""

from skest.adapters.baseline import (
    BaselineClassifier,
    BaselineEstimator,
    BaselineRegressor,
)
from skest.adapters.dnn import DNNClassifier, DNNEstimator, DNNRegressor
from skest.adapters.dnn_linear import (
    DNNLinearCombinedClassifier,
    DNNLinearCombinedEstimator,
    DNNLinearCombinedRegressor,
)
from skest.adapters.linear import LinearClassifier, LinearEstimator, LinearRegressor
from skest.adapters.model_fn import ModelFnClassifier, ModelFnRegressor
from skest.adapters.multi_head import MultiHeadEstimator
from skest.adapters.rnn import RNNClassifier, RNNRegressor

__all__ = [
    "BaselineClassifier",
    "BaselineEstimator",
    "BaselineRegressor",
    "DNNClassifier",
    "DNNEstimator",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedEstimator",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "LinearClassifier",
    "LinearEstimator",
    "LinearRegressor",
    "ModelFnClassifier",
    "ModelFnRegressor",
    "MultiHeadEstimator",
    "RNNClassifier",
    "RNNRegressor",
]
