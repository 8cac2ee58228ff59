# SPDX-License-Identifier: Apache-2.0
"""TensorFlow Estimators for scikit-learn and PyTorch.

Names are imported when they are first used, so that ``import skest`` is cheap.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skest._version import __version__
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
    from skest.canned.sdca import LinearSDCA
    from skest.checkpoints.vocab_info import VocabInfo
    from skest.checkpoints.warm_start import WarmStartSettings
    from skest.config.run_config import KeepBest, RunConfig
    from skest.estimators.estimator import Estimator
    from skest.estimators.evaluations import EvalSpec
    from skest.estimators.extenders import add_metrics
    from skest.estimators.train_and_evaluate import TrainSpec, train_and_evaluate
    from skest.keys import ModeKeys
    from skest.spec import EstimatorSpec

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
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "KeepBest",
    "LinearClassifier",
    "LinearEstimator",
    "LinearRegressor",
    "LinearSDCA",
    "ModeKeys",
    "ModelFnClassifier",
    "ModelFnRegressor",
    "MultiHeadEstimator",
    "RNNClassifier",
    "RNNRegressor",
    "RunConfig",
    "TrainSpec",
    "VocabInfo",
    "WarmStartSettings",
    "__version__",
    "add_metrics",
    "train_and_evaluate",
]

_MODULES = {
    "BaselineClassifier": "adapters.linear",
    "BaselineEstimator": "adapters.linear",
    "BaselineRegressor": "adapters.linear",
    "DNNClassifier": "adapters.dnn",
    "DNNEstimator": "adapters.dnn",
    "DNNLinearCombinedClassifier": "adapters.dnn_linear",
    "DNNLinearCombinedEstimator": "adapters.dnn_linear",
    "DNNLinearCombinedRegressor": "adapters.dnn_linear",
    "DNNRegressor": "adapters.dnn",
    "Estimator": "estimators.estimator",
    "EstimatorSpec": "spec",
    "EvalSpec": "estimators.evaluations",
    "KeepBest": "config.run_config",
    "LinearClassifier": "adapters.linear",
    "LinearEstimator": "adapters.linear",
    "LinearRegressor": "adapters.linear",
    "LinearSDCA": "canned.sdca",
    "ModeKeys": "keys",
    "ModelFnClassifier": "adapters.model_fn",
    "ModelFnRegressor": "adapters.model_fn",
    "MultiHeadEstimator": "adapters.dnn",
    "RNNClassifier": "adapters.rnn",
    "RNNRegressor": "adapters.rnn",
    "RunConfig": "config.run_config",
    "TrainSpec": "estimators.train_and_evaluate",
    "VocabInfo": "checkpoints.vocab_info",
    "WarmStartSettings": "checkpoints.warm_start",
    "__version__": "_version",
    "add_metrics": "estimators.extenders",
    "train_and_evaluate": "estimators.train_and_evaluate",
}
_SUBPACKAGES = (
    "adapters",
    "canned",
    "displays",
    "distributed",
    "export",
    "feature_columns",
    "heads",
    "hooks",
    "inputs",
    "metrics",
    "model_selection",
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
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBPACKAGES])
