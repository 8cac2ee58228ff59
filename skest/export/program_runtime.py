# SPDX-License-Identifier: Apache-2.0
"""Exported programs of torch, run; `skest.export.load` comes here when it is told to."""

import io
import json
from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray

from skest._resources import IntraOpThreads
from skest.exceptions import ArtifactError
from skest.export.artifact import Artifact
from skest.export.class_outputs import ClassOutput
from skest.export.declaration import DECLARATION, rebuilt
from skest.export.encoders import Encoder
from skest.export.program import PROGRAM_SCHEMA, machine
from skest.export.warmup import synthetic_rows

__all__ = ["ProgramSession", "load_program"]


class ProgramSession:
    """An exported program that runs, with its encoder before it.

    Parameters
    ----------
    program : callable
        ``program(*tensors) -> sequence of tensors``.
    parts : dict
        ``encoder``, ``outputs`` and ``classes``, as `skest.export.program.Program`.
    num_threads : int
        Threads within one call.
    """

    def __init__(self, program: Any, parts: dict[str, Any], num_threads: int) -> None:
        self._program = program
        self._encoder: Encoder = parts["encoder"]
        self._outputs: list[str] = parts["outputs"]
        self._classes: dict[str, ClassOutput] = parts["classes"]
        self._num_threads = num_threads

    def run(self, names: list[str], cells: Mapping[str, Any]) -> list[NDArray[Any]]:
        """Return outputs by name for raw features by name."""
        if not any(map(len, cells.values())):  # torch traces no tensors without a row
            one = synthetic_rows({}, self._encoder.inputs, n_rows=1, missing=False)
            return [found[:0] for found in self.run(names, one)]
        tensors = self._encoder.encode(cells).values()
        with (
            torch.no_grad(),
            IntraOpThreads.limited_to(self._num_threads, wanted=self._num_threads),
        ):
            results = self._program(*tensors)
        found = {
            name: result.numpy()
            for name, result in zip(self._outputs, results, strict=True)
        }
        return [
            found[name] if name in found else self._classes[name].of(found)
            for name in names
        ]


def load_program(artifact: Artifact, num_threads: int) -> ProgramSession:
    """Load the program of a version whose code is trusted.

    Parameters
    ----------
    artifact : Artifact
        Its bytes are those of which the digest was compared.
    num_threads : int
        Threads within one call.

    Raises
    ------
    ArtifactError
        If it was compiled for another machine, or torch cannot read it.
    """
    compiled_for = artifact.manifest["runtime"].get("machine")
    if artifact.format == "aoti" and compiled_for != machine():
        raise ArtifactError(
            f"{str(artifact.path)!r} was compiled for {compiled_for!r}, and this machine "
            f"is {machine()!r}. Export it here, or with format='pt2' for any machine."
        )
    parts = _read_parts(artifact)
    file = io.BytesIO(artifact.model)
    try:
        if artifact.format == "pt2":
            program: Any = torch.export.load(file).module()
        else:
            from torch._inductor import aoti_load_package

            program = aoti_load_package(file)
    except Exception as error:  # what torch raises is of many classes
        raise ArtifactError(
            f"torch {torch.__version__} cannot load {str(artifact.path)!r}, exported with "
            f"{artifact.manifest.get('model', {}).get('torch')}: {error}"
        ) from error
    return ProgramSession(program, parts, num_threads)


def _read_parts(artifact: Artifact) -> dict[str, Any]:
    try:
        content = json.loads(artifact.texts[DECLARATION])
        if content["schema"] != PROGRAM_SCHEMA:
            raise ValueError(f"its schema is {content['schema']!r}")
        parts = rebuilt(content["program"])
        encoder, classes = parts["encoder"], parts["classes"].values()
        known = {*parts["outputs"], *parts["classes"]}
        signatures = artifact.manifest["signatures"].values()
        wanted = {t["tensor"] for s in signatures for t in s["outputs"].values()}
        if not isinstance(encoder, Encoder) or not wanted <= known:
            raise ValueError("it does not fit the signatures")
        if not all(isinstance(output, ClassOutput) for output in classes):
            raise ValueError("it has classes that are none")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArtifactError(
            f"{DECLARATION!r} of {str(artifact.path)!r} describes no program: {error}"
        ) from error
    return parts
