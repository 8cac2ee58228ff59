# SPDX-License-Identifier: Apache-2.0
"""What became of names of tf.estimator that skest does not have.

Who ports a program types them. The error of Python says that they are not there; with
these tables it says what to write instead.
"""

from typing import TYPE_CHECKING, Any

__all__ = ["FormerAttributes", "no_attribute"]

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
        "RNNEstimator": "use skest.adapters.rnn.rnn_model_fn in a skest.Estimator",
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
    "Estimator": {
        "experimental_export_all_saved_models": "use export(base)",
        "export_saved_model": "use export(base), which writes an ONNX graph",
        "export_savedmodel": "use export(base), which writes an ONNX graph",
    },
}


def no_attribute(owner: str, name: str) -> AttributeError:
    """Return the error for a name that a module or an object does not have.

    Parameters
    ----------
    owner : str
        Name of the module, or of the class of the object.
    name : str
        Which name.

    Examples
    --------
    >>> from skest._former_names import no_attribute
    >>> no_attribute("skest.hooks", "NanTensorHook")  # doctest: +ELLIPSIS
    AttributeError("module 'skest.hooks' has no attribute ...; it is called NanLossHook.")
    """
    subject = f"module {owner!r}" if owner.startswith("skest") else f"{owner!r} object"
    text = f"{subject} has no attribute {name!r}"
    hint = _ATTRIBUTES.get(owner, {}).get(name)
    return AttributeError(text if hint is None else f"{text}; {hint}.")


class FormerAttributes:
    """A base of classes that say what became of methods of their namesakes."""

    if not TYPE_CHECKING:  # which would take any attribute for one that is there

        def __getattr__(self, name: str) -> Any:
            """Raise the error; Python asks for what it does not find otherwise."""
            found = [base.__name__ for base in type(self).__mro__]
            owner = next((own for own in found if own in _ATTRIBUTES), found[0])
            raise no_attribute(owner, name)
