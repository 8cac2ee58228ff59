# SPDX-License-Identifier: Apache-2.0
"""How many numbers a graph makes of what comes in, for those who limit its memory."""

from typing import Any

from skest.export.graph import Graph, Value

__all__ = ["note_width", "widths"]


def note_width(
    values: Value,
    *,
    row: int = 0,
    value: int = 0,
    place: int = 0,
    transient: bool = False,
) -> None:
    """Write down that a network makes numbers of a tensor of raw values or ids.

    Parameters
    ----------
    values : Value
        The tensor.
    row : int, default=0
        Numbers for each row.
    value : int, default=0
        Numbers for each value that is there.
    place : int, default=0
        Numbers for each place of a list, also where it is filled up.
    transient : bool, default=False
        Whether these numbers are gone before others of this kind are made, and what they
        took is used again: engines finish one branch of a graph before the next.
    """
    numbers = {"row": row, "value": value, "place": place}
    given = {name: count for name, count in numbers.items() if count}
    if given:
        values.graph.widths.append((values.name, given, transient))


def widths(graph: Graph) -> list[dict[str, Any]]:
    """Return what was written down, by the features that a client gives.

    Parameters
    ----------
    graph : Graph
        With its nodes.

    Returns
    -------
    list of dict
        ``of``: names of features; of several, each value in a row of one meets each of
        the others. ``row``, ``value`` and ``place``: as in `note_width`. ``transient``:
        true where the numbers of one entry after the other are made and gone.

    Examples
    --------
    >>> from skest.export.graph import Graph
    >>> from skest.export.widths import note_width, widths
    >>> graph = Graph("g")
    >>> ids = graph.input("ids", "int64", (None, None))
    >>> note_width(ids + 1, row=8)
    >>> note_width(ids + 1, value=8, transient=True)
    >>> widths(graph)
    [{'of': ['ids'], 'row': 8}, {'of': ['ids'], 'transient': True, 'value': 8}]
    """
    makers = {output: node for node in graph.added for output in node.outputs}
    taken = {tensor.name for tensor in graph.inputs}
    found: dict[tuple[Any, ...], dict[str, int]] = {}
    for tensor, numbers, transient in graph.widths:
        of: set[str] = set()
        seen, left = {tensor}, [tensor]
        while left:
            name = left.pop()
            of |= {name} & taken
            new = set(makers[name].inputs) - seen if name in makers else set()
            seen |= new
            left += new
        total = found.setdefault((transient, *sorted(of)), {})
        for kind, count in numbers.items():
            so_far = total.get(kind, 0)
            total[kind] = max(so_far, count) if transient else so_far + count
    return [
        {"of": of, **({"transient": True} if transient else {}), **total}
        for (transient, *of), total in found.items()
    ]
