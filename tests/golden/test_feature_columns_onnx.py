# SPDX-License-Identifier: Apache-2.0
"""Exported feature columns give the numbers of ``tf.feature_column``, too.

The cases are those of test_feature_columns.py with numbers; their strings keep
MurmurHash here, so that where they are hashed, torch has the numbers to compare with.
"""

import numpy as np
import pytest
import torch

from skest import feature_columns as fc
from skest.heads import RegressionHead
from tests.golden import _cases
from tests.golden import test_feature_columns as golden

pytest.importorskip("onnxruntime")
from skest.export.onnx.model import build_onnx
from skest.feature_columns.sources import forms_of
from tests.export._running import feeds, run

OUTPUTS = {"dense_features": "output", "linear_model": "logits"}
CASES = [
    case
    for case in _cases.load("feature_columns")
    if case["component"] in OUTPUTS
    and "error" not in case["expected"]
    and case["id"] not in golden.NOT_APPLICABLE
]


def module_of(case, columns):
    config = case["config"]
    if case["component"] == "dense_features":
        return fc.DenseFeatures(columns)
    module = fc.LinearFeatures(columns, config["units"], config["sparse_combiner"])
    golden.set_weights(module, _cases.decode(config["weights"]))
    return module


def hashes_strings(case):
    """Whether a string column is hashed: its buckets differ by design."""
    text = str(case["config"])
    has_strings = any(
        np.asarray(getattr(value, "values", value)).dtype == object
        for value in golden.features(case).values()
    )
    return has_strings and any(
        kind in text for kind in ("hash_bucket", "crossed", "oov")
    )


@_cases.groups(CASES)
def test_columns(cases, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # for files of vocabularies
    _cases.check_each(cases, check_case)


def check_case(case):
    rows, _ = golden.EQUAL_ROWS.get(case["id"], (slice(None), ""))
    raw = {key: value[rows] for key, value in golden.features(case).items()}
    columns = fc.FeatureColumns(golden.build_all(case["config"]["columns"]))
    module = module_of(case, columns)
    with torch.no_grad():
        expected = module(columns.encode(raw)).numpy()
    head = RegressionHead(label_dimension=expected.shape[1])
    graph = build_onnx(columns, module, head, forms=forms_of(raw))
    found = run(graph.model, feeds(graph.inputs, raw))["predictions"]
    np.testing.assert_allclose(found, expected, rtol=_cases.RTOL, atol=_cases.ATOL)
    if not hashes_strings(case):
        key = OUTPUTS[case["component"]]
        golden.assert_close(found, case, case["expected"][key])
