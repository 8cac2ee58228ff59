# SPDX-License-Identifier: Apache-2.0
"""`ClusterSpec` and `TaskConfig`: the tasks of a training, and which one this is."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from skest.config.ranks import Ranks, slurm_ranks, torchrun_ranks

# "master" is how early TF_CONFIG calls a chief that evaluates, too (`run_master` of
# tf.estimator).
_CHIEFS = ("chief", "master")
# A name, IPv4, or IPv6 in brackets, which may have a zone (RFC 6874).
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[^\s:/\[\]]+):([0-9]{1,5})")
_ONE_EVALUATES = (
    "A cluster with a 'master' has no 'evaluator', because the master evaluates and "
    "exports by itself. Call the master 'chief', or leave out the evaluator."
)
_EXAMPLE = '{"chief": ["h0:2222"], "worker": ["h1:2222"], "ps": ["h2:2222"]}'


class ClusterSpec:
    """The addresses of all tasks of a cluster, by their job.

    Parameters
    ----------
    jobs : mapping of str to sequence of str, default={}
        Addresses ``"host:port"`` of the tasks of "chief" (exactly one; its old name is
        "master"), "worker", "ps" and other jobs. An address may be empty where it is
        not known: only those of "ps" are connected to. Evaluators are outside of the
        cluster; what is listed under "evaluator" is left out.

    Raises
    ------
    ValueError
        If there are tasks but no chief, or more than one, a "master" beside an
        "evaluator", an address is malformed, or two parameter servers have the same.
    TypeError
        If `jobs` is no mapping of names to lists of strings.

    Notes
    -----
    As ``tf.train.ClusterSpec``. An object is not changed after it was made.

    Examples
    --------
    >>> from skest.distributed import ClusterSpec
    >>> cluster = ClusterSpec({"chief": ["h0:2222"], "ps": ["h1:2222", "h2:2222"]})
    >>> cluster.num_tasks("ps"), cluster.task_address("ps", 1)
    (2, 'h2:2222')
    """

    def __init__(self, jobs: Mapping[str, Sequence[str]] | None = None) -> None:
        if jobs is not None and not isinstance(jobs, Mapping):
            raise TypeError(
                "A cluster must be a mapping of jobs to lists of addresses, such as "
                f"{_EXAMPLE}; got {type(jobs).__name__}."
            )
        # An evaluator is no member of its cluster, though many a cluster lists it: it
        # takes part in nothing but reading checkpoints.
        given = {job: _addresses(job, tasks) for job, tasks in (jobs or {}).items()}
        # As tf.estimator, which reserves the evaluator for clusters with a chief.
        if given.pop("evaluator", ()) and given.get("master"):
            raise ValueError(_ONE_EVALUATES)
        self._jobs = {job: tasks for job, tasks in given.items() if tasks}
        # One task has to initialize the variables and to save them; tf.estimator
        # refuses clusters without it, too.
        n_chiefs = sum(self.num_tasks(job) for job in _CHIEFS)
        if self._jobs and n_chiefs != 1:
            raise ValueError(
                "A cluster must have exactly one task of the job 'chief' (or 'master'); "
                f"got {n_chiefs} beside the jobs {sorted(self._jobs)}. Such as {_EXAMPLE}."
            )
        # Nobody connects to other tasks, whose addresses may repeat.
        servers = self.job_tasks("ps")
        if len(set(servers)) < len(servers):
            raise ValueError(
                "Each parameter server must have an address of its own, on one host "
                f"another port; got {servers}."
            )

    @property
    def jobs(self) -> list[str]:
        """Names of the jobs in the order of their tasks' global ids.

        The chief comes first and parameter servers last, in between by name.
        """
        # As `_get_global_id_in_cluster` of TensorFlow's run_config: the chief first,
        # the others by name, parameter servers last.
        return sorted(
            self._jobs, key=lambda job: (job == "ps", job not in _CHIEFS, job)
        )

    def as_dict(self) -> dict[str, list[str]]:
        """Return the addresses by job."""
        return {job: list(tasks) for job, tasks in self._jobs.items()}

    def job_tasks(self, job: str) -> list[str]:
        """Return the addresses of a job's tasks; none if there is no such job."""
        return list(self._jobs.get(job, ()))

    def num_tasks(self, job: str) -> int:
        """Return the number of a job's tasks."""
        return len(self._jobs.get(job, ()))

    def task_address(self, job: str, index: int) -> str:
        """Return the address of a task; empty if it is not known.

        Raises
        ------
        ValueError
            If there is no such task.
        """
        tasks = self.job_tasks(job)
        if not tasks:
            raise ValueError(
                f"A cluster of {self.jobs} has no job {job!r}: add it to the cluster, or "
                "let the task be of one that is there."
            )
        if not 0 <= index < len(tasks):
            raise ValueError(
                f"Task {index} of the job {job!r} is not in the cluster, which has "
                f"{len(tasks)} of them, numbered from 0."
            )
        return tasks[index]

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSpec) and self._jobs == other._jobs

    def __hash__(self) -> int:
        return hash(frozenset(self._jobs.items()))

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict() if self._jobs else ''})"


@dataclass(frozen=True)
class TaskConfig:
    """Which task of which cluster a process is.

    Parameters
    ----------
    type : str, default="worker"
        Its job: "chief", "worker", "ps", "evaluator", or another one of the cluster.
    index : int, default=0
        Its number among the tasks of the job.
    cluster : ClusterSpec, default=ClusterSpec()
        The cluster. Without one, a worker trains alone. An evaluator belongs to none.
    local_rank : int or None, default=None
        Its number among the tasks on the same host, where it is known; the process of a
        host that takes the GPU of this number.
    model_dir : str or None, default=None
        The directory of checkpoints for all tasks, if the environment names one.
    service : dict or None, default=None
        What the environment tells about a service of the platform; skest only hands it on.
    session_master, eval_session_master : str, default=""
        Targets that take the place of `master` and `evaluation_master`.

    Raises
    ------
    ValueError
        If the cluster has no such task, there is none for it, or `model_dir` is empty.
    TypeError
        If an argument has the wrong type.

    Examples
    --------
    >>> from skest.distributed import ClusterSpec, TaskConfig
    >>> cluster = ClusterSpec({"chief": ["h0:1"], "worker": ["h1:1"], "ps": ["h2:1"]})
    >>> task = TaskConfig("worker", 0, cluster)
    >>> task.is_chief, task.num_worker_replicas, task.global_id_in_cluster
    (False, 2, 1)
    """

    type: str = "worker"
    index: int = 0
    cluster: ClusterSpec = field(default_factory=ClusterSpec)
    local_rank: int | None = None
    model_dir: str | None = None
    # Without `hash=False` it would leave a RunConfig, which holds it, without a hash.
    service: Mapping[str, Any] | None = field(default=None, hash=False)
    session_master: str = ""
    eval_session_master: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.type, str):
            raise TypeError(f"The type of a task must be a string; got {self.type!r}.")
        if not isinstance(self.index, int) or isinstance(self.index, bool):
            raise TypeError(
                f"The index of a task must be an integer; got {self.index!r}."
            )
        if not isinstance(self.cluster, ClusterSpec):
            raise TypeError(
                f"'cluster' of a task must be a ClusterSpec; got {self.cluster!r}."
            )
        if self.model_dir == "":
            raise ValueError(
                '"model_dir" of SKEST_CONFIG or TF_CONFIG must not be empty. Name the '
                "directory of checkpoints that all tasks share, or leave it out."
            )
        if self.type == "evaluator":
            if self.cluster or self.index < 0:
                raise ValueError(
                    "An evaluator must have an index >= 0 and no cluster, which it is "
                    f"outside of; got {self.index} and {self.cluster!r}."
                )
        elif self.cluster:
            self.cluster.task_address(self.type, self.index)
        elif (self.type, self.index) != ("worker", 0):
            raise ValueError(
                "Without a cluster there is only the task 'worker' 0 (or an evaluator); "
                f'got {self.type!r} {self.index}. Add the "cluster", such as {_EXAMPLE}.'
            )

    @property
    def is_chief(self) -> bool:
        """Whether it writes the checkpoints: the chief, or a worker without cluster."""
        return self.type in _CHIEFS or (self.type == "worker" and not self.cluster)

    @property
    def num_ps_replicas(self) -> int:
        """Number of parameter servers."""
        return self.cluster.num_tasks("ps")

    @property
    def num_worker_replicas(self) -> int:
        """Number of tasks that train, the chief among them; 0 for an evaluator."""
        if not self.cluster:
            return int(self.type == "worker")
        # As `_count_worker` of tf.estimator's run_config.py: the chief trains, too.
        return sum(self.cluster.num_tasks(job) for job in (*_CHIEFS, "worker"))

    @property
    def global_id_in_cluster(self) -> int | None:
        """Its number among all tasks of the cluster; None for an evaluator."""
        if self.type == "evaluator":
            return None
        jobs = self.cluster.jobs if self.cluster else [self.type]
        before = jobs[: jobs.index(self.type)]
        return self.index + sum(self.cluster.num_tasks(job) for job in before)

    @property
    def master(self) -> str:
        """Its address; empty if it is alone. There is no scheme such as ``grpc://``."""
        if self.type == "evaluator":
            return ""
        # A chief without any other task is local, as in TensorFlow: it connects to
        # nobody.
        is_alone = sum(self.cluster.num_tasks(job) for job in self.cluster.jobs) < 2
        # As `RunConfig.master` of tf.estimator.
        if self.session_master or is_alone:
            return self.session_master
        return self.cluster.task_address(self.type, self.index)

    @property
    def evaluation_master(self) -> str:
        """What the environment names as target of evaluations, for who evaluates."""
        return "" if self.cluster else self.eval_session_master


def task_from_env(environ: Mapping[str, str] = os.environ) -> TaskConfig:
    """Return which task this process is, from its environment.

    Parameters
    ----------
    environ : mapping of str to str, default=os.environ
        The first of these that is there decides:

        - ``SKEST_CONFIG``, or else ``TF_CONFIG``: JSON such as ``{"cluster": {"chief":
          ["h0:2222"], "worker": ["h1:2222"], "ps": ["h2:2222"]}, "task": {"type":
          "worker", "index": 0}}``. It may have "model_dir", "service", "session_master"
          and "eval_session_master"; other keys are ignored.
        - ``RANK`` and ``WORLD_SIZE``, as torchrun sets them. Parameter servers have to be
          on the first host, ``MASTER_ADDR``, and use the port ``SKEST_PORT`` + rank.
        - ``SLURM_PROCID`` and ``SLURM_NTASKS`` > 1, as srun sets them, for tasks that
          are distributed by block. They use the port ``SKEST_PORT`` + local id.

        In the latter two cases the first ``SKEST_NUM_PS`` (default 0) ranks are parameter
        servers, the next one is the chief, and all others are workers; ``SKEST_PORT`` is
        2222 by default.

    Returns
    -------
    TaskConfig
        That of a process which trains alone, if there is none of them.

    Raises
    ------
    ValueError, TypeError
        If what is there is malformed or contradicts itself.

    Notes
    -----
    The rules of JSON are those of ``TF_CONFIG`` for ``tf.estimator.RunConfig``.

    Examples
    --------
    >>> from skest.distributed import task_from_env
    >>> task = task_from_env({"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2"})
    >>> task.type, task.index, task.num_worker_replicas
    ('worker', 1, 4)
    """
    # Platforms made for TensorFlow set TF_CONFIG on their own: who means another
    # cluster overrules it by SKEST_CONFIG.
    for variable in ("SKEST_CONFIG", "TF_CONFIG"):
        text = environ.get(variable, "")
        if text.strip():
            return _task_of_json(_parsed(text, variable), variable)
    if environ.get("RANK") and environ.get("WORLD_SIZE"):
        return _task_of_ranks(torchrun_ranks(environ))
    # A step of one task needs no addresses, and trains like any script.
    if environ.get("SLURM_PROCID") and environ.get("SLURM_NTASKS", "1") != "1":
        return _task_of_ranks(slurm_ranks(environ))
    return TaskConfig()


def secret_of_cluster() -> str | None:
    """Return the environment variable ``SKEST_SECRET``; None if it is empty or not set."""
    return os.environ.get("SKEST_SECRET") or None


def _addresses(job: Any, tasks: Any) -> tuple[str, ...]:
    if not isinstance(job, str) or not job:
        raise TypeError(f"A job of a cluster must be a non-empty string; got {job!r}.")
    if isinstance(tasks, str | bytes) or not isinstance(tasks, Sequence):
        raise TypeError(
            f"The job {job!r} of a cluster must be a list of addresses 'host:port'; "
            f"got {tasks!r}."
        )
    for address in tasks:
        if not isinstance(address, str):
            raise TypeError(
                f"An address of the job {job!r} must be a string 'host:port'; "
                f"got {address!r}."
            )
        match = _ADDRESS.fullmatch(address)
        # torchrun does not tell where the tasks of other hosts are. Only servers are
        # connected to.
        is_unknown = address == "" and job != "ps"
        if not is_unknown and (match is None or int(match[1]) > 65535):
            raise ValueError(
                f"An address of the job {job!r} must be 'host:port' with a port of at "
                f"most 65535; got {address!r}."
            )
    return tuple(tasks)


def _parsed(text: str, variable: str) -> dict[str, Any]:
    """Return the JSON object of a variable."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{variable} must hold JSON; got {_shortened(text)}: {error}. Mind that JSON "
            "has double quotes, and that a shell may remove them."
        ) from error
    return _object(config, variable)


def _task_of_json(config: dict[str, Any], variable: str) -> TaskConfig:
    cluster = ClusterSpec(_object(config.get("cluster"), f'"cluster" of {variable}'))
    task = _object(config.get("task"), f'"task" of {variable}')
    for key in ("type", "index") if cluster else ():
        if task.get(key) in (None, ""):
            raise ValueError(
                f'"task" of {variable} must have "{key}", because there is a "cluster"; '
                f'got {task}. Such as {{"type": "worker", "index": 0}}.'
            )
    type_ = _string(task, "type", variable) or "worker"
    if type_ == "evaluator" and cluster.num_tasks("master"):
        raise ValueError(_ONE_EVALUATES)
    service = config.get("service")
    if service is not None:
        service = _object(service, f'"service" of {variable}')
    return TaskConfig(
        type_,
        _index(task.get("index", 0), variable),
        # As `_init_distributed_setting_from_environment_var` of tf.estimator: an evaluator
        # forgets the cluster that it was told of.
        ClusterSpec() if type_ == "evaluator" else cluster,
        model_dir=_string(config, "model_dir", variable),
        service=service,
        session_master=_string(config, "session_master", variable) or "",
        eval_session_master=_string(config, "eval_session_master", variable) or "",
    )


def _task_of_ranks(ranks: Ranks) -> TaskConfig:
    """Return the task of a rank: parameter servers come first, then the chief."""
    first = ranks.num_ps
    cluster = ClusterSpec(
        {
            "ps": ranks.addresses[:first],
            "chief": ranks.addresses[first : first + 1],
            "worker": ranks.addresses[first + 1 :],
        }
    )
    if ranks.own < first:
        return TaskConfig("ps", ranks.own, cluster, ranks.local)
    if ranks.own == first:
        return TaskConfig("chief", 0, cluster, ranks.local)
    return TaskConfig("worker", ranks.own - first - 1, cluster, ranks.local)


def _object(value: Any, where: str) -> dict[str, Any]:
    """Return a JSON object; null is an empty one."""
    if value is not None and not isinstance(value, dict):
        raise TypeError(
            f"{where} must be a JSON object {{...}}; got {_shortened(json.dumps(value))}."
        )
    return value or {}


def _string(config: Mapping[str, Any], key: str, variable: str) -> str | None:
    value = config.get(key)
    if not isinstance(value, str | None):
        raise TypeError(f'"{key}" of {variable} must be a string; got {value!r}.')
    return value


def _index(value: Any, variable: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f'"index" of {variable} must be an integer; got {value!r}.')
    try:
        # TensorFlow takes a quoted number, too, which templates of clusters write.
        return int(value)
    except ValueError as error:
        raise ValueError(
            f'"index" of {variable} must be an integer; got {_shortened(repr(value))}.'
        ) from error


def _shortened(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."
