# SPDX-License-Identifier: Apache-2.0
"""Estimators inside the pipelines that the package skl2onnx converts."""

import importlib
import json
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin

from skest.exceptions import ExportError
from skest.export.onnx.graph import OPSETS

_INT64 = 7  # as `onnx.TensorProto` has it
_OPTIONS = {
    "nocl": [True, False],
    "output_class_labels": [False, True],
    "raw_scores": [True, False],
    "zipmap": [True, False, "columns"],
}


def register(*classes: type) -> None:
    """Teach skl2onnx to convert the estimators of skest, alone and in pipelines.

    A converted pipeline is one graph that ONNX Runtime runs. An estimator takes the
    inputs of the graph, or what the steps before it give: several inputs by the names of
    its raw columns; otherwise, their columns in the order of those it was fitted on.
    Texts and numbers may come as different inputs, see ``initial_types`` of
    ``skl2onnx.convert_sklearn``.

    The options of classifiers are those of skl2onnx: ``zipmap``, ``nocl``,
    ``output_class_labels`` and ``raw_scores``. With the latter, the scores of two classes
    are ``-decision_function`` and ``decision_function``. Regressors have one output
    "variable"; estimators with several heads have, of each, "<head>_labels" and
    "<head>_probabilities", or "<head>_predictions".

    Parameters
    ----------
    *classes : type
        Classes of estimators derived from those of skest. Without, all those of
        skest.

    Raises
    ------
    ImportError
        If skl2onnx is not installed.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> skl2onnx = pytest.importorskip("skl2onnx")
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skest import LinearClassifier
    >>> from skest.export.skl2onnx import register
    >>> X = np.arange(8, dtype=np.float32).reshape(-1, 1)
    >>> model = make_pipeline(StandardScaler(), LinearClassifier(max_iter=1))
    >>> register()
    >>> graph = skl2onnx.to_onnx(model.fit(X, X[:, 0] > 3), X, target_opset=18)
    >>> [output.name for output in graph.graph.output]
    ['output_label', 'output_probability']
    """
    try:
        from skl2onnx import update_registered_converter
    except ImportError as error:
        raise ImportError(
            "Pipelines are converted by the package skl2onnx; install it by "
            "`pip install skl2onnx`."
        ) from error
    for kind in classes or _own_classes():
        is_classifier = issubclass(kind, ClassifierMixin)
        is_plain = is_classifier or issubclass(kind, RegressorMixin)
        update_registered_converter(
            kind,
            f"Skest{kind.__name__}",
            _set_output_types,
            _convert,
            parser=None if is_plain else _declare_heads,
            options=_OPTIONS if is_classifier else None,
        )


def _own_classes() -> list[type]:
    # By name, for estimators are made of what is in this package, not the reverse.
    skest = importlib.import_module("skest")
    found = [getattr(skest, name) for name in skest.__all__]
    return [kind for kind in found if hasattr(kind, "onnx_graph")]


def _declare_heads(
    scope: Any, model: Any, inputs: list[Any], custom_parsers: Any = None
) -> list[Any]:
    """Declare the outputs of an estimator that is no plain classifier or regressor."""
    from skl2onnx.common.data_types import FloatTensorType

    operator = scope.declare_local_operator(f"Skest{type(model).__name__}", model)
    operator.inputs = inputs
    graph = _graph_of(operator)
    names = {output.name for output in graph.graph.output}
    heads = dict.fromkeys(name.rpartition("/")[0] for name in names)
    kinds = ("labels", "probabilities", "predictions")
    wanted = [f"{head}/{kind}".lstrip("/") for head in heads for kind in kinds]
    operator.answers = [name for name in wanted if name in names]
    for name in operator.answers:
        variable = scope.declare_local_variable(
            name.replace("/", "_"), FloatTensorType()
        )
        operator.outputs.append(variable)
    return operator.outputs


def _graph_of(operator: Any) -> Any:
    """Return the graph of an estimator, written once for each conversion."""
    if not hasattr(operator, "skest_graph"):
        operator.skest_graph = operator.raw_operator.onnx_graph()
    return operator.skest_graph


def _answers(operator: Any) -> list[str]:
    """Return the outputs of the estimator's graph that are those of the operator."""
    model = operator.raw_operator
    if hasattr(operator, "answers"):
        return operator.answers
    if not isinstance(model, ClassifierMixin):
        return ["predictions"]
    options = _options_of(operator)
    return [
        "class_ids" if options["nocl"] else "labels",
        "logits" if options["raw_scores"] else "probabilities",
    ]


def _options_of(operator: Any) -> dict[str, Any]:
    defaults = {"nocl": False, "raw_scores": False, "zipmap": True}
    return operator.scope_inst.get_options(operator.raw_operator, defaults)


def _set_output_types(operator: Any) -> None:
    """Give the outputs of an operator their types and shapes."""
    from skl2onnx.common import data_types

    model = operator.raw_operator
    is_classifier = isinstance(model, ClassifierMixin)
    found = {output.name: output for output in _graph_of(operator).graph.output}
    missing = [name for name in _answers(operator) if name not in found]
    if missing:
        raise ExportError(
            f"{type(model).__name__} has no output {missing[0]!r} here. Give other "
            "options."
        )
    # The operator ZipMap takes float32 only.
    maps = is_classifier and _options_of(operator)["zipmap"] is True
    doubles = [isinstance(v.type, data_types.DoubleTensorType) for v in operator.inputs]
    is_double = any(doubles) and not maps
    numbers = getattr(data_types, f"{'Double' if is_double else 'Float'}TensorType")
    kinds = {8: data_types.StringTensorType, 1: numbers, 11: numbers}
    rows = operator.inputs[0].get_first_dimension()
    for name, variable in zip(_answers(operator), operator.outputs, strict=True):
        tensor = found[name].type.tensor_type
        size = tensor.shape.dim[1].dim_value
        if name == "logits":
            size = max(2, size)
        kind = kinds.get(tensor.elem_type, data_types.Int64TensorType)
        is_label = name.rpartition("/")[2] in ("labels", "class_ids") and size == 1
        variable.type = kind([rows] if is_label else [rows, size])


def _convert(scope: Any, operator: Any, container: Any) -> None:
    """Add the graph of an estimator to that of the pipeline."""
    from skl2onnx.helpers import add_onnx_graph

    if container.target_opset_any_domain("") < OPSETS[""]:
        raise ValueError(
            f"'target_opset' must be {OPSETS['']} or more for estimators of skest; got "
            f"{container.target_opset_any_domain('')}."
        )
    graph = _graph_of(operator)
    wanted = _answers(operator)
    wiring = _Wiring(scope, operator, container)
    features = json.loads(
        next(p.value for p in graph.metadata_props if p.key == "skest.features")
    )
    inputs = [wiring.feature(name, spec) for name, spec in features.items()]
    part = _with_outputs(graph, wanted)
    outputs = [scope.get_unique_variable_name(name) for name in wanted]
    add_onnx_graph(
        scope,
        SimpleNamespace(inputs=_named(inputs), outputs=_named(outputs)),
        container,
        part,
    )
    types = {o.name: o.type.tensor_type for o in graph.graph.output}
    for name, found, variable in zip(wanted, outputs, operator.outputs, strict=True):
        if name == "logits" and types[name].shape.dim[1].dim_value == 1:
            found = wiring.add("Concat", [wiring.add("Neg", [found]), found], axis=1)
        shape = wiring.constant([-1] if len(variable.type.shape) == 1 else [0, -1])
        found = wiring.add("Reshape", [found, shape])
        wiring.add("Cast", [found], variable.onnx_name, to=_element_type(variable))


def _named(names: list[str]) -> list[Any]:
    return [SimpleNamespace(onnx_name=name) for name in names]


def _with_outputs(graph: Any, names: list[str]) -> Any:
    """Return a graph without its other outputs, and what only these need."""
    part = type(graph)()
    part.CopyFrom(graph)
    outputs = {output.name: output for output in graph.graph.output}
    needed, nodes = set(names), []
    for node in reversed(graph.graph.node):
        if not needed.isdisjoint(node.output):
            needed.update(node.input)
            nodes.append(node)
    for field, kept in (
        ("output", [outputs[name] for name in names]),
        ("node", nodes[::-1]),
        ("initializer", [i for i in graph.graph.initializer if i.name in needed]),
    ):
        part.graph.ClearField(field)
        getattr(part.graph, field).extend(kept)
    return part


def _element_type(variable: Any) -> int:
    from skl2onnx.common.data_types import guess_proto_type

    return guess_proto_type(variable.type)


class _Wiring:
    """Adds nodes around the graph of an estimator, and finds its raw columns."""

    def __init__(self, scope: Any, operator: Any, container: Any) -> None:
        self._scope = scope
        self._container = container
        self._model = operator.raw_operator
        self._inputs = operator.inputs
        self._by_name = {variable.raw_name: variable for variable in operator.inputs}

    def add(
        self, op: str, inputs: list[str], output: str | None = None, **attributes: Any
    ) -> str:
        """Add a node; return the name of its output."""
        output = output or self._scope.get_unique_variable_name(op.lower())
        name = self._scope.get_unique_operator_name(op)
        self._container.add_node(
            op, inputs, output, op_version=OPSETS[""], name=name, **attributes
        )
        return output

    def constant(self, numbers: list[int]) -> str:
        """Add an array of int64; return its name."""
        name = self._scope.get_unique_variable_name("numbers")
        self._container.add_initializer(name, _INT64, [len(numbers)], numbers)
        return name

    def feature(self, name: str, spec: Any) -> str:
        """Return the name of the tensor that is an input of the estimator's graph."""
        from onnx import TensorProto, helper

        if name in self._by_name and not spec.get("columns"):
            variable = self._by_name[name]
            tensor, given = variable.onnx_name, _element_type(variable)
        else:
            tensor, given = self._by_position(name, spec)
        texts, whole = TensorProto.STRING, TensorProto.INT64
        wanted = texts
        if spec["dtype"] != "string":
            wanted = helper.np_dtype_to_tensor_dtype(np.dtype(spec["dtype"]))
        if given == wanted:
            return tensor
        is_strict = given != whole or spec.get("texts_only")
        if given == texts or (wanted == texts and is_strict):
            raise ValueError(
                f"The column {name!r} must come as {spec['dtype']}, and comes as "
                f"{TensorProto.DataType.Name(given).lower()}. Give it another type in "
                "'initial_types'."
            )
        return self.add("Cast", [tensor], to=wanted)

    def _by_position(self, name: str, spec: Any) -> tuple[str, int]:
        """Return columns of the matrix that the inputs are, side by side."""
        names = getattr(self._model, "feature_names_in_", None)
        n_columns = self._model.n_features_in_
        order = list(range(n_columns)) if names is None else list(names)
        keys = spec.get("columns") or [spec["key"]]
        sizes = spec["shape"][1:]
        if keys[0] not in order and sizes in ([n_columns], [None]):  # the matrix itself
            keys, sizes = order, [n_columns]
        # By column, the input and the position in it.
        spans = []
        for variable in self._inputs:
            shape = variable.type.shape
            size = (shape[1] if len(shape) > 1 else 1) or 0
            spans += [(variable, at) for at in range(size)]
        fits = len(spans) == n_columns and set(keys) <= set(order)
        if sizes != [len(keys)] or not fits:
            raise ValueError(
                f"There is no input for the column {name!r} of shape {spec['shape']}. "
                "Give 'initial_types' one input for each raw column, by its name; got "
                f"{list(self._by_name)}."
            )
        parts = [spans[order.index(key)] for key in keys]
        kinds = {_element_type(variable) for variable, _ in parts}
        if len(kinds) > 1:
            raise ValueError(
                f"The columns of {name!r} come in different types. Give those of "
                f"{keys} one type in 'initial_types'."
            )
        tensors = []
        for tensor, run in groupby(parts, lambda part: part[0].onnx_name):
            own = list(run)
            at, every = [i for _, i in own], own[0][0].type.shape[1]
            is_whole = at == list(range(every))
            tensors.append(
                tensor
                if is_whole
                else self.add("Gather", [tensor, self.constant(at)], axis=1)
            )
        is_one = len(tensors) == 1
        joined = tensors[0] if is_one else self.add("Concat", tensors, axis=1)
        return joined, kinds.pop()
