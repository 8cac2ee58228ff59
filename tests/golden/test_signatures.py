# SPDX-License-Identifier: Apache-2.0
"""Exported models have the signatures of tf.estimator 2.15.

"parsing" models of TensorFlow take serialized ``tf.Example``, "raw" ones take tensors and
have "predict" only. A model of skest takes raw columns and has all signatures: outputs are
compared with those of the former, inputs with those of the latter.
"""

import pytest

from skest.feature_columns import FeatureColumns, LinearFeatures, numeric_column
from skest.heads import (
    BinaryClassHead,
    LogisticRegressionHead,
    MultiClassHead,
    MultiHead,
    MultiLabelHead,
    PoissonRegressionHead,
    RegressionHead,
)
from tests.golden import _cases

pytest.importorskip("onnx")
from skest.export.onnx.model import build_onnx

HEADS = {
    "binary": BinaryClassHead(),
    "binary_vocab": BinaryClassHead(label_vocabulary=["no", "yes"]),
    "logistic": LogisticRegressionHead(),
    "multi": MultiHead(
        [
            BinaryClassHead(name="ctr"),
            MultiClassHead(3, name="seg"),
            RegressionHead(name="price"),
        ]
    ),
    "multiclass": MultiClassHead(3),
    "multilabel": MultiLabelHead(3),
    "poisson": PoissonRegressionHead(),
    "regression": RegressionHead(),
    "regression2": RegressionHead(label_dimension=2),
}
# What TensorFlow does not have: the answer in the type of the labels.
OWN = ("labels", "/labels")


def described(tensors):
    """Names, types and shapes as the file has them."""
    return {
        name: [info.dtype, [-1 if n is None else n for n in info.shape]]
        for name, info in tensors.items()
        if not name.endswith(OWN)
    }


def test_signatures():
    _cases.check_each(_cases.load("tf_signatures"), check_signatures)


def check_signatures(case):
    name, receiver = case["id"].split("/")
    head = HEADS[name]
    columns = FeatureColumns([numeric_column("x", 3)])
    network = LinearFeatures(columns, head.logits_dimension)
    found = build_onnx(columns, network, head).signatures
    if receiver == "parsing":
        assert found.keys() == case["expected"].keys()
    for signature, expected in case["expected"].items():
        assert f"tensorflow/serving/{found[signature].method}" == expected["method"]
        assert described(found[signature].outputs) == expected["outputs"]
        if receiver == "raw":
            assert described(found[signature].inputs) == expected["inputs"]
