# SPDX-License-Identifier: Apache-2.0
"""Graphs of ONNX: values that add nodes, the operators there may be, and `to_model`."""

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from skest.core.checks import needing

OPSETS = {"": 18, "ai.onnx.ml": 2, "com.microsoft": 1}
"""Versions of the operator sets. Every ONNX Runtime from 1.17 on has them; networks of
float32 run from 1.15 on."""

# That of onnx 1.13, which brought opset 18.
IR_VERSION = 8

#: Type of strings.
STRING = np.dtype(object)

Shape = Sequence[int | None]


def _operator(op: str, dtype: Any = None) -> Callable[["Value", Any], "Value"]:
    def add_node(self: "Value", other: Any) -> "Value":
        return self._with(op, other, dtype)

    return add_node


class Value:
    """A tensor of a `Graph`.

    Arithmetic and comparison add nodes; the other operand is a Value, or a number or array
    that becomes a constant. Python numbers take the type of the Value.

    Attributes
    ----------
    graph : Graph
        Where it belongs.
    name : str
        Its name there.
    dtype : numpy.dtype
        Type of the elements; `STRING` for strings.
    ndim : int
        Number of axes.
    """

    __slots__ = ("dtype", "graph", "name", "ndim")

    def __init__(self, graph: "Graph", name: str, dtype: np.dtype, ndim: int) -> None:
        self.graph = graph
        self.name = name
        self.dtype = dtype
        self.ndim = ndim

    def _with(self, op: str, other: Any, dtype: Any = None) -> "Value":
        return self.graph.add(op, self, self._operand(other), dtype=dtype)

    def _operand(self, other: Any) -> "Value":
        return other if isinstance(other, Value) else self.constant(other)

    def constant(self, value: Any) -> "Value":
        """Return a constant of the type of this tensor."""
        return self.graph.constant(np.asarray(value, dtype=self.dtype))

    __add__ = _operator("Add")
    __sub__ = _operator("Sub")
    __mul__ = _operator("Mul")
    __truediv__ = _operator("Div")
    __mod__ = _operator("Mod")
    __matmul__ = _operator("MatMul")
    __lt__ = _operator("Less", bool)
    __gt__ = _operator("Greater", bool)
    __ge__ = _operator("GreaterOrEqual", bool)
    __and__ = _operator("And")
    __xor__ = _operator("BitwiseXor")

    def __neg__(self) -> "Value":
        return self.apply("Neg")

    def apply(self, op: str, **attributes: Any) -> "Value":
        """Return what an operator of one input makes of the elements."""
        return self.graph.add(op, self, **attributes)

    def clip(self, low: Any, high: Any) -> "Value":
        """Return the values, those beyond two bounds as the bounds; NaN stays."""
        if np.ndim(low) or np.ndim(high):  # the operator Clip takes scalars only
            return self.maximum(low).minimum(high)
        return self.graph.add("Clip", self, self.constant(low), self.constant(high))

    def __or__(self, other: "Value") -> "Value":
        return self._with("Or" if self.dtype == bool else "BitwiseOr", other)

    def __invert__(self) -> "Value":
        return self.apply("Not")

    def __bool__(self) -> bool:
        # `if` in a normalizer, and NumPy functions that compare, would ask for one.
        raise TypeError("A tensor of an exported graph has no truth value.")

    def equals(self, other: Any) -> "Value":
        """Tell where elements are equal; not for strings, of which opset 18 has none."""
        return self._with("Equal", other, bool)

    def shifted(self, n_bits: int, direction: str) -> "Value":
        """Shift the bits of unsigned integers to the "LEFT" or "RIGHT"."""
        n = self.constant(n_bits)
        return self.graph.add("BitShift", self, n, direction=direction)

    def is_nan(self) -> "Value":
        """Tell where a number is NaN."""
        return self.apply("IsNaN", dtype=bool)

    def cast(self, dtype: Any) -> "Value":
        """Return the elements in another type."""
        dtype = np.dtype(dtype)
        if dtype == self.dtype:
            return self
        return self.apply("Cast", dtype=dtype, to=_onnx_type(dtype))

    def sum(self, axis: int, keepdims: bool = False) -> "Value":
        """Return the sums along an axis."""
        return self._reduced("ReduceSum", axis, keepdims)

    def max(
        self, axis: int, keepdims: bool = False, initial: float | None = None
    ) -> "Value":
        """Return the greatest numbers along an axis, `initial` counted as one of them.

        Without it the axis must not be empty: ONNX Runtime 1.17 fails then.
        """
        if initial is None:
            return self._reduced("ReduceMax", axis, keepdims)
        # Pad takes the numbers before each axis, and then those behind each.
        at_end = np.zeros(2 * self.ndim, np.int64)
        at_end[self.ndim + axis % self.ndim] = 1
        pads = self.graph.constant(at_end)
        with_it = self.graph.add("Pad", self, pads, self.constant(initial))
        return with_it.max(axis, keepdims)

    def _reduced(self, op: str, axis: int, keepdims: bool) -> "Value":
        # From the front: of no rows, ONNX Runtime takes a negative axis for another one.
        # As an input: of ReduceSum since operator set 13, of ReduceMax since 18.
        axes = self.graph.constant(np.array([axis % self.ndim]))
        ndim = self.ndim if keepdims else self.ndim - 1
        return self.graph.add(op, self, axes, ndim=ndim, keepdims=int(keepdims))

    def maximum(self, other: Any) -> "Value":
        """Return the greater of two numbers."""
        return self._with("Max", other)

    def minimum(self, other: Any) -> "Value":
        """Return the lesser of two numbers."""
        return self._with("Min", other)

    def unsqueeze(self, axis: int) -> "Value":
        """Return the tensor with another axis of length one."""
        axes = self.graph.constant(np.array([axis % (self.ndim + 1)]))
        return self.graph.add("Unsqueeze", self, axes, ndim=self.ndim + 1)

    def squeeze(self, axis: int) -> "Value":
        """Return the tensor without an axis of length one."""
        axes = self.graph.constant(np.array([axis % self.ndim]))
        return self.graph.add("Squeeze", self, axes, ndim=self.ndim - 1)

    def flatten(self) -> "Value":
        """Return the elements of each row in one axis."""
        # All axes behind the first become one: (n_rows, -1).
        return self.graph.add("Flatten", self, ndim=2, axis=1)

    def reshape(self, *shape: int) -> "Value":
        """Return the elements in another shape; 0 keeps the length of an axis."""
        lengths = self.graph.constant(np.array(shape))
        return self.graph.add("Reshape", self, lengths, ndim=len(shape))

    def transposed(self, *axes: int) -> "Value":
        """Return the tensor with its axes in another order."""
        return self.graph.add("Transpose", self, perm=axes)

    def take(self, indices: Any, axis: int = 0) -> "Value":
        """Return slices at indices along an axis; -1 is the last one."""
        if not isinstance(indices, Value):
            # Gather takes int32 as well: with one type, equal indices are one constant.
            indices = self.graph.constant(np.asarray(indices, dtype=np.int64))
        ndim = self.ndim + indices.ndim - 1
        return self.graph.add("Gather", self, indices, ndim=ndim, axis=axis % self.ndim)

    def without_last(self, axis: int = 0) -> "Value":
        """Return all slices along an axis but the last one."""
        ends = (self.graph.constant(np.array([end])) for end in (0, -1, axis))
        return self.graph.add("Slice", self, *ends, ndim=self.ndim)

    def length(self, axis: int) -> "Value":
        """Return the length of an axis, int64 of shape ()."""
        # Not by its attributes `start` and `end`: so one node serves all axes.
        return self.graph.add("Shape", self, dtype=np.int64, ndim=1).take(axis)

    def expanded(self, *shape: Any) -> "Value":
        """Return the tensor repeated to a shape of integers and Values."""
        sizes = (
            n if isinstance(n, Value) else self.graph.constant(np.array(n))
            for n in shape
        )
        lengths = [size.unsqueeze(0) for size in sizes]
        return self.graph.add("Expand", self, concat(lengths, axis=0), ndim=len(shape))


class Graph:
    """An ONNX graph under construction.

    Parameters
    ----------
    name : str
        Its name.

    Attributes
    ----------
    inputs, outputs : list of onnx.ValueInfoProto
        What it takes and gives.
    initializers : dict of str to ndarray
        Constants and variables by name.

    Raises
    ------
    ImportError
        If onnx is not installed.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> _ = pytest.importorskip("onnx")
    >>> from skest.export.onnx.graph import Graph
    >>> graph = Graph("scaled")
    >>> x = graph.input("x", np.float32, (None, 2))
    >>> graph.output("y", (x - 1) / 2, (None, 2))
    'y'
    >>> [node.op_type for node in graph.nodes]
    ['Sub', 'Div', 'Identity']
    """

    def __init__(self, name: str) -> None:
        with needing("onnx onnxruntime", "An ONNX graph"):
            import onnx.helper
        self.name = name
        self._make_node = onnx.helper.make_node
        self._nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        # Arrays, of which only those that a kept node reads are copied into the model.
        self.initializers: dict[str, Any] = {}
        # By all that makes it: constants, weights and nodes that are equal are made once.
        self._known: dict[Hashable, tuple[Value, ...]] = {}
        # Each with its last number: a graph of folds has some of them a thousand times.
        self._names: dict[str, int] = {}
        self._scope: tuple[str, ...] = ()

    def _unique(self, name: str) -> str:
        found = name
        while found in self._names:
            self._names[name] += 1
            found = f"{name}_{self._names[name]}"
        self._names[found] = 0
        return found

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Put a name before those of the nodes that are added inside."""
        outer = self._scope
        self._scope = (*outer, name)
        try:
            yield
        finally:
            self._scope = outer

    def input(self, name: str, dtype: Any, shape: Shape) -> Value:
        """Declare an input; of its shape, None is open."""
        value = Value(self, self._unique(name), np.dtype(dtype), len(shape))
        self.inputs.append(_declared(value.name, value.dtype, shape))
        return value

    def output(self, name: str, value: Value, shape: Shape) -> str:
        """Declare an output; return its name, which differs if there is an equal one."""
        # A node of its own: the same tensor may be given under several names, and an
        # input may be an output.
        name = self._unique(name)
        self._nodes.append(self._make_node("Identity", [value.name], [name], name))
        self.outputs.append(_declared(name, value.dtype, shape))
        return name

    def constant(self, value: Any) -> Value:
        """Return a constant; equal ones are stored once.

        Parameters
        ----------
        value : ndarray
            Of numbers, or of strings (dtype object).
        """
        array = np.asarray(value)
        # The bytes of an array of objects are addresses.
        content = tuple(array.ravel()) if array.dtype == STRING else array.tobytes()
        # By type and shape, too: 0 and 0.0, and () and (1,), have the same bytes.
        key = ("constant", array.dtype.str, array.shape, content)
        return self._initializer("constant", array, key)

    def weight(self, name: str, value: np.ndarray) -> Value:
        """Return a variable of the network, stored under its own name."""
        return self._initializer(name, value, ("weight", name))

    def _initializer(self, name: str, array: np.ndarray, key: Hashable) -> Value:
        if key not in self._known:
            value = Value(self, self._unique(name), array.dtype, array.ndim)
            self.initializers[value.name] = array
            self._known[key] = (value,)
        return self._known[key][0]

    def add(
        self,
        op: str,
        *inputs: Value,
        dtype: Any = None,
        ndim: int | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> Value:
        """Add a node with one output and return that.

        Parameters
        ----------
        op : str
            The operator.
        *inputs : Value
            Its inputs.
        dtype : numpy.dtype, default=None
            Type of the output; None is that of the first input.
        ndim : int, default=None
            Number of axes of the output; None is the most of an input.
        domain : str, default=""
            Operator set.
        **attributes
            Attributes of the node.
        """
        dtype = inputs[0].dtype if dtype is None else dtype
        ndim = max(value.ndim for value in inputs) if ndim is None else ndim
        made = self.add_many(
            op, *inputs, outputs=[(dtype, ndim)], domain=domain, **attributes
        )
        return made[0]

    def add_many(
        self,
        op: str,
        *inputs: Value | None,
        outputs: Sequence[tuple[Any, int]],
        domain: str = "",
        **attributes: Any,
    ) -> tuple[Value, ...]:
        """Add a node; `outputs` are pairs of type and number of axes.

        An input that is None is left out.
        """
        # ONNX calls an input that is left out "".
        names = ["" if value is None else value.name for value in inputs]
        node = self._make_node(op, names, [], domain=domain, **attributes)
        # Equal nodes are one: columns share what they do with the same raw column.
        key = node.SerializeToString()
        if key not in self._known:
            node.name = name = self._unique("/".join([*self._scope, op]))
            own = [name, *(self._unique(f"{name}:{i}") for i in range(1, len(outputs)))]
            node.output.extend(own)
            self._nodes.append(node)
            self._known[key] = tuple(
                Value(self, output, np.dtype(dtype), ndim)
                for output, (dtype, ndim) in zip(own, outputs, strict=True)
            )
        return self._known[key]

    @property
    def nodes(self) -> list[Any]:
        """The nodes that an output needs, in an order in which they can run."""
        wanted = {output.name for output in self.outputs}
        kept = []
        # From the end, so that all who read a node are known when it comes.
        for node in reversed(self._nodes):
            if not wanted.isdisjoint(node.output):
                kept.append(node)
                wanted.update(node.input)
        return kept[::-1]


def where(condition: Value, a: Any, b: Any) -> Value:
    """Return elements of `a` where a condition holds, else of `b`; one is a Value."""
    like = a if isinstance(a, Value) else b
    # A number takes the type of the other branch: ONNX casts nothing by itself.
    a, b = like._operand(a), like._operand(b)
    return condition.graph.add("Where", condition, a, b, dtype=a.dtype)


def concat(values: Sequence[Value], axis: int) -> Value:
    """Return tensors side by side along an axis."""
    if len(values) == 1:
        return values[0]
    return values[0].graph.add("Concat", *values, axis=axis % values[0].ndim)


# The name of the first dimension of inputs and outputs: rows.
_ROWS = "N"


def to_model(graph: Graph, metadata: Mapping[str, str] | None = None) -> Any:
    """Return a graph as an ``onnx.ModelProto``.

    Parameters
    ----------
    graph : Graph
        With at least one output.
    metadata : dict of str to str, default=None
        Stored with the model.

    Raises
    ------
    UnicodeEncodeError
        If a string in it has a lone surrogate.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> _ = pytest.importorskip("onnx")
    >>> from skest.export.onnx.graph import Graph
    >>> from skest.export.onnx.graph import to_model
    >>> graph = Graph("doubled")
    >>> x = graph.input("x", np.float32, (None, 2))
    >>> _ = graph.output("y", x * 2, (None, 2))
    >>> [node.op_type for node in to_model(graph).graph.node]
    ['Mul', 'Identity']
    """
    from onnx import helper, numpy_helper

    nodes = graph.nodes
    used = {name for node in nodes for name in node.input}
    proto = helper.make_graph(
        nodes,
        graph.name,
        graph.inputs,
        graph.outputs,
        [
            numpy_helper.from_array(array, name)
            for name, array in graph.initializers.items()
            if name in used
        ],
    )
    # Only what is used: an engine need know no other operator sets.
    domains = ["", *sorted({node.domain for node in nodes} - {""})]
    model = helper.make_model(
        proto,
        producer_name="skest",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid(d, OPSETS[d]) for d in domains],
    )
    helper.set_model_props(model, dict(metadata or {}))
    return model


def _onnx_type(dtype: np.dtype) -> int:
    from onnx import TensorProto, helper

    is_text = dtype == STRING
    return TensorProto.STRING if is_text else helper.np_dtype_to_tensor_dtype(dtype)


def _declared(name: str, dtype: np.dtype, shape: Shape) -> Any:
    """Return what ONNX says of an input or output."""
    from onnx import helper

    sizes = [
        size if size is not None else f"{name}_{axis}" if axis else _ROWS
        for axis, size in enumerate(shape)
    ]
    return helper.make_tensor_value_info(name, _onnx_type(dtype), sizes)
