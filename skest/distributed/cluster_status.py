# SPDX-License-Identifier: Apache-2.0
"""What parameter servers know of a training, put together and in words."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from skest.distributed.wire import Message
from skest.out_of_memory import bytes_in_words

__all__ = ["as_line", "as_table", "cluster_status"]

_MOST_BINS = 5
_SUMMED = ("bytes_in", "bytes_out", "refused")


def cluster_status(answers: Mapping[str, Message | str]) -> dict[str, Any]:
    """Put together what servers said.

    Parameters
    ----------
    answers : dict of str to (Message or str)
        By the address of the server, in the order of their numbers: its reply to
        `skest.distributed.wire.Op.STATS`, or why there is none.

    Returns
    -------
    dict
        JSON. "step" and "generation", None if no server answered; "servers", each with
        "address" and either "problem" or "memory_bytes" (of its process; None if it is
        not known), "variable_bytes" (without slots), "updates" and "up_for" (seconds);
        "tasks", each with "task_type", "task_index", "steps", "rate" (steps a second in
        the last seconds), "staleness" (pairs of a number of updates that a gradient did
        not know, and how many gradients), "bytes_in" and "bytes_out" (as the servers see
        them), "refused" (updates), "has_left" and "silent_for" (seconds).
    """
    servers: list[dict[str, Any]] = []
    known: list[Message] = []
    for address, answer in answers.items():
        if isinstance(answer, str):
            servers.append({"address": address, "problem": answer})
            continue
        known.append(answer)
        names = ("memory_bytes", "variable_bytes", "updates", "up_for")
        figures = {name: answer.control[name] for name in names}
        servers.append({"address": address, **figures})
    return {
        "step": known[0].step if known else None,  # that of server 0, if it is there
        "generation": max((reply.generation for reply in known), default=None),
        "servers": servers,
        "tasks": _tasks(known),
    }


def as_table(status: Mapping[str, Any]) -> str:
    """Return a status as text of several lines.

    Parameters
    ----------
    status : dict
        As `cluster_status` returns it.

    Examples
    --------
    >>> from skest.distributed.cluster_status import as_table, cluster_status
    >>> print(as_table(cluster_status({"h2:2222": "There is no answer."})))
    ps  address  memory
    0   h2:2222  There is no answer.
    """
    parts = []
    if status["generation"] == 0:
        parts.append("The variables are not initialized yet.")
    elif status["step"] is not None:
        parts.append(f"step {status['step']:,}, generation {status['generation']}")
    if status["tasks"]:
        names = ("task", "steps", "steps/s", "staleness", "in", "out", "refused")
        tasks = [_task_row(task) for task in status["tasks"]]
        parts.append(_aligned([(*names, "last heard"), *tasks]))
    header = ("ps", "address", "memory", "variables", "updates", "up")
    known = any("problem" not in server for server in status["servers"])
    rows = [_server_row(ps, server) for ps, server in enumerate(status["servers"])]
    parts.append(_aligned([header if known else header[:3], *rows]))
    return "\n\n".join(parts)


def as_line(status: Mapping[str, Any]) -> str:
    """Return what matters most of a status as one line.

    Examples
    --------
    >>> from skest.distributed.cluster_status import as_line, cluster_status
    >>> as_line(cluster_status({"h2:2222": "There is no answer."}))
    '0 tasks, 0.0 steps/s, staleness -, in 0.0 bytes, out 0.0 bytes, refused 0, ps 0: lost'
    """
    tasks, servers = status["tasks"], status["servers"]
    present = sum(not task["has_left"] for task in tasks)
    total = {name: sum(t[name] for t in tasks) for name in (*_SUMMED, "rate")}
    together: Counter[int] = Counter()
    for task in tasks:
        together.update(dict(task["staleness"]))
    memory = ", ".join(
        f"ps {ps}: {'lost' if 'problem' in s else _bytes(s['memory_bytes'])}"
        for ps, s in enumerate(servers)
    )
    return (
        f"{present} task{'s' * (present != 1)}, {total['rate']:.1f} steps/s, "
        f"staleness {_histogram(together.items())}, in {_bytes(total['bytes_in'])}, "
        f"out {_bytes(total['bytes_out'])}, refused {total['refused']}, {memory}"
    )


def _tasks(replies: Sequence[Message]) -> list[dict[str, Any]]:
    """Return what is known of each task; steps are those of the first server."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for reply in replies:
        for task in reply.control["tasks"]:
            name = (task["task_type"], task["task_index"])
            if name not in found:
                renamed = {"steps": task["pushes"], **task}
                del renamed["pushes"]
                found[name] = renamed
                continue
            merged = found[name]
            for key in _SUMMED:
                merged[key] += task[key]
            merged["has_left"] |= task["has_left"]
            merged["silent_for"] = min(merged["silent_for"], task["silent_for"])
    return [found[name] for name in sorted(found)]


def _task_row(task: Mapping[str, Any]) -> tuple[str, ...]:
    heard = "left" if task["has_left"] else f"{_seconds(task['silent_for'])} ago"
    return (
        f"{task['task_type']} {task['task_index']}",
        f"{task['steps']:,}",
        f"{task['rate']:.1f}",
        _histogram(task["staleness"]),
        _bytes(task["bytes_in"]),
        _bytes(task["bytes_out"]),
        f"{task['refused']:,}",
        heard,
    )


def _server_row(ps: int, server: Mapping[str, Any]) -> tuple[str, ...]:
    if "problem" in server:
        return (str(ps), server["address"], server["problem"])
    return (
        str(ps),
        server["address"],
        _bytes(server["memory_bytes"]),
        _bytes(server["variable_bytes"]),
        f"{server['updates']:,}",
        _seconds(server["up_for"]),
    )


def _histogram(counts: Iterable[Sequence[int]]) -> str:
    """Return shares such as "0: 83%, 1: 15%, 2+: 2%"; the last bin may be open."""
    counted = sorted((value, n) for value, n in counts if n)
    total = sum(n for _, n in counted)
    if len(counted) > _MOST_BINS:
        rest = counted[_MOST_BINS - 1 :]
        bins = [(str(value), n) for value, n in counted[: _MOST_BINS - 1]]
        bins.append((f"{rest[0][0]}-{rest[-1][0]}", sum(n for _, n in rest)))
    else:
        bins = [(str(value), n) for value, n in counted]
    return ", ".join(f"{name}: {n / total:.0%}" for name, n in bins) or "-"


def _bytes(n_bytes: int | None) -> str:
    return "unknown" if n_bytes is None else bytes_in_words(n_bytes)


def _seconds(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02} h"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as columns; a row that is shorter ends with a text of any length."""
    n_columns = len(rows[0])
    whole = [row for row in rows if len(row) == n_columns]
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
    lines = []
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)
