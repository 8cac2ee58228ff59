# SPDX-License-Identifier: Apache-2.0
"""The scikit-learn face of skest.

`fit` (`base`) reads ``X`` into columns by key (`features`), which one `Table` reads from
then on, and with ``y`` and the weights into validated rows (`reader`, `distinct`); it finds
the head for ``y`` (`targets`), chooses what is "auto" (`recipe`), fits the feature columns,
and trains a core `Estimator` with a canned model function (`fit`, `epochs`). `predict` and
its kin ask that Estimator. Everything else here is parameters, each declared once
(`parameters`), and what scikit-learn asks of an estimator.
"""

from skest.adapters.dnn import (
    DNNClassifier,
    DNNEstimator,
    DNNRegressor,
    MultiHeadEstimator,
)
from skest.adapters.dnn_linear import (
    DNNLinearCombinedClassifier,
    DNNLinearCombinedEstimator,
    DNNLinearCombinedRegressor,
)
from skest.adapters.linear import (
    BaselineClassifier,
    BaselineEstimator,
    BaselineRegressor,
    LinearClassifier,
    LinearEstimator,
    LinearRegressor,
)
from skest.adapters.model_fn import ModelFnClassifier, ModelFnRegressor
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
