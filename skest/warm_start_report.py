# SPDX-License-Identifier: Apache-2.0
"""`WarmStartReport`: what a warm start took over, and what it did not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["VariableReport", "WarmStartReport"]

_HEADINGS = ("variable", "from", "copied", "new", "why not")


class VariableReport(NamedTuple):
    """What became of one variable.

    Attributes
    ----------
    name : str
        Of the variable of the new network.
    previous_name : str or None
        Of the variable in the source that it was taken from, if it was.
    n_copied, n_new : int
        Rows that come from the source, and that it does not have; columns, if only they
        have a `VocabInfo`. If the source has no column of them, no row comes from it.
    reason : str
        Why it was not warm-started, or not as a whole; of rows and columns that changed
        both, it counts the columns.
    """

    name: str
    previous_name: str | None
    n_copied: int
    n_new: int
    reason: str


@dataclass(frozen=True)
class WarmStartReport:
    """What a warm start took over; its text is a table.

    Parameters
    ----------
    source : str
        Where the variables come from.
    variables : sequence of VariableReport
        Every variable of the network.

    Examples
    --------
    >>> from skest.warm_start_report import VariableReport, WarmStartReport
    >>> report = WarmStartReport(
    ...     "run/ckpt-20",
    ...     [
    ...         VariableReport("color_weights", "color_weights", 2, 1, "not in old_vocab"),
    ...         VariableReport("bias", None, 0, 1, "not selected"),
    ...     ],
    ... )
    >>> report.warm_started
    ['color_weights']
    >>> print(report)
    Warm start from run/ckpt-20: 1 of 2 variables
    variable       from           copied  new  why not
    color_weights  color_weights       2    1  not in old_vocab
    bias           -                   0    1  not selected
    """

    source: str
    variables: Sequence[VariableReport]

    @property
    def warm_started(self) -> list[str]:
        """Names of the variables that were taken over, at least in part."""
        return [v.name for v in self.variables if v.previous_name is not None]

    @property
    def not_warm_started(self) -> dict[str, str]:
        """Why variables were not taken over, by name."""
        return {v.name: v.reason for v in self.variables if v.previous_name is None}

    @property
    def summary(self) -> str:
        """The report in one line."""
        return (
            f"Warm start from {self.source}: {len(self.warm_started)} of "
            f"{len(self.variables)} variables"
        )

    def __str__(self) -> str:
        rows = [_HEADINGS] + [
            (v.name, v.previous_name or "-", str(v.n_copied), str(v.n_new), v.reason)
            for v in self.variables
        ]
        name, previous, copied, new = (
            max(len(row[i]) for row in rows) for i in range(4)
        )
        lines = [
            f"{row[0]:<{name}}  {row[1]:<{previous}}  {row[2]:>{copied}}  "
            f"{row[3]:>{new}}  {row[4]}".rstrip()
            for row in rows
        ]
        return "\n".join([self.summary, *lines])
