# SPDX-License-Identifier: Apache-2.0
"""`categorical_column_with_vocabulary_file`: values that a text file lists."""

import os
import re
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from skest.core.checks import check_choice, check_integer
from skest.feature_columns.base import check_key
from skest.feature_columns.categorical import check_delimiter
from skest.feature_columns.table import Key, Table
from skest.feature_columns.vocabulary import VocabularyColumn

# No more digits than 64 bits can have.
_INTEGER = re.compile("-?[0-9]{1,19}")


def categorical_column_with_vocabulary_file(
    key: Key,
    vocabulary_file: str | os.PathLike[str],
    vocabulary_size: int | None = None,
    dtype: str = "string",
    default_value: int | None = None,
    num_oov_buckets: int = 0,
    *,
    delimiter: str | None = None,
) -> "VocabularyFileColumn":
    r"""Strings or integers of a vocabulary that a text file lists.

    The id of a value is the number of its line, from 0. A value that is not in the file
    has no id, unless `default_value` or `num_oov_buckets` give it one. A missing cell
    (None, NaN, "" or the integer -1) never has an id.

    The file is read by `fit`, anew each time, and the column keeps the vocabulary: pickles
    and copies of it, and models that contain it, need no file. A column that is used
    without `fit` keeps nothing and reads the file at every use.

    Parameters
    ----------
    key : str or int
        Name of the raw column, or its position in an array.
    vocabulary_file : str or path
        A text file in UTF-8 with one value in each line; lines end with "\n" or
        "\r\n". Spaces belong to the value. An empty line takes an id that no cell
        has. A value must not occur twice. An integer is written as in "-42", in digits
        from 0 to 9, without spaces, "+" or "_".
    vocabulary_size : int or None, default=None
        Take so many lines from the beginning of the file; None takes all.
    dtype : {"string", "int64"}, default="string"
        Type of the values, which the cells must have.
    default_value : int or None, default=None
        Id of all values out of vocabulary; None and -1 are no id.
    num_oov_buckets : int, default=0
        Number of further ids, from the size of the vocabulary up, over which values out
        of vocabulary are spread by their hash. Excludes `default_value`.
    delimiter : str or None, default=None
        Where strings are split into several values, e.g. "|" for "a|b|c"; empty parts
        are missing. ``r"\w+"`` takes the words, in lower case and without what stands
        between them. Without a delimiter, a cell has several values if it is a list.

    Returns
    -------
    VocabularyFileColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong. What is wrong with the file is said when it is read.

    Notes
    -----
    The semantics are those of
    ``tf.feature_column.categorical_column_with_vocabulary_file``, except that a byte
    order mark at the beginning of the file is left out.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from skest.feature_columns import categorical_column_with_vocabulary_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "colors.txt")
    ...     _ = path.write_text("red\ngreen\n")
    ...     column = categorical_column_with_vocabulary_file("color", path)
    ...     column = column.fit({"color": ["green"]})
    >>> column.encode({"color": ["green", "blue"]})["color_ids"]
    array([[ 1],
           [-1]])
    """
    return VocabularyFileColumn(
        key,
        vocabulary_file,
        vocabulary_size,
        dtype,
        default_value,
        num_oov_buckets,
        delimiter=delimiter,
    ).validated()


@dataclass(eq=False, repr=False)
class VocabularyFileColumn(VocabularyColumn):
    """Column made by `categorical_column_with_vocabulary_file`, see there.

    Attributes
    ----------
    vocabulary_ : dict of str or int to int
        Ids of the values, in order of the ids.
    """

    key: Key
    vocabulary_file: str | os.PathLike[str]
    vocabulary_size: int | None = None
    dtype: str = "string"
    default_value: int | None = None
    num_oov_buckets: int = 0
    _: KW_ONLY
    delimiter: str | None = None

    @property
    def vocabulary(self) -> dict[Any, int]:
        """Ids of the values; before `fit`, the file is read for them."""
        # Not kept without fit: a file may change, and a transformer without state must
        # not.
        return self.vocabulary_ if "vocabulary_" in vars(self) else self._read()

    def _learn(self, table: Table) -> dict[str, Any]:
        return {"vocabulary_": self._read()}

    def _validate(self) -> None:
        owner = f"vocabulary column {self.key!r}"
        check_key(self.key, owner)
        if not isinstance(self.vocabulary_file, str | os.PathLike):
            raise TypeError(
                f"'vocabulary_file' of {owner} must be the path of a file; got "
                f"{self.vocabulary_file!r}."
            )
        check_choice(self.dtype, "dtype", owner, ("string", "int64"))
        self._validate_unknown(owner)
        check_delimiter(self.delimiter, owner, self.dtype)
        # Without it the file says how many there are, and is not read to check a
        # parameter.
        if self.vocabulary_size is not None:
            check_integer(self.vocabulary_size, "vocabulary_size", owner, minimum=1)
            self._check_default(self.vocabulary_size)

    def _read(self) -> dict[Any, int]:
        path = Path(self.vocabulary_file)
        file = f"The vocabulary file '{path}' of column {self.key!r}"
        lines = read_lines(path, file)
        size = self.vocabulary_size or len(lines)
        if not lines or len(lines) < size:
            raise ValueError(
                f"{file} has {len(lines)} lines, but {size or 'at least 1'} are expected. "
                "Give the right file, or another 'vocabulary_size'."
            )
        values = lines[:size]
        if self.dtype == "int64":
            values = [_as_integer(v, i, file) for i, v in enumerate(values, start=1)]
        vocabulary = {value: i for i, value in enumerate(values)}
        if len(vocabulary) < size:
            # A dictionary keeps the last of equal keys, so that the first one finds
            # another line.
            first = next(i for i, value in enumerate(values) if vocabulary[value] > i)
            second = vocabulary[values[first]]
            raise ValueError(
                f"{file} must have no duplicates; lines {first + 1} and {second + 1} "
                f"hold {values[first]!r}. Remove one of them."
            )
        self._check_findable(vocabulary, file)
        self._check_default(size)
        return vocabulary


def read_lines(path: Path, file: str) -> list[Any]:
    """Return the lines of a text file without their ends.

    Only a line feed, maybe with a return before it, ends a line. Errors, all ValueError,
    call the file `file`.
    """
    try:
        # In one piece: str.splitlines would end lines at U+2028 and \x0b as well,
        # TensorFlow does not.
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ValueError(
            f"{file} cannot be read ({error.strerror}). Give the path of a text "
            "file with one value in each line."
        ) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{file} is not in UTF-8; line {line} has the byte "
            f"{error.object[error.start]:#x}. Convert the file."
        ) from error
    lines = text.replace("\r\n", "\n").split("\n")
    # A line feed ends the last line, and begins no further one.
    return lines[:-1] if lines[-1] == "" else lines


def _as_integer(value: str, line: int, file: str) -> int:
    # What is no integer is refused in the same words as one that is out of range.
    integer = int(value) if _INTEGER.fullmatch(value) else 2**63
    if not -(2**63) <= integer < 2**63:
        raise ValueError(
            f"{file} must hold integers of 64 bits, because dtype='int64'; line {line} "
            f"is {value!r}. Write integers in digits from 0 to 9, such as '-42'."
        )
    return integer
