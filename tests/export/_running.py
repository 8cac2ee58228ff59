# SPDX-License-Identifier: Apache-2.0
"""Runs exported graphs in ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime

from skest.export.onnx.columns import EveryId, Ids, encode
from skest.export.onnx.graph import Graph, to_model
from skest.export.onnx.inputs import Inputs
from skest.export.onnx.numbers import Numbers, computed
from skest.export.raw_values import Feature
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.sources import forms_of
from skest.feature_columns.table import Table


def session(model):
    """A session on one thread, of a model that onnx has checked."""
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(model, given):
    """Return the outputs by name."""
    loaded = session(model)
    names = [output.name for output in loaded.get_outputs()]
    return dict(zip(names, loaded.run(None, given), strict=True))


def feeds(inputs, X):
    """Return raw columns by the name of the input, as `skest.export.load` makes them."""
    table = Table(X)
    found = {}
    for spec in inputs:
        cells = X[spec.key] if isinstance(X, dict) else table.cells(spec.key)
        found[spec.name] = Feature(spec.name, spec.to_json()).feed(cells)
    return found


class EncodedInOnnx:
    """What feature columns encode, computed by ONNX Runtime.

    Parameters
    ----------
    columns : list of FeatureColumn, or FeatureColumns
        Fitted, or such that need no fit.
    X : dict, frame or array
        Tells the forms of the raw columns.
    """

    def __init__(self, columns, X, dtype="float32"):
        if not isinstance(columns, FeatureColumns):
            columns = FeatureColumns(columns)
        graph = Graph("encoded")
        forms = forms_of({key: Table(X).cells(key) for key in Table(X).keys})
        inputs = Inputs(graph, columns.active, np.dtype(dtype), forms)
        expected = columns.encode(X)
        self._keys = []
        for key, entry in encode(columns, inputs, np.dtype(dtype)).items():
            if not isinstance(entry, EveryId):
                value = entry.values if isinstance(entry, Ids) else entry
                if isinstance(value, Numbers):
                    value = computed([value]).cast(dtype)
                graph.output(key, value, (None,) * expected[key].ndim)
                self._keys.append(key)
        self.inputs = inputs.specs
        self._session = session(to_model(graph))

    def __call__(self, X):
        """Encode a table."""
        return self.run(feeds(self.inputs, X))

    def run(self, given):
        """Encode arrays that are what the graph takes already."""
        found = self._session.run(None, given)
        return dict(zip(self._keys, found, strict=True))
