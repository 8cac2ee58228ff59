# SPDX-License-Identifier: Apache-2.0
"""`Ranks`: numbered tasks as torchrun and SLURM start them, and their addresses."""

from collections.abc import Mapping
from dataclasses import dataclass

from skest.slurm import expand_nodes, hosts_of_tasks

__all__ = ["Ranks", "slurm_ranks", "torchrun_ranks"]

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
    n_tasks = _integer(environ, "WORLD_SIZE", 1)
    own = _integer(environ, "RANK", 0, n_tasks - 1)
    num_ps, port = _num_ps(environ, n_tasks, "WORLD_SIZE"), _port(environ)
    host = environ.get("MASTER_ADDR", "")
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
    n_tasks = _integer(environ, "SLURM_NTASKS", 1)
    own = _integer(environ, "SLURM_PROCID", 0, n_tasks - 1)
    num_ps, port = _num_ps(environ, n_tasks, "SLURM_NTASKS"), _port(environ)
    nodes = expand_nodes(_of_step(environ, "JOB_NODELIST", "STEP_NODELIST"))
    counts = _of_step(environ, "TASKS_PER_NODE", "STEP_TASKS_PER_NODE")
    hosts = hosts_of_tasks(nodes, n_tasks, counts or None)
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


def _num_ps(environ: Mapping[str, str], n_tasks: int, variable: str) -> int:
    num_ps = _integer(environ, "SKEST_NUM_PS", 0, default=0)
    if num_ps >= n_tasks:
        raise ValueError(
            f"SKEST_NUM_PS={num_ps} must be less than {variable}={n_tasks}: one task must "
            "be the chief, which trains."
        )
    return num_ps


def _port(environ: Mapping[str, str]) -> int:
    return _integer(environ, "SKEST_PORT", 1, 65535, default=_PORT)


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
    is_number = text.isascii() and text.isdecimal() and len(text) < 10
    if is_number and minimum <= int(text) <= (
        int(text) if maximum is None else maximum
    ):
        return int(text)
    bounds = f"at least {minimum}" if maximum is None else f"{minimum} to {maximum}"
    raise ValueError(f"{name} must be an integer of {bounds}; got {text!r}.")
