# SPDX-License-Identifier: Apache-2.0
"""A model as a program of torch: tensors in, predictions out, and encoders before it.

Loading such a program runs code of the file, which `skest.export.load` does only when it
is told to.
"""

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from skest.exceptions import ExportError
from skest.export.class_outputs import ClassOutput, class_outputs
from skest.export.declaration import DECLARATION, described
from skest.export.encoders import Encoder
from skest.export.inputs import Form, InputSpec
from skest.export.manifest import PROGRAM
from skest.export.onnx_graph import dtype_of, info_of, type_name
from skest.export.program_inputs import (
    ProgramInputs,
    inputs_of_columns,
    inputs_of_rows,
    inputs_of_tensors,
)
from skest.export.recurrent import with_scanned_layers
from skest.export.signatures import Signature, TensorInfo, by_head, model_signatures
from skest.export.spec_inputs import columns_of_encode, forms_of_columns
from skest.export.torch_bridge import TRACING, TracedFunction, check_results
from skest.export.trial_rows import by_output
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.table import Key
from skest.heads.base import Head
from skest.spec import EstimatorSpec

__all__ = ["PROGRAM_SCHEMA", "Program", "build_program", "machine"]

PROGRAM_SCHEMA = "skest.program/1"


@dataclass(frozen=True)
class Program:
    """A traced model, and what is around it.

    Attributes
    ----------
    format : {"pt2", "aoti"}
        Whether it is written as it is, or compiled.
    exported : torch.export.ExportedProgram
        Takes the tensors of the encoder, and returns those of `outputs`.
    encoder : Encoder
        Makes tensors of raw values.
    outputs : list of str
        What the program returns.
    classes : dict of str to ClassOutput
        Outputs that follow from them.
    signatures : dict of str to Signature
        What it can be asked for.
    words : dict of str to list
        Words and integers that are looked up, by raw column.
    """

    format: str
    exported: Any
    encoder: Encoder
    outputs: list[str]
    classes: dict[str, ClassOutput]
    signatures: dict[str, Signature]
    words: dict[str, list[Any]]

    @property
    def inputs(self) -> list[InputSpec]:
        """The raw columns."""
        return self.encoder.inputs

    @property
    def given(self) -> list[InputSpec]:
        """The same: a client computes nothing."""
        return self.inputs

    @property
    def raw(self) -> list[InputSpec]:
        """Those that do not come in themselves: none."""
        return []

    @property
    def widths(self) -> list[dict[str, Any]]:
        """What is known of the memory that it takes: nothing."""
        return []

    def write(self, directory: Path) -> None:
        """Write the program, and beside it the encoder and the names of classes.

        Raises
        ------
        ExportError
            If the encoder is more than data, or torch cannot write the program.
        """
        parts = {
            "encoder": self.encoder,
            "outputs": self.outputs,
            "classes": self.classes,
        }
        text = json.dumps(
            {"schema": PROGRAM_SCHEMA, "program": described(parts, "the encoder")},
            allow_nan=False,
            ensure_ascii=False,
        )
        (directory / DECLARATION).write_text(text, encoding="utf-8")
        path = str(directory / PROGRAM)
        try:
            if self.format == "pt2":
                torch.export.save(self.exported, path)
            else:
                from torch._inductor import aoti_compile_and_package

                with TRACING:
                    aoti_compile_and_package(self.exported, package_path=path)
        except Exception as error:  # of the compiler, or of a part that is no data
            raise ExportError(
                f"torch cannot write the model with format={self.format!r}: "
                f"{_first_line(error)}"
            ) from error

    def runtime(self) -> dict[str, Any]:
        """Return what the manifest says about running it."""
        runs_on = {"machine": machine()} if self.format == "aoti" else {}
        return {"format": self.format, "trusted_code": True, **runs_on}

    def engine(self) -> dict[str, str]:
        """Return the version of what runs it here."""
        return {"torch": torch.__version__}


def machine() -> str:
    """Return what compiled code depends on: system, processor, and its instructions."""
    vectors = torch.backends.cpu.get_cpu_capability()
    return f"{platform.system()} {platform.machine()} {vectors}"


def build_program(
    spec: EstimatorSpec,
    features: Any,
    *,
    format: str,
    columns: FeatureColumns | Mapping[str, FeatureColumns | None] | None = None,
    is_canned: bool = False,
    head: Head | None = None,
    classes: Any = None,
    forms: Mapping[Key, Form] | None = None,
) -> Program:
    """Trace the model of a specification.

    Parameters
    ----------
    spec : EstimatorSpec
        Of mode PREDICT, with the variables in its network.
    features : raw features
        Some rows, to read names, types and shapes from; None if the network is canned,
        which has rows made up.
    format : {"pt2", "aoti"}
        See `Program`.
    columns : FeatureColumns, dict of them, or None
        Fitted columns of a canned network, see `skest.export.onnx_graph.build_onnx`.
    is_canned : bool, default=False
        Whether `columns` encode the features, not ``spec.encode``.
    head, classes, forms
        See `skest.export.spec_onnx.spec_onnx`.

    Raises
    ------
    ExportError
        If torch cannot trace the model, or a feature column cannot be described.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from skest import EstimatorSpec
    >>> from skest.export.program import build_program
    >>> network = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Tanh())
    >>> spec = EstimatorSpec(
    ...     "infer", network=network, predictions=lambda z: {"twice": 2 * z[:, 0]}
    ... )
    >>> program = build_program(spec, np.zeros((2, 2), "float32"), format="pt2")
    >>> [spec.name for spec in program.given], program.outputs
    (['x'], ['twice'])
    """
    network: Any = spec.network
    dtype = dtype_of(network.eval())
    if is_canned:
        inputs = _of_canned(columns, features, dtype, forms or {})
    elif spec.encode is None:
        inputs = inputs_of_tensors(features, dtype)
    else:
        own = columns_of_encode(spec.encode)
        forms = forms_of_columns(own, features) if forms is None else forms
        inputs = _of_canned(own, features, dtype, forms)
    owner = getattr(spec.predictions, "__self__", None)
    head = owner if isinstance(owner, Head) else head
    names = _tensor_predictions(spec, inputs)
    derived = {} if head is None else class_outputs(head, list(names), classes)
    names = {name: key for name, key in names.items() if name not in derived}
    exported = _traced(spec, inputs, names, format)
    infos = _infos(exported, list(names))
    infos |= {name: _derived_info(name, o, infos) for name, o in derived.items()}
    taken = {given.name: info_of(given, 2) for given in inputs.encoder.inputs}
    return Program(
        format,
        exported,
        inputs.encoder,
        list(names),
        derived,
        model_signatures(head, by_head(head, infos), taken, spec.export_outputs),
        inputs.words,
    )


def _of_canned(
    columns: Any, features: Any, dtype: np.dtype, forms: Any
) -> ProgramInputs:
    parts = columns if isinstance(columns, Mapping) else {"": columns}
    used = {part: given for part, given in parts.items() if given is not None}
    if not used:
        return inputs_of_rows(dtype, forms)
    return inputs_of_columns(used, features, dtype, forms)


def _tensor_predictions(spec: EstimatorSpec, inputs: ProgramInputs) -> dict[str, Any]:
    """Return the keys of the predictions that are tensors, by name."""
    with torch.no_grad():
        found: Any = spec.predictions(  # type: ignore[misc]
            spec.network(inputs.encoder.assembled(inputs.example))  # type: ignore[misc]
        )
    if isinstance(getattr(spec.predictions, "__self__", None), Head):
        found = {k: v for k, v in found.items() if isinstance(v, torch.Tensor)}
    return by_output({key: key for key in check_results(found)})


def _traced(
    spec: EstimatorSpec, inputs: ProgramInputs, names: dict[str, Any], format: str
) -> Any:
    """Return what torch.export makes of the network and its predictions."""
    network: Any = spec.network
    function: Any = spec.predictions
    keys = list(names.values())
    asked = {"keys": keys} if spec.predicts_by_key else {}

    def run(own: torch.nn.Module, *tensors: torch.Tensor) -> dict[Any, torch.Tensor]:
        for tensor in tensors:  # else their rows are as many unknown numbers
            torch._check(tensor.shape[0] == tensors[0].shape[0])
        given = dict(zip(inputs.example, tensors, strict=True))
        found = function(own(inputs.encoder.assembled(given)), **asked)
        return {key: found[key] for key in keys}

    dynamic = torch.export.Dim.DYNAMIC
    axes = tuple(dict.fromkeys(own, dynamic) for own in inputs.open_axes.values())
    own = with_scanned_layers(network)
    if format == "aoti" and own is not network:
        raise ExportError(
            f"The module {type(network).__name__} has recurrent layers, which torch cannot "
            "compile for any number of steps. Export it with format='pt2'."
        )
    module = TracedFunction(own, run).eval()
    try:
        with TRACING, torch.no_grad():
            return torch.export.export(
                module,
                tuple(inputs.example.values()),
                dynamic_shapes=(axes,),
                strict=False,
            )
    except Exception as error:  # what torch raises is of many classes
        raise ExportError(
            f"torch cannot trace the module {type(network).__name__}: "
            f"{_first_line(error)} Use operations on tensors of any number of rows, "
            "x.shape[0] in place of len(x), and no branches that depend on values."
        ) from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _infos(exported: Any, names: list[str]) -> dict[str, TensorInfo]:
    """Describe what a program returns."""
    (returned,) = exported.graph.output_node().args[:1]
    found = {}
    for name, node in zip(names, returned[-len(names) :], strict=True):
        value = node.meta["val"]
        dtype = str(value.dtype).removeprefix("torch.")
        shape = tuple(size if isinstance(size, int) else None for size in value.shape)
        if shape[:1] != (None,):
            raise ExportError(
                f"The result {name!r} has {shape[0]} rows, whatever the batch has. An "
                "exported model returns something for every row."
            )
        found[name] = TensorInfo(name, dtype, shape)
    return found


def _derived_info(
    name: str, output: ClassOutput, infos: Mapping[str, TensorInfo]
) -> TensorInfo:
    shape = infos[output.source].shape
    if output.kind == "repeated":
        shape = (None, len(output.values))
    return TensorInfo(name, type_name(output.values.dtype), shape)
