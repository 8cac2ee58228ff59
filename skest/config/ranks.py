# SPDX-License-Identifier: Apache-2.0
"""`Ranks`: numbered tasks as torchrun and SLURM start them, and their addresses."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, repeat

# The port in the examples of tf.train.ClusterSpec.
_PORT = 2222
_INSTEAD = "Describe the cluster in SKEST_CONFIG instead if it is not like that."


@dataclass(frozen=True)
class Ranks:
    """The tasks of a launcher, and which one this is.

    Parameters
    ----------
    own : int
        Number of this task.
    local : int or None
        Its number among those on the same host.
    addresses : list of str
        Addresses of all tasks; empty where they are not known.
    num_ps : int
        How many of the first ones are parameter servers.
    """

    own: int
    local: int | None
    addresses: list[str]
    num_ps: int


def torchrun_ranks(environ: Mapping[str, str]) -> Ranks:
    """Return the tasks of torchrun, which tells the address of the first host only.

    Raises
    ------
    ValueError
        If variables contradict each other, or a parameter server is on another host.
    """
    n_tasks, own, num_ps, port = _numbers(environ, "WORLD_SIZE", "RANK")
    host = environ.get("MASTER_ADDR", "")
    # torchrun numbers the tasks host by host, so that the first are those of
    # MASTER_ADDR.
    n_known = min(_integer(environ, "LOCAL_WORLD_SIZE", 1, default=1), n_tasks)
    if num_ps and not host:
        raise ValueError(
            f"Parameter servers (SKEST_NUM_PS={num_ps}) must have a host in MASTER_ADDR, "
            f"which is not set. {_INSTEAD}"
        )
    if num_ps > n_known:
        raise ValueError(
            f"All {num_ps} parameter servers (SKEST_NUM_PS) must be on the first host, "
            "the only one whose address torchrun tells; it has "
            f"LOCAL_WORLD_SIZE={n_known} tasks. {_INSTEAD}"
        )
    host = f"[{host}]" if ":" in host else host  # an IPv6 address
    # They share a host: each has a port of its own.
    known = [f"{host}:{port + rank}" if host else "" for rank in range(n_known)]
    local = _integer(environ, "LOCAL_RANK", 0, default=-1)
    addresses = known + [""] * (n_tasks - n_known)
    return Ranks(own, None if local < 0 else local, addresses, num_ps)


def slurm_ranks(environ: Mapping[str, str]) -> Ranks:
    """Return the tasks of a SLURM step, whose hosts are known.

    Raises
    ------
    ValueError
        If variables are missing, malformed or contradict each other.
    """
    n_tasks, own, num_ps, port = _numbers(environ, "SLURM_NTASKS", "SLURM_PROCID")
    nodes = expand_nodes(_of_step(environ, "JOB_NODELIST", "STEP_NODELIST"))
    counts = _of_step(environ, "TASKS_PER_NODE", "STEP_TASKS_PER_NODE")
    hosts = hosts_of_tasks(nodes, n_tasks, counts)
    # A wrong address would be waited for until a timeout, so what SLURM tells twice is
    # compared here.
    first: dict[str, int] = {}
    local = [rank - first.setdefault(host, rank) for rank, host in enumerate(hosts)]
    told = _integer(environ, "SLURM_LOCALID", 0, default=local[own])
    node = _integer(environ, "SLURM_NODEID", 0, default=nodes.index(hosts[own]))
    if told != local[own] or node != nodes.index(hosts[own]):
        raise ValueError(
            f"Task {own} of {n_tasks} is number {told} on node {node} (SLURM_LOCALID, "
            f"SLURM_NODEID), but by block it would be number {local[own]} on node "
            f"{nodes.index(hosts[own])}. Start it with 'srun --distribution=block', or "
            "describe the cluster in SKEST_CONFIG."
        )
    pairs = zip(hosts, local, strict=True)
    return Ranks(own, told, [f"{host}:{port + i}" for host, i in pairs], num_ps)


def _of_step(environ: Mapping[str, str], of_job: str, of_step: str) -> str:
    """Return a variable of the step, which may be smaller than its job."""
    return environ.get(f"SLURM_{of_step}") or environ.get(f"SLURM_{of_job}", "")


def _numbers(environ: Mapping[str, str], of_all: str, of_own: str) -> tuple[int, ...]:
    """Return how many tasks there are, which this is, how many are servers, the port."""
    n_tasks = _integer(environ, of_all, 1)
    own = _integer(environ, of_own, 0, n_tasks - 1)
    num_ps = _integer(environ, "SKEST_NUM_PS", 0, default=0)
    if num_ps >= n_tasks:
        raise ValueError(
            f"SKEST_NUM_PS={num_ps} must be less than {of_all}={n_tasks}: one task must "
            "be the chief, which trains."
        )
    return (
        n_tasks,
        own,
        num_ps,
        _integer(environ, "SKEST_PORT", 1, 65535, default=_PORT),
    )


def _integer(
    environ: Mapping[str, str],
    name: str,
    minimum: int,
    maximum: int | None = None,
    *,
    default: int | None = None,
) -> int:
    """Return the integer that a variable holds; an empty one is as none."""
    text = environ.get(name, "")
    if not text and default is not None:
        return default
    # `isdecimal` takes digits of all scripts, and `int` refuses thousands of them.
    is_number = text.isascii() and text.isdecimal() and len(text) < 10
    if is_number and minimum <= int(text) <= (
        int(text) if maximum is None else maximum
    ):
        return int(text)
    bounds = f"at least {minimum}" if maximum is None else f"{minimum} to {maximum}"
    raise ValueError(f"{name} must be an integer of {bounds}; got {text!r}.")


# Commas in brackets divide ranges, all others divide names.
_NAME = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
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
        If it is no such list.

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
    return [host for name in names for host in _expanded(name)]


def _expanded(name: str) -> Iterator[str]:
    """Yield the hosts of one name; numbers of the last brackets change fastest."""
    before, bracket, rest = name.partition("[")
    if not bracket:
        yield name
        return
    inside, _, after = rest.partition("]")
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or last < first:
            raise ValueError(
                "A range of SLURM nodes must be a number or two in ascending order, such "
                f"as '7' or '01-03'; got {part!r}."
            )
        # As wide as the first number is written: [08-10] is 08, 09 and 10.
        for number in range(first, last + 1):
            for end in _expanded(after):
                yield f"{before}{number:0{len(match[1])}}{end}"


def hosts_of_tasks(nodes: list[str], n_tasks: int, counts: str) -> list[str]:
    """Return the host of every task, if the first tasks are on the first host.

    Parameters
    ----------
    nodes : list of str
        The hosts.
    n_tasks : int
        Number of tasks.
    counts : str
        Tasks of every host, as in ``SLURM_TASKS_PER_NODE``.

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
    matches = [_COUNT.fullmatch(part) for part in counts.split(",")]
    if not all(matches):
        raise ValueError(
            "Tasks of SLURM's nodes must be counts such as '4(x2),3'; "
            f"got SLURM_TASKS_PER_NODE={counts!r}."
        )
    each = chain.from_iterable(repeat(int(m[1]), int(m[2] or 1)) for m in matches if m)
    # One more than there may be is enough to see that a count such as "1(x999999999)"
    # is wrong.
    numbers = list(islice(each, len(nodes) + 1))
    if len(numbers) != len(nodes) or sum(numbers) != n_tasks:
        raise ValueError(
            f"SLURM_TASKS_PER_NODE={counts!r} must give {n_tasks} tasks to {len(nodes)} "
            "nodes, which is what SLURM_NTASKS and SLURM_JOB_NODELIST say. Start the "
            "tasks with srun, or describe the cluster in SKEST_CONFIG."
        )
    return [n for n, number in zip(nodes, numbers, strict=True) for _ in range(number)]
