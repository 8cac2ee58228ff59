# SPDX-License-Identifier: Apache-2.0
"""``skest evaluate``, ``predict`` and ``export``: what a kept model is asked for."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from skest.command_line import tables
from skest.export.artifact import versions_at
from skest.export.runtime import load


def evaluate(arguments: Sequence[str], prog: str) -> None:
    """Print the metrics of a model on a table with the target."""
    parser = tables.command_parser(
        prog, "Measure a model on rows that have the target."
    )
    parser.add_argument("model", help="the directory that `skest train` has written")
    tables.add_table_options(parser)
    options = parser.parse_args(arguments)
    model, report = tables.load_model(options.model)
    table = tables.read_table(options.data, options.separator, report["strings"])
    y = tables.target_of(table, report["target"], "the target")
    # As `skest train`, which leaves out rows without target.
    known = y.notna()
    if not known.any():
        raise ValueError(f"No row has the target {report['target']!r}.")
    metrics = metrics_of(model, tables.features_of(table, report)[known], y[known])
    if options.json:
        tables.print_json({"rows": int(known.sum()), "metrics": metrics})
    else:
        print(f"On {int(known.sum()):,} rows:")
        tables.print_metrics(metrics, getattr(model, "classes_", None))


def metrics_of(model: Any, X: Any, y: Any, weight: Any = None) -> dict[str, float]:
    """Return the metrics of the head, and what else people ask for."""
    from sklearn.base import is_regressor

    if is_regressor(model):
        y = tables.numbers_of(y, "the target")
    found = model.evaluate(X, y, weight)
    # How far it was trained is no metric.
    found.pop("global_step", None)
    if is_regressor(model):
        # The head has the loss that it was trained by, which need not be squared.
        found["rmse"] = float(
            np.sqrt(np.average((model.predict(X) - y) ** 2, weights=weight))
        )
        # Of one row it is not defined.
        if len(y) > 1:
            found["r2"] = model.score(X, y, weight)
    elif "accuracy" in found:
        # The head of two classes has it.
        shares = pd.Series(1.0 if weight is None else weight, y.index).groupby(y).sum()
        found.setdefault("accuracy_baseline", float(shares.max() / shares.sum()))
    return found


def predict(arguments: Sequence[str], prog: str) -> None:
    """Write predictions, of a classifier with the probabilities of the classes."""
    parser = tables.command_parser(
        prog,
        "Predict for each row of a table: a column `prediction` and, of a classifier, "
        "`probability_CLASS`.",
    )
    parser.add_argument(
        "model", help="the directory that `skest train` or `export` has written"
    )
    tables.add_table_options(parser)
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
    options = parser.parse_args(arguments)
    if options.output is not None:
        tables.check_writable(options.output)
    # The model first: a wrong directory is told before a large table is read.
    answers_of, strings = _answers_of(options.model)
    table = tables.read_table(options.data, options.separator, strings)
    kept = {name: tables.column_of(table, name, "--keep") for name in options.keep}
    answers = answers_of(table)
    if taken := sorted(kept.keys() & answers):
        raise ValueError(f"--keep {taken[0]}: a column of the answer has that name.")
    answer = pd.DataFrame({**kept, **answers}, index=table.index)
    if options.json and options.output is None:
        tables.print_json(answer.to_dict(orient="records"))
        return
    tables.write_rows(answer, options.output)
    if options.json:
        tables.print_json({"rows": len(answer), "output": options.output})
    elif options.output is not None:
        print(f"Wrote {len(answer):,} rows to {options.output}")


def _answers_of(
    directory: str,
) -> tuple[Callable[[pd.DataFrame], dict[str, Any]], list[str]]:
    """Return what gives the columns that a trained or exported model has for a table.

    And which columns the table must have as strings.
    """
    if versions_at(Path(directory)):
        exported = load(directory)

        def answers_of_export(table: pd.DataFrame) -> dict[str, Any]:
            for column in exported.names_of():
                tables.column_of(table, column, "the model")
            found = exported.run(table, "predict")
            predictions = found.get("labels", found.get("predictions"))
            # (n_rows,) or (n_rows, 1) is a column.
            if predictions is None or predictions.shape[1:] not in ((), (1,)):
                raise ValueError(
                    f"The export in {directory!r} has several answers for a row, or none "
                    f"that is a prediction: {list(found)}. Ask it in Python: "
                    "skest.export.load(DIRECTORY).run(table)."
                )
            answers = {"prediction": predictions.reshape(len(predictions))}
            if "all_classes" in found:
                # The same in all rows: outputs of a graph have one for each.
                names = found["all_classes"][0]
                answers |= _by_class(names, found["probabilities"])
            return answers

        # Booleans are strings to graphs, and have several spellings in files.
        takes_strings = {
            name
            for name, feature in exported.features.items()
            if feature["dtype"] == "string" and not feature.get("booleans")
        }
        names = exported.names_of().items()
        return answers_of_export, [name for name, of in names if of in takes_strings]
    model, report = tables.load_model(directory)

    def answers_of_model(table: pd.DataFrame) -> dict[str, Any]:
        X = tables.features_of(table, report)
        answers = {"prediction": model.predict(X)}
        if hasattr(model, "classes_"):
            answers |= _by_class(model.classes_, model.predict_proba(X))
        return answers

    return answers_of_model, report["strings"]


def _by_class(classes: Any, probabilities: Any) -> dict[str, Any]:
    # One name for each column of (n_rows, n_classes).
    names = [f"probability_{label}" for label in classes]
    return dict(zip(names, probabilities.T, strict=True))


_N_EXAMPLES = 16
_DATE = "2026-01-31T12:00:00"


def export(arguments: Sequence[str], prog: str) -> None:
    """Write a model as a version that runs without Python, and say how to ask it."""
    parser = tables.command_parser(
        prog,
        "Write a model as one ONNX file that takes raw columns, compared with the model, "
        "as a new version in a directory.",
    )
    parser.add_argument("model", help="the directory that `skest train` has written")
    parser.add_argument(
        "-o", "--output", required=True, metavar="DIRECTORY", help="of the versions"
    )
    parser.add_argument(
        "--example",
        metavar="FILE",
        help="a table whose first rows are written beside the model, to test it with; by "
        "default rows are made up",
    )
    tables.add_separator(parser)
    options = parser.parse_args(arguments)
    if (Path(options.output) / tables.MODEL).exists():
        raise FileExistsError(
            f"{options.output!r} is the directory of a model. Give the versions another "
            f"one, as -o {Path(options.output).absolute().name}-export."
        )
    model, report = tables.load_model(options.model)
    example = None
    if options.example is not None:
        strings = report["strings"]
        table = tables.read_table(options.example, options.separator, strings)
        rows = tables.features_of(table, report)
        model.predict(rows)  # a wrong cell is refused by what it holds
        # All rows were tried above, and these are written into the version.
        example = rows[:_N_EXAMPLES]
    if not options.json:
        print(
            "Writing the model, and comparing its answers with those of the export ..."
        )
    model.set_params(verbose=0)  # it was said, and JSON takes no line beside it
    version = model.export(options.output, example=example)
    if options.json:
        tables.print_json({"version": version})
        return
    size = sum(path.stat().st_size for path in version.rglob("*") if path.is_file())
    print(f"Wrote {version} ({size / 1024:,.0f} KiB); its answers are the same")
    # As `skest serve` calls a model that is given without a name.
    name = Path(options.output).absolute().name
    print(f"Serve it:  skest serve {shlex.quote(options.output)}")
    # It was verified when it was written.
    loaded = load(version, verify=False)
    row = {
        column: _cell(column, loaded.features[feature], example)
        for column, feature in loaded.names_of().items()
    }
    # The row format of TensorFlow Serving's REST.
    request = json.dumps({"instances": [row]}, ensure_ascii=False)
    print(f"Ask it:    curl http://127.0.0.1:8501/v1/models/{name}:predict -d \\")
    print(f"  {shlex.quote(request)}")


def _cell(column: str, feature: Mapping[str, Any], example: Any) -> Any:
    """Return a value that a column takes: that of the first example, or a plain one."""
    value = None if example is None else tables.plain(example[column].iloc[0])
    if feature.get("unit"):  # a date, which may come as a text
        return _DATE if value is None else str(value)
    if feature["dtype"] == "string":
        return "" if value is None else str(value)
    try:
        number = float(value or 0)
    except ValueError:  # a text that the model reads as no number
        return 0
    # A column of integers refuses 1.0.
    return int(number) if number.is_integer() else number
