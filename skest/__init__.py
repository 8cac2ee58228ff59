# SPDX-License-Identifier: Apache-2.0
"""TensorFlow Estimators for scikit-learn and PyTorch.

Names are imported when they are first used, so that ``import skest`` is cheap.
"""

import importlib
from typing import TYPE_CHECKING, Any

from skest._former_names import no_attribute

if TYPE_CHECKING:
    from skest._version import __version__
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
    from skest.estimator import Estimator
    from skest.extenders import add_metrics
    from skest.keep_best import KeepBest
    from skest.keys import ModeKeys
    from skest.run_config import RunConfig
    from skest.sdca import LinearSDCA
    from skest.spec import EstimatorSpec
    from skest.train_eval import train_and_evaluate
    from skest.train_eval_specs import EvalSpec, TrainSpec
    from skest.vocab_info import VocabInfo
    from skest.warm_start import WarmStartSettings

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
    "BaselineClassifier": "adapters.baseline",
    "BaselineEstimator": "adapters.baseline",
    "BaselineRegressor": "adapters.baseline",
    "DNNClassifier": "adapters.dnn",
    "DNNEstimator": "adapters.dnn",
    "DNNLinearCombinedClassifier": "adapters.dnn_linear",
    "DNNLinearCombinedEstimator": "adapters.dnn_linear",
    "DNNLinearCombinedRegressor": "adapters.dnn_linear",
    "DNNRegressor": "adapters.dnn",
    "Estimator": "estimator",
    "EstimatorSpec": "spec",
    "EvalSpec": "train_eval_specs",
    "KeepBest": "keep_best",
    "LinearClassifier": "adapters.linear",
    "LinearEstimator": "adapters.linear",
    "LinearRegressor": "adapters.linear",
    "LinearSDCA": "sdca",
    "ModeKeys": "keys",
    "ModelFnClassifier": "adapters.model_fn",
    "ModelFnRegressor": "adapters.model_fn",
    "MultiHeadEstimator": "adapters.multi_head",
    "RNNClassifier": "adapters.rnn",
    "RNNRegressor": "adapters.rnn",
    "RunConfig": "run_config",
    "TrainSpec": "train_eval_specs",
    "VocabInfo": "vocab_info",
    "WarmStartSettings": "warm_start",
    "__version__": "_version",
    "add_metrics": "extenders",
    "train_and_evaluate": "train_eval",
}
_SUBPACKAGES = (
    "adapters",
    "distributed",
    "export",
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
    raise no_attribute(__name__, name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBPACKAGES])
