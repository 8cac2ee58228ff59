# SPDX-License-Identifier: Apache-2.0
import random

import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper

from skest.exceptions import ArtifactError
from skest.export.onnx_wire import ExternalData, read_onnx
from tests.export import _models


def operators_by_onnx(model):
    return {(node.domain, node.op_type) for node in model.graph.node}


def test_reads_what_onnx_reads():
    model = _models.graph()
    found = read_onnx(model.SerializeToString())
    assert found.operators == operators_by_onnx(model)
    assert found.opsets == {"": 18, "ai.onnx.ml": 2}
    assert found.ir_version == 8
    assert found.inputs == ["city", "age", "tags"]
    assert found.outputs == ["labels", "probabilities"]
    assert found.external == []


def test_both_names_of_the_own_domain_are_one():
    model = _models.graph()
    model.graph.node[1].domain = "ai.onnx"
    assert ("", "Gather") in read_onnx(model.SerializeToString()).operators


def external(**entries):
    model = _models.graph()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return model


def test_external_data():
    model = external(location="weights.safetensors", offset="128", length="16")
    (found,) = read_onnx(model.SerializeToString()).external
    place = ("weights.safetensors", 128, 16)
    assert found == ExternalData("table", *place, "float32", (4,))


def inside_too(tensor):
    tensor.data_location = TensorProto.DEFAULT


def of_strings(tensor):
    tensor.data_type = TensorProto.STRING


@pytest.mark.parametrize("harm", [inside_too, of_strings])
def test_external_data_as_no_export_has_it(harm):
    model = external(location="a", offset="0", length="16")
    harm(model.graph.initializer[0])
    with pytest.raises(ArtifactError, match="'table' lies in another file as exports"):
        read_onnx(model.SerializeToString())


def test_external_data_twice_or_of_an_attribute():
    model = external(location="a", offset="0", length="16")
    model.graph.initializer.append(model.graph.initializer[0])
    with pytest.raises(ArtifactError, match="only initializers .* each once"):
        read_onnx(model.SerializeToString())
    model = external(location="a", offset="0", length="16")
    tensor = model.graph.initializer.pop(0)
    model.graph.node.append(helper.make_node("Constant", [], ["table"], value=tensor))
    with pytest.raises(ArtifactError, match="only initializers .* each once"):
        read_onnx(model.SerializeToString())


@pytest.mark.parametrize("dims", [[3], [2**62, 2**62], []])
def test_external_data_of_another_size(dims):
    model = external(location="a", offset="0", length="16")
    model.graph.initializer[0].dims[:] = dims
    with pytest.raises(
        ArtifactError, match="'table' of float32 .* can't have 16 bytes"
    ):
        read_onnx(model.SerializeToString())


@pytest.mark.parametrize(
    "entries",
    [
        {"location": "a"},
        {"location": "a", "offset": "-1", "length": "4"},
        {"location": "a", "offset": "1e3", "length": "4"},
        {"location": "a", "offset": "1", "length": "4", "checksum": "x"},
        {"location": "a", "offset": "9" * 30, "length": "4"},
    ],
)
def test_external_data_that_is_unclear(entries):
    with pytest.raises(ArtifactError, match="'table' must say where it lies"):
        read_onnx(external(**entries).SerializeToString())


def test_external_data_said_twice():
    model = external(location="a", offset="0", length="4")
    model.graph.initializer[0].external_data.add(key="location", value="b")
    with pytest.raises(ArtifactError, match="'location' twice"):
        read_onnx(model.SerializeToString())


def with_subgraph(model):
    branch = helper.make_graph([], "branch", [], [])
    model.graph.node.append(
        helper.make_node("If", ["c"], ["x"], then_branch=branch, else_branch=branch)
    )


def with_function(model):
    model.functions.add(name="f", domain="mine")


def with_training(model):
    model.training_info.add()


def with_sparse(model):
    model.graph.sparse_initializer.add()


def with_reference(model):
    model.graph.node[0].attribute[0].ref_attr_name = "x"


@pytest.mark.parametrize(
    "change", [with_subgraph, with_function, with_training, with_sparse, with_reference]
)
def test_what_exports_never_have(change):
    model = _models.graph()
    change(model)
    with pytest.raises(ArtifactError, match="exports of skest never have"):
        read_onnx(model.SerializeToString())


def test_two_graphs_would_be_merged_by_other_parsers():
    data = _models.graph().SerializeToString()
    with pytest.raises(ArtifactError, match="'graph' twice"):
        read_onnx(data + data[data.index(b":") :])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no graph"),
        (b"\xff" * 11, "broken number"),
        (b"\x08", "broken number"),
        (b"\x3a\x05ab", "ends in the middle of 'graph'"),
        (b"\x0b", "wire type 3"),
        (b"\x3a\x04\x0a\x02\x22\x01", "ends in the middle of 'op_type'"),
        (b"\x3a\x05\x0a\x03\x22\x01\xff", "no UTF-8"),
    ],
)
def test_broken_bytes(data, message):
    with pytest.raises(ArtifactError, match=message):
        read_onnx(data)


def field(number, content):
    """Return a field of bytes, up to 16,383 of them, as protobuf writes it."""
    size = len(content)
    return bytes([number << 3 | 2, size & 0x7F | 0x80, size >> 7]) + content


def in_an_attribute(content):
    """Return a model with one node, `Gather`, whose attribute holds some bytes."""
    return field(7, field(1, field(4, b"Gather") + field(5, content)))


def looked_up():
    """Return words and ids, short and long, in the lists of an attribute."""
    draw = random.Random(0)
    sizes = [
        *draw.choices(range(5), k=300),
        127,
        128,
        300,
        *draw.choices(range(5), k=9),
    ]
    words = [draw.randbytes(size) for size in sizes]
    ids = [*range(400), 2**14, 2**63 - 1, -(2**63), -1, *range(9)]
    return [("strings", words), ("ints", ids)]


@pytest.mark.parametrize(("name", "items"), looked_up())
def test_lists_that_are_passed_over(name, items):
    content = onnx.AttributeProto(**{name: items}).SerializeToString()
    assert read_onnx(in_an_attribute(content)).operators == {("", "Gather")}
    graph = b"\x32\x00"
    for start in (b"", content):
        with pytest.raises(ArtifactError, match="field 6 of wire type 2"):
            read_onnx(in_an_attribute(start + graph + content))


@pytest.mark.parametrize(("name", "items"), looked_up())
def test_lists_that_end_early(name, items):
    attribute, ends = onnx.AttributeProto(), []
    for item in items:
        getattr(attribute, name).append(item)
        ends.append(attribute.ByteSize())
    content = attribute.SerializeToString()
    for end in range(1, len(content)):
        data = in_an_attribute(content[:end])
        if end in ends:
            assert read_onnx(data).operators == {("", "Gather")}
            continue
        with pytest.raises(ArtifactError, match="broken number|ends in the middle"):
            read_onnx(data)


def test_never_sees_other_operators_than_onnx():
    """Of mutated bytes both parsers see the same, or this one refuses."""
    draw = random.Random(0)
    original = _models.graph().SerializeToString()
    refused = 0
    for _ in range(400):
        data = bytearray(original)
        for _ in range(draw.choice([1, 1, 2, 5])):
            data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            found = read_onnx(bytes(data))
        except ArtifactError:
            refused += 1
            continue
        model = onnx.ModelProto()
        try:
            model.ParseFromString(bytes(data))
        except DecodeError:  # then no engine runs it
            continue
        names = {("" if d == "ai.onnx" else d, n) for d, n in operators_by_onnx(model)}
        assert found.operators == names
    assert 0 < refused < 400
