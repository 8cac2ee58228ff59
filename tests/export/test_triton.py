# SPDX-License-Identifier: Apache-2.0
"""Triton's rules of a model repository; the server itself is not at hand."""

import re

import onnx
import pytest

import skest
from skest.export.triton import write_config
from tests.export.test_declaration import fitted

TYPES = {
    onnx.TensorProto.STRING: "TYPE_STRING",
    onnx.TensorProto.FLOAT: "TYPE_FP32",
    onnx.TensorProto.DOUBLE: "TYPE_FP64",
    onnx.TensorProto.INT32: "TYPE_INT32",
    onnx.TensorProto.INT64: "TYPE_INT64",
}
ENTRY = re.compile(r'name: "(.+)"\n +data_type: (\w+)\n +dims: \[(.+)\]')


def declared(text, kind):
    """Return name, type and sizes of the tensors, as the text has them."""
    block = re.search(rf"^{kind} \[\n(.*?)\n\]$", text, re.DOTALL | re.MULTILINE)
    entries = ENTRY.findall(block[1])
    return {n: (t, [int(size) for size in d.split(",")]) for n, t, d in entries}


def of_graph(tensors, first):
    return {
        tensor.name: (
            TYPES[tensor.type.tensor_type.elem_type],
            [
                d.dim_value if d.HasField("dim_value") else -1
                for d in tensor.type.tensor_type.shape.dim
            ][first:],
        )
        for tensor in tensors
    }


@pytest.mark.parametrize("max_batch_size", [0, 64])
def test_config_and_directories(tmp_path, max_batch_size):
    base = tmp_path / "census"
    version = fitted(skest.DNNClassifier((4,))).export(base)
    path = write_config(base, name="census", max_batch_size=max_batch_size)
    assert path == base / "config.pbtxt"
    text = path.read_text()
    assert 'name: "census"\nbackend: "onnxruntime"' in text
    assert f"max_batch_size: {max_batch_size}\n" in text
    graph = onnx.load(version / "model.onnx").graph
    first = int(max_batch_size > 0)
    assert declared(text, "input") == of_graph(graph.input, first)
    assert declared(text, "output") == of_graph(graph.output, first)
    # Versions are directories named by whole numbers, each with a model.onnx.
    directories = [entry for entry in base.iterdir() if entry.is_dir()]
    assert directories == [version] and re.fullmatch(r"[1-9]\d*", version.name)
    assert skest.export.load(base).path == version


def test_what_is_refused(tmp_path):
    base = tmp_path / "census"
    fitted(skest.LinearClassifier()).export(base, input_rank=1)
    with pytest.raises(ValueError, match="takes the name of the directory, 'census'"):
        write_config(base, name="other")
    with pytest.raises(ValueError, match="'max_batch_size' must be"):
        write_config(base, max_batch_size=-1)
    with pytest.raises(ValueError, match="has one axis, that of the rows"):
        write_config(base, max_batch_size=8)
    with pytest.raises(FileNotFoundError, match="no exported version"):
        write_config(tmp_path)
