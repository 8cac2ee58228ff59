# SPDX-License-Identifier: Apache-2.0
"""The REST protocol of TensorFlow Serving, so that its clients go on working.

Semantics: https://www.tensorflow.org/tfx/serving/api_rest. Differences: the numbers NaN and
Infinity are refused as JSON has none (null is a missing value), and there are no labels.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skest.export.manifest import without_duplicates
from skest.export.serving.requests import MODEL_PATH, Call, Route, signature_of
from skest.export.serving.versions import RequestError

_DTYPES = {"bool": "BOOL", "string": "STRING", "float32": "FLOAT", "float64": "DOUBLE"}


def _predict(call: Call) -> Any:
    _, model = call.find()
    document = call.document(_with_texts)
    name = document.get("signature_name") or "serving_default"
    inputs = list(signature_of(model, name)["inputs"])
    by_row, by_column = "instances" in document, "inputs" in document
    if by_row == by_column:
        raise RequestError(400, "Give either 'instances' (rows) or 'inputs' (columns).")
    if by_column:
        table = _table("inputs", document["inputs"], inputs)
        return {"outputs": _unnamed(_lists(call.run(model, table, name)))}
    table = _table("instances", _rows(document, "instances"), inputs)
    outputs = _lists(call.run(model, table, name))
    if len(outputs) == 1:
        return {"predictions": _unnamed(outputs)}
    rows = zip(*outputs.values(), strict=True)
    return {"predictions": [dict(zip(outputs, row, strict=True)) for row in rows]}


def _classify(call: Call) -> Any:
    outputs = _run_examples(call, "classify")
    scores, classes = outputs.get("scores"), outputs.get("classes")
    if scores is None:
        raise RequestError(400, f"The signature gives {list(outputs)}, but no scores.")
    labels = np.full(scores.shape, "", object) if classes is None else classes
    names, numbers = list(labels), list(scores)
    return {
        "results": [
            list(zip(names[row].tolist(), numbers[row].tolist(), strict=True))
            for row in range(len(scores))
        ]
    }


def _regress(call: Call) -> Any:
    outputs = _run_examples(call, "regress")
    values = next(iter(outputs.values()))
    if len(outputs) != 1 or values.size != len(values):
        raise RequestError(400, f"The signature gives {list(outputs)}, not one number.")
    return {"results": values.ravel().tolist()}


def _run_examples(call: Call, method: str) -> dict[str, NDArray[Any]]:
    _, model = call.find()
    document = call.document(_with_texts)
    name = document.get("signature_name") or "serving_default"
    signature = signature_of(model, name)
    if _method(signature) != method:
        fitting = [n for n, s in model.signatures.items() if _method(s) == method]
        raise RequestError(
            400,
            f"The signature {name!r} is not for {method!r}; these are: {fitting}. Choose "
            "one by 'signature_name'.",
        )
    names = model.names_of(name)
    examples = _rows(document, "examples")
    context = document.get("context", {})
    if not all(isinstance(example, dict) for example in (context, *examples)):
        raise RequestError(400, "Examples and 'context' must be JSON objects.")
    rows = [{**context, **example} for example in examples]
    for at, row in enumerate(rows):
        # Features may be left out; a misspelt one must not look like a missing one.
        if names.keys().isdisjoint(row):
            raise RequestError(
                400, f"Example {at} has none of the features {list(names)}."
            )
    shapes = {
        key: model.features[signature["inputs"][of]["tensor"]]["shape"]
        for key, of in names.items()
    }
    columns = {
        key: [_example_cell(row.get(key), shape) for row in rows]
        for key, shape in shapes.items()
    }
    return call.run(model, columns, name)


def _method(signature: Mapping[str, Any]) -> str:
    return str(signature.get("method", "")).rpartition("/")[2]


def _example_cell(cell: Any, shape: Sequence[int | None]) -> Any:
    """Return a value: in examples all are lists, of which an empty one is missing."""
    if None in shape[1:] or not isinstance(cell, list) or len(cell) > 1:
        return cell
    return cell[0] if cell else None


def _rows(document: Mapping[str, Any], key: str) -> list[Any]:
    rows = document.get(key)
    if not isinstance(rows, list) or not rows:
        raise RequestError(400, f"{key!r} must be a list of one row or more.")
    return rows


def _table(key: str, values: Any, inputs: Sequence[str]) -> Any:
    """Return rows or columns; values of the only input may go without its name."""
    objects = values if key == "instances" else [values]
    if all(isinstance(value, dict) for value in objects):
        return values
    if len(inputs) == 1:
        return {inputs[0]: values}
    raise RequestError(400, f"{key!r} must have JSON objects with {list(inputs)}.")


def _with_texts(pairs: list[tuple[str, Any]]) -> Any:
    """Make the value of a JSON object; ``{"b64": ...}`` is a text."""
    if len(pairs) != 1 or pairs[0][0] != "b64" or not isinstance(pairs[0][1], str):
        return without_duplicates(pairs)
    try:
        return str(base64.b64decode(pairs[0][1], validate=True), "utf-8")
    except ValueError:
        raise ValueError("'b64' must be a text of UTF-8 in base 64") from None


def _lists(outputs: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    return {name: values.tolist() for name, values in outputs.items()}


def _unnamed(outputs: Mapping[str, Any]) -> Any:
    """Return the outputs; a single one goes without its name."""
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs


def _status(call: Call) -> Any:
    versions = call.catalog.versions(call.path["name"])
    wanted = call.path.get("version")
    if wanted is not None and int(wanted) not in versions.refused:
        call.find()  # raises if there is none
    entries = [_state(number, "AVAILABLE", "OK", "") for number in versions.served]
    for number in sorted(versions.refused, reverse=True):
        reason = "It can't be loaded; the log of the server says why."
        entries.append(_state(number, "END", "DATA_LOSS", reason))
    if wanted is not None:
        entries = [entry for entry in entries if int(entry["version"]) == int(wanted)]
    return {"model_version_status": entries}


def _state(number: int, state: str, code: str, message: str) -> dict[str, Any]:
    status = {"error_code": code, "error_message": message}
    return {"version": str(number), "state": state, "status": status}


def _metadata(call: Call) -> Any:
    number, model = call.find()
    spec = {"name": call.path["name"], "signature_name": "", "version": str(number)}
    signatures = {
        name: {
            "inputs": {
                key: _tensor_info(model.features[t["tensor"]], t["tensor"])
                for key, t in signature["inputs"].items()
            },
            "outputs": {
                key: _tensor_info(tensor, tensor["tensor"])
                for key, tensor in signature["outputs"].items()
            },
            "method_name": signature.get("method", ""),
        }
        for name, signature in model.signatures.items()
    }
    return {
        "model_spec": spec,
        "metadata": {"signature_def": {"signature_def": signatures}},
    }


def _tensor_info(tensor: Mapping[str, Any], name: str) -> dict[str, Any]:
    dtype = tensor["dtype"]
    dims = [
        {"size": "-1" if size is None else str(size), "name": ""}
        for size in tensor["shape"]
    ]
    return {
        "dtype": f"DT_{_DTYPES.get(dtype, dtype.upper())}",
        "tensor_shape": {"dim": dims, "unknown_rank": False},
        "name": name,
    }


ROUTES = (
    Route("POST", re.compile(rf"/v1/{MODEL_PATH}:predict"), _predict),
    Route("POST", re.compile(rf"/v1/{MODEL_PATH}:classify"), _classify),
    Route("POST", re.compile(rf"/v1/{MODEL_PATH}:regress"), _regress),
    Route("GET", re.compile(rf"/v1/{MODEL_PATH}"), _status),
    Route("GET", re.compile(rf"/v1/{MODEL_PATH}/metadata"), _metadata),
)
