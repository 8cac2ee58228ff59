# SPDX-License-Identifier: Apache-2.0
"""Tables and models in files, and how commands answer."""

import argparse
import contextlib
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skest.core.checks import ArgumentParser, needing, text_of
from skest.core.files import explained, write_file
from skest.core.texts import NO_NUMBERS
from skest.export.artifact import versions_at

if TYPE_CHECKING:  # what tells of an export needs neither pandas nor joblib
    import pandas as pd

MODEL = "model.joblib"
REPORT = "report.json"
_TOLD = {"target", "features", "reads", "summary"}  # what commands need of a report
_PARQUET = (".parquet", ".pq")


def add_table_options(parser: argparse.ArgumentParser) -> None:
    """Let a command take a table."""
    parser.add_argument("data", help="the table, .csv (also .gz, .zip …) or .parquet")
    add_separator(parser)


def add_separator(parser: argparse.ArgumentParser) -> None:
    """Let a command say how cells of a CSV file are separated."""
    parser.add_argument(
        "--separator",
        type=_separator,
        default=",",
        help="between the cells of a CSV file (default: ,); \\t is a tab",
    )


def _separator(text: str) -> str:
    if text == "\\t":  # as a shell passes it on
        return "\t"
    # pandas takes longer ones for regular expressions.
    if len(text) != 1:
        raise argparse.ArgumentTypeError(f"must be one character; got {text!r}")
    return text


def command_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """Return the parser of a command that can answer in JSON."""
    parser = ArgumentParser(prog=prog, description=description)
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    return parser


def read_table(
    path: str, separator: str = ",", strings: Collection[str] = ()
) -> "pd.DataFrame":
    """Read a CSV or Parquet file.

    Parameters
    ----------
    path : str
        The file.
    separator : str, default=","
        Between the cells of a CSV file.
    strings : collection of str
        Columns that a CSV file has as strings, whatever their cells look like.

    Raises
    ------
    OSError
        If it can't be read.
    ValueError
        If it is no table, or has no rows.
    ImportError
        If Parquet can't be read.
    """
    import zlib
    from zipfile import BadZipFile

    import pandas as pd

    with (
        explained(f"{path!r} can't be read", "Give the path of a CSV or Parquet file."),
        needing("pyarrow", "A Parquet file"),
    ):
        try:
            if path.lower().endswith(_PARQUET):
                table = pd.read_parquet(path)
            else:
                options: dict[str, Any] = {
                    "sep": separator,
                    "dtype": dict.fromkeys(strings, str),
                    # Else types are guessed block by block: a column may hold "1" and 1.
                    "low_memory": False,
                }
                table = pd.read_csv(path, **options)
                # Of rows that end with a separator, the first column became the index.
                if table.shape[1] and table.iloc[:, -1].isna().all():
                    table = pd.read_csv(path, index_col=False, **options)
        # Of pandas, pyarrow and UTF-8; the last three of compressed files.
        except (ValueError, OverflowError, EOFError, BadZipFile, zlib.error) as error:
            reason = str(error).strip().rstrip(".")
            raise ValueError(
                f"{path!r} is no table that can be read: {reason}. Give a CSV file in "
                "UTF-8 whose first line names the columns, or a Parquet file."
            ) from error
    if not len(table):
        raise ValueError(f"{path!r} has no rows.")
    # Parquet may have numbers for names, and options of a command are texts.
    table.columns = table.columns.map(str)
    return table


def strings_in(table: "pd.DataFrame") -> list[str]:
    """Return the columns that hold strings, and gaps perhaps."""
    from pandas.api.types import infer_dtype

    others = table.select_dtypes(exclude="number")
    return [
        str(name)
        for name, column in others.items()
        # As objects: of categories it is asked what they are.
        if infer_dtype(np.asarray(column, object)) == "string"
    ]


def column_of(
    table: "pd.DataFrame", name: str, option: str, others: Collection[str] = ()
) -> "pd.Series":
    """Return a column that an option names, and that is none of some others."""
    if name not in table:
        # Spelling in upper and lower case is the usual mistake.
        free = {c.lower(): c for c in table.columns if c not in others}
        near = get_close_matches(name.lower(), free, 1, 0.75)
        # There may be thousands, and with a wrong separator one name is the whole line.
        shown = [column[:40] for column in table.columns[:20]]
        more = ", …" if table.shape[1] > len(shown) else ""
        hint = f"There is: {', '.join(shown)}{more}"
        if near:
            hint = f"Did you mean {free[near[0]]!r}? {hint}"
        if table.shape[1] == 1:
            hint = (
                f"Its only one is {table.columns[0][:40]!r}. If these are several, give "
                "their --separator, such as ';'."
            )
        raise ValueError(f"The table has no column {name!r} for {option}. {hint}")
    return table[name]


def target_of(table: "pd.DataFrame", name: str, option: str) -> "pd.Series":
    """Return a column to predict, in which blank texts are gaps, as in features.

    So are marks such as "?" and "-" among numbers.
    """
    import pandas as pd

    y = column_of(table, name, option)
    # There are no blank numbers.
    if pd.api.types.is_numeric_dtype(y):
        return y
    y = y.map(lambda cell: cell.strip() if isinstance(cell, str) else cell)
    y = y.mask(y.astype(str) == "")
    return y.mask(y.isin(NO_NUMBERS)) if are_written_numbers(y) else y


def are_written_numbers(column: "pd.Series") -> bool:
    """Tell whether all cells are numbers written as texts, or missing."""
    from skest.feature_columns.parsed import are_numbers

    distinct = column.dropna().unique()
    are_texts = all(isinstance(cell, str) for cell in distinct)
    return are_texts and are_numbers(np.asarray(distinct, dtype=object))


def numbers_of(column: "pd.Series", option: str) -> "pd.Series":
    """Return a column as numbers, also where it has them as texts."""
    try:
        return column.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The column {column.name!r} for {option} must hold numbers: {error}."
        ) from None


def load_model(directory: str) -> tuple[Any, dict[str, Any]]:
    """Return a model that ``skest train`` has saved, and its report.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ValueError
        If the files are damaged, or those of an export.
    """
    report = load_report(directory)
    report.setdefault("strings", [])  # models of earlier versions lack it
    # Behind the report: a wrong directory is told without a second of imports.
    import joblib

    with _loading(directory):
        model = joblib.load(Path(directory) / MODEL)
        # Any pickle can be loaded; only an estimator that has been fitted is one.
        if not hasattr(model, "auto_params_"):
            raise ValueError("its file is not the one that was written")
    return model, report


def load_report(directory: str) -> dict[str, Any]:
    """Return the report of a model that ``skest train`` has saved.

    It runs no code of the model. Errors are those of `load_model`.
    """
    path = Path(directory)
    if versions_at(path):
        raise ValueError(
            f"{directory!r} is an export, which `skest predict`, `inspect` and `serve` "
            "take. Give the model that it was made of, which `skest train` has written."
        )
    if not (path / MODEL).is_file():
        raise FileNotFoundError(
            f"There is no model in {directory!r}: give a directory that `skest train "
            "... -o DIRECTORY` has written."
        )
    with _loading(directory):
        report: dict[str, Any] = json.loads((path / REPORT).read_text(encoding="utf-8"))
        if not _TOLD <= report.keys():
            raise ValueError("its report is not the one that was written")
    return report


@contextlib.contextmanager
def _loading(directory: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever a damaged pickle raises
        raise ValueError(
            f"The model in {directory!r} can't be loaded ({text_of(error)}). Train it "
            "again, or use the versions of skest and scikit-learn that it was saved with."
        ) from error


def features_of(table: "pd.DataFrame", report: Mapping[str, Any]) -> "pd.DataFrame":
    """Return the columns of a table that a model was trained on.

    Those that it does not read, such as ids that were left out, may be missing.
    """
    known = {*report["features"], report["target"]}
    for name in report["reads"]:
        column_of(table, name, "the model", known)
    # What the model does not read may be missing, and becomes gaps.
    return table.reindex(columns=report["features"])


def check_writable(path: str) -> None:
    """Raise ValueError unless `write_rows` writes what the name of a file says."""
    if not path.lower().endswith((".csv", *_PARQUET)):
        raise ValueError(
            f"{path!r} can't be written: give a name that ends with .csv or .parquet."
        )


def write_rows(table: "pd.DataFrame", path: str | None) -> None:
    """Write a table as CSV or Parquet, by default as CSV to the standard output."""
    if path is None:
        table.to_csv(sys.stdout, index=False)
        return
    is_parquet = path.lower().endswith(_PARQUET)
    # Whole, and then written under its name at once: half a table looks like one.
    content = table.to_parquet() if is_parquet else table.to_csv(index=False).encode()
    with explained(f"{path!r} was not written", "See to the directory and its space."):
        write_file(Path(path), content)


def print_json(answer: Any) -> None:
    """Print an answer as JSON, which has no NaN."""
    print(json.dumps(plain(answer), indent=1, ensure_ascii=False, allow_nan=False))


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    # JSON has neither NaN nor infinities.
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)


def print_metrics(
    metrics: Mapping[str, float], classes: Sequence[Any] | None = None
) -> None:
    """Print metrics, one in a line; of two classes, also which one is looked for."""
    width = max(map(len, metrics))
    for name, value in metrics.items():
        print(f"  {name:<{width}}  {value:.4f}")
    # Only a BinaryClassHead has it.
    if "precision" in metrics and classes is not None:
        print(f"  precision, recall, auc and means are those of {plain(classes[1])!r}")
