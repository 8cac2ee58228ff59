# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime predicts what the heads predict."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from skest.feature_columns import FeatureColumns, numeric_column
from skest.heads import (
    BinaryClassHead,
    LogisticRegressionHead,
    MultiClassHead,
    MultiHead,
    MultiLabelHead,
    PoissonRegressionHead,
    RegressionHead,
    SampledSoftmaxHead,
)
from skest.networks import DNN

pytest.importorskip("onnxruntime")
from skest.export.onnx.model import build_onnx
from skest.feature_columns import DenseFeatures
from tests.export._running import run

HEADS = {
    "binary": BinaryClassHead(),
    "multi-class, names": MultiClassHead(3, label_vocabulary=["a", "é", "\0"]),
    "multi-label": MultiLabelHead(3, label_vocabulary=["a", "b", "c"]),
    "regression": RegressionHead(),
    "link": RegressionHead(inverse_link_fn=F.softplus),
    "poisson": PoissonRegressionHead(),
    "logistic": LogisticRegressionHead(label_dimension=2),
    "sampled softmax": SampledSoftmaxHead(50, num_sampled=5, top_k=3),
    "several": MultiHead(
        [
            BinaryClassHead(name="click"),
            RegressionHead(name="price", label_dimension=2),
            MultiClassHead(3, name="kind", label_vocabulary=["x", "y", "z"]),
        ]
    ),
}


def model_of(head, dtype=torch.float32, scale=3.0):
    """A network with far logits, and its columns."""
    columns = FeatureColumns([numeric_column("x", 3, dtype=str(dtype)[6:])])
    network = DNN(
        DenseFeatures(columns, dtype=dtype),
        (5,),
        head.logits_dimension,
        dtype=dtype,
        generator=torch.Generator().manual_seed(0),
        output=head.output_layer,
    ).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(scale)
    return columns, network


def rows(n=100):
    x = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    x[0] = 0  # equal logits
    return x


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_predicts_as_the_head(head, dtype):
    columns, network = model_of(head, dtype)
    x = rows().astype(str(dtype)[6:])
    if isinstance(head, SampledSoftmaxHead):
        x = x[1:]  # it is left open which of equal classes come first
    with torch.no_grad():
        logits = network(columns.encode({"x": x}, dtype))
    found = run(build_onnx(columns, network, head).model, {"x": x})
    expected = head.predictions(logits)
    for key, values in expected.items():
        name = "/".join(key) if isinstance(key, tuple) else key
        actual = found.pop(name)
        if isinstance(values, torch.Tensor) and values.is_floating_point():
            rtol = 0 if "probabilities" in name else 1e-5  # counts may be large
            np.testing.assert_allclose(actual, values.numpy(), rtol=rtol, atol=1e-5)
        else:
            np.testing.assert_array_equal(actual, np.asarray(values))
        assert actual.dtype == np.asarray(values).dtype
    assert all(name.endswith("labels") for name in found)
    nothing = run(build_onnx(columns, network, head).model, {"x": x[:0]})
    assert all(v.shape[0] == 0 and v.ndim == 2 for v in nothing.values())


def test_small_probabilities_keep_their_digits():
    head = BinaryClassHead()
    columns, network = model_of(head, scale=20.0)
    found = run(build_onnx(columns, network, head).model, {"x": rows()})
    logits = torch.from_numpy(found["logits"])
    for key, column, expected in (
        ("probabilities", 0, torch.sigmoid(-logits)[:, 0]),
        ("probabilities", 1, torch.sigmoid(logits)[:, 0]),
        ("logistic", 0, torch.sigmoid(logits)[:, 0]),
    ):
        assert float(expected.min()) < 1e-9
        # Some processors flush what is below float32's smallest normal number to 0.
        tiny = torch.finfo(torch.float32).tiny
        np.testing.assert_allclose(
            found[key][:, column], expected, rtol=1e-5, atol=tiny
        )
