# SPDX-License-Identifier: Apache-2.0
"""The REST protocol of TensorFlow Serving, so that its clients go on working.

Semantics: https://www.tensorflow.org/tfx/serving/api_rest. Differences: the numbers NaN and
Infinity are refused as JSON has none (null is a missing value), the newest version alone is
served, without labels of versions, and ``GET /v2/models/NAME`` describes it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skest.export.serving.requests import VERSION_PATH, Call, RequestError, Route


def _predict(call: Call) -> Any:
    _, model = call.find()
    document = call.document()
    # No name and an empty one are the same in protobuf, which clients come from.
    name = document.get("signature_name") or "serving_default"
    inputs = list(call.signature(model, name)["inputs"])
    # "Row format" and "column format" of TensorFlow Serving.
    by_column = "inputs" in document
    if ("instances" in document) == by_column:
        raise RequestError(400, "Give either 'instances' (rows) or 'inputs' (columns).")
    values = document["inputs"] if by_column else _rows(document, "instances")
    table = _table("inputs" if by_column else "instances", values, inputs)
    outputs = {k: v.tolist() for k, v in call.run(model, table, name).items()}
    # TensorFlow Serving leaves out the name of an output that is the only one.
    alone = next(iter(outputs.values())) if len(outputs) == 1 else None
    if by_column:
        return {"outputs": outputs if alone is None else alone}
    # Row format: a list of one object for each instance.
    rows = zip(*outputs.values(), strict=True)
    named = [dict(zip(outputs, row, strict=True)) for row in rows]
    return {"predictions": named if alone is None else alone}


def _classify(call: Call) -> Any:
    outputs = _run_examples(call, "classify")
    scores = outputs.get("scores")
    if scores is None:
        raise RequestError(400, f"The signature gives {list(outputs)}, but no scores.")
    # A signature may have scores alone; the labels of these are empty in TensorFlow.
    classes = outputs.get("classes", np.full(scores.shape, "", object))
    pairs = zip(classes.tolist(), scores.tolist(), strict=True)
    return {"results": [list(zip(*pair, strict=True)) for pair in pairs]}


def _regress(call: Call) -> Any:
    outputs = _run_examples(call, "regress")
    values = next(iter(outputs.values()))
    if len(outputs) != 1 or values.size != len(values):
        raise RequestError(400, f"The signature gives {list(outputs)}, not one number.")
    return {"results": values.ravel().tolist()}


def _run_examples(call: Call, method: str) -> dict[str, NDArray[Any]]:
    _, model = call.find()
    document = call.document()
    name = document.get("signature_name") or "serving_default"
    signature = call.signature(model, name)
    if _method(signature) != method:
        # A default signature of a regressor has no classes: say what can be asked.
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
    # What all examples share; an example may still say otherwise.
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
    # SavedModels say "tensorflow/serving/classify", signatures of skest "classify".
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
    # A list of numbers needs no names where there is nothing else to mean.
    if len(inputs) == 1:
        return {inputs[0]: values}
    raise RequestError(400, f"{key!r} must have JSON objects with {list(inputs)}.")


def _status(call: Call) -> Any:
    served = call.catalog.served(call.name)
    fine = [] if served.newest is None else [served.newest[0]]
    reason = "It can't be loaded; the log of the server says why."
    # Names of ModelVersionStatus and of gRPC, as clients of TensorFlow Serving know
    # them.
    states = [(number, "AVAILABLE", "OK", "") for number in fine] + [
        (n, "END", "DATA_LOSS", reason) for n in sorted(served.refused, reverse=True)
    ]
    if call.version is not None:
        states = [state for state in states if str(state[0]) == call.version]
        if not states:
            raise RequestError(404, f"{call.name!r} has no version {call.version}.")
    return {
        "model_version_status": [
            {
                "version": str(number),
                "state": state,
                "status": {"error_code": code, "error_message": message},
            }
            for number, state, code, message in states
        ]
    }


ROUTES = (
    Route("POST", f"/v1/{VERSION_PATH}:predict", _predict),
    Route("POST", f"/v1/{VERSION_PATH}:classify", _classify),
    Route("POST", f"/v1/{VERSION_PATH}:regress", _regress),
    Route("GET", f"/v1/{VERSION_PATH}", _status),
)
