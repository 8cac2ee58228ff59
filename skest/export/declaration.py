# SPDX-License-Identifier: Apache-2.0
"""Fitted estimators as JSON and safetensors, and back, without pickle.

What is exported beside the graph: parameters, columns with what they learned, and the
target. Only classes that are listed here are made from a file, and none of them runs what
it is given.
"""

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load as read_tensors

from skest.checkpoints import Checkpoint
from skest.cluster import TaskConfig
from skest.exceptions import ArtifactError, ExportError
from skest.export.artifact import read_artifact, version_at
from skest.export.external_weights import without_constants
from skest.export.plain_json import KIND, descriptions_in, from_json, to_json, to_text
from skest.export.rebuilt_check import check_predicts, check_trained
from skest.export.unicode_names import explained_unicode
from skest.export.vocabulary_words import check_ids, columns_of_files, with_words
from skest.model_fn import model_fn_arguments
from skest.plain_state import class_named, from_plain, to_plain
from skest.run_config import RunConfig

__all__ = [
    "DECLARATION",
    "WEIGHTS",
    "declaration_or_reason",
    "declare",
    "declare_core",
    "described",
    "rebuilt",
    "to_estimator",
]

DECLARATION = "columns.json"
WEIGHTS = "weights.safetensors"

_SCHEMA = "skest.estimator/1"
_CLASSES = (
    "skest.adapters.",
    "skest.feature_columns.",
    "skest.heads.",
    "skest.losses:",
    "skest.schedules:CosineCycles",
    "skest.sdca:LinearSDCA",
    "skest.export.inputs:Form",
    "skest.export.inputs:InputSpec",
    "skest.export.encoders:",
    "skest.export.class_outputs:ClassOutput",
    "skest.run_config:RunConfig",
    "skest.cluster:",
    "skest.checkpoints:Checkpoint",
)
# Parameters that say how to train on this machine, not what the model is.
_LOCAL = {
    "hooks": (),
    "config": None,
    "warm_start_from": None,
    "random_state": None,
    "device": "auto",
}
_CALLBACKS = "_skl_callbacks"  # where scikit-learn keeps those of `set_callbacks`
# The parameter that is a function of the user's, whom it is asked from again.
_FUNCTION = "model_fn"
_CORE_ESTIMATOR = "skest.estimator:Estimator"


def declare(estimator: Any) -> bytes:
    """Describe a fitted estimator, but for its variables, as JSON.

    Parameters
    ----------
    estimator : SkestEstimator
        Fitted.

    Returns
    -------
    bytes
        What ``columns.json`` holds.

    Raises
    ------
    ExportError
        If a part of it is no data, as a function of the user's. What says how to train
        here is left out instead: `hooks`, callbacks, `config`, `device`,
        `warm_start_from`, a `random_state` that is no number; and so is `model_fn`.

    Examples
    --------
    >>> import json
    >>> import numpy as np
    >>> from skest import LinearRegressor
    >>> from skest.export.declaration import declare
    >>> X = np.arange(8.0).reshape(-1, 1)
    >>> model = LinearRegressor(max_iter=1).fit(X, X[:, 0])
    >>> json.loads(declare(model))["estimator"]
    'skest.adapters.linear:LinearRegressor'
    """
    state = dict(estimator.__getstate__())
    core = estimator.estimator_
    state |= {
        "_core": _core_state(core.config, core.checkpoint),
        "warm_start_report_": None,
    }
    _leave_out_local(state)
    for parameters in (state, state["_params_in_fit"]):
        if _FUNCTION in parameters:
            parameters[_FUNCTION] = None
    kind = type(estimator)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if not name.startswith(_CLASSES):
        raise ExportError(f"Only estimators of skest can be described; got {name}.")
    return _as_json(name, state)


def declare_core(
    params: Mapping[str, Any], config: RunConfig, checkpoint: Checkpoint
) -> bytes:
    """Describe an `Estimator`, but for its function and its variables, as JSON.

    Parameters
    ----------
    params : dict
        Its hyperparameters.
    config : RunConfig
        Its settings.
    checkpoint : Checkpoint
        What is exported.

    Returns
    -------
    bytes
        What ``columns.json`` holds.

    Raises
    ------
    ExportError
        If one of the hyperparameters is no data.
    """
    state = {
        "params": to_plain(dict(params)),
        _FUNCTION: None,
        "_core": _core_state(config, checkpoint),
    }
    return _as_json(_CORE_ESTIMATOR, state)


def declaration_or_reason(
    describe: Callable[[], bytes],
) -> tuple[bytes | None, dict[str, str]]:
    """Return a description; or None, and why there is none for the manifest."""
    try:
        return describe(), {}
    except ExportError as error:
        return None, {"not_rebuilt": str(error)}


def _leave_out_local(state: dict[str, Any]) -> None:
    """Take from an estimator's state what no export says, and none may say."""
    state["model_dir_"] = None
    state.pop(_CALLBACKS, None)
    for parameters in (state, state["_params_in_fit"]):
        for name in _LOCAL.keys() & parameters.keys():
            if name != "random_state" or not isinstance(parameters[name], int):
                parameters[name] = _LOCAL[name]


def _portable(config: RunConfig) -> RunConfig:
    return config.replace(
        model_dir=None,
        device="auto",
        keep_best=None,
        task=TaskConfig(),
        train_distribute=None,
        eval_distribute=None,
    )


def _core_state(config: RunConfig, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what is said of a core Estimator; the variables are in another file."""
    # A fine-tuning begins with fresh slots.
    without_variables = Checkpoint(checkpoint.global_step, {})
    return {
        "config": to_plain(_portable(config)),
        "checkpoint": to_plain(without_variables),
    }


def _as_json(name: str, state: Mapping[str, Any]) -> bytes:
    text, descriptions = to_text(state, name)
    try:
        _check_classes(descriptions)
    except ValueError as error:
        raise ExportError(f"{name} can't be described: {error}.") from error
    columns = columns_of_files(descriptions)
    if columns:
        text, _ = to_text(with_words(state, columns), name)
    head = f'"schema": "{_SCHEMA}", "estimator": {json.dumps(name)}'
    with explained_unicode():
        return f'{{{head}, "state": {text}}}'.encode()


def to_estimator(
    path: str | os.PathLike[str],
    *,
    model_fn: Any = None,
    trusted_manifest_sha256: str | Collection[str] | None = None,
    max_bytes: int = 16 * 2**30,
) -> Any:
    """Build the estimator that was exported, to predict with it or to train it further.

    Parameters
    ----------
    path : str or path
        A version, or the directory of the versions (then the newest is taken).
    model_fn : callable, default=None
        The model function of a `ModelFnClassifier`, a `ModelFnRegressor` or an
        `Estimator`: code is not in an export. Others take none.
    trusted_manifest_sha256 : str or collection of str, optional
        See `skest.export.load`.
    max_bytes : int, default=16 GiB
        Larger versions are refused.

    Returns
    -------
    SkestEstimator or Estimator
        Fitted, as it was exported. The state of its optimizers is not in an export.

    Raises
    ------
    ArtifactError
        If the version is damaged, was exported from something that can't be described,
        or describes anything but an estimator of skest.
    ValueError
        If `model_fn` is needed and not given, given and not needed, or has other
        arguments than a model function.
    TypeError
        If `model_fn` is not callable.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np, pytest
    >>> _ = pytest.importorskip("onnxruntime")
    >>> from skest import LinearRegressor
    >>> from skest.export import to_estimator
    >>> X = np.arange(8.0).reshape(-1, 1)
    >>> model = LinearRegressor(max_iter=1).fit(X, X[:, 0])
    >>> with tempfile.TemporaryDirectory() as base:
    ...     _ = model.export(base)
    ...     again = to_estimator(base)
    >>> bool((again.predict(X) == model.predict(X)).all())
    True
    """
    directory = version_at(path)
    artifact = read_artifact(
        directory,
        trusted_manifest_sha256=trusted_manifest_sha256,
        max_bytes=max_bytes,
        weights=[WEIGHTS],
    )
    if DECLARATION not in artifact.texts:
        why = artifact.manifest.get("model", {}).get(
            "not_rebuilt", "It has no description"
        )
        raise ArtifactError(
            f"{str(directory)!r} can't be made an estimator again. "
            f"{str(why).rstrip('.')}. It can be run by `skest.export.load`."
        )
    try:
        content = json.loads(artifact.texts[DECLARATION])
        state = _read_state(content)
        state["_core"]["checkpoint"] = _checkpoint(artifact.weights[WEIGHTS], state)
    except Exception as error:  # a wrong file can end in any
        raise _unfit(directory, error) from error
    _check_function(directory, content["estimator"], state, model_fn)
    try:
        built = _built(content["estimator"], state, model_fn)
        if content["estimator"] != _CORE_ESTIMATOR:
            check_trained(built)
        if _FUNCTION not in state:  # else what it does with rows is the user's code
            check_predicts(built, artifact)
        return built
    except Exception as error:
        raise _unfit(directory, error) from error


def _unfit(directory: Path, error: Exception) -> ArtifactError:
    return ArtifactError(
        f"{str(directory)!r} describes no estimator of skest: {error!r}"
    )


def _read_state(content: Mapping[str, Any]) -> dict[str, Any]:
    if content["schema"] != _SCHEMA:
        raise ValueError(f"its schema is {content['schema']!r}, not {_SCHEMA!r}")
    state = from_json(content["state"])
    descriptions = list(descriptions_in(state))
    if content["estimator"] != _CORE_ESTIMATOR:
        descriptions.append({KIND: content["estimator"]})
    _check_classes(descriptions)
    if columns_of_files(descriptions):
        raise ValueError("it names a vocabulary file; exports have the words of them")
    check_ids(state)
    # Where files are written, and who takes part in a training, whoever trains decides.
    if content["estimator"] != _CORE_ESTIMATOR:
        _leave_out_local(state)
    core = state["_core"]
    core["config"] = to_plain(_portable(from_plain(core["config"])))
    return dict(state)


def _checkpoint(weights: bytes, state: Mapping[str, Any]) -> Any:
    # The very bytes whose digest was compared: a mapped file may be written to later.
    variables = without_constants(read_tensors(weights))
    step = state["_core"]["checkpoint"]["state"]["global_step"]
    if type(step) is not int:
        raise TypeError(f"its step is {step!r}")
    return to_plain(Checkpoint(step, variables))


def _check_function(
    directory: Path, name: str, state: Mapping[str, Any], model_fn: Any
) -> None:
    name = name.rpartition(":")[2]
    if _FUNCTION not in state:
        if model_fn is not None:
            raise ValueError(f"{name} has no 'model_fn'; leave it out.")
        return
    if model_fn is None:
        raise ValueError(
            f"{str(directory)!r} was exported from {name}, whose model function is code "
            "and not in the files. Pass it as 'model_fn'."
        )
    params = state.get("params")
    model_fn_arguments(model_fn, params if isinstance(params, dict) else None)


def _built(name: str, state: dict[str, Any], model_fn: Any) -> Any:
    if name != _CORE_ESTIMATOR:
        if _FUNCTION in state:
            state[_FUNCTION] = state["_params_in_fit"][_FUNCTION] = model_fn
        return from_plain({KIND: name, "state": state})
    core, params = from_plain(state["_core"]), from_plain(state["params"])
    estimator = class_named(name)(model_fn, config=core["config"], params=params)
    estimator.checkpoint = core["checkpoint"]
    return estimator


def described(value: Any, where: str) -> Any:
    """Return objects of skest as JSON can hold them.

    Parameters
    ----------
    value : object
        Any nest of them, with plain data and arrays.
    where : str
        What errors call it.

    Raises
    ------
    ExportError
        If a part is no data.
    """
    return to_json(to_plain(value), where)


def rebuilt(value: Any) -> Any:
    """Return what `described` was given.

    Raises
    ------
    ValueError, TypeError, KeyError, AttributeError, RecursionError
        If it is something else, or names anything but parts of an estimator.
    """
    description = from_json(value)
    _check_classes(descriptions_in(description))
    return from_plain(description)


def _check_classes(descriptions: Iterable[Mapping[str, Any]]) -> None:
    """Refuse descriptions of objects that are no part of an estimator."""
    for description in descriptions:
        name = description[KIND]
        if not isinstance(name, str) or not (
            name in ("dict", "path", "tensor") or name.startswith(_CLASSES)
        ):
            raise ValueError(f"it names {name!r}, which is no part of an estimator")
