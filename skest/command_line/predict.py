# SPDX-License-Identifier: Apache-2.0
"""``skest predict MODEL DATA``."""

from collections.abc import Sequence

import pandas as pd

from skest.command_line.tables import (
    add_json_option,
    add_table_options,
    check_writable,
    column_of,
    features_of,
    load_model,
    print_json,
    read_table,
    write_rows,
)
from skest.core.checks import ArgumentParser


def main(arguments: Sequence[str] | None = None, prog: str = "skest predict") -> int:
    """Write predictions, of a classifier with the probabilities of the classes."""
    parser = ArgumentParser(
        prog=prog,
        description="Predict for each row of a table: a column `prediction` and, of a "
        "classifier, `probability_CLASS`.",
    )
    parser.add_argument("model", help="the directory that `skest train` has written")
    add_table_options(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=".csv or .parquet; by default it is printed",
    )
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="COLUMN",
        help="of the table, to write beside; may be repeated",
    )
    add_json_option(parser)
    options = parser.parse_args(arguments)
    if options.output is not None:
        check_writable(options.output)
    model, report = load_model(options.model)
    table = read_table(options.data, options.separator)
    kept = {name: column_of(table, name, "--keep") for name in options.keep}
    X = features_of(table, report)
    answer = pd.DataFrame({**kept, "prediction": model.predict(X)}, index=table.index)
    if hasattr(model, "classes_"):
        names = [f"probability_{label}" for label in model.classes_]
        answer[names] = model.predict_proba(X)
    if options.json and options.output is None:
        print_json(answer.to_dict(orient="records"))
        return 0
    write_rows(answer, options.output)
    if options.json:
        print_json({"rows": len(answer), "output": options.output})
    elif options.output is not None:
        print(f"Wrote {len(answer):,} rows to {options.output}")
    return 0
