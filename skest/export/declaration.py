# SPDX-License-Identifier: Apache-2.0
"""Fitted estimators as JSON and safetensors, and back, without pickle.

What is exported beside the graph: parameters, columns with what they learned, and the
target. Only classes that are listed here are made from a file, and none of them runs what
it is given.
"""

import base64
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from skest.checkpoints import Checkpoint
from skest.exceptions import ArtifactError, ExportError
from skest.export.artifact import read_artifact, version_at
from skest.export.external_weights import without_constants
from skest.plain_state import from_plain, to_plain

__all__ = ["DECLARATION", "WEIGHTS", "declare", "to_estimator"]

DECLARATION = "columns.json"
WEIGHTS = "weights.safetensors"

_SCHEMA = "skest.estimator/1"
_KIND = (
    "__skest__"  # as in skest.plain_state, whose descriptions are what is written here
)
_CLASSES = (
    "skest.adapters.",
    "skest.feature_columns.",
    "skest.heads.",
    "skest.losses:",
    "skest.export.inputs:Form",
    "skest.run_config:RunConfig",
    "skest.checkpoints:Checkpoint",
)
# Parameters that say how to train on this machine, not what the model is.
_LOCAL = {"hooks": (), "config": None, "warm_start_from": None, "random_state": None}


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
        If a part of it is no data, as a function of the user's. `hooks`, `config` and a
        `random_state` that is no number are left out instead.

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
    core = dict(state["_core"])
    # The variables go into a file of their own; a fine-tuning begins with fresh slots.
    checkpoint = Checkpoint(estimator.estimator_.checkpoint.global_step, {})
    core |= {"checkpoint": to_plain(checkpoint), "config": to_plain(_config(estimator))}
    state |= {"_core": core, "model_dir_": None, "warm_start_report_": None}
    for parameters in (state, state["_params_in_fit"]):
        for name in _LOCAL.keys() & parameters.keys():
            if name != "random_state" or not isinstance(parameters[name], int):
                parameters[name] = _LOCAL[name]
    kind = type(estimator)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if not name.startswith(_CLASSES):
        raise ExportError(f"Only estimators of skest can be described; got {name}.")
    described = {"schema": _SCHEMA, "estimator": name, "state": _to_json(state, name)}
    text = json.dumps(described, allow_nan=False, ensure_ascii=False)
    return text.encode()


def _config(estimator: Any) -> Any:
    return estimator.estimator_.config.replace(
        model_dir=None, device="auto", keep_best=None
    )


def to_estimator(path: str | os.PathLike[str]) -> Any:
    """Build the estimator that was exported, to predict with it or to train it further.

    Parameters
    ----------
    path : str or path
        A version, or the directory of the versions (then the newest is taken).

    Returns
    -------
    SkestEstimator
        Fitted, as it was exported. The state of its optimizers is not in an export.

    Raises
    ------
    ArtifactError
        If the version is damaged, was exported from something that can't be described,
        or describes anything but an estimator of skest.
    """
    directory = version_at(path)
    manifest = read_artifact(directory).manifest
    if DECLARATION not in manifest["files"]:
        why = manifest.get("model", {}).get("not_rebuilt", "it has no description")
        raise ArtifactError(
            f"{str(directory)!r} can't be made an estimator again: {why}. It can be run "
            "by `skest.export.load`."
        )
    try:
        described = json.loads((directory / DECLARATION).read_bytes())
        variables = without_constants(load_file(directory / WEIGHTS))
        return _build(described, variables)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _unfit(directory, error) from error
    except (SafetensorError, OSError) as error:
        raise _unfit(directory, error) from error


def _unfit(directory: Path, error: Exception) -> ArtifactError:
    return ArtifactError(f"{str(directory)!r} describes no estimator of skest: {error}")


def _build(described: Mapping[str, Any], variables: Mapping[str, Tensor]) -> Any:
    if described["schema"] != _SCHEMA:
        raise ValueError(f"its schema is {described['schema']!r}, not {_SCHEMA!r}")
    state = _from_json(described["state"])
    step = state["_core"]["checkpoint"]["state"]["global_step"]
    state["_core"]["checkpoint"] = to_plain(Checkpoint(step, variables))
    description = {_KIND: described["estimator"], "state": state}
    _check_classes(description)
    return from_plain(description)


def _check_classes(value: Any) -> None:
    """Refuse descriptions of objects that are no part of an estimator."""
    parts: Iterable[Any] = ()
    if isinstance(value, dict):
        name = value.get(_KIND, "dict")
        if not isinstance(name, str) or not (
            name in ("dict", "path", "tensor") or name.startswith(_CLASSES)
        ):
            raise ValueError(f"it names {name!r}, which is no part of an estimator")
        parts = value.values()
    elif isinstance(value, list | tuple | set):
        parts = value
    for part in parts:
        _check_classes(part)


# Plain data to JSON and back: what JSON lacks is a mapping with a kind.

_AS_THEY_ARE = {str, bool, int, type(None)}


def _to_json(value: Any, where: str) -> Any:
    if type(value) in _AS_THEY_ARE:
        return value
    if type(value) is float:
        return value if np.isfinite(value) else {_KIND: "float", "value": repr(value)}
    if type(value) is list:
        if _AS_THEY_ARE.issuperset(map(type, value)):
            return value  # such as a vocabulary, which may be long
        return [_to_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if type(value) in (tuple, set):
        items = [_to_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return {_KIND: type(value).__name__, "items": items}
    if type(value) is dict:
        return {key: _to_json(item, f"{where}.{key}") for key, item in value.items()}
    if type(value) is bytes:
        return {_KIND: "bytes", "base64": _encoded(value)}
    if isinstance(value, np.ndarray) and value.dtype == object:
        items = _to_json(value.ravel().tolist(), where)
        return {_KIND: "objects", "shape": value.shape, "items": items}
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        array = np.ascontiguousarray(value)
        return {
            _KIND: kind,
            "dtype": array.dtype.str,
            "shape": np.shape(value),
            "base64": _encoded(array.tobytes()),
        }
    raise ExportError(
        f"{where} is a {type(value).__name__}, which JSON can't describe: an estimator "
        "that uses it can't be made again from its export."
    )


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    read = _READERS.get(value.get(_KIND, ""))
    if read is not None:
        return read(value)
    return {key: _from_json(item) for key, item in value.items()}


def _read_objects(value: Mapping[str, Any]) -> Any:
    items = _from_json(value["items"])
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(value["shape"])


def _read_array(value: Mapping[str, Any]) -> Any:
    dtype = np.dtype(value["dtype"])
    if dtype.hasobject:
        raise ValueError(f"an array has the dtype {dtype}")
    data = base64.b64decode(value["base64"], validate=True)
    return np.frombuffer(data, dtype).reshape(value["shape"]).copy()


_READERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "float": lambda value: float(value["value"]),
    "tuple": lambda value: tuple(_from_json(value["items"])),
    "set": lambda value: set(_from_json(value["items"])),
    "bytes": lambda value: base64.b64decode(value["base64"], validate=True),
    "objects": _read_objects,
    "array": _read_array,
    "scalar": lambda value: _read_array(value)[()],
}
