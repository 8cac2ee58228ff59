# SPDX-License-Identifier: Apache-2.0
"""What SLURM tells a task about the hosts of its job."""

import math
import re
from itertools import chain, islice, product, repeat

__all__ = ["expand_nodes", "hosts_of_tasks"]

_MOST_HOSTS = 2**16  # about as many nodes as SLURM manages
# Commas in brackets divide ranges, all others divide names.
_NAME = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[(.*?)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


def expand_nodes(text: str) -> list[str]:
    """Return the hosts of a list of nodes as SLURM writes it.

    Parameters
    ----------
    text : str
        Names with ranges of numbers in brackets, as in ``SLURM_JOB_NODELIST``.

    Returns
    -------
    list of str
        Names in the order of the list; numbers keep their leading zeros.

    Raises
    ------
    ValueError
        If it is no such list, or one of more than 65536 hosts.

    Notes
    -----
    As ``scontrol show hostnames``.

    Examples
    --------
    >>> expand_nodes("gpu[08-10,12],login1")
    ['gpu08', 'gpu09', 'gpu10', 'gpu12', 'login1']
    """
    names = _NAME.findall(text)
    if not names or ",".join(names) != text:
        raise ValueError(
            "A list of SLURM nodes (SLURM_JOB_NODELIST) must be names with ranges in "
            f"brackets, such as 'node[01-03,7],login1'; got {text!r}."
        )
    hosts: list[str] = []
    for name in names:
        hosts += _expand_name(name, _MOST_HOSTS - len(hosts))
    return hosts


def hosts_of_tasks(nodes: list[str], n_tasks: int, counts: str | None) -> list[str]:
    """Return the host of every task, if the first tasks are on the first host.

    Parameters
    ----------
    nodes : list of str
        The hosts.
    n_tasks : int
        Number of tasks.
    counts : str or None
        Tasks of every host, as in ``SLURM_TASKS_PER_NODE``; None is as even as can be.

    Returns
    -------
    list of str
        One for every task.

    Raises
    ------
    ValueError
        If the counts are malformed or do not fit the hosts and tasks.

    Examples
    --------
    >>> hosts_of_tasks(["a", "b", "c"], 5, "2(x2),1")
    ['a', 'a', 'b', 'b', 'c']
    """
    if counts is None:
        fewest, rest = divmod(n_tasks, len(nodes))
        return [n for i, n in enumerate(nodes) for _ in range(fewest + (i < rest))]
    matches = [_COUNT.fullmatch(part) for part in counts.split(",")]
    if not all(matches):
        raise ValueError(
            "Tasks of SLURM's nodes must be counts such as '4(x2),3'; "
            f"got SLURM_TASKS_PER_NODE={counts!r}."
        )
    each = chain.from_iterable(repeat(int(m[1]), int(m[2] or 1)) for m in matches if m)
    numbers = list(islice(each, len(nodes) + 1))
    if len(numbers) != len(nodes) or sum(numbers) != n_tasks:
        raise ValueError(
            f"SLURM_TASKS_PER_NODE={counts!r} must give {n_tasks} tasks to {len(nodes)} "
            "nodes, which is what SLURM_NTASKS and SLURM_JOB_NODELIST say. Start the "
            "tasks with srun, or describe the cluster in SKEST_CONFIG."
        )
    return [n for n, number in zip(nodes, numbers, strict=True) for _ in range(number)]


def _expand_name(name: str, most: int) -> list[str]:
    """Return the hosts of one name; numbers of the last brackets change fastest."""
    parts = _BRACKETS.split(name)  # every second one is what brackets hold
    ranges = [[_as_range(one) for one in part.split(",")] for part in parts[1::2]]
    if math.prod(sum(len(r) for r, _ in own) for own in ranges) > most:
        raise ValueError(
            f"A list of SLURM nodes must have at most {_MOST_HOSTS} hosts; {name!r} "
            "makes them more."
        )
    numbers = [[f"{n:0{width}}" for r, width in own for n in r] for own in ranges]
    return [
        "".join(chain.from_iterable(zip(parts[::2], (*chosen, ""), strict=True)))
        for chosen in product(*numbers)
    ]


def _as_range(text: str) -> tuple[range, int]:
    """Return the numbers of a range such as "08-11", and how many digits they have."""
    match = _RANGE.fullmatch(text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if match is None or last < first:
        raise ValueError(
            "A range of SLURM nodes must be a number or two in ascending order, such as "
            f"'7' or '01-03'; got {text!r}."
        )
    return range(first, last + 1), len(match[1])
