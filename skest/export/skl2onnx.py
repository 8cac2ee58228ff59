# SPDX-License-Identifier: Apache-2.0
"""Estimators inside the pipelines that the package skl2onnx converts."""

import importlib
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin

from skest.core.checks import needing
from skest.exceptions import ExportError
from skest.export.onnx.graph import OPSETS

_INT64 = 7  # as `onnx.TensorProto` has it


def register(*classes: type) -> None:
    """Teach skl2onnx to convert the estimators of skest, alone and in pipelines.

    A converted pipeline is one graph that ONNX Runtime runs. An estimator takes the
    inputs of the graph, or what the steps before it give: several inputs by the names of
    its raw columns; otherwise, their columns in the order of those it was fitted on.
    Texts and numbers may come as different inputs, see ``initial_types`` of
    ``skl2onnx.convert_sklearn``.

    Classifiers have the option ``zipmap`` of skl2onnx, and give labels and
    probabilities; regressors have one output "variable".

    Parameters
    ----------
    *classes : type
        Classes of classifiers and regressors derived from those of skest. Without, all
        those of skest.

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
    with needing("skl2onnx", "The conversion of a pipeline"):
        from skl2onnx import update_registered_converter
    for kind in classes or _own_classes():
        # skl2onnx itself asks for the other two.
        others = {"nocl": [False], "output_class_labels": [False]}
        options = {"zipmap": [True, False, "columns"], **others}
        update_registered_converter(
            kind,
            f"Skest{kind.__name__}",
            _set_output_types,
            _convert,
            options=options if issubclass(kind, ClassifierMixin) else None,
        )


def _own_classes() -> list[type]:
    # By name, for estimators are made of what is in this package, not the reverse.
    skest = importlib.import_module("skest")
    found = [getattr(skest, name) for name in skest.__all__]
    plain = (ClassifierMixin, RegressorMixin)
    return [k for k in found if hasattr(k, "onnx_graph") and issubclass(k, plain)]


def _graph_of(operator: Any) -> Any:
    """Return the graph of an estimator, written once for each conversion."""
    # It is asked for twice: for the types of the outputs, and to be converted.
    if not hasattr(operator, "skest_graph"):
        operator.skest_graph = operator.raw_operator.onnx_graph()
    return operator.skest_graph


def _answers(model: Any) -> list[str]:
    """Return the outputs of the estimator's graph that are those of the operator."""
    is_classifier = isinstance(model, ClassifierMixin)
    return ["labels", "probabilities"] if is_classifier else ["predictions"]


def _set_output_types(operator: Any) -> None:
    """Give the outputs of an operator their types and shapes."""
    from skl2onnx.common import data_types

    model = operator.raw_operator
    found = {output.name: output for output in _graph_of(operator).graph.output}
    missing = [name for name in _answers(model) if name not in found]
    if missing:
        raise ExportError(f"{type(model).__name__} has no output {missing[0]!r} here.")
    # As skl2onnx's own converters: what comes in float64 goes out in it.
    doubles = [isinstance(v.type, data_types.DoubleTensorType) for v in operator.inputs]
    is_double = any(doubles)
    if isinstance(model, ClassifierMixin):  # the operator ZipMap takes float32 only
        options = operator.scope_inst.get_options(model, {"zipmap": True})
        is_double = is_double and options["zipmap"] is not True
    numbers = getattr(data_types, f"{'Double' if is_double else 'Float'}TensorType")
    # STRING, FLOAT and DOUBLE of `onnx.TensorProto`.
    kinds = {8: data_types.StringTensorType, 1: numbers, 11: numbers}
    rows = operator.inputs[0].get_first_dimension()
    for name, variable in zip(_answers(model), operator.outputs, strict=True):
        tensor = found[name].type.tensor_type
        # All outputs of the graph have the shape (n_rows, size).
        size = tensor.shape.dim[1].dim_value
        kind = kinds.get(tensor.elem_type, data_types.Int64TensorType)
        is_single = name == "labels" and size == 1
        variable.type = kind([rows] if is_single else [rows, size])


def _convert(scope: Any, operator: Any, container: Any) -> None:
    """Add the graph of an estimator to that of the pipeline."""
    from onnx.utils import Extractor
    from skl2onnx.helpers import add_onnx_graph

    if container.target_opset_any_domain("") < OPSETS[""]:
        raise ValueError(
            f"'target_opset' must be {OPSETS['']} or more for estimators of skest; got "
            f"{container.target_opset_any_domain('')}."
        )
    graph = _graph_of(operator)
    wanted = _answers(operator.raw_operator)
    wiring = _Wiring(scope, operator, container)
    features = json.loads(
        next(p.value for p in graph.metadata_props if p.key == "skest.features")
    )
    inputs = [wiring.feature(name, spec) for name, spec in features.items()]
    # Of all that the graph gives, the two that a step of a pipeline has.
    part = Extractor(graph).extract_model(list(features), wanted)
    # Tensors get new names where they are taken over, and nodes do not.
    for node in part.graph.node:
        node.name = scope.get_unique_operator_name(node.name)
    outputs = [scope.get_unique_variable_name(name) for name in wanted]
    add_onnx_graph(
        scope,
        SimpleNamespace(inputs=_named(inputs), outputs=_named(outputs)),
        container,
        part,
    )
    for found, variable in zip(outputs, operator.outputs, strict=True):
        # Labels of scikit-learn have one axis, those of the graph two.
        shape = wiring.constant([-1] if len(variable.type.shape) == 1 else [0, -1])
        found = wiring.add("Reshape", [found, shape])
        wiring.add("Cast", [found], variable.onnx_name, to=_element_type(variable))


def _named(names: list[str]) -> list[Any]:
    return [SimpleNamespace(onnx_name=name) for name in names]


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

        wanted = TensorProto.STRING
        if spec["dtype"] != "string":
            wanted = helper.np_dtype_to_tensor_dtype(np.dtype(spec["dtype"]))
        by_name = {variable.raw_name: variable for variable in self._inputs}
        if name in by_name and not spec.get("columns"):
            return self._cast(name, by_name[name], wanted, spec)
        # Columns of the matrix that all inputs are, side by side.
        names = getattr(self._model, "feature_names_in_", None)
        order = list(range(self._model.n_features_in_) if names is None else names)
        keys = spec.get("columns") or [spec["key"]]
        if keys[0] not in order and spec["shape"][1:] in ([len(order)], [None]):
            keys = order  # the matrix itself
        sizes = [variable.type.shape[1:] or [1] for variable in self._inputs]
        is_matrix = all(size for (size,) in sizes) and sum(n for (n,) in sizes)
        if is_matrix != len(order) or not set(keys) <= set(order):
            raise ValueError(
                f"There is no input for the column {name!r} of shape {spec['shape']}. "
                "Give 'initial_types' one input for each raw column, by its name; got "
                f"{list(by_name)}."
            )
        parts = [self._cast(name, each, wanted, spec) for each in self._inputs]
        # As scikit-learn's ColumnTransformer gives them: (n_rows, n_features_in_).
        matrix = self.add("Concat", parts, axis=1)
        places = [order.index(key) for key in keys]
        if places == list(range(len(order))):
            return matrix
        return self.add("Gather", [matrix, self.constant(places)], axis=1)

    def _cast(self, name: str, variable: Any, wanted: int, spec: Any) -> str:
        """Return a tensor in the type of a feature, if it can be read as that."""
        from onnx import TensorProto

        given, tensor = _element_type(variable), str(variable.onnx_name)
        if given == wanted:
            return tensor
        # Integers that name things are hashed as their decimal strings, as by the columns;
        # decimals of a float would be other strings.
        is_code = given == TensorProto.INT64 and not spec.get("texts_only")
        if given == TensorProto.STRING or (
            wanted == TensorProto.STRING and not is_code
        ):
            raise ValueError(
                f"The column {name!r} must come as {spec['dtype']}, and comes as "
                f"{TensorProto.DataType.Name(given).lower()}. Give it another type in "
                "'initial_types'."
            )
        return self.add("Cast", [tensor], to=wanted)
