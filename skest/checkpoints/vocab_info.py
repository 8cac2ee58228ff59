# SPDX-License-Identifier: Apache-2.0
"""`VocabInfo`: what the entries of a variable stand for, before and now."""

import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from skest.core.checks import check_integer
from skest.feature_columns.vocabulary_file import read_lines

#: A text file with an entry in each line, or the entries themselves.
Vocabulary: TypeAlias = str | os.PathLike[str] | Sequence[Hashable]

_OWNER = "a VocabInfo"


@dataclass(frozen=True)
class VocabInfo:
    """Says which rows of a variable stand for what, for a warm start.

    A row of the new variable becomes the row that its vocabulary entry had before.

    Parameters
    ----------
    new_vocab, old_vocab : str, path or sequence
        The vocabulary of the variable now and in the source: the path of a text file
        with one entry in each line, or the entries, in the order of their ids.
    new_vocab_size : int
        How many of the first entries count; -1 for all.
    num_oov_buckets : int
        Rows behind those of the entries, for values out of vocabulary. They are copied
        if the source had as many of them.
    old_vocab_size : int, default=-1
        As `new_vocab_size`, for the source.
    backup_initializer : callable, default=None
        ``initializer(tensor)`` fills in place what the source does not have, such as
        those of `torch.nn.init`; it gets the new variable, as a new model starts, and
        may leave it so. None fills with zeros. Of several axes, each has its own; where
        none is known, the first one in the list counts.
    axis : int, default=0
        0 for rows, as of an embedding table; 1 for columns.

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong. What is wrong with a file is said when it is read.

    Notes
    -----
    As ``tf.estimator.VocabInfo``, which takes files only.

    Examples
    --------
    >>> from skest import VocabInfo
    >>> info = VocabInfo(["cow", "dog", "ant"], -1, 0, ["ant", "bee", "cow"])
    >>> info.sources(n_new=3, n_old=3)
    array([ 2, -1,  0])
    """

    new_vocab: Vocabulary
    new_vocab_size: int
    num_oov_buckets: int
    old_vocab: Vocabulary
    old_vocab_size: int = -1
    backup_initializer: Callable[[Tensor], Any] | None = None
    axis: int = 0

    def __post_init__(self) -> None:
        for name in ("new_vocab", "old_vocab"):
            value = getattr(self, name)
            if not isinstance(value, str | os.PathLike | Sequence | np.ndarray):
                raise TypeError(
                    f"'{name}' of {_OWNER} must be the path of a text file or a sequence "
                    f"of entries; got {type(value).__name__}."
                )
            size = f"{name}_size"
            check_integer(getattr(self, size), size, _OWNER, minimum=-1)
        check_integer(self.num_oov_buckets, "num_oov_buckets", _OWNER, minimum=0)
        check_integer(self.axis, "axis", _OWNER, minimum=0)
        if self.backup_initializer is not None and not callable(
            self.backup_initializer
        ):
            raise TypeError(
                f"'backup_initializer' of {_OWNER} must be a function of a tensor or "
                f"None; got {self.backup_initializer!r}."
            )

    def sources(self, n_new: int, n_old: int) -> np.ndarray:
        """Return the old row of each new one, -1 for none.

        Parameters
        ----------
        n_new, n_old : int
            Rows of the variable now and in the source, with those out of vocabulary.

        Returns
        -------
        ndarray of int64, shape (n_new,)

        Raises
        ------
        ValueError
            If a vocabulary does not fit its number of rows, or has an entry twice.
        """
        new = _entries(self.new_vocab, self.new_vocab_size, "new_vocab")
        old = _entries(self.old_vocab, self.old_vocab_size, "old_vocab")
        n_oov = self.num_oov_buckets
        if len(new) + n_oov != n_new:
            raise ValueError(
                f"'new_vocab' has {len(new)} entries and {n_oov} buckets out of "
                f"vocabulary, the variable {n_new} along axis {self.axis}"
            )
        if len(old) > n_old:
            raise ValueError(
                f"'old_vocab' has {len(old)} entries, the variable of the source "
                f"{n_old} along axis {self.axis}"
            )
        # As `generate_vocab_remapping` of TensorFlow, whose -1 is "not in the old
        # vocabulary".
        row_of = {entry: row for row, entry in enumerate(old)}
        found = map(row_of.get, new, repeat(-1))
        # (n_new - n_oov,): the buckets come behind the entries.
        known = np.fromiter(found, dtype=np.int64, count=len(new))
        oov = np.full(n_oov, -1)
        # Of another number of buckets, each value is in another one: none can be kept.
        if n_old - len(old) == n_oov:
            oov = len(old) + np.arange(n_oov)
        return np.concatenate([known, oov])

    @property
    def doubt(self) -> str | None:
        """Why the vocabularies may be mixed up: they share no entry. None if they do.

        Examples
        --------
        >>> from skest import VocabInfo
        >>> VocabInfo([1, 2], -1, 0, ["2", "3"]).doubt
        "no entry of 'new_vocab' is in 'old_vocab'; as text 1 is: give both the same type"
        """
        new = _entries(self.new_vocab, self.new_vocab_size, "new_vocab")
        old = _entries(self.old_vocab, self.old_vocab_size, "old_vocab")
        if not old or not set(old).isdisjoint(new):
            return None
        n_alike = len(set(map(str, old)) & set(map(str, new)))
        hint = f"; as text {n_alike} is: give both the same type"
        return "no entry of 'new_vocab' is in 'old_vocab'" + (hint if n_alike else "")


def _entries(vocabulary: Vocabulary, size: int, name: str) -> list[Hashable]:
    """Return the first `size` entries."""
    if isinstance(vocabulary, str | os.PathLike):
        path = Path(vocabulary)
        entries = read_lines(path, f"The file '{path}' of '{name}'")
    else:
        entries = list(vocabulary)
    if size > len(entries):
        raise ValueError(
            f"'{name}' has {len(entries)} entries, '{name}_size' is {size}"
        )
    entries = entries if size < 0 else entries[:size]
    # Which of two equal entries a row stood for can't be told.
    if len(set(entries)) < len(entries):
        raise ValueError(f"'{name}' has an entry more than once")
    return entries
