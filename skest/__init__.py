# SPDX-License-Identifier: Apache-2.0
"""TensorFlow Estimators for scikit-learn and PyTorch.

Names are imported when they are first used, so that ``import skest`` is cheap.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skest.adapters.baseline import BaselineClassifier, BaselineRegressor
    from skest.adapters.dnn import DNNClassifier, DNNRegressor
    from skest.adapters.dnn_linear import (
        DNNLinearCombinedClassifier,
        DNNLinearCombinedRegressor,
    )
    from skest.adapters.linear import LinearClassifier, LinearRegressor
    from skest.adapters.rnn import RNNClassifier, RNNRegressor
    from skest.estimator import Estimator
    from skest.keys import ModeKeys
    from skest.run_config import RunConfig
    from skest.spec import EstimatorSpec

__version__ = "0.1.0"

__all__ = [
    "BaselineClassifier",
    "BaselineRegressor",
    "DNNClassifier",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "Estimator",
    "EstimatorSpec",
    "LinearClassifier",
    "LinearRegressor",
    "ModeKeys",
    "RNNClassifier",
    "RNNRegressor",
    "RunConfig",
]

_MODULES = {
    "BaselineClassifier": "adapters.baseline",
    "BaselineRegressor": "adapters.baseline",
    "DNNClassifier": "adapters.dnn",
    "DNNLinearCombinedClassifier": "adapters.dnn_linear",
    "DNNLinearCombinedRegressor": "adapters.dnn_linear",
    "DNNRegressor": "adapters.dnn",
    "Estimator": "estimator",
    "EstimatorSpec": "spec",
    "LinearClassifier": "adapters.linear",
    "LinearRegressor": "adapters.linear",
    "ModeKeys": "keys",
    "RNNClassifier": "adapters.rnn",
    "RNNRegressor": "adapters.rnn",
    "RunConfig": "run_config",
}
_SUBPACKAGES = (
    "adapters",
    "feature_columns",
    "heads",
    "hooks",
    "inputs",
    "metrics",
    "networks",
    "optimizers",
)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(importlib.import_module(f"skest.{_MODULES[name]}"), name)
        globals()[name] = value
        return value
    if name in _SUBPACKAGES:
        return importlib.import_module(f"skest.{name}")
    raise AttributeError(f"module 'skest' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBPACKAGES, "__version__"])
