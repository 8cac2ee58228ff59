# SPDX-License-Identifier: Apache-2.0
"""What became of names and arguments of tf.estimator that skest does not have.

Who ports a program types them. The error of Python says that they are not there; with
these tables it says what to write instead.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeVar

_EXPORTS_RAW = (
    "leave it out: an export takes raw columns by name, as the batches have them"
)
_BOOSTING = "use scikit-learn's HistGradientBoosting estimators"
_IN_EXPORT, _IN_HEADS, _IN_HOOKS = (
    f"it is in skest.{package}" for package in ("export", "heads", "hooks")
)
_NO_EXAMPLES = "leave it out: there is no tf.Example; features are arrays and tables"

_ATTRIBUTES: dict[str, dict[str, str]] = {
    "skest": {
        "BoostedTreesClassifier": _BOOSTING,
        "BoostedTreesRegressor": _BOOSTING,
        "RNNEstimator": "use skest.canned.rnn_model_fn in a skest.Estimator",
        "classifier_parse_example_spec": _NO_EXAMPLES,
        "experimental": "use skest.hooks for hooks, skest.RNNClassifier, skest.LinearSDCA",
        "feature_column": "it is called skest.feature_columns",
        "regressor_parse_example_spec": _NO_EXAMPLES,
        **dict.fromkeys(
            ["BestExporter", "Exporter", "FinalExporter", "LatestExporter"], _IN_EXPORT
        ),
        **dict.fromkeys(
            [
                "BinaryClassHead",
                "Head",
                "LogisticRegressionHead",
                "MultiClassHead",
                "MultiHead",
                "MultiLabelHead",
                "PoissonRegressionHead",
                "RegressionHead",
            ],
            _IN_HEADS,
        ),
        **dict.fromkeys(
            [
                "CheckpointSaverHook",
                "FinalOpsHook",
                "GlobalStepWaiterHook",
                "ProfilerHook",
                "StepCounterHook",
                "StopAtStepHook",
                "SummarySaverHook",
            ],
            _IN_HOOKS,
        ),
        "LoggingTensorHook": "use skest.hooks.LoggingHook",
        "NanTensorHook": "use skest.hooks.NanLossHook",
        "SessionRunHook": "use skest.hooks.Hook",
    },
    "skest.export": dict.fromkeys(
        [
            "ServingInputReceiver",
            "TensorServingInputReceiver",
            "build_parsing_serving_input_receiver_fn",
            "build_raw_serving_input_receiver_fn",
        ],
        _EXPORTS_RAW,
    ),
    "skest.feature_columns": {
        "input_layer": "use the module skest.feature_columns.DenseFeatures",
        "linear_model": "use the module skest.feature_columns.LinearFeatures",
        "make_parse_example_spec": _NO_EXAMPLES,
        "sequence_input_layer": "use the module skest.feature_columns.SequenceFeatures",
        "shared_embedding_columns": "it is called shared_embeddings",
    },
    "skest.heads": {
        "binary_classification_head": "use BinaryClassHead",
        "multi_class_head": "use MultiClassHead",
        "multi_label_head": "use MultiLabelHead",
        "poisson_regression_head": "use PoissonRegressionHead",
        "regression_head": "use RegressionHead",
    },
    "skest.hooks": {
        "CheckpointSaverListener": "it is called CheckpointListener",
        "FeedFnHook": "let input_fn return the batches",
        "LoggingTensorHook": "it is called LoggingHook",
        "NanTensorHook": "it is called NanLossHook",
        "SecondOrStepTimer": "it is called Timer",
        "SessionRunHook": "it is called Hook",
    },
}


def no_attribute(module: str, name: str) -> AttributeError:
    """Return the error for a name that a module does not have.

    Parameters
    ----------
    module, name : str
        Where it was looked for, and which name.

    Examples
    --------
    >>> from skest.core.tf_names import no_attribute
    >>> no_attribute("skest.hooks", "NanTensorHook")  # doctest: +ELLIPSIS
    AttributeError("module 'skest.hooks' has no attribute ...; it is called NanLossHook.")
    """
    text = f"module {module!r} has no attribute {name!r}"
    hint = _ATTRIBUTES.get(module, {}).get(name)
    return AttributeError(text if hint is None else f"{text}; {hint}.")


class FormerMethod:
    """Stands in a class where its namesake had a method; to Python it is not there.

    Parameters
    ----------
    hint : str
        What to call instead.
    """

    def __init__(self, hint: str) -> None:
        self._hint, self._name = hint, ""

    def __set_name__(self, owner: type, name: str) -> None:
        """Learn the name of the method."""
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        """Raise the error for a missing attribute."""
        raise AttributeError(
            f"{owner.__name__!r} object has no attribute {self._name!r}; {self._hint}."
        )


_F = TypeVar("_F", bound=Callable[..., Any])


def former_arguments(**former: str) -> Callable[[_F], _F]:
    """Return a decorator: a function says what became of arguments of its namesake.

    Parameters
    ----------
    **former : str
        What to do instead, by the name of the argument.

    Examples
    --------
    >>> from skest.core.tf_names import former_arguments
    >>> @former_arguments(normalizer_fn="use 'normalizer'")
    ... def column(key, normalizer=None):
    ...     return key
    >>> column("age", normalizer_fn=abs)
    Traceback (most recent call last):
        ...
    TypeError: column has no argument 'normalizer_fn'; use 'normalizer'.
    """

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            _refuse(function.__name__, kwargs, former)
            return function(*args, **kwargs)

        return checked  # type: ignore[return-value]

    return decorate


class FormerArguments:
    """A base of classes that say what became of arguments of their namesakes."""

    _former_arguments: ClassVar[Mapping[str, str]] = {}

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse arguments that are not there any more, unless a subclass has them."""
        former = cls._former_arguments
        if former.keys() & kwargs:
            own = inspect.signature(cls.__init__).parameters
            if all(own[name].kind is not inspect.Parameter.VAR_KEYWORD for name in own):
                given = {name: None for name in kwargs if name not in own}
                _refuse(cls.__name__, given, former)
        return super().__new__(cls)


def _refuse(called: str, given: Mapping[str, Any], former: Mapping[str, str]) -> None:
    for name in given:
        if name in former:
            raise TypeError(f"{called} has no argument {name!r}; {former[name]}.")
