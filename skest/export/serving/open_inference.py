# SPDX-License-Identifier: Apache-2.0
"""The Open Inference Protocol, version 2, in JSON (KServe, Triton, MLServer).

Semantics: https://github.com/kserve/open-inference-protocol. A signature other than
``serving_default`` is chosen by the parameter ``signature`` of a request; null stands for a
missing text or number.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skest._version import __version__
from skest.export.artifact import MICROSECONDS
from skest.export.serving.requests import MODEL_PATH, Call, RequestError, Route

# "Tensor Data Types" of the protocol; its strings are bytes in UTF-8.
_BITS = (8, 16, 32, 64)
_DATATYPES = {
    "string": "BYTES",
    "bool": "BOOL",
    **{f"float{bits}": f"FP{bits}" for bits in _BITS[2:]},
    **{f"{k}{bits}": f"{k.upper()}{bits}" for k in ("int", "uint") for bits in _BITS},
}


def _infer(call: Call) -> Any:
    # One model for the whole request: a new version may come meanwhile.
    number, model = call.find()
    document = call.document()
    parameters = document.get("parameters", {})
    if not isinstance(parameters, dict):
        raise RequestError(400, "'parameters' must be a JSON object.")
    name = parameters.get("signature", "serving_default")
    signature = call.signature(model, name)
    wanted = _wanted(document, list(signature["outputs"]))
    taken = model.names_of(name)
    columns: dict[str, NDArray[Any]] = {}
    for at, tensor in enumerate(_objects(document, "inputs")):
        key = str(tensor.get("name"))
        if key not in {*signature["inputs"], *taken} or key in columns:
            raise RequestError(
                400,
                f"Input {at} must have as 'name' one of {list(taken)}, each once; got "
                f"{key!r}.",
            )
        columns[key] = _tensor(tensor)
    found = call.run(model, columns, name)
    answer = {
        "model_name": call.name,
        "model_version": str(number),
        "outputs": [_described(key, found[key]) for key in wanted],
    }
    # A client that sends several requests tells the answers apart by it.
    if "id" in document:
        answer["id"] = str(document["id"])
    return answer


def _objects(document: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = document.get(key)
    if not isinstance(found, list) or not all(isinstance(t, dict) for t in found):
        raise RequestError(400, f"{key!r} must be a list of JSON objects.")
    return found


def _wanted(document: Mapping[str, Any], outputs: list[str]) -> list[str]:
    if "outputs" not in document:
        return outputs
    names = [str(tensor.get("name")) for tensor in _objects(document, "outputs")]
    unknown = [name for name in names if name not in outputs]
    if unknown:
        raise RequestError(400, f"There are no outputs {unknown}; there are {outputs}.")
    return names or outputs


def _tensor(tensor: Mapping[str, Any]) -> NDArray[Any]:
    """Return the array that an input describes."""
    name, shape, data = tensor["name"], tensor.get("shape"), tensor.get("data")
    if tensor.get("datatype") not in _DATATYPES.values():
        raise RequestError(
            400,
            f"Input {name!r} must have a 'datatype' of {list(_DATATYPES.values())}; got "
            f"{tensor.get('datatype')!r}.",
        )
    # The protocol demands a shape; a list of numbers tells its own.
    sizes = shape if isinstance(shape, list) and shape else [-1]
    try:
        # No size is free: -1 would be that for NumPy.
        if not all(type(size) is int and size >= 0 for size in sizes):
            raise ValueError
        # One after the other, whether nested or not; of which types, the feature checks.
        return np.array(data, object, ndmin=1).ravel().reshape(sizes)
    except (ValueError, OverflowError):
        raise RequestError(
            400,
            f"Input {name!r} must have a 'shape' of whole numbers, and as many values in "
            f"a list 'data'; got the shape {shape}.",
        ) from None


def _described(name: str, values: NDArray[Any]) -> dict[str, Any]:
    # ONNX Runtime gives strings as objects.
    dtype = "string" if values.dtype.kind in "OU" else values.dtype.name
    return {
        "name": name,
        "shape": list(values.shape),
        "datatype": _DATATYPES[dtype],
        "data": values.ravel().tolist(),
    }


def _ready(call: Call) -> Any:
    if not call.catalog.ready:
        raise RequestError(503, "The server is not ready.")
    return {"ready": True}


def _model_ready(call: Call) -> Any:
    if call.catalog.closed.is_set():
        raise RequestError(503, "The server is stopping.")
    call.find()
    return {"name": call.name, "ready": True}


def _metadata(call: Call) -> Any:
    number, model = call.find()
    signature = call.signature(model, "serving_default")
    # By the columns that a table has, as requests may name them, not by the matrix
    # that they become.
    features = {k: model.features[t["tensor"]] for k, t in signature["inputs"].items()}
    inputs = {
        key: {**features[of], "shape": [None, 1]} if of in model.parts else features[of]
        for key, of in model.names_of().items()
    }
    return {
        "name": call.name,
        "versions": [str(number)],
        # As Triton calls it, so that its clients know what runs.
        "platform": "onnxruntime_onnx",
        "inputs": _tensors(inputs),
        "outputs": _tensors(signature["outputs"]),
        "parameters": {"signatures": ",".join(model.signatures)},
    }


def _tensors(tensors: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "datatype": _DATATYPES[tensor["dtype"]],
            # -1 is what the protocol has for a size that is open.
            "shape": [-1 if size is None else size for size in tensor["shape"]],
            **({"parameters": {"unit": MICROSECONDS}} if tensor.get("unit") else {}),
        }
        for name, tensor in tensors.items()
    ]


ROUTES = (
    Route("POST", f"/v2/{MODEL_PATH}/infer", _infer),
    Route("GET", f"/v2/{MODEL_PATH}", _metadata),
    Route("GET", f"/v2/{MODEL_PATH}/ready", _model_ready),
    # Kubernetes sends requests to who is ready, and restarts who is not alive.
    Route("GET", "/v2/health/ready", _ready),
    Route("GET", "/v2/health/live", lambda call: {"live": True}),
    Route(
        "GET",
        "/v2",
        # None of the extensions, of which Triton's binary tensors are the best known.
        lambda call: {"name": "skest", "version": __version__, "extensions": []},
    ),
)
