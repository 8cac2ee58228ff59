# SPDX-License-Identifier: Apache-2.0
"""Raw columns as what an exported graph takes."""

from skest.export.raw_values import Feature
from skest.feature_columns.table import Table


def feeds(inputs, X):
    """Return arrays by the name of the input, as `skest.export.load` makes them."""
    table = Table(X)
    found = {}
    for spec in inputs:
        cells = X[spec.key] if isinstance(X, dict) else table.cells(spec.key)
        found[spec.name] = Feature(spec.name, spec.to_json()).feed(cells)
    return found
