# SPDX-License-Identifier: Apache-2.0
"""`AsyncReplica`: one worker that trains variables in parameter servers."""

import copy
import dataclasses
import functools
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.format import ShardedCheckpoint, StoredTensor, read_checkpoint
from skest.checkpoints.store import CheckpointStore, DirectoryStore
from skest.core.interrupts import INTERRUPTED
from skest.distributed.ps.checkpoint import (
    Gathered,
    NotSavedError,
    gathered,
    join,
    restore,
    sharded,
)
from skest.distributed.ps.client import PSClient, StaleGenerationError
from skest.distributed.ps.connection import Peer
from skest.distributed.ps.exchange import Exchange
from skest.distributed.ps.lazy_tables import LazyBuilding
from skest.distributed.ps.messages import LIMIT, Message, Op
from skest.distributed.ps.variables import (
    Variables,
    elsewhere_of,
    hidden,
    merged_options,
    split,
    unique_state,
)
from skest.engine.loop import (
    INPUT_ENDED,
    Halves,
    Step,
    WatchedStep,
    clip_trained,
    compute_gradients,
    move_to_step,
)
from skest.engine.replica import Replica
from skest.exceptions import PeerLostError
from skest.hooks.base import Run, Timer
from skest.inputs.input_context import InputContext
from skest.optimizers.schedules import FunctionLR, is_scheduler_of
from skest.optimizers.state import group_options, named_state, set_group_options
from skest.spec import EstimatorSpec

#: What is raised when servers are gone, or have gone back.
LOST = (PeerLostError, StaleGenerationError)


class Attachment:
    """Sessions of a task with servers, which are opened anew when they break.

    Servers that begin, or come back, have nothing: the chief gives them the variables
    of its network, and later those of the last checkpoint. Other tasks wait for that.

    Parameters
    ----------
    client : PSClient
        Asks the servers.
    is_chief : bool
        Whether this task makes the servers agree.
    timeout : float
        Seconds that a server has for an answer.
    attach_timeout : float
        Seconds to wait for servers; see `skest.distributed.ps.worker.AsyncReplica`.
    may_fall_short : bool
        As there.
    check : callable
        Called again and again while it waits; may raise an error to end that.

    Attributes
    ----------
    exchange : Exchange or None
        Of this task, set after the first `attach`, and told of new sessions. Without one
        the network has the variables to begin with.
    saved : Checkpoint or None
        What to go back to if ``model_dir`` has nothing.
    goes_on : bool
        Whether servers begin with a checkpoint, which the network doesn't have.
    keeps_constants : bool
        Whether the network, as it is before the first `attach`, has what no server
        changes, such as buffers, as it shall be: it comes from a checkpoint, and servers
        that outlived a chief have what this training began with.
    reading : Patience
        With what can be asked again.
    """

    def __init__(
        self,
        client: PSClient,
        *,
        is_chief: bool,
        timeout: float,
        attach_timeout: float,
        may_fall_short: bool,
        check: Callable[[], None],
    ) -> None:
        self.client = client
        self.exchange: Exchange | None = None
        self.saved: Checkpoint | None = None
        self.goes_on = False
        self.keeps_constants = False
        self.reading = Patience(timeout)
        self._is_chief, self._may_fall_short = is_chief, may_fall_short
        self._timeout, self._attach_timeout = timeout, attach_timeout
        self._check = check
        self._variables: Variables | None = None
        self._rewind: Rewind | None = None
        self._constants_of = 0
        self._fell_from: int | None = None

    @property
    def variables(self) -> Variables:
        """What the servers have, after `prepare`."""
        if self._variables is None:
            raise RuntimeError("There are no variables before 'prepare'.")
        return self._variables

    def prepare(self, run: Run) -> None:
        """Find out what the servers will have, at what step; comes before `attach`.

        Raises
        ------
        ValueError
            If that is more than can be sent.
        """
        self._variables = Variables.of(
            run.network, run.spec.optimizers, len(self.client.addresses)
        )
        self._variables.check_sizes(LIMIT)
        self._rewind = Rewind(run)

    def retried(self, run: Run, ask: Callable[[], Any]) -> Any:
        """Ask again after sessions broke and were opened anew."""
        while True:
            try:
                found = ask()
            except LOST as error:
                _logger.warning("%s Attaching again.", error)
                self.reading.failed(error, self.limit(run))
                self.attach(run)
            else:
                self.reading.answered()
                return found

    def attach(self, run: Run) -> None:
        """Open sessions with servers that all have the same variables.

        Raises
        ------
        TimeoutError
            If there are none for too long.
        PeerLostError
            If the training has stopped, and its last steps were lost with a server.
        """
        self._fell_from = None
        self._open(run)
        if self._fell_from is None:
            return
        kept, reached = run.global_step, self._fell_from
        if not run.should_stop or kept >= reached:
            _logger.warning("All parameter servers went back to step %d.", kept)
            return
        lost = (
            "Parameter servers were lost after the last step of the training: step "
            f"{kept} is kept, steps {kept + 1} to {reached} are lost. Train again to go "
            "on from there."
        )
        if not self._may_fall_short or kept <= run.start_step:
            raise PeerLostError(lost)
        _logger.warning(lost)

    def _open(self, run: Run) -> None:
        start = time.monotonic()
        while True:
            self._check()
            try:
                self.client.connect()
                if self.exchange is not None:
                    self.exchange.forget()
                if self._is_ready(run, start + self._attach_timeout):
                    return
                problem = "They are not initialized."
            except LOST as error:
                problem = str(error)
            limit = self.limit(run)
            if time.monotonic() - start > limit:
                raise TimeoutError(
                    f"The parameter servers are not ready after {limit:g} s. {problem}"
                )
            time.sleep(_PAUSE)

    def limit(self, run: Run) -> float:
        """Return for how many seconds the task waits for servers."""
        return min(self._attach_timeout, self._timeout if run.should_stop else math.inf)

    def _is_ready(self, run: Run, end: float) -> bool:
        """Tell whether all servers agree; the chief makes them agree."""
        before = self.client.generation
        while True:
            found = self.client.ask_all(Message(Op.INFO))
            generations = {reply.generation for reply in found}
            is_agreed = len(generations) == 1 and 0 not in generations
            if is_agreed:
                break
            if self._is_chief:
                self._initialize(run, max(*generations, before, 0) + 1)
                return True
            if time.monotonic() > end:
                return False
            self._check()
            time.sleep(_PAUSE)
        self._check_variables(found[0])
        self.client.generation = found[0].generation
        self.client.step = found[0].step
        if run.global_step > self.client.step:
            self._move_back(run, self.client.step)
        if self.exchange is None and self.keeps_constants:
            self._constants_of = self.client.generation
        if self.client.generation != self._constants_of:
            self._load_constants(run)
        return True

    def _initialize(self, run: Run, generation: int) -> None:
        """Give the servers the variables of this process, or those of a checkpoint."""
        known = self.variables
        is_first = self.exchange is None
        if is_first and not self.goes_on:
            parts = split(known, run.network, run.spec.optimizers)
            self.client.initialize(known, parts, run.global_step, generation)
            self._constants_of = generation
            return
        reached = max(run.global_step, self.client.step, self._fell_from or 0)
        step = self._go_back(run, generation)  # its own variables are in the servers
        self._fell_from = None if is_first else reached
        self._load_constants(run)
        self._move_back(run, step)

    def _move_back(self, run: Run, step: int) -> None:
        if self._rewind is not None:
            self._rewind.to(run, step)

    def _go_back(self, run: Run, generation: int) -> int:
        """Let the servers begin at the newest checkpoint, and return its step."""
        model = (self.variables, run.network, run.spec.optimizers)
        store = None if run.model_dir is None else DirectoryStore(run.model_dir)
        path = None if store is None else store.latest_path()
        if path is not None:
            step = restore(self.client, *model, path, generation)
            if step is not None:
                return step
        checkpoint = self.saved if path is None else read_checkpoint(path)
        if checkpoint is None:
            raise RuntimeError(
                "There is nothing to restore the parameter servers from."
            )
        step = checkpoint.global_step
        self.client.initialize(model[0], split(*model, checkpoint), step, generation)
        return step

    def _check_variables(self, info: Message) -> None:
        theirs = Variables.from_json(info.control["variables"])
        differences = self.variables.differences(theirs)
        if differences:
            listed = "\n  ".join(differences)
            raise ValueError(
                "The parameter servers have the variables of another model:\n  "
                f"{listed}\nStart all tasks with the same program, columns and number of "
                "parameter servers."
            )

    def _load_constants(self, run: Run) -> None:
        self.load(run, self.snapshot(["constant"])[1], "constant")
        self._constants_of = self.client.generation

    def snapshot(self, kinds: list[str]) -> tuple[int, Gathered]:
        """Return the global step, and what all servers hold."""
        step, parts = self.client.snapshot(kinds)
        return step, gathered(self.variables, parts)

    def load(self, run: Run, found: Gathered, kind: str) -> None:
        """Set variables of the network to those of the servers."""
        tensors = unique_state(run.network)
        with torch.no_grad():
            for v in self.variables.of_kind(kind):
                tensors[v.name].copy_(found.values[v.name])


_LARGE = 1 << 20  # bytes


class Beginning:
    """Builds a model whose tables will be in servers, and what it goes on from.

    Servers read the checkpoint themselves, or are sent it from where it is. This process
    compares what is large with its model, and does not read it.

    Attributes
    ----------
    goes_on : bool
        Whether servers are to begin with the newest checkpoint.
    checkpoint : Checkpoint or None
        All of it, if it is in memory.
    """

    def __init__(self) -> None:
        self.goes_on = False
        self.checkpoint: Checkpoint | None = None
        self._lazy: LazyBuilding | None = None
        self._source: CheckpointStore | None = None
        self._large: set[str] = set()

    def latest(self, store: CheckpointStore) -> Checkpoint | None:
        """Return the newest checkpoint, with what is large on the meta device.

        One without the state of optimizers is returned as it is: these begin with what
        the network has.
        """
        found = _read(store, _described_if_large)
        if not isinstance(store, DirectoryStore):
            self.checkpoint = found
        if found is None:
            return None
        self.goes_on = bool(found.scalars.get("optimizers"))
        if not self.goes_on:
            self.checkpoint = None
            return store.latest()
        variables = _without_large(found.variables)
        self._source = store
        self._large = {name for name, tensor in variables.items() if tensor.is_meta}
        return dataclasses.replace(
            found, variables=variables, optimizer=_without_large(found.optimizer)
        )

    def load(self, network: nn.Module, names: Iterable[str]) -> None:
        """Read what is large, and stays here as it is in the checkpoint.

        Parameters
        ----------
        network : Module
            Built and settled.
        names : iterable of str
            Variables that no server changes, such as buffers.
        """
        if self._source is None or not (wanted := self._large.intersection(names)):
            return
        checkpoint = _read(self._source, _described_if_cut)
        if checkpoint is None:
            raise RuntimeError("The checkpoint that training goes on from is gone.")
        tensors = unique_state(network)
        with torch.no_grad():
            for name in wanted:
                tensors[name].copy_(checkpoint.variables[name])

    def building(self, *, draws: bool = True) -> LazyBuilding:
        """Return what is entered while the model is built.

        Parameters
        ----------
        draws : bool, default=True
            Whether the random values of tables are wanted, if there is no checkpoint.
        """
        self._lazy = LazyBuilding(keeps_draws=draws and not self.goes_on)
        return self._lazy

    def built(self, optimizers: Iterable[Optimizer]) -> None:
        """Tell slots of optimizers from other constants of the model."""
        if self._lazy is not None:
            self._lazy.built(optimizers)

    def settle(self, network: nn.Module) -> None:
        """Give what was built its values, but for what servers will have."""
        if self._lazy is not None:
            self._lazy.settle(network.parameters())


def _read(
    store: CheckpointStore, take: Callable[[StoredTensor], Tensor]
) -> Checkpoint | None:
    return store.latest(take) if isinstance(store, DirectoryStore) else store.latest()


def _described_if_cut(stored: StoredTensor) -> Tensor:
    """Return a tensor without its values if it is a table, which servers have."""
    return stored.whole() if stored.n_rows is None else stored.described()


def _described_if_large(stored: StoredTensor) -> Tensor:
    described = stored.described()
    return described if described.nbytes >= _LARGE else stored.whole()


def _without_large(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.to("meta") if tensor.nbytes >= _LARGE else tensor
        for name, tensor in tensors.items()
    }


_logger = logging.getLogger("skest")

_PAUSE = 0.1
_CHIEF_STOPPED = "the chief asked all tasks to stop"


class TrainingOverError(Exception):
    """What a task waits for will not come, and need not: the training has ended."""


class AsyncReplica(Replica):
    """A worker, or the chief, of a training with parameter servers.

    Every step reads the variables from the servers, computes gradients with them, and
    sends those back; servers apply them as they come, without waiting for others.

    Parameters
    ----------
    strategy : object
        Has the attributes ``timeout`` (seconds for an answer), ``lease`` (seconds after
        which a silent worker is taken for lost) and ``pipeline``.
    ps_addresses : sequence of str
        ``"host:port"`` of every server.
    task_type : str
        "chief" or "worker".
    task_index : int, default=0
        Number of the task among those of its type.
    is_chief : bool, default=None
        Whether this task initializes the servers and saves; None is whether it is of
        the type "chief".
    input_context : InputContext, default=None
        Which part of the input it reads.
    secret : str, default=None
        Shared by all tasks.
    attach_timeout : float, default=1200.0
        Seconds to wait for servers that do not answer or are not initialized, and to ask
        again what they do not answer in time. Who was asked to stop meanwhile waits for
        ``strategy.timeout`` at most.
    may_fall_short : bool, default=False
        Whether the training may end, with a warning, at the last checkpoint that it
        saved if a server is lost after the last step. By default that is an error, after
        which this task is to be started again to take the lost steps anew.
    check : callable, default=None
        Called again and again while it waits; may raise an error to end that. After a
        `TrainingOverError`, which ends the training quietly, ``with`` goes on.
    beginning : Beginning, default=None
        With which the model of this task was built, if that came before.

    Raises
    ------
    TimeoutError
        In `begin` and in steps, after `attach_timeout`.
    PeerLostError
        In `finish`, and when the last checkpoint is saved: see `may_fall_short`.
    ValueError
        In `begin`, if the servers have the variables of another model, or can't make
        the optimizers.

    Notes
    -----
    If a server is lost, so is what it held since the last checkpoint: the chief restores
    all servers from it when they are back, workers wait and go on. What was computed
    with variables from before is refused. A gradient is applied at most once on each
    server. Buffers, such as statistics of batch normalization, are those of each worker;
    those of the chief are saved.

    One worker computes bit for bit what training in one process does, with any number of
    servers, if all tables are updated by `skest.optimizers.RowSparse`.

    With ``pipeline=1`` the variables of the next step are asked for before the gradients
    of the present one are computed, so that they lack its update, and one batch more is
    read from the input than is trained on. What was asked for is dropped when sessions
    are opened anew.
    """

    def __init__(
        self,
        strategy: Any,
        *,
        ps_addresses: Any,
        task_type: str,
        task_index: int = 0,
        is_chief: bool | None = None,
        input_context: InputContext | None = None,
        secret: str | None = None,
        attach_timeout: float = 1200.0,
        may_fall_short: bool = False,
        check: Callable[[], None] = lambda: None,
        beginning: Beginning | None = None,
    ) -> None:
        self.is_chief = task_type == "chief" if is_chief is None else is_chief
        self._beginning = beginning or Beginning()
        self.input_context = input_context
        peer = Peer(task_type, task_index)
        self.client = PSClient(ps_addresses, peer, secret, strategy.timeout)
        self._strategy, self._check = strategy, check
        self._servers = Attachment(
            self.client,
            is_chief=self.is_chief,
            timeout=strategy.timeout,
            attach_timeout=attach_timeout,
            may_fall_short=may_fall_short,
            check=check,
        )
        self._own_steps = 0
        self._sending = Patience(strategy.timeout)
        self._is_saving = False
        self._next: LookAhead | None = None
        self._log: Timer | None = None

    def __exit__(self, *exc_info: object) -> bool:
        self.close()
        return isinstance(exc_info[1], TrainingOverError)

    @property
    def n_tasks(self) -> int:
        """How many tasks take part, as far as they have been told to."""
        context = self.input_context
        return 1 if context is None else context.num_input_pipelines

    def latest(self, store: CheckpointStore) -> Checkpoint | None:
        """Return what to go on from, but for the values that go to the servers."""
        if not self.is_chief:
            return super().latest(store)
        return self._beginning.latest(store)

    def building(self) -> LazyBuilding:
        """Let a model be built whose tables are elsewhere; the chief draws their values."""
        return self._beginning.building(draws=self.is_chief)

    def built(self, spec: EstimatorSpec) -> None:
        """Tell slots of optimizers, which servers will have, from what the model has."""
        self._beginning.built(spec.optimizers)

    def begin(self, run: Run) -> None:
        """Attach to the servers; the chief initializes them if nobody did."""
        spec = run.spec
        self._beginning.settle(run.network)
        self._servers.prepare(run)
        constants = (v.name for v in self._servers.variables.of_kind("constant"))
        self._beginning.load(run.network, constants)
        if self.is_chief:
            self._begin_saving(run)
        self._servers.attach(run)
        self._servers.exchange = Exchange(
            *(self.client, run.network, spec.optimizers, self._servers.variables),
            check=self._check,
        )
        for optimizer in spec.optimizers:
            optimizer.state.clear()  # it is in the servers
        move_to_step(run, self.client.step)
        if self.is_chief:
            every_steps = run.config.log_step_count_steps
            if every_steps is not None:
                self._log = Timer(every_steps)
                self._log.mark(run.global_step)
        self._stop_if_asked(run)

    def make_step(self, run: Run, make: Callable[..., Step]) -> Step:
        """Return what takes a step: read, compute gradients, send them.

        Gradients are recorded if all rows come before they are computed. If some are
        read by ids that the batch does not have as they are, steps stay eager: to look
        for rows that are missing depends on data, which the recording tells.
        """
        gradients = make(halves=Halves(self._compute_gradients, _leave_to_servers))
        return functools.partial(self._step, run, gradients)

    def batches(
        self, run: Run, batches: Iterator[tuple[Any, Any]]
    ) -> Iterator[tuple[Any, Any]]:
        """Return the batches, of which the next one can be seen if that is of use."""
        # Nobody sees that a table in memory is read one batch further.
        if self._strategy.pipeline or run.table is not None:
            batches = self._next = LookAhead(batches)
        return batches

    def make_watched_step(self, run: Run) -> WatchedStep:
        """Return what takes a step and shows its gradients before they are sent."""
        gradients = functools.partial(self._compute_gradients, run.spec)
        return functools.partial(self._step, run, gradients)

    def steps_taken(self, run: Run) -> int:
        """Return the global step, as server 0 said."""
        self._own_steps += 1
        if self._log is not None and self._log.is_due(self.client.step):
            self._log.mark(self.client.step)
            if _logger.isEnabledFor(logging.INFO):
                self._log_tasks(self._log)
        self._stop_if_asked(run)
        return self.client.step

    def _log_tasks(self, timer: Timer) -> None:
        """Log how many tasks train, how fast, and how late their gradients come."""
        tasks = self.client.ask(0, Message(Op.STATS)).control["tasks"]
        counts: Counter[int] = Counter()
        for task in tasks:
            counts.update(dict(task["staleness"]))
        total = max(1, counts.total())
        late = sum(staleness * n for staleness, n in counts.items()) / total
        _logger.info(
            "step %d: %d at work, %.1f steps/s, staleness %.2f on average, at most %d",
            self.client.step,
            sum(not task["has_left"] for task in tasks),
            timer.steps_per_sec or 0.0,
            late,
            max(counts, default=0),
        )

    def capture(self, run: Run, capture: Callable[[Run], Any]) -> Any:
        """Return a checkpoint of what is in the servers; all else is of this process."""
        if self._servers.exchange is None:
            return capture(run)
        if self._is_saving:
            return self._sharded(run, capture)
        step, found = self._servers.retried(
            run, lambda: self._servers.snapshot(["dense", "table"])
        )
        self._servers.load(run, found, "dense")
        elsewhere, others = elsewhere_of(self._servers.variables, run.network)
        with hidden(run.network, elsewhere | others.keys()):
            captured = capture(self._shown(run, step))
        made = join(found, captured, others)
        self._servers.saved = made if run.model_dir is None else None
        return made

    def refresh(self, run: Run) -> None:
        """Read dense variables; rows of tables are read anew when they are looked up."""
        exchange = self._servers.exchange
        if exchange is not None:
            self._servers.retried(run, lambda: exchange.pull(None))

    def finish(self, run: Run) -> None:
        """Say that this task takes no more steps; the chief waits for the others."""
        if not self.is_chief:
            self._tell(Message(Op.BYE))
            return
        if run.stop_reason == INPUT_ENDED:  # others may have more of it
            self._servers.retried(run, lambda: self._wait_for_workers(run))
        else:
            self._servers.retried(run, lambda: self._stop_workers(run))
        move_to_step(run, max(self.client.step, run.global_step))

    def stop_others(self, run: Run) -> None:
        """Ask all tasks to stop after the step that they are in."""
        self._servers.retried(run, lambda: self.client.ask_all(Message(Op.STOP)))

    def tasks_seen(self, run: Run) -> int:
        """Return how many tasks have been there, with this one."""
        stats = self._servers.retried(
            run, lambda: self.client.ask(0, Message(Op.STATS))
        )
        return len(stats.control["tasks"])

    def silence_of_workers(self, run: Run) -> dict[int, float]:
        """Return how many seconds ago server 0 heard of each worker, by its number.

        Nobody waits for the steps of this task from now on.
        """

        def ask() -> Message:
            self.client.ask(0, Message(Op.BYE))
            return self.client.ask(0, Message(Op.STATS))

        tasks = self._servers.retried(run, ask).control["tasks"]
        workers = [task for task in tasks if task["task_type"] == "worker"]
        return {task["task_index"]: task["silent_for"] for task in workers}

    def leave(self, run: Run) -> None:
        """End the servers, if this is the chief."""
        if self.is_chief:
            self._tell(Message(Op.SHUTDOWN))

    def close(self) -> None:
        """Let go of the sessions."""
        if self._servers.exchange is not None:
            self._servers.exchange.rows.close()
        self.client.close()

    def _begin_saving(self, run: Run) -> None:
        """Have something to go back to, until a later state is saved."""
        is_saved = self._servers.goes_on = self._beginning.goes_on
        self._servers.saved = self._beginning.checkpoint
        if run.model_dir is not None:
            run.save_by = self._save
            newest = DirectoryStore(run.model_dir).latest_step()
            is_saved = is_saved or newest == run.global_step
        self._servers.keeps_constants = is_saved
        if not is_saved:
            self._servers.saved = initial_capture(run, self._servers.variables)

    def _save(self, run: Run, save: Callable[[Any], None]) -> None:
        """Let the servers write a checkpoint; begin again if one is lost meanwhile."""
        self._is_saving = True
        patience = Patience(self._strategy.timeout)
        try:
            while True:
                try:
                    save(run.capture_checkpoint())
                except NotSavedError as error:
                    _logger.warning("%s Attaching again.", error)
                    patience.failed(error, self._servers.limit(run))
                    self._servers.attach(run)
                else:
                    self._servers.saved = None
                    return
        finally:
            self._is_saving = False

    def _sharded(self, run: Run, capture: Callable[[Run], Any]) -> ShardedCheckpoint:
        """Return a checkpoint that is written where the variables are."""
        replies = self._servers.retried(
            run, lambda: self.client.take_snapshot(["dense", "table"])
        )
        shown = self._shown(run, replies[0].step)
        return sharded(
            *(self.client, self._servers.variables, run.network, replies),
            capture=lambda: capture(shown),
        )

    def _shown(self, run: Run, step: int) -> Run:
        """Return the run as a checkpoint shall see it."""
        shown = copy.copy(run)
        # The position in the input counts the steps of this process.
        shown.global_step, shown.start_step = step, step - self._own_steps
        return shown

    def _step(
        self,
        run: Run,
        gradients: Step,
        features: Any,
        labels: Any,
        after_backward: Callable[[], None] | None = None,
    ) -> Tensor:
        exchange = self._exchange

        def compute() -> Tensor:
            exchange.pull(features)
            if self._strategy.pipeline:
                self._with_next(exchange.pull_ahead)
            loss = gradients(features, labels)
            exchange.rows.check_gradients()
            return loss

        loss: Tensor = self._servers.retried(run, compute)
        if after_backward is not None:
            after_backward()
        clip_trained(run.spec)
        try:
            exchange.push(functools.partial(self._find_next, exchange))
        except LOST as error:
            # Some servers may have applied it: it is not sent again.
            _logger.warning("The gradients of a step are lost: %s", error)
            self._sending.failed(error, self._servers.limit(run))
            self._servers.attach(run)
        else:
            self._sending.answered()
        return loss

    def _compute_gradients(
        self, spec: EstimatorSpec, features: Any, labels: Any
    ) -> Tensor:
        with self._exchange.rows.watched():
            return compute_gradients(spec, features, labels)

    @property
    def _exchange(self) -> Exchange:
        if self._servers.exchange is None:
            raise RuntimeError("A step was asked for before 'begin'.")
        return self._servers.exchange

    def _with_next(self, use: Callable[[Any], None]) -> None:
        """Do something with the features of the next batch, if that can be seen."""
        batch = None if self._next is None else self._next.peek()
        if batch is not None:
            use(batch[0])

    def _find_next(self, exchange: Exchange) -> None:
        """Find the rows of the next step, unless they are asked for already."""
        if not self._strategy.pipeline:
            self._with_next(exchange.find)

    def _stop_if_asked(self, run: Run) -> None:
        if self.client.is_stopping and not self.is_chief:
            run.request_stop(_CHIEF_STOPPED)

    def _stop_workers(self, run: Run) -> None:
        """Ask all to stop, and wait: a server that came back meanwhile knows nothing."""
        self.client.ask_all(Message(Op.STOP))
        self._wait_for_workers(run)

    def _wait_for_workers(self, run: Run) -> None:
        """Return when no other task is at work, and none is expected any more."""
        end = time.monotonic() + self._strategy.lease
        while True:
            self._check()
            stats = self.client.ask_all(Message(Op.STATS))[0].control
            self._servers.reading.answered()
            # One that comes too late would wait in vain for the servers.
            is_early = len(stats["tasks"]) < self.n_tasks and time.monotonic() < end
            if run.stop_reason == INTERRUPTED:
                is_early = False
            if not stats["active"] and not is_early:
                return
            time.sleep(_PAUSE)

    def _tell(self, message: Message) -> None:
        """Send what needs no answer; a server that is gone need not know."""
        try:
            self.client.ask_all(message)
        except LOST as error:
            _logger.info("%s", error)


def _leave_to_servers(spec: EstimatorSpec) -> None:
    """Update nothing: servers do, once the gradients were sent."""


def initial_capture(run: Run, variables: Variables) -> Checkpoint:
    """Return a checkpoint that has the very tensors of what will be in servers.

    Nobody writes to those any more: when a replica has given them to the servers, its
    network gets others. All else is copied.

    Parameters
    ----------
    run : Run
        Before its first step.
    variables : Variables
        Of its network.
    """
    network, optimizers = run.network, run.spec.optimizers
    slots: dict[str, Tensor] = {}
    options: list[Any] = []
    states: list[dict[Any, Any]] = []
    for i, optimizer in enumerate(optimizers):
        of_optimizer, described = named_state(optimizer, network.named_parameters())
        slots |= {f"{i}:{name}": slot for name, slot in of_optimizer.items()}
        options.append(described)
        states.append(dict(optimizer.state))
        optimizer.state.clear()
    elsewhere, others = elsewhere_of(variables, network)
    try:
        with hidden(network, elsewhere | others.keys()):
            captured = run.capture_checkpoint()
    finally:
        for optimizer, state in zip(optimizers, states, strict=True):
            optimizer.state.update(state)
    tensors = unique_state(network)
    values = {name: tensors[name].detach() for name in elsewhere}
    under_other_names = {other: values[name] for other, name in others.items()}
    return replace(
        captured,
        variables={**captured.variables, **values, **under_other_names},
        optimizer={**captured.optimizer, **slots},
        scalars=merged_options(captured.scalars, [options]),
    )


Batch = tuple[Any, Any]


class LookAhead(Iterator[Batch]):
    """An iterator over the same batches.

    Parameters
    ----------
    batches : iterator of (features, labels)
        Read one batch further than it is taken here, once that was looked at.

    Examples
    --------
    >>> from skest.distributed.ps.worker import LookAhead
    >>> batches = LookAhead(iter([("first", 0), ("second", 1)]))
    >>> batches.peek(), next(batches), next(batches), batches.peek()
    (('first', 0), ('first', 0), ('second', 1), None)
    """

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._kept: Callable[[], Batch] | None = None

    def __next__(self) -> Batch:
        kept, self._kept = self._kept, None
        return next(self._batches) if kept is None else kept()

    def peek(self) -> Batch | None:
        """Return the next batch; None if there is none, or an error in its place.

        The error is raised when that batch is taken: what comes before it is trained on.
        """
        if self._kept is None:
            try:
                batch = next(self._batches)
            except Exception as error:
                self._kept = _raising(error)
            else:
                self._kept = lambda: batch
        try:
            return self._kept()
        except Exception:
            return None


def _raising(error: Exception) -> Callable[[], Batch]:
    def fail() -> Batch:
        raise error

    return fail


class Patience:
    """Ends what fails again and again, for so long that it will not come right.

    Servers to which sessions can be opened are not lost; yet each request may take longer
    than a task waits for it.

    Parameters
    ----------
    timeout : float
        Seconds that a request may take, for the error.

    Examples
    --------
    >>> from skest.distributed.ps.worker import Patience
    >>> patience = Patience(30.0)
    >>> patience.failed(OSError("no answer"), 60.0)
    >>> patience.answered()
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: float | None = None

    def answered(self) -> None:
        """Begin anew: something came right."""
        self._since = None

    def failed(self, error: Exception, limit: float) -> None:
        """Go on, unless all has failed for so long.

        Parameters
        ----------
        error : Exception
            What happened this time.
        limit : float
            Seconds since the first failure after the last answer.

        Raises
        ------
        TimeoutError
            If there were more.
        """
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since > limit:
            raise TimeoutError(
                f"The parameter servers are there, but what they are asked has failed "
                f"for more than {limit:g} s. {error} Set 'timeout' of "
                f"AsyncParameterServer, now {self._timeout:g} s, to more than the "
                "slowest request takes."
            ) from error


class Rewind:
    """Takes a run back to an earlier step, with its learning rate schedules.

    Schedules of torch only go forward. They, and the options that they change, are set
    to what they were at the start of the run, and take the steps from there anew.

    Parameters
    ----------
    run : Run
        As it is at its start, of a task whose optimizers only describe what servers do.
    """

    def __init__(self, run: Run) -> None:
        self._start = run.global_step
        self._schedulers: list[tuple[Any, dict[str, Any]]] = [
            (scheduler, copy.deepcopy(scheduler.state_dict()))
            for scheduler in run.spec.lr_schedulers
            if not isinstance(scheduler, FunctionLR)
        ]
        self._options = [
            (group, group_options(group))
            for optimizer in run.spec.optimizers
            if any(is_scheduler_of(s, optimizer) for s, _ in self._schedulers)
            for group in optimizer.param_groups
        ]
        for scheduler, _ in self._schedulers:
            # Steps are taken in servers; torch would warn that there are none.
            scheduler.optimizer._opt_called = True

    def to(self, run: Run, step: int) -> None:
        """Set the global step to an earlier one, and learning rates to those of it.

        What hooks have done to options of optimizers with schedules of torch is undone.
        """
        run.global_step = step
        for group, options in self._options:
            set_group_options(group, options)
        for scheduler, state in self._schedulers:
            scheduler.load_state_dict(copy.deepcopy(state))
        for scheduler in run.spec.lr_schedulers:
            if isinstance(scheduler, FunctionLR):
                scheduler.move_to(step)
                continue
            for _ in range(self._start, step):
                scheduler.step()
