# SPDX-License-Identifier: Apache-2.0
"""Tables as a person reads them: in a terminal, and in a notebook."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple


class TitledTable(NamedTuple):
    """A table with a title."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def text(self) -> str:
        """Return it as text."""
        return f"{self.title}\n{text_table([self.head, *self.rows])}"


def text_table(rows: Sequence[Sequence[str]], widest: int = 90) -> str:
    """Return rows of cells in columns that are aligned; long cells are cut."""
    cut = [[c if len(c) <= widest else f"{c[: widest - 1]}…" for c in r] for r in rows]
    widths = [max(map(len, column)) for column in zip(*cut, strict=True)]
    return "\n".join(
        "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip()
        for row in cut
    )


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table that a click on its caption opens, as those of scikit-learn."""

    def line(cells: Sequence[str], tag: str) -> str:
        *short, last = map(escape, cells)
        first = "".join(f"<{tag} nowrap>{cell}</{tag}>" for cell in short)
        return f"<tr align=left>{first}<{tag}>{last}</{tag}></tr>"

    body = "".join(line(row, "td") for row in rows)
    return (
        '<details class="skest" style="font-family: monospace">'
        f"<summary>{escape(caption)}</summary><table cellpadding=3>"
        f"<thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table></details>"
    )
