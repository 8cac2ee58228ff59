# SPDX-License-Identifier: Apache-2.0
"""Strategies: how the tasks of a training share its work.

They are descriptions for ``RunConfig(train_distribute=)``; the model does not change.
What starts and looks after processes knows of no more, so that none imports PyTorch.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from skest.core.checks import check_integer, check_positive

_DAY = 86_400


# Rules bear late gradients differently. A perceptron whose gradients were all 15
# updates late, as of 16 workers: Adagrad ended at a loss of .35 in place of .26, Adam
# .34 (.27), SGD .35 (.31), and SGD with momentum 1.04 (.28).
@dataclass(frozen=True)
class AsyncParameterServer:
    """Workers that train independently of each other on variables of parameter servers.

    Every worker pulls the variables, computes gradients of a batch of its own part of the
    input, and pushes them; a parameter server applies them at once. Nobody waits for a
    slow worker, and gradients may be of variables that others have changed since.

    Parameters
    ----------
    num_workers : int, default=2
        Processes that train, the chief among them. This and `num_ps` are for training on
        one machine; a cluster in the environment says how many there are.
    num_ps : int, default=1
        Parameter servers, among which the variables are divided.
    lease : float, seconds, default=60.0
        A worker that is not heard of for so long counts as lost. A day at most.
    use_locking : bool, default=True
        Whether a worker that reads variables waits for a push that is being applied.
        Without, it may see a part of the update. Pushes are applied one after the other.
    timeout : float, seconds, default=30.0
        A request that takes longer counts as failed. A day at most.

    Raises
    ------
    ValueError, TypeError
        If a value is out of range or of the wrong type.

    Notes
    -----
    As ``tf.compat.v1.distribute.experimental.ParameterServerStrategy`` and
    ``tf.compat.v1.train.replica_device_setter``.

    Examples
    --------
    >>> from skest import RunConfig
    >>> from skest.distributed import AsyncParameterServer
    >>> config = RunConfig(train_distribute=AsyncParameterServer(num_workers=4, num_ps=2))
    >>> config.train_distribute.num_ps
    2
    """

    # No bound of staleness: with one, and a slow worker, all went at its pace, as in
    # DataParallel (32,500 and 30,600 examples a second; 106,000 without a bound).
    num_workers: int = 2
    num_ps: int = 1
    lease: float = field(default=60.0, kw_only=True)
    # A lock costs 1.7 % of the throughput (a prototype trained 166,500 examples a
    # second with it, and 169,300 without), so that consistent reads are the default.
    use_locking: bool = field(default=True, kw_only=True)
    timeout: float = field(default=30.0, kw_only=True)

    def __post_init__(self) -> None:
        owner = type(self).__name__
        check_integer(self.num_workers, "num_workers", owner, minimum=1)
        check_integer(self.num_ps, "num_ps", owner, minimum=1)
        _check_seconds(self.lease, "lease", owner)
        _check_seconds(self.timeout, "timeout", owner)
        if not isinstance(self.use_locking, bool):
            raise TypeError(
                f"'use_locking' of {owner} must be True or False; "
                f"got {self.use_locking!r}."
            )


# On one machine, 2.0 to 2.4 times as many examples a second as with parameter servers
# (a prototype with a table of a million rows).
@dataclass(frozen=True)
class SharedMemory:
    """Processes of one machine that train the same variables in its memory, unlocked.

    Parameters
    ----------
    num_workers : int, default=2
        Processes that train, the chief among them.
    lease : float, seconds, default=60.0
        A worker that takes no step for so long while the chief waits for it is killed,
        and started again; so is one that is stopped for so long, as by SIGSTOP. A day at
        most.

    Raises
    ------
    ValueError, TypeError
        If a value is out of range or of the wrong type.

    Notes
    -----
    Niu, Recht, Ré and Wright, Hogwild: A Lock-Free Approach to Parallelizing Stochastic
    Gradient Descent, NIPS 2011.

    Examples
    --------
    >>> from skest.distributed import SharedMemory
    >>> SharedMemory(4)
    SharedMemory(num_workers=4, lease=60.0)
    """

    num_workers: int = 2
    lease: float = field(default=60.0, kw_only=True)

    def __post_init__(self) -> None:
        owner = type(self).__name__
        check_integer(self.num_workers, "num_workers", owner, minimum=1)
        _check_seconds(self.lease, "lease", owner)


@dataclass(frozen=True)
class DataParallel:
    """Processes that take every step together, with the mean of their gradients.

    torchrun starts the processes, one for each GPU.

    Notes
    -----
    As ``torch.nn.parallel.DistributedDataParallel``.

    Examples
    --------
    >>> from skest.distributed import DataParallel
    >>> DataParallel()
    DataParallel()
    """


@dataclass(frozen=True)
class LocalSGD:
    """Processes that train on their own, and take the mean of their variables at times.

    torchrun starts the processes.

    Parameters
    ----------
    sync_every : int, default=8
        Steps between two means.

    Raises
    ------
    ValueError, TypeError
        If it is no integer of at least 1.

    Notes
    -----
    Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019.

    Examples
    --------
    >>> from skest.distributed import LocalSGD
    >>> LocalSGD(sync_every=16)
    LocalSGD(sync_every=16)
    """

    # For slow links, and no default: four processes took a quarter of the steps for the
    # same number of gradients, and a perceptron ended at a loss of .283 (mean every 8
    # steps) or .290 (every 32), where one process came to .121 (a prototype).
    sync_every: int = 8

    def __post_init__(self) -> None:
        check_integer(self.sync_every, "sync_every", type(self).__name__, minimum=1)


def _check_seconds(seconds: float, name: str, owner: str) -> None:
    check_positive(seconds, name, owner)
    if seconds > _DAY:
        raise ValueError(
            f"{name!r} of {owner} must be at most {_DAY} seconds, a day; got {seconds!r}."
        )


#: What ``RunConfig(train_distribute=)`` takes.
Strategy: TypeAlias = AsyncParameterServer | SharedMemory | DataParallel | LocalSGD
