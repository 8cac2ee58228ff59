# SPDX-License-Identifier: Apache-2.0
"""`RunConfig`: where and how an Estimator runs; strategies: how tasks share its work.

Strategies are descriptions for ``RunConfig(train_distribute=)``; the model does not
change. Nothing here imports PyTorch: what starts processes needs none.
"""

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from skest.config.cluster import ClusterSpec, TaskConfig, task_from_env
from skest.core.checks import (
    FormerArguments,
    check_choice,
    check_integer,
    check_not_negative,
    check_positive,
    number_of,
)
from skest.core.files import check_is_local

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


@dataclass(frozen=True)
class KeepBest:
    """A rule for `skest.RunConfig`: the checkpoints with the best results stay.

    They stay in addition to the newest ones. Results are those that
    ``Estimator.evaluate``, and with it ``train_and_evaluate``, has recorded in
    ``Estimator.eval_dir``; so the rule goes on where it was in another process.

    Parameters
    ----------
    number : int, default=1
        How many stay.
    metric : str, default="loss"
        A metric of the evaluation. NaN is no result.
    greater_is_better : bool, default=False
        Whether the highest value is the best one, and not the lowest.
    eval_name : str, default=None
        Name of the evaluation, as in `skest.EvalSpec`, where there are several.

    Raises
    ------
    ValueError
        If `number` is not positive, or `metric` is empty.
    TypeError
        If `number` is no integer, or a name no string.

    Examples
    --------
    >>> from skest import KeepBest, RunConfig
    >>> config = RunConfig(
    ...     "model", keep_best=KeepBest(3, "auc", greater_is_better=True)
    ... )
    """

    number: int = 1
    metric: str = "loss"
    greater_is_better: bool = False
    eval_name: str | None = None

    def __post_init__(self) -> None:
        check_integer(self.number, "number", "KeepBest", 1)
        if not isinstance(self.metric, str):
            raise TypeError(
                f"'metric' of KeepBest must be the name of a metric; got {self.metric!r}."
            )
        if not self.metric:
            raise ValueError("'metric' of KeepBest must not be empty.")
        if not isinstance(self.eval_name, str | None):
            raise TypeError(
                f"'eval_name' of KeepBest must be a string or None; "
                f"got {self.eval_name!r}."
            )

    def check(self, metrics: Mapping[str, float]) -> None:
        """Raise ValueError if the metric is no number of the result of an evaluation."""
        number_of(metrics, self.metric, "KeepBest")

    def ranked(self, results: Mapping[int, Mapping[str, float]]) -> list[int]:
        """Return the steps of some results, best first; at a tie the earlier one.

        Parameters
        ----------
        results : dict of int to dict of str to float
            Metrics by global step.

        Examples
        --------
        >>> from skest import KeepBest
        >>> KeepBest().ranked({10: {"loss": 0.5}, 20: {"loss": 0.2}})
        [20, 10]
        """
        # Evaluations of earlier versions of a model may have had other metrics.
        values = {
            step: metrics[self.metric]
            for step, metrics in results.items()
            if self.metric in metrics
        }
        sign = -1 if self.greater_is_better else 1
        # NaN compares as false with everything, so that sorting with it would leave any
        # order.
        steps = sorted(step for step, value in values.items() if not math.isnan(value))
        return sorted(steps, key=lambda step: sign * values[step])


# As in tf.estimator.RunConfig.
_SAVE_SECS_DEFAULT = 600
EXECUTIONS = ("auto", "eager", "graph")

# Settings that are None or an integer, with the smallest.
# Where tf.estimator takes 0 for "never" or "all", it is that here, too;
# `log_step_count_steps` of 0 it refuses.
_INTEGERS = {
    "random_seed": 0,
    "save_summary_steps": 0,
    "save_checkpoints_steps": 0,
    "keep_checkpoint_max": 0,
    "log_step_count_steps": 1,
}


# Arguments of tf.estimator.RunConfig that are none here, and what to do instead.
_FORMER = {
    "device_fn": "leave it out: strategies in 'train_distribute' place the variables",
    "experimental_distribute": "use 'train_distribute'",
    "experimental_max_worker_delay_secs": "use 'max_worker_delay_secs'",
    "protocol": "leave it out",
    "session_config": "leave it out: use 'device', 'num_threads' and 'execution'",
    "tf_random_seed": "use 'random_seed'",
}


@dataclass(frozen=True)
class RunConfig(FormerArguments):
    """Settings of a run that do not belong to the model.

    Parameters
    ----------
    model_dir : str or path, default=None
        Directory of checkpoints. None takes that of the environment (`task`), if it has
        one, or else keeps the checkpoint in memory, in the Estimator.
    random_seed : int, default=None
        Seed of initial weights, dropout and the orders of skest's input functions; an
        `ArrayDataset`, `Pipeline` or ``DataLoader`` has a seed of its own. None takes a
        new one for every call.
    save_summary_steps : int or None, default=100
        Steps between two summaries of training: event files in `model_dir` for
        TensorBoard, written if there is a `model_dir` and the package tensorboard. None
        or 0 writes none, and none of evaluations.
    save_checkpoints_steps : int or None, default="auto"
        Steps between two checkpoints.
    save_checkpoints_secs : float, seconds, or None, default="auto"
        Time between two checkpoints. If neither this nor `save_checkpoints_steps` is
        given, it is 600, else None. None for both, or zero, means "only at the end of
        the call".
    keep_checkpoint_max : int or None, default=5
        How many of the newest checkpoints stay in `model_dir`; None or 0 keeps all.
    keep_checkpoint_every_n_hours : float, hours, default=10000
        One checkpoint for each such span stays in addition.
    keep_best : KeepBest, default=None
        Which checkpoints stay in addition because their evaluation was good, such as
        ``KeepBest(3, "auc", greater_is_better=True)``; see `Estimator.best_checkpoint`.
    log_step_count_steps : int or None, default=100
        Steps between two log lines of loss and speed (logger "skest", level INFO); None
        writes none.
    resume_input : bool, default=True
        Whether ``train`` goes on in the middle of the input if the latest checkpoint is
        that of an interrupted run, see `Estimator.train`. False always starts the input
        anew, as an input that cannot be repeated requires (a live stream).
    device : str or torch.device, default="auto"
        "auto" is a CUDA device if there is one, else the CPU.
    execution : {"auto", "eager", "graph"}, default="auto"
        How training steps are carried out. "eager" runs the code of the model in every
        step. "graph" records the tensor operations of a step, backward pass and update
        included, and repeats them without that code and without autograd: the same
        numbers, bit for bit, in less time. What Python code does beside them happens only
        while it is recorded, and nothing is watched later on. So it is for models and
        optimizers whose step is a function of tensors: no Python state that changes
        between steps, no numbers of tensors that are read (``tolist``, ``numpy``), no
        draws from `random` or NumPy, and for predictions no branches by the number of
        rows; hooks may change numbers of variables in place and options of optimizers,
        but not what the model is made of. "auto" does so for what PyTorch and skest have
        built: networks, losses, optimizers, schedules and hooks. With a hook, module,
        loss or optimizer of one's own steps are eager. Recording has to be worth it, too:
        there must be at least 30 steps.

        What cannot be recorded is eager, and the logger "skest" tells once why: at level
        WARNING if "graph" was asked for, else INFO; for predictions at level DEBUG. That
        is where Python or shapes depend on numbers (``item``, a mask); where tensors of a
        batch require gradients; where an ``nn.Embedding`` with sparse gradients is used
        twice or has a ``padding_idx`` (row tables of skest may be); ``torch.compile``; and
        ``nn.LSTM`` on a CPU. Updates by optimizers of one's own, with a scheduler of
        PyTorch, or beside hooks of one's own are not recorded, gradients are.
    num_threads : int or "auto", default="auto"
        Intra-op threads of PyTorch during a call; the caller's setting is restored
        after it. "auto" chooses from the work of a step: one thread for small networks,
        on which more threads lose time, and never more than the caller's setting.
    train_distribute : strategy of skest.distributed, default=None
        How several tasks share a training, such as ``AsyncParameterServer()``. None
        trains in this process alone; but in a cluster that has parameter servers
        (`task`), it is ``AsyncParameterServer()``, as ``TF_CONFIG`` alone suffices for
        an Estimator of TensorFlow.
    eval_distribute : None, default=None
        As the field of TensorFlow, which may be None only: an evaluation runs in one
        process.
    max_worker_delay_secs : float, seconds, default=None
        In `skest.train_and_evaluate` workers begin one after the other, 5 seconds apart,
        but none later than this. None and 0 let them begin as soon as the variables are
        there; the default of TensorFlow is 60.
    session_creation_timeout_secs : float, seconds, default=7200
        How long a task waits for the others that it needs before it gives up.
    task : TaskConfig, default=task_from_env()
        Which task of which cluster this process is. The environment is read when the
        object is made (`skest.distributed.task_from_env`); copies keep what it was.

    Raises
    ------
    ValueError, TypeError
        If a value is out of range or of the wrong type, both `save_checkpoints_steps`
        and `save_checkpoints_secs` are given, the environment names another
        `model_dir`, or its description of the cluster is malformed.

    Notes
    -----
    The fields and properties follow ``tf.estimator.RunConfig``.

    Examples
    --------
    >>> from skest import RunConfig
    >>> config = RunConfig(random_seed=7, save_checkpoints_steps=100)
    >>> config.replace(save_checkpoints_secs=60).save_checkpoints_steps is None
    True
    """

    _former_arguments: ClassVar[Mapping[str, str]] = _FORMER

    model_dir: str | os.PathLike[str] | None = None
    random_seed: int | None = None
    save_summary_steps: int | None = 100
    # None is a choice ("only at the end"), so that "not given" is a value of its own.
    save_checkpoints_steps: int | None = "auto"  # type: ignore[assignment]
    save_checkpoints_secs: float | None = "auto"  # type: ignore[assignment]
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float = 10_000
    keep_best: KeepBest | None = None
    log_step_count_steps: int | None = 100
    resume_input: bool = True
    device: Any = "auto"
    execution: Literal["auto", "eager", "graph"] = "auto"
    num_threads: int | Literal["auto"] = "auto"
    train_distribute: Strategy | None = None
    eval_distribute: None = None
    max_worker_delay_secs: float | None = None
    session_creation_timeout_secs: float = 7200
    task: TaskConfig = field(default_factory=task_from_env)

    def __post_init__(self) -> None:
        if self.model_dir is not None and not os.fspath(self.model_dir):
            raise ValueError(
                "'model_dir' must not be empty; pass None to keep checkpoints in memory."
            )
        if self.model_dir is not None:
            check_is_local(self.model_dir, "'model_dir'")
        self._choose_save_interval()
        if self.save_checkpoints_steps is not None and (
            self.save_checkpoints_secs is not None
        ):
            raise ValueError(
                "Only one of 'save_checkpoints_steps' and 'save_checkpoints_secs' can be "
                f"set; got {self.save_checkpoints_steps} and "
                f"{self.save_checkpoints_secs}."
            )
        for name, minimum in _INTEGERS.items():
            if (value := getattr(self, name)) is not None:
                check_integer(value, name, "RunConfig", minimum)
        for name in ("save_checkpoints_secs", "max_worker_delay_secs"):
            if (value := getattr(self, name)) is not None:
                check_not_negative(value, name, "RunConfig")
        for name in ("keep_checkpoint_every_n_hours", "session_creation_timeout_secs"):
            check_positive(getattr(self, name), name, "RunConfig")
        if not isinstance(self.keep_best, KeepBest | None):
            raise TypeError(
                f"'keep_best' must be a skest.KeepBest or None; got {self.keep_best!r}."
            )
        if not isinstance(self.resume_input, bool):
            raise TypeError(
                f"'resume_input' must be True or False; got {self.resume_input!r}."
            )
        check_choice(self.execution, "execution", "RunConfig", EXECUTIONS)
        if self.num_threads != "auto":
            check_integer(self.num_threads, "num_threads", "RunConfig", 1)
        self._check_distribution()

    def _choose_save_interval(self) -> None:
        # Frozen: only `object` may set what follows from other fields.
        steps, secs = self.save_checkpoints_steps, self.save_checkpoints_secs
        if steps == "auto":
            object.__setattr__(self, "save_checkpoints_steps", None)
        if secs == "auto":
            chosen = _SAVE_SECS_DEFAULT if steps == "auto" else None
            object.__setattr__(self, "save_checkpoints_secs", chosen)

    def _check_distribution(self) -> None:
        if not isinstance(self.train_distribute, Strategy | None):
            raise TypeError(
                "'train_distribute' must be a strategy of skest.distributed, such as "
                f"AsyncParameterServer(), or None; got {self.train_distribute!r}."
            )
        # The field is there for code of tf.estimator, which may pass None.
        if self.eval_distribute is not None:
            raise ValueError(
                "'eval_distribute' must be None, because an evaluation runs in one "
                f"process; got {self.eval_distribute!r}. Leave it out."
            )
        if not isinstance(self.task, TaskConfig):
            raise TypeError(
                f"'task' must be a skest.distributed.TaskConfig; got {self.task!r}."
            )
        self._take_model_dir()

    def _take_model_dir(self) -> None:
        """Take over the directory that the environment names; it may be replaced then."""
        theirs = self.task.model_dir
        if theirs is None:
            return
        if self.model_dir is not None and Path(self.model_dir) != Path(theirs):
            raise ValueError(
                f"'model_dir' is {str(self.model_dir)!r} here but {theirs!r} in the "
                "environment (SKEST_CONFIG or TF_CONFIG). Give it in one of them."
            )
        object.__setattr__(self, "model_dir", self.model_dir or theirs)
        # Forgotten there: else `replace(model_dir=...)` would be refused as a
        # contradiction.
        task = dataclasses.replace(self.task, model_dir=None)
        object.__setattr__(self, "task", task)

    @property
    def cluster_spec(self) -> ClusterSpec:
        """The cluster; empty if this process is alone, or an evaluator."""
        return self.task.cluster

    @property
    def task_type(self) -> str:
        """The job of this process, such as "worker"."""
        return self.task.type

    @property
    def task_id(self) -> int:
        """Number of this process in its job."""
        return self.task.index

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the checkpoints."""
        return self.task.is_chief

    @property
    def num_worker_replicas(self) -> int:
        """Number of tasks that train, the chief among them; 0 for an evaluator."""
        return self.task.num_worker_replicas

    @property
    def num_ps_replicas(self) -> int:
        """Number of parameter servers."""
        return self.task.num_ps_replicas

    @property
    def global_id_in_cluster(self) -> int | None:
        """Number of this process in the cluster; None for an evaluator."""
        return self.task.global_id_in_cluster

    @property
    def master(self) -> str:
        """Address of this process; empty if it is alone."""
        return self.task.master

    @property
    def evaluation_master(self) -> str:
        """What the environment names as target of evaluations, for who evaluates."""
        return self.task.evaluation_master

    @property
    def service(self) -> Mapping[str, Any] | None:
        """What the environment tells about a service of the platform."""
        return self.task.service

    def replace(self, **changes: Any) -> "RunConfig":
        """Return a copy with some fields changed.

        Setting one of `save_checkpoints_steps` and `save_checkpoints_secs` clears the
        other.

        Parameters
        ----------
        **changes
            New values by field name.

        Returns
        -------
        RunConfig
            The changed copy.

        Raises
        ------
        ValueError
            If a name is no field or a value is not allowed.
        """
        names = [field.name for field in dataclasses.fields(self)]
        unknown = sorted(set(changes) - set(names))
        if unknown:
            raise ValueError(
                f"RunConfig has no field {', '.join(map(repr, unknown))}; "
                f"its fields are {', '.join(names)}."
            )
        # As `_validate_save_ckpt_with_replaced_keys` of tf.estimator: the one that is given
        # takes the place of the other.
        pair = ("save_checkpoints_steps", "save_checkpoints_secs")
        # Both given is an error, which the constructor raises.
        if sum(changes.get(name) is not None for name in pair) == 1:
            changes = dict.fromkeys(pair) | changes
        return dataclasses.replace(self, **changes)


def check_config(
    config: RunConfig | None, model_dir: str | os.PathLike[str] | None
) -> RunConfig:
    """Return the configuration of an Estimator, `model_dir` in it.

    Raises
    ------
    ValueError
        If both name a directory, and not the same.
    TypeError
        If it is no RunConfig.
    """
    if config is None:
        config = RunConfig()
    if not isinstance(config, RunConfig):
        raise TypeError(f"'config' must be a RunConfig; got {type(config).__name__}.")
    if model_dir is None:
        return config
    if config.model_dir is not None and Path(config.model_dir) != Path(model_dir):
        raise ValueError(
            "'model_dir' is given twice, with different values: "
            f"{str(model_dir)!r} here and {str(config.model_dir)!r} in 'config'."
        )
    return config.replace(model_dir=model_dir)


def strategy_of(config: RunConfig) -> Strategy | None:
    """Return how the tasks share a training; None if this process trains alone.

    Parameters
    ----------
    config : RunConfig
        With ``train_distribute=None`` in a cluster that has parameter servers, it is
        ``AsyncParameterServer()``, as with ``TF_CONFIG`` in TensorFlow.
    """
    # As `_get_replica_device_setter` of tf.estimator: variables go to the servers that the
    # cluster has.
    if config.train_distribute is None and config.num_ps_replicas:
        return AsyncParameterServer()
    return config.train_distribute


def is_alone(config: RunConfig) -> bool:
    """Tell whether a process knows of no others, so that it trains alone."""
    is_worker = config.task_type == "worker"
    return strategy_of(config) is None and is_worker and not config.cluster_spec
