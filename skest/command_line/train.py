# SPDX-License-Identifier: Apache-2.0
"""``skest train DATA --target COLUMN -o DIRECTORY``."""

import argparse
import ast
import contextlib
import json
import os
import pkgutil
import sys
import time
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd

from skest._version import __version__
from skest.command_line import tables
from skest.command_line.kept_model import metrics_of
from skest.core.files import explained, remove_directory, write_directory

PICTURE = "training_curve.png"
# Imported when there is a table, as in `program`: wrong arguments are told at once.
_MODELS = {
    "wide-deep": "DNNLinearCombined",
    "dnn": "DNN",
    "linear": "Linear",
    "baseline": "Baseline",
}
# Numbers of so few kinds are taken for classes.
_MOST_NUMBERED_CLASSES = 20


def main(arguments: Sequence[str], prog: str) -> None:
    """Train, measure and save a model."""
    options = _parser(prog).parse_args(arguments)
    if not 0 <= options.holdout < 1:
        raise ValueError(f"--holdout must be from 0 to below 1; got {options.holdout}.")
    # NumPy's generators take no negative seed; this is told without a table.
    if options.seed < 0:
        raise ValueError(f"--seed must not be negative; got {options.seed}.")
    output = Path(options.output)
    parent = output.absolute().parent
    _check_output(output, options.overwrite)
    # Before the training, which would be lost.
    with explained(f"{options.output!r} can't be written", "Give another directory."):
        parent.mkdir(parents=True, exist_ok=True)
        if not os.access(parent, os.W_OK):
            raise PermissionError("Permission denied")
    started = time.perf_counter()
    # Progress is for people; where JSON goes to the standard output, nothing else does.
    aside = contextlib.redirect_stdout(sys.stderr) if options.json else None
    with aside or contextlib.nullcontext():
        model, report = _trained(options)
        report["seconds"] = round(time.perf_counter() - started, 1)
        # First saved, then told: a closed terminal loses no model.
        _save(model, report, output, options.overwrite)
        _tell(report, output)
    if options.json:
        tables.print_json(report)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = tables.command_parser(
        prog,
        "Train a model on a table, measure it on rows that are held out, and save it with "
        "a report and a picture of the training.",
    )
    tables.add_table_options(parser)
    add = parser.add_argument
    add("--target", required=True, metavar="COLUMN", help="what to predict")
    add("-o", "--output", required=True, metavar="DIRECTORY", help="of the model")
    add("--model", choices=_MODELS, default="wide-deep", help="default: wide-deep")
    add(
        "--task",
        choices=["classification", "regression"],
        help="by default strings, and whole numbers of at most 20 kinds, are classes",
    )
    add(
        "--holdout",
        type=float,
        default=0.2,
        metavar="SHARE",
        help="of the rows, to measure the model on; 0 for none (default: 0.2)",
    )
    add("--drop", action="append", default=[], metavar="COLUMN", help="leave it out")
    add(
        "--category",
        action="append",
        default=[],
        metavar="COLUMN",
        help="its numbers name things, such as stores; may be repeated",
    )
    add("--weight", metavar="COLUMN", help="with the weights of the rows")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the estimator, such as max_iter=20; may be repeated",
    )
    add("--seed", type=int, default=0, help="of all that is random (default: 0)")
    add("--overwrite", action="store_true", help="replace a model that is there")
    add("--quiet", action="store_true", help="no line about every epoch")
    return parser


def _check_output(output: Path, overwrite: bool) -> None:
    if not output.exists():
        return
    if not (output / tables.MODEL).is_file():
        raise FileExistsError(
            f"There is something else at {str(output)!r}. Give a new directory."
        )
    if not overwrite:
        raise FileExistsError(
            f"There is a model in {str(output)!r}. Give another directory, or --overwrite."
        )


def _trained(options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Return a model and what is to be said of it."""
    table = tables.read_table(options.data, options.separator)
    n_rows, n_columns = table.shape
    s = "s" * (n_columns != 1)
    print(f"Read {options.data}: {n_rows:,} rows, {n_columns} column{s}")
    y = tables.target_of(table, options.target, "--target")
    known = y.notna()
    # Before all else: such rows have no part in classes, weights and shares.
    if not known.all():
        print(f"Left out {int((~known).sum()):,} rows without {options.target!r}")
        table, y = table[known], y[known]
        if not len(table):
            raise ValueError(f"No row has the target {options.target!r}.")
    task = options.task or _task_of(y)
    weight = None
    if options.weight is not None:
        if options.weight == options.target:
            raise ValueError(f"--weight {options.weight}: that is the target.")
        weight = tables.numbers_of(
            tables.column_of(table, options.weight, "--weight"), "--weight"
        )
        # NaN is not, either.
        if not (weight >= 0).all():
            raise ValueError(
                f"The column {options.weight!r} for --weight has gaps or negative numbers."
            )
    # Weights are no feature, as the target is none.
    others = [options.target, *options.drop, options.weight]
    for name in options.drop:
        tables.column_of(table, name, "--drop")
        if name == options.target:
            raise ValueError(f"--drop {name}: that is the target, and not left out.")
    X = table.drop(columns=[name for name in others if name is not None])
    if not X.shape[1]:
        raise ValueError("The table has no column to predict from.")
    for name in options.category:
        # The type tells estimators that numbers are names.
        X[name] = tables.column_of(X, name, "--category").astype("category")
    # Before the training, which would fail late or learn nothing.
    y = _labels(y, task)
    model = _estimator(options, task)
    # Row numbers.
    train, held_out = _split(y, options.holdout, options.seed, task)
    kind = f"{y.nunique()} classes" if task == "classification" else "a number"
    print(
        f"Target {options.target!r}: {kind}; training {type(model).__name__} on "
        f"{len(train):,} rows, {len(held_out):,} are held out"
    )

    def of(rows: Any) -> tuple[Any, Any, Any]:
        some = None if weight is None else weight.iloc[rows]
        # By position: with rows left out, the numbers of the index have gaps.
        return X.iloc[rows], y.iloc[rows], some

    model.fit(*of(train))
    return model, {
        "target": options.target,
        "task": task,
        # Regressors have none.
        "classes": getattr(model, "classes_", None),
        "estimator": type(model).__name__,
        "features": list(X.columns),
        # Types are guessed anew in each CSV file, in which all codes may be numbers.
        "strings": tables.strings_in(table[[*X.columns, options.target]]),
        "reads": _read_by(model, X),
        "rows_trained": len(train),
        "rows_held_out": len(held_out),
        "metrics": metrics_of(model, *of(held_out)) if len(held_out) else {},
        "auto_params": model.auto_params_,
        "data": str(options.data),
        "seed": options.seed,
        "skest": __version__,
        "summary": model.summary().splitlines(),
    }


def _task_of(y: pd.Series) -> str:
    if tables.are_written_numbers(y):  # for there are marks of missing ones among them
        y = pd.to_numeric(y)
    is_number = pd.api.types.is_numeric_dtype(y) and not pd.api.types.is_bool_dtype(y)
    if not is_number:
        return "classification"
    # Of integers with gaps, pandas makes floats.
    whole = pd.api.types.is_integer_dtype(y) or (y % 1 == 0).all()
    # Such as stars of a review: few whole numbers are rather kinds than amounts.
    few = y.nunique() <= _MOST_NUMBERED_CLASSES
    return "classification" if whole and few else "regression"


def _labels(y: pd.Series, task: str) -> pd.Series:
    """Return a target that its task can have."""
    if task == "regression":
        return tables.numbers_of(y, "--target")
    n_classes = y.nunique()
    if n_classes < 2:
        value = tables.plain(y.iloc[0])
        raise ValueError(
            f"The target {y.name!r} has one value only, {value!r}. Give another --target."
        )
    # Then it is rather an id, or free text.
    if n_classes > len(y) / 2:
        raise ValueError(
            f"The target {y.name!r} has {n_classes:,} classes in {len(y):,} rows, of "
            "which nothing can be learned. Give another --target, or --task regression "
            "if these are numbers."
        )
    return y


def _read_by(model: Any, X: pd.DataFrame) -> list[str]:
    """Return the columns that the model reads; others may be missing later."""
    from skest.feature_columns.columns import unread_keys

    parts = [getattr(model, f"{name}_") for name in model._column_parameters]
    columns = [part for part in parts if part is not None]
    unread = unread_keys(list(X.columns), columns) if columns else []
    return [name for name in X.columns if name not in unread]


def _estimator(options: argparse.Namespace, task: str) -> Any:
    kind = "Regressor" if task == "regression" else "Classifier"
    # As constructed, so that what --set does not name is what the documentation says.
    model = pkgutil.resolve_name(f"skest:{_MODELS[options.model]}{kind}")()
    # What --set says comes later, and wins.
    parameters = {"random_state": options.seed, "verbose": int(not options.quiet)}
    for setting in options.set:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(
                f"--set takes NAME=VALUE, such as max_iter=20; got {setting!r}."
            )
        _check_name(name, model)
        # As Python reads it, and a string where it is no literal: quotes in a shell
        # are tiresome.
        try:
            parameters[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            parameters[name] = text
    return model.set_params(**parameters)


def _check_name(name: str, model: Any) -> None:
    from skest.adapters.parameters import FORMER_ARGUMENTS

    known = model.get_params()
    if name in known:
        return
    near = get_close_matches(name, known, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    if name in FORMER_ARGUMENTS:
        hint = f" Instead {FORMER_ARGUMENTS[name]}."
    kind = type(model).__name__
    raise ValueError(
        f"{kind} has no parameter {name!r} for --set.{hint} `python -m pydoc skest.{kind}` "
        "describes all of them."
    )


def _split(y: pd.Series, share: float, seed: int, task: str) -> tuple[Any, Any]:
    from sklearn.model_selection import train_test_split

    rows = np.arange(len(y))
    # As `train_test_split` rounds.
    n_held_out = int(np.ceil(share * len(y)))
    if not n_held_out:
        return rows, rows[:0]
    # Stratified, so that rare classes are in both parts.
    counts = y.value_counts()
    # scikit-learn refuses classes of one row, and more classes than rows to hold out.
    can_stratify = (
        task == "classification" and counts.min() > 1 and len(counts) <= n_held_out
    )
    train, held_out = train_test_split(
        rows,
        test_size=share,
        random_state=seed,
        stratify=y if can_stratify else None,
    )
    if task == "classification":  # of a class that is not trained, nothing is measured
        is_known = y.iloc[held_out].isin(y.iloc[train]).to_numpy()
        train = np.append(train, held_out[~is_known])
        held_out = held_out[is_known]
    return train, held_out


def _save(model: Any, report: dict[str, Any], output: Path, overwrite: bool) -> None:
    """Write the directory of a model, which appears when it is complete."""

    def write(directory: Path) -> None:
        joblib.dump(model, directory / tables.MODEL)
        _draw(model, directory / PICTURE)
        text = json.dumps(tables.plain(report), indent=1, ensure_ascii=False)
        (directory / tables.REPORT).write_text(text, encoding="utf-8")

    def name() -> str:
        _check_output(output, overwrite)  # somebody may have been faster
        # No rename replaces a directory that has something in it.
        if output.exists():
            remove_directory(output)
        return output.name

    with explained(
        f"{str(output)!r} was not written", "See to the directory and space."
    ):
        write_directory(output.absolute().parent, write, name)


def _draw(model: Any, path: Path) -> None:
    from skest.displays.learned import TrainingCurveDisplay

    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No picture: matplotlib is missing (pip install matplotlib)")
        return
    # Without pyplot, which would choose a backend and may want a display.
    ax = Figure(layout="constrained").subplots()
    TrainingCurveDisplay.from_estimator(model, ax=ax).figure_.savefig(path, dpi=120)


def _tell(report: dict[str, Any], output: Path) -> None:
    if report["metrics"]:
        print(f"On the {report['rows_held_out']:,} rows that were held out:")
        tables.print_metrics(report["metrics"], report["classes"])
    files = ", ".join(sorted(path.name for path in output.iterdir()))
    print(f"Saved {output} ({files}) after {report['seconds']} s")
    print(f"Next: skest inspect {output} | skest predict {output} NEW.csv")
