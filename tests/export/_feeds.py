# SPDX-License-Identifier: Apache-2.0
"""Raw columns as what an exported graph takes."""

import numpy as np
import scipy.sparse

from skest.export.raw_values import Feature
from skest.feature_columns.table import Table


def feeds(inputs, X):
    """Return arrays by the name of the input, as `skest.export.load` makes them."""
    table = Table(X)
    found = {}
    for spec in inputs:
        if spec.names is not None and spec.key not in table.keys:
            cells = np.column_stack([table.numbers(name) for name in spec.names])
        else:
            cells = X[spec.key] if isinstance(X, dict) else table.cells(spec.key)
        if scipy.sparse.issparse(cells):
            cells = cells.toarray()
        found[spec.name] = Feature(spec.name, spec.to_json()).feed(cells)
    return found
