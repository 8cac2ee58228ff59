# SPDX-License-Identifier: Apache-2.0
"""Ready-made input functions: arrays, DataFrames, generators, CSV and Parquet files."""

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import numpy as np

from skest.core.checks import check_integer, former_arguments
from skest.core.files import check_is_local, explained
from skest.core.random import seed_sequence
from skest.inputs.array_dataset import ArrayDataset
from skest.inputs.files import FileBatches, Part, import_arrow
from skest.inputs.pipeline import Pipeline


# No default, as in TensorFlow: predictions in another order would be as wrong as a
# training in that of the table.
def _check_shuffle(shuffle: Any) -> None:
    if not isinstance(shuffle, bool | np.bool_):
        raise ValueError(
            "'shuffle' must be True (training) or False (evaluation and prediction); "
            f"got {shuffle!r}."
        )


def _seed_in_run(seed: int | None, config: Any) -> int | None:
    # A seed of the function goes before that of the run.
    return seed if seed is not None or config is None else config.random_seed


@former_arguments(
    num_threads="the table is in memory",
    queue_capacity="the table is in memory",
)
def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    seed: int | None = None,
) -> Callable[..., ArrayDataset]:
    """Return an input function over arrays in memory.

    Parameters
    ----------
    x : dict of ndarray or ndarray
        Features, rows along the first dimension.
    y : ndarray or dict of ndarray, default=None
        Labels.
    batch_size : int, default=128
        Rows of a batch.
    num_epochs : int or None, default=1
        How often the data is gone through; None is without end.
    shuffle : bool
        Whether every epoch has an order of its own. It has no default, because the
        answer differs between training and prediction and a wrong one is not noticed.
    seed : int, default=None
        Seed of the orders; None takes ``random_seed`` of the `RunConfig`.

    Returns
    -------
    callable
        ``input_fn(config=None) -> ArrayDataset``.

    Raises
    ------
    ValueError
        If `shuffle` is not a bool, there are no rows, or `x` and `y` differ in length.

    Notes
    -----
    As ``tf.compat.v1.estimator.inputs.numpy_input_fn``, but a batch ends with the epoch: 10
    rows in batches of 4, gone through three times, are 9 batches. The original has 8 that
    run over the end of an epoch, as has
    ``Pipeline(ArrayDataset(x, y)).unbatch().repeat(3).batch(4)``. So no batch has more rows
    than there are.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.inputs import numpy_input_fn
    >>> input_fn = numpy_input_fn({"x": np.arange(3)}, batch_size=2, shuffle=False)
    >>> [batch["x"].tolist() for batch in input_fn()]
    [[0, 1], [2]]
    """
    _check_shuffle(shuffle)

    def input_fn(config: Any = None) -> ArrayDataset:
        return ArrayDataset(
            x,
            y,
            batch_size=batch_size,
            shuffle=bool(shuffle),
            num_epochs=num_epochs,
            seed=_seed_in_run(seed, config),
        )

    input_fn()  # refuses wrong data here, where it is given, rather than in training
    return input_fn


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    seed: int | None = None,
) -> Callable[..., ArrayDataset]:
    """Return an input function over a DataFrame.

    Parameters
    ----------
    x : DataFrame
        Features; a column is found by its name.
    y : Series or DataFrame, default=None
        Labels with the same index as `x`.
    batch_size, num_epochs, shuffle, seed
        As for `numpy_input_fn`.

    Returns
    -------
    callable
        ``input_fn(config=None) -> ArrayDataset``.

    Raises
    ------
    TypeError
        If `x` is not a DataFrame.
    ValueError
        If the indices of `x` and `y` differ, or as for `numpy_input_fn`.

    Notes
    -----
    As ``tf.compat.v1.estimator.inputs.pandas_input_fn``, but labels are always given as
    `y` and never looked for in `x`, and a batch ends with the epoch, see `numpy_input_fn`.

    Examples
    --------
    >>> import pandas as pd
    >>> from skest.inputs import pandas_input_fn
    >>> table = pd.DataFrame({"city": ["Rome", "Oslo"], "sold": [3, 1]})
    >>> input_fn = pandas_input_fn(table[["city"]], table["sold"], shuffle=False)
    >>> features, labels = next(iter(input_fn()))
    >>> labels.tolist()
    [3, 1]
    """
    if not hasattr(x, "iloc"):
        raise TypeError(f"'x' must be a pandas DataFrame; got {type(x).__name__}.")
    # Rows are taken by position, while in pandas the index says what belongs together.
    if y is not None and hasattr(y, "index") and not x.index.equals(y.index):
        raise ValueError(
            "'x' and 'y' must have the same index, or their rows would not belong "
            "together. Align them, for example with y.loc[x.index]."
        )
    return numpy_input_fn(x, y, batch_size, num_epochs, shuffle, seed)


def generator_input_fn(
    rows: Callable[[], Iterable[Any]], batch_size: int = 128
) -> Callable[[], Pipeline]:
    """Return an input function that collects single rows into batches.

    Parameters
    ----------
    rows : callable
        ``rows()`` returns an iterable of ``(features, label)`` or of features; features
        are a dictionary of values, or an array. It is called anew for every pass.
    batch_size : int, default=128
        Rows of a batch.

    Returns
    -------
    callable
        ``input_fn() -> Pipeline`` of batches.

    Raises
    ------
    TypeError
        If `rows` is not callable (a generator itself can be used up only once) or
        `batch_size` is no integer.
    ValueError
        If `batch_size` is less than 1.

    Examples
    --------
    >>> from skest.inputs import generator_input_fn
    >>> def rows():
    ...     for i in range(3):
    ...         yield {"x": i, "word": "ab"[i % 2]}, i % 2
    >>> for features, labels in generator_input_fn(rows, batch_size=2)():
    ...     print(features["x"], features["word"], labels)
    [0 1] ['a' 'b'] [0 1]
    [2] ['a'] [0]
    """
    if not callable(rows):
        raise TypeError(
            "'rows' must be a function that returns an iterable, so that every call of "
            f"train, evaluate or predict can start anew; got {type(rows).__name__}. "
            "Pass the generator function without calling it."
        )
    check_integer(batch_size, "batch_size", "generator_input_fn", minimum=1)

    # One for all calls: a pipeline is not used up.
    pipeline = Pipeline(rows).batch(batch_size)
    return lambda: pipeline


Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def parquet_input_fn(
    paths: Paths,
    batch_size: int = 128,
    *,
    columns: Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    shuffle: bool | None = None,
    shuffle_buffer: int = 100_000,
    num_epochs: int | None = 1,
    seed: int | None = None,
    prefetch: int = 2,
) -> Callable[..., Pipeline]:
    """Return an input function over Parquet files, read a part at a time.

    Parameters
    ----------
    paths : str, path or iterable of them
        Files, or patterns of files such as ``"data/part-*.parquet"``. They are looked
        for once, here, and have the order of their names.
    batch_size : int, default=128
        Rows of a batch; the last one of an epoch may be smaller.
    columns : sequence of str, default=None
        The features; None is all columns but `label`. Others are not read.
    label : str or sequence of str, default=None
        Column of the labels; several make a dictionary of labels, and None makes batches
        without labels.
    shuffle : bool
        Whether every epoch has an order of its own. It has no default, as in
        `numpy_input_fn`.
    shuffle_buffer : int, default=100_000
        How many rows are mixed at a time, > 0: more are nearer to a full shuffle and take
        more memory. Before that, row groups are read in random order.
    num_epochs : int or None, default=1
        How often the files are gone through; None is without end.
    seed : int, default=None
        Seed of the orders; None takes ``random_seed`` of the `RunConfig`.
    prefetch : int, default=2
        How many batches a thread reads ahead; 0 reads in the calling thread.

    Returns
    -------
    callable
        ``input_fn(config=None, input_context=None) -> Pipeline`` of batches of
        ``(features, labels)``; see Notes for their types. With an `InputContext`, each
        worker reads row groups of its own.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the files have no rows, lack a column or differ in the type of one, a number
        is out of range, or `shuffle` is not a bool. When read: if a label is missing.
    TypeError
        If an argument has the wrong type. When read: if a column has a type that no
        feature column reads.
    ImportError
        If pyarrow, the extra ``stream``, is not installed.

    Notes
    -----
    Features are a dictionary: floats have NaN where a value is missing; integers and
    Booleans are NumPy arrays, or masked arrays of pandas where one is missing; strings,
    also of dictionaries, are objects, with None; lists are arrays of arrays; dates and
    times are datetime64.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import pandas as pd
    >>> from skest.inputs import parquet_input_fn
    >>> table = pd.DataFrame({"city": ["Rome", "Oslo", "Rome"], "sold": [3, 1, 2]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table.to_parquet(pathlib.Path(folder, "sales.parquet"))
    ...     input_fn = parquet_input_fn(
    ...         folder + "/*.parquet", batch_size=2, label="sold", shuffle=False
    ...     )
    ...     for features, labels in input_fn():
    ...         print(features["city"], labels)
    ['Rome' 'Oslo'] [3 1]
    ['Rome'] [2]
    """
    pa = import_arrow("parquet_input_fn")
    files = _find(paths)
    # By default, Arrow loads row groups as a whole before it decodes them.
    scan = pa.dataset.ParquetFragmentScanOptions(
        use_buffered_stream=True, pre_buffer=False
    )
    # Files without rows count for nothing, not even for the types of the columns.
    fragments = [f for f in _fragments(pa, files, "parquet") if f.metadata.num_rows]
    # What is read at a time, and what workers share among themselves.
    groups = [g for f in fragments for g in f.split_by_row_group() if _n_rows(g)]
    return _input_fn(
        "parquet_input_fn",
        [fragment.path for fragment in fragments] or files,
        [_types(fragment) for fragment in fragments],
        [Part(partial(_read, group, scan), _n_rows(group)) for group in groups],
        "row group",
        batch_size=batch_size,
        columns=columns,
        label=label,
        shuffle=shuffle,
        shuffle_buffer=shuffle_buffer,
        num_epochs=num_epochs,
        seed=seed,
        prefetch=prefetch,
    )


@former_arguments(label_name="use 'label'")
def csv_input_fn(
    paths: Paths,
    batch_size: int = 128,
    *,
    columns: Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    shuffle: bool | None = None,
    shuffle_buffer: int = 100_000,
    num_epochs: int | None = 1,
    seed: int | None = None,
    prefetch: int = 2,
    delimiter: str = ",",
    column_types: Mapping[str, str] | None = None,
) -> Callable[..., Pipeline]:
    r"""Return an input function over CSV files with a header line.

    Parameters
    ----------
    paths, batch_size, columns, label, shuffle, shuffle_buffer, num_epochs, seed, prefetch
        As for `parquet_input_fn`; files take the place of row groups.
    delimiter : str, default=","
        What is between two values.
    column_types : dict of str to str, default=None
        Types of columns by the names that Arrow gives them, such as "float64", "int64" or
        "string". Those of other columns are what the first megabyte of the first file
        looks like.

    Returns
    -------
    callable
        As for `parquet_input_fn`; with an `InputContext`, each worker reads files of its
        own.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError, ImportError
        As for `parquet_input_fn`, and ValueError when a value is read that does not have
        the type of its column.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from skest.inputs import csv_input_fn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "sales.csv")
    ...     _ = file.write_text("city,sold\nRome,3\nOslo,1\n")
    ...     for features in csv_input_fn(file, shuffle=False)():
    ...         print(features["city"], features["sold"])
    ['Rome' 'Oslo'] [3 1]
    """
    pa = import_arrow("csv_input_fn")
    files = _find(paths)
    # For the inference of types only; `_read_csv` has those of the first file.
    convert = pa.csv.ConvertOptions(column_types=_arrow_types(pa, column_types))
    parse = pa.csv.ParseOptions(delimiter=delimiter)
    csv = pa.dataset.CsvFileFormat(parse_options=parse, convert_options=convert)
    fragments = _fragments(pa, files, csv)
    # Those of the first file that has values: others may differ, but are not used.
    types = _types(fragments[0])
    for fragment in fragments[1:]:
        found = _types(fragment)
        types = {n: found.get(n, t) if t == pa.null() else t for n, t in types.items()}
    schema = pa.schema(types)
    return _input_fn(
        "csv_input_fn",
        files,
        [{name: types.get(name) for name in _types(f)} for f in fragments],
        # How many rows a CSV file has is known when it is read.
        [Part(partial(_read_csv, pa, f.path, parse, schema), None) for f in fragments],
        "file",
        batch_size=batch_size,
        columns=columns,
        label=label,
        shuffle=shuffle,
        shuffle_buffer=shuffle_buffer,
        num_epochs=num_epochs,
        seed=seed,
        prefetch=prefetch,
    )


def _input_fn(
    owner: str,
    files: list[str],
    schemas: list[dict[str, Any]],
    parts: list[Part],
    unit: str,
    *,
    batch_size: int,
    columns: Sequence[str] | None,
    label: str | Sequence[str] | None,
    shuffle: bool | None,
    shuffle_buffer: int,
    num_epochs: int | None,
    seed: int | None,
    prefetch: int,
) -> Callable[..., Pipeline]:
    """Check everything that can be checked before reading, and return the function."""
    _check_shuffle(shuffle)
    check_integer(batch_size, "batch_size", owner, minimum=1)
    check_integer(shuffle_buffer, "shuffle_buffer", owner, minimum=1)
    check_integer(prefetch, "prefetch", owner, minimum=0)
    if num_epochs is not None:
        check_integer(num_epochs, "num_epochs", owner, minimum=1)
    if not parts:
        raise ValueError(f"The {len(files)} file(s) from {files[0]!r} on hold no rows.")
    labels = _names(label, "label")
    features = _names(columns, "columns") or [
        name for name in schemas[0] if name not in labels
    ]
    if not features:
        raise ValueError(f"{files[0]!r} has no column besides the label {labels}.")
    # Here, before hours of training: the last file may be of another version.
    _check_schemas(files, schemas, [*features, *labels])

    def input_fn(config: Any = None, input_context: Any = None) -> Pipeline:
        # Drawn also where none is given: a checkpoint records it, to go on in that
        # order.
        entropy: Any = seed_sequence(_seed_in_run(seed, config)).entropy
        batches = FileBatches(
            owner.removesuffix("_input_fn"),
            parts,
            unit,
            features,
            labels,
            single_label=isinstance(label, str),
            batch_size=batch_size,
            shuffle_buffer=shuffle_buffer if shuffle else 0,
            num_epochs=num_epochs,
            seed=entropy,
        )
        if input_context is not None:
            # Whole row groups or files, so that a worker reads nothing of the others'.
            batches = batches.for_worker(input_context)
        pipeline = Pipeline(batches)
        return pipeline.prefetch(prefetch) if prefetch else pipeline

    return input_fn


def _find(paths: Paths) -> list[str]:
    """Return the files of paths and patterns, each once, in the order of their names."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found: dict[str, None] = {}
    for one in given:
        check_is_local(one, "'paths'")
        path = str(Path(one))
        # Sorted, since file systems list files in any order, and that of the rows
        # follows from it.
        matches = sorted(glob(path, recursive=True)) if has_magic(path) else [path]
        files = [match for match in matches if Path(match).is_file()]
        if not files:
            is_folder = Path(path).is_dir()
            hint = f" It is a folder; use a pattern such as {path + '/*'!r}."
            raise FileNotFoundError(
                f"No file matches {path!r}; the current folder is {os.getcwd()!r}."
                + hint * is_folder
            )
        found |= dict.fromkeys(files)
    if not found:
        raise ValueError("'paths' is empty; at least one file is needed.")
    return list(found)


def _names(names: str | Sequence[str] | None, parameter: str) -> list[str]:
    listed = [] if names is None else [names] if isinstance(names, str) else list(names)
    for name in listed:
        if not isinstance(name, str):
            raise TypeError(f"'{parameter}' must hold names of columns; got {name!r}.")
    if len(set(listed)) < len(listed):
        raise ValueError(f"'{parameter}' names a column twice: {listed}.")
    return listed


def _fragments(pa: Any, files: list[str], file_format: Any) -> list[Any]:
    """Return one fragment for each file; what is no such file is refused here."""
    fragments = []
    for file in files:
        try:
            # One by one: of several, Arrow would take the types of the first for all.
            with _told_by_file(file):
                dataset = pa.dataset.dataset(file, format=file_format)
                fragments += list(dataset.get_fragments())
        except pa.ArrowException as error:
            empty = Path(file).stat().st_size == 0
            reason = "it is empty, without even a header" if empty else str(error)
            raise ValueError(
                f"{file!r} can't be read: {reason}. Write it again, or leave it out."
            ) from error
    return fragments


def _told_by_file(file: str) -> AbstractContextManager[None]:
    # As of a compressed file that was cut off.
    return explained(
        f"{file!r} can't be read", "If it is damaged, write it again, or leave it out."
    )


def _n_rows(group: Any) -> int:
    return group.row_groups[0].num_rows


def _types(fragment: Any) -> dict[str, Any]:
    schema = fragment.physical_schema
    return dict(zip(schema.names, schema.types, strict=True))


def _arrow_types(pa: Any, types: Mapping[str, str] | None) -> dict[str, Any]:
    found = {}
    for name, alias in (types or {}).items():
        try:
            found[name] = pa.type_for_alias(alias)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"'column_types' gives {name!r} the type {alias!r}, which Arrow does not "
                "know. Use a name such as 'float64', 'int64' or 'string'."
            ) from error
    return found


def _check_schemas(
    files: list[str], schemas: list[dict[str, Any]], names: list[str]
) -> None:
    """Raise ValueError unless all files have all columns, with the types of the first."""
    for file, schema in zip(files, schemas, strict=True):
        for name in names:
            if name not in schema:
                close = difflib.get_close_matches(name, schema, n=1)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                raise ValueError(
                    f"Column {name!r} is not in {file!r}, which has "
                    f"{', '.join(map(repr, schema))}.{hint}"
                )
            if schema[name] != schemas[0][name]:
                raise ValueError(
                    f"Column {name!r} is {schemas[0][name]} in {files[0]!r}, but "
                    f"{schema[name]} in {file!r}. Write all files with the same types."
                )


def _read(fragment: Any, scan: Any, columns: list[str], n_rows: int) -> Iterator[Any]:
    """Yield record batches of a fragment; little is read ahead, to save memory."""
    try:
        with _told_by_file(fragment.path):
            yield from fragment.to_batches(
                columns=columns,
                batch_size=n_rows,
                batch_readahead=1,
                fragment_readahead=1,
                fragment_scan_options=scan,
            )
    except ValueError as error:  # all of pyarrow's errors about values are such
        raise ValueError(f"{fragment.path!r} can't be read: {error}.") from error


def _read_csv(
    pa: Any, path: str, parse: Any, schema: Any, columns: list[str], n_rows: int
) -> Iterator[Any]:
    """Yield record batches of a file, a block at a time.

    A scan of a dataset would read on until a gibibyte waits for a slow consumer.
    """
    types = {name: schema.field(name).type for name in columns}
    convert = pa.csv.ConvertOptions(column_types=types, include_columns=columns)
    try:
        with (
            _told_by_file(path),
            pa.csv.open_csv(path, parse_options=parse, convert_options=convert) as csv,
        ):
            for block in csv:
                for start in range(0, block.num_rows, n_rows):
                    yield block.slice(start, n_rows)
    except ValueError as error:
        raise ValueError(
            f"{path!r} can't be read: {error}. If a column has another type than it "
            "seemed, name it in 'column_types' of csv_input_fn."
        ) from error
