# SPDX-License-Identifier: Apache-2.0
"""`AsyncReplica`: one worker that trains variables in parameter servers."""

import copy
import functools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from skest._interrupts import INTERRUPTED
from skest.checkpoint_format import ShardedCheckpoint
from skest.checkpoint_store import CheckpointStore, DirectoryStore
from skest.checkpoints import Checkpoint
from skest.distributed.attachment import LOST, Attachment
from skest.distributed.beginning import Beginning
from skest.distributed.client import PSClient
from skest.distributed.exchange import Exchange
from skest.distributed.gathering import join
from skest.distributed.hidden_variables import elsewhere_of, hidden
from skest.distributed.initial_capture import initial_capture
from skest.distributed.lazy_building import LazyBuilding
from skest.distributed.look_ahead import LookAhead
from skest.distributed.patience import Patience
from skest.distributed.remote_checkpoint import NotSavedError, sharded
from skest.distributed.session import Peer
from skest.distributed.wire import Message, Op
from skest.hooks.base import Run
from skest.hooks.timer import Timer
from skest.inputs.input_context import InputContext
from skest.replica import Replica
from skest.spec import EstimatorSpec
from skest.training import (
    INPUT_ENDED,
    Halves,
    Step,
    WatchedStep,
    clip_trained,
    compute_gradients,
    move_to_step,
)

__all__ = ["AsyncReplica", "TrainingOverError"]

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
    servers, if all tables are updated by `skest.row_sparse.RowSparse`.

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
