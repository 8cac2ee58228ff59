# SPDX-License-Identifier: Apache-2.0
"""Ready-made input functions of files that are read a part at a time: CSV and Parquet."""

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from glob import glob, has_magic
from pathlib import Path
from typing import Any, NamedTuple

from skest.core.checks import check_integer, former_arguments
from skest.core.files import check_is_local, explained
from skest.core.random import seed_sequence
from skest.inputs.files import FileBatches, Part, import_arrow
from skest.inputs.input_fns import check_shuffle, seed_in_run
from skest.inputs.pipeline import Pipeline

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
        If the files have no rows, lack a column or have types of one that have none in
        common, as numbers and strings; a number is out of range, or `shuffle` is not a
        bool. When read: if a label is missing.
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
    fragments = [f for f in _fragments(pa, files) if f.metadata.num_rows]
    # What is read at a time, and what workers share among themselves.
    groups = [g for f in fragments for g in f.split_by_row_group() if _n_rows(g)]
    reads = [(partial(_read_parquet, group, scan), _n_rows(group)) for group in groups]
    return _input_fn(
        "parquet_input_fn",
        [fragment.path for fragment in fragments] or files,
        [_types(fragment) for fragment in fragments],
        reads,
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
    encoding: str = "utf-8",
) -> Callable[..., Pipeline]:
    r"""Return an input function over CSV files with a header line.

    Parameters
    ----------
    paths, batch_size, columns, label, shuffle, shuffle_buffer, num_epochs, seed, prefetch
        As for `parquet_input_fn`; files take the place of row groups.
    delimiter : str, default=","
        The character between two values.
    column_types : dict of str to str, default=None
        Types of columns by the names that Arrow gives them, such as "float64", "int64" or
        "string". Those of other columns are what the first megabyte of each file looks
        like, taken together: strings, if it does so in one.
    encoding : str, default="utf-8"
        How the files are written, such as "latin-1".

    Returns
    -------
    callable
        As for `parquet_input_fn`; with an `InputContext`, each worker reads files of its
        own.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError, ImportError
        As for `parquet_input_fn`, and ValueError when a value is read that does not have
        the type of its column, or a quote that is never closed.

    Notes
    -----
    What is empty, "NA", "None", "null" or the like is missing, as for
    ``pandas.read_csv``, also where it is quoted.

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
    if not isinstance(delimiter, str) or len(delimiter) != 1:
        raise ValueError(f"'delimiter' must be one character; got {delimiter!r}.")
    if not isinstance(encoding, str):
        raise TypeError(f"'encoding' must be a name; got {encoding!r}.")
    try:
        "".encode(encoding)
    except LookupError:
        raise ValueError(
            f"'encoding' is {encoding!r}, which is none of texts. Use a name such as "
            "'utf-8', 'latin-1' or 'utf-16'."
        ) from None
    files = [_CsvFile(path, delimiter, encoding) for path in _find(paths)]
    given = _arrow_types(pa, column_types)
    # What else there is may be written as it likes.
    used = None
    if columns is not None:
        used = {*_names(columns, "columns"), *_names(label, "label")}
    schemas = [file.types(given, used) for file in files]
    names = [file.path for file in files]
    unknown = [name for name in given if not any(name in types for types in schemas)]
    if unknown:
        raise _no_such_column(
            unknown[0], schemas[0], repr(names[0]), "'column_types': "
        )
    # How many rows a CSV file has is known when it is read.
    reads = [
        (partial(file.read, list(types)[-1]), None)
        for file, types in zip(files, schemas, strict=True)
    ]
    return _input_fn(
        "csv_input_fn",
        names,
        schemas,
        reads,
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
    reads: Sequence[tuple[Callable[..., Iterator[Any]], int | None]],
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
    check_shuffle(shuffle)
    check_integer(batch_size, "batch_size", owner, minimum=1)
    check_integer(shuffle_buffer, "shuffle_buffer", owner, minimum=1)
    check_integer(prefetch, "prefetch", owner, minimum=0)
    if num_epochs is not None:
        check_integer(num_epochs, "num_epochs", owner, minimum=1)
    if not reads:
        raise ValueError(f"The {len(files)} file(s) from {files[0]!r} on hold no rows.")
    labels = _names(label, "label")
    features = _names(columns, "columns") or [
        name for name in schemas[0] if name not in labels
    ]
    if not features:
        raise ValueError(f"{files[0]!r} has no column besides the label {labels}.")
    # Here, before hours of training: the last file may be of another version.
    from_text = owner == "csv_input_fn"
    types = _common_types(files, schemas, [*features, *labels], from_text)
    parts = [Part(partial(read, types=types), n_rows) for read, n_rows in reads]

    def input_fn(config: Any = None, input_context: Any = None) -> Pipeline:
        # Drawn also where none is given: a checkpoint records it, to go on in that
        # order.
        entropy: Any = seed_sequence(seed_in_run(seed, config)).entropy
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


def _fragments(pa: Any, files: list[str]) -> list[Any]:
    """Return one fragment for each file; what is no Parquet file is refused here."""
    fragments = []
    for file in files:
        try:
            # One by one: of several, Arrow would take the types of the first for all.
            with _told_by_file(file):
                dataset = pa.dataset.dataset(file, format="parquet")
                fragments += list(dataset.get_fragments())
        except pa.ArrowException as error:
            raise _unreadable(file, error) from error
    return fragments


def _unreadable(file: str, error: Exception) -> ValueError:
    empty = Path(file).stat().st_size == 0
    reason = "it is empty, without even a header" if empty else str(error)
    return ValueError(
        f"{file!r} can't be read: {reason}. Write it again, or leave it out."
    )


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


def _no_such_column(
    name: str, known: Iterable[str], where: str, what: str = ""
) -> ValueError:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return ValueError(
        f"{what}Column {name!r} is not in {where}, which has "
        f"{', '.join(map(repr, known))}.{hint}"
    )


def _common_types(
    files: list[str],
    schemas: list[dict[str, Any]],
    names: list[str],
    from_text: bool,
) -> dict[str, Any]:
    """Return types that hold the values of columns in all files.

    Raises
    ------
    ValueError
        If a file lacks a column, or its types have none in common.
    """
    types: dict[str, Any] = {}
    for file, schema in zip(files, schemas, strict=True):
        for name in names:
            if name not in schema:
                raise _no_such_column(name, schema, repr(file))
            before = types.setdefault(name, schema[name])
            if schema[name] != before:
                types[name] = _common_type(before, schema[name], from_text)
            if types[name] is None:
                raise ValueError(
                    f"Column {name!r} is {before} in files such as {files[0]!r}, but "
                    f"{schema[name]} in {file!r}. Write all files with the same types; "
                    "those of CSV files can be named in 'column_types'."
                )
    return types


def _common_type(one: Any, other: Any, from_text: bool) -> Any:
    """Return a type for the values of both, such as floats for integers, or None."""
    import pyarrow as pa

    # Columns of few levels are dictionaries in some files.
    one, other = (
        t.value_type if pa.types.is_dictionary(t) else t for t in (one, other)
    )
    if from_text and pa.string() in (one, other):
        return pa.string()
    texts = [pa.types.is_string(t) or pa.types.is_large_string(t) for t in (one, other)]
    if any(texts) and any(map(pa.types.is_binary, (one, other))):
        return None
    # As what they are read.
    one, other = (pa.float64() if pa.types.is_decimal(t) else t for t in (one, other))
    dates = [pa.types.is_date(t) for t in (one, other)]
    if any(dates) and any(map(pa.types.is_timestamp, (one, other))):
        return other if dates[0] else one
    schemas = [pa.schema({"": t}) for t in (one, other)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowTypeError:
        return None


def _read_parquet(
    fragment: Any, scan: Any, columns: list[str], n_rows: int, *, types: dict[str, Any]
) -> Iterator[Any]:
    """Yield record batches of a fragment; little is read ahead, to save memory."""
    import pyarrow as pa

    schema = pa.schema({name: types[name] for name in columns})
    try:
        with explained(
            f"{fragment.path!r} can't be read",
            "If it was replaced, make the input function anew; if it is damaged, write it "
            "again.",
        ):
            for batch in fragment.to_batches(
                columns=columns,
                batch_size=n_rows,
                batch_readahead=1,
                fragment_readahead=1,
                fragment_scan_options=scan,
            ):
                yield batch.cast(schema)
    except ValueError as error:  # all of pyarrow's errors about values are such
        raise ValueError(f"{fragment.path!r} can't be read: {error}.") from error


class _CsvFile(NamedTuple):
    """A CSV file, and how it is written."""

    path: str
    delimiter: str
    encoding: str

    def open(self, **conversion: Any) -> Any:
        """Return a reader of record batches."""
        csv = import_arrow("csv_input_fn").csv  # in this process, which may be a worker
        return csv.open_csv(
            self.path,
            read_options=csv.ReadOptions(encoding=self.encoding),
            parse_options=csv.ParseOptions(
                delimiter=self.delimiter, newlines_in_values=True
            ),
            # As `pandas.read_csv`: a model meets files that were read by either.
            convert_options=csv.ConvertOptions(
                null_values=[*csv.ConvertOptions().null_values, "None", "<NA>"],
                strings_can_be_null=True,
                **conversion,
            ),
        )

    def types(self, given: dict[str, Any], used: set[str] | None) -> dict[str, Any]:
        """Return the types that the columns seem to have, or are given."""
        from pyarrow.types import is_binary

        try:
            with _told_by_file(self.path), self.open(column_types=given) as csv:
                names, types = csv.schema.names, csv.schema.types
        except UnicodeDecodeError:
            raise self._otherwise_written("The header") from None
        except ValueError as error:
            raise _unreadable(self.path, error) from error
        for i, (name, kind) in enumerate(zip(names, types, strict=True)):
            if used is not None and name not in used:
                continue
            if name in names[:i]:
                raise ValueError(
                    f"{self.path!r} has two columns {name!r}. Give one of them another "
                    "name."
                )
            if is_binary(kind) and name not in given:
                raise self._otherwise_written(f"Column {name!r}")
        return dict(zip(names, types, strict=True))

    def _otherwise_written(self, what: str) -> ValueError:
        return ValueError(
            f"{what} of {self.path!r} is not written as {self.encoding}. Say how it is, "
            "for example encoding='latin-1'."
        )

    def read(
        self, last: str, columns: list[str], n_rows: int, *, types: dict[str, Any]
    ) -> Iterator[Any]:
        """Yield record batches, a block at a time.

        A scan of a dataset would read on until a gibibyte waits for a slow consumer.
        """
        import pyarrow as pa

        wanted = {name: types[name] for name in columns}
        read = {last: pa.binary(), **wanted}
        n_read, cell = 0, None
        try:
            with (
                _told_by_file(self.path),
                self.open(column_types=read, include_columns=list(read)) as csv,
            ):
                for block in csv:
                    n_read += block.num_rows
                    cell = block[last][-1].as_py() if block.num_rows else cell
                    block = block.select(columns)
                    for start in range(0, block.num_rows, n_rows):
                        yield block.slice(start, n_rows)
                text = (
                    cell.decode(errors="replace") if type(cell) is bytes else str(cell)
                )
                is_line = not {"\n", "\r"} & set(text)
                is_closed = is_line or _ends_with_quote(pa, self.path)
        except ValueError as error:
            raise ValueError(
                f"{self.path!r} can't be read: {error}. If a column has another type than "
                "it seemed, name it in 'column_types' of csv_input_fn; if the file is not "
                f"{self.encoding}, its 'encoding'."
            ) from error
        # Arrow takes all that follows for one cell, the last, without a word.
        if not is_closed:
            raise ValueError(
                f"{self.path!r} can't be read: a quoted cell of column {last!r} in row "
                f"{n_read}, {text[:20]!r}..., is never closed, and swallows all rows "
                "behind it. Mend the quote, or leave the file out."
            )


def _ends_with_quote(pa: Any, path: str) -> bool:
    tail = b""
    with pa.input_stream(path) as file:
        if file.seekable():  # and not compressed
            file.seek(max(0, file.size() - _TAIL))
        while chunk := file.read(2**20):
            tail = (tail + chunk)[-_TAIL:]
    return tail.rstrip(b"\r\n\0 ").endswith(b'"')


_TAIL = 4096  # bytes, for empty lines at the end
