# SPDX-License-Identifier: Apache-2.0
"""Which part this process has in a training: of its strategy, in its task."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skest.config.cluster import secret_of_cluster
from skest.config.run_config import (
    AsyncParameterServer,
    DataParallel,
    LocalSGD,
    RunConfig,
    strategy_of,
)
from skest.distributed.local import train_locally
from skest.distributed.ps.server import serve_parameters
from skest.distributed.ps.worker import AsyncReplica, TrainingOverError
from skest.distributed.synchronous import DataParallelReplica, LocalSGDReplica
from skest.engine.loop import EndOfTraining, Replica
from skest.inputs.sharding import context_of

_logger = logging.getLogger("skest")


def serve_if_ps(config: RunConfig) -> bool:
    """Be a parameter server until the training ends, if that is the task of this process.

    Parameters
    ----------
    config : RunConfig
        Its task has the address. The environment variable ``SKEST_SECRET`` is what
        others must prove to know.

    Returns
    -------
    bool
        Whether it was one.

    Raises
    ------
    ValueError
        If the strategy has no use for parameter servers.
    """
    task = config.task
    # All tasks run one program, which asks in each.
    if task.type != "ps":
        return False
    strategy = strategy_of(config)
    if not isinstance(strategy, AsyncParameterServer):
        raise ValueError(
            f"This process is the task 'ps' {task.index} of its cluster, but "
            f"train_distribute={strategy!r} has no parameter servers. Use "
            "AsyncParameterServer(), or a cluster without 'ps'."
        )
    # Unlike `_TrainingExecutor.run_ps` of tf.estimator, it returns when the training ends.
    serve_parameters(
        task.cluster.task_address("ps", task.index),
        task.index,
        strategy=strategy,
        secret=secret_of_cluster(),
        # As long as a worker would wait for the chief.
        orphan_timeout=config.session_creation_timeout_secs,
    )
    return True


def replica_for(
    model_fn: Callable[..., Any],
    input_fn: Callable[..., Any],
    config: RunConfig,
    steps: int | None = None,
    max_steps: int | None = None,
) -> Replica:
    """Return the part of this process in a training.

    Parameters
    ----------
    model_fn, input_fn, steps, max_steps
        As for `skest.distributed.local.train_locally`, for strategies whose
        processes are started here.
    config : RunConfig
        Its ``train_distribute`` and ``task`` decide.

    Returns
    -------
    Replica
        To be entered by ``with``.

    Raises
    ------
    ValueError
        If the task does not train, or has no place in the strategy.
    RuntimeError, TypeError
        As for `train_locally`.
    """
    strategy, task = strategy_of(config), config.task
    _check_trains(config)
    if strategy is None:
        if task.num_worker_replicas > 1:
            _logger.warning(
                "This process trains alone, though it is one of %d in its cluster: "
                "'train_distribute' of RunConfig is None.",
                task.num_worker_replicas,
            )
        return Replica()
    # torchrun says by its own variables who takes part; a cluster is not asked.
    if isinstance(strategy, DataParallel):
        return DataParallelReplica(config.device)
    if isinstance(strategy, LocalSGD):
        return LocalSGDReplica(strategy.sync_every, config.device)
    # Whoever has described a cluster has started its tasks; without one they are
    # started here.
    if isinstance(strategy, AsyncParameterServer) and task.cluster:
        return _in_cluster(strategy, config)
    return train_locally(model_fn, input_fn, config, steps, max_steps)


def _check_trains(config: RunConfig) -> None:
    if config.task_type == "evaluator":
        raise ValueError(
            "This process is an evaluator, which does not train. Call "
            "skest.train_and_evaluate, which does what each task is for."
        )
    if not (config.is_chief or config.task_type == "worker"):
        raise ValueError(
            f"The task {config.task_type!r} of a cluster does not train; tasks of the "
            "types 'chief' and 'worker' do."
        )


def _in_cluster(strategy: AsyncParameterServer, config: RunConfig) -> Replica:
    task = config.task
    # In the order of the cluster: a server's number is its place there.
    addresses = task.cluster.job_tasks("ps")
    if not addresses:
        raise ValueError(
            f"train_distribute={strategy!r} needs parameter servers, and the cluster has "
            f"none: {task.cluster!r}. Add their addresses as 'ps', or use DataParallel()."
        )
    return AsyncReplica(
        strategy,
        ps_addresses=addresses,
        task_type=task.type,
        task_index=task.index,
        is_chief=task.is_chief,
        input_context=context_of(task),
        secret=secret_of_cluster(),
        attach_timeout=config.session_creation_timeout_secs,
        check=_check_of_worker(config),
    )


def _check_of_worker(config: RunConfig) -> Callable[[], None]:
    """Return what raises TrainingOverError if nobody needs this process any more.

    A worker that was away when the training ended would wait in vain for the servers.
    """
    if config.is_chief or config.model_dir is None:
        return lambda: None
    # What it finds at first may be the end of an earlier training in this directory.
    end = EndOfTraining(Path(config.model_dir))

    def check() -> None:
        reason = end.reason()
        if reason is not None:
            raise TrainingOverError(f"The chief has ended the training: {reason}.")

    return check
