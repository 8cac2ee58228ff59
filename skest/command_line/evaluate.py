# SPDX-License-Identifier: Apache-2.0
"""``skest evaluate MODEL DATA``."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from skest.command_line.tables import (
    add_json_option,
    add_table_options,
    column_of,
    features_of,
    load_model,
    print_json,
    print_metrics,
    read_table,
)
from skest.core.checks import ArgumentParser


def main(arguments: Sequence[str] | None = None, prog: str = "skest evaluate") -> int:
    """Print the metrics of a model on a table with the target."""
    parser = ArgumentParser(
        prog=prog, description="Measure a model on rows that have the target."
    )
    parser.add_argument("model", help="the directory that `skest train` has written")
    add_table_options(parser)
    add_json_option(parser)
    options = parser.parse_args(arguments)
    model, report = load_model(options.model)
    table = read_table(options.data, options.separator)
    y = column_of(table, report["target"], "the target")
    known = y.notna()
    if not known.any():
        raise ValueError(f"No row has the target {report['target']!r}.")
    metrics = metrics_of(model, features_of(table, report)[known], y[known])
    if options.json:
        print_json({"rows": int(known.sum()), "metrics": metrics})
    else:
        print(f"On {int(known.sum()):,} rows:")
        print_metrics(metrics)
    return 0


def metrics_of(model: Any, X: Any, y: Any, weight: Any = None) -> dict[str, float]:
    """Return the metrics of the head; of numbers, also what people ask for."""
    from sklearn.base import is_regressor

    found = model.evaluate(X, y, weight)
    found.pop("global_step", None)
    if is_regressor(model):
        found["rmse"] = float(
            np.sqrt(np.average((model.predict(X) - y) ** 2, weights=weight))
        )
        if len(y) > 1:
            found["r2"] = model.score(X, y, weight)
    return found
