# SPDX-License-Identifier: Apache-2.0
"""Sessions of ONNX Runtime that run exactly the bytes that were checked."""

import math
from typing import Any

import numpy as np

from skest.exceptions import ArtifactError
from skest.export.artifact import Artifact

__all__ = ["engine", "onnx_session"]


def engine() -> Any:
    """Return the module of ONNX Runtime, which is imported when it is needed."""
    try:
        import onnxruntime
    except ImportError:
        raise ImportError(
            "Exported models run on ONNX Runtime. Install it by "
            "`pip install onnxruntime`."
        ) from None
    return onnxruntime


def onnx_session(artifact: Artifact, num_threads: int) -> Any:
    """Return a session of a checked graph, which reads no file.

    Parameters
    ----------
    artifact : Artifact
        A graph and its weights. The session does not copy the weights: keep them for as
        long as it runs.
    num_threads : int
        Threads within one call.

    Raises
    ------
    ArtifactError
        If the engine refuses the graph.
    ImportError
        If ``onnxruntime`` is not installed.
    """
    onnxruntime = engine()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Its own heap is no faster, and keeps what one large request took for good.
    options.enable_cpu_mem_arena = False
    try:
        values = [
            onnxruntime.OrtValue.ortvalue_from_numpy(a) for a in _arrays(artifact)
        ]
        if values:
            names = [tensor.tensor for tensor in artifact.external]
            options.add_external_initializers(names, values)
        # There is one provider: a second try of it would print, and fail like the first.
        return onnxruntime.InferenceSession(
            artifact.model,
            options,
            providers=["CPUExecutionProvider"],
            enable_fallback=False,
        )
    except Exception as error:
        raise ArtifactError(f"ONNX Runtime refuses the graph: {error}") from error


def _arrays(artifact: Artifact) -> list[np.ndarray]:
    """Return the tensors beside the graph, as views of the bytes."""
    return [
        np.frombuffer(
            artifact.weights[tensor.location],
            tensor.dtype,
            math.prod(tensor.shape),
            tensor.offset,
        ).reshape(tensor.shape)
        for tensor in artifact.external
    ]
