# SPDX-License-Identifier: Apache-2.0
"""`AsyncReplica`: one worker that trains variables in parameter servers."""

import contextlib
import copy
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.store import CheckpointStore, DirectoryStore
from skest.core.console import INTERRUPTED
from skest.distributed.ps.checkpoint import join, outlined, snapshot, state_of, upload
from skest.distributed.ps.connection import Peer, PSClient
from skest.distributed.ps.exchange import Exchange
from skest.distributed.ps.messages import LIMIT, Message, Op
from skest.distributed.ps.rows import TablesElsewhere
from skest.distributed.ps.variables import Variables, aliases, hidden, unique_state
from skest.engine import loop
from skest.exceptions import PeerLostError
from skest.hooks.base import Run, Timer
from skest.inputs.input_context import InputContext
from skest.spec import EstimatorSpec

_logger = logging.getLogger("skest")

# Between two questions to servers: every task asks, and they have work to do.
_PAUSE = 0.1
_CHIEF_STOPPED = "the chief asked all tasks to stop"


class TrainingOverError(Exception):
    """What a task waits for will not come, and need not: the training has ended."""


class AsyncReplica(loop.Replica):
    """A worker, or the chief, of a training with parameter servers.

    Every step reads the variables from the servers, computes gradients with them, and
    sends those back; servers apply them as they come, without waiting for others.

    Parameters
    ----------
    strategy : AsyncParameterServer
        Of the training.
    ps_addresses : sequence of str
        ``"host:port"`` of every server.
    task_type : str
        "chief" or "worker".
    task_index : int, default=0
        Number of the task among those of its type.
    is_chief : bool, default=None
        Whether this task gives the servers their variables, and saves; None is whether
        it is of the type "chief".
    input_context : InputContext, default=None
        Which part of the input it reads.
    secret : str, default=None
        Shared by all tasks.
    attach_timeout : float, default=1200.0
        Seconds to wait, at the beginning, for servers that do not answer or have no
        variables.
    check : callable, default=None
        Called again and again while it waits; may raise an error to end that. After a
        `TrainingOverError`, which ends the training quietly, ``with`` goes on.

    Raises
    ------
    TimeoutError
        In `begin`, after `attach_timeout`.
    PeerLostError
        If a server is lost. What it held since the last checkpoint is lost with it: all
        tasks are to be started again, and go on from there. The chief ends the other
        servers, so that all see it.
    ValueError
        In `begin`, if the servers have the variables of another model, or can't make
        the optimizers.

    Notes
    -----
    A worker that dies takes with it what nobody else needs; one that comes, or comes
    back, reads from the servers what it needs. So does the chief; checkpoints are those
    of the servers. A gradient is applied at most once on each server. Buffers, such as
    statistics of batch normalization, are those of each worker; those of the chief are
    saved.

    One worker computes bit for bit what training in one process does, with any number of
    servers, if all tables are updated by `skest.optimizers.RowSparse`.
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
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.is_chief = task_type == "chief" if is_chief is None else is_chief
        self.input_context = input_context
        peer = Peer(task_type, task_index)
        self.client = PSClient(ps_addresses, peer, secret, strategy.timeout)
        self._strategy, self._check = strategy, check
        self._attach_timeout = attach_timeout
        self._is_saving = False
        self._model_dir: Path | None = None  # before `begin`
        self._resumed_from: Checkpoint | None = None  # mapped from its files
        self._own_steps = 0
        self._exchange: Any = None  # before `begin`
        self._log: Timer | None = None

    def __exit__(self, *exc_info: object) -> bool:
        error = exc_info[1]
        try:
            # Whatever it was doing, the training is over with the server, as with an
            # UnavailableError of TensorFlow's ClusterCoordinator.
            if isinstance(error, PeerLostError):
                self._end_with(error)
        finally:
            self.close()
        # No error: the task ends as the others did.
        return isinstance(error, TrainingOverError)

    def latest(self, store: CheckpointStore) -> Checkpoint | None:
        """Return what to go on from; servers get their tensors as they are in the files."""
        found = store.latest()
        # Without the state of optimizers, these begin with what the network has.
        if found is None or not found.scalars.get("optimizers"):
            return found
        self._resumed_from = found
        return outlined(found)

    def building(self) -> contextlib.AbstractContextManager[Any]:
        """Let a model be built whose tables are elsewhere, unless they are drawn here."""
        if self.is_chief and self._resumed_from is None:
            return contextlib.nullcontext()
        # Values come from the checkpoint, or are drawn by the chief.
        return TablesElsewhere()

    def begin(self, run: Run) -> None:
        """Attach to the servers; the chief gives them variables if they have none."""
        spec, n_ps = run.spec, len(self.client.addresses)
        self._variables = Variables.of(run.network, spec.optimizers, n_ps)
        # Before anything is sent: the error names the variable that is too large.
        self._variables.check_sizes(LIMIT)
        self._model_dir = run.model_dir
        self._attach(run)
        self._exchange = Exchange(
            *(self.client, run.network, spec.optimizers, self._variables),
        )
        # From here on this process has no slots, and of tables the rows that it looks up.
        for optimizer in spec.optimizers:
            optimizer.state.clear()  # it is in the servers
        loop.move_to_step(run, self.client.step)
        if self.is_chief:
            if run.model_dir is not None:
                run.save_by = self._save
            every_steps = run.config.log_step_count_steps
            if every_steps is not None:
                self._log = Timer(every_steps)
                self._log.mark(run.global_step)
        self._stop_if_asked(run)

    def make_step(self, run: Run, make: Callable[..., loop.Step]) -> loop.Step:
        """Return what takes a step: read, compute gradients, send them.

        Gradients are recorded if all rows come before they are computed. If some are
        read by ids that the batch does not have as they are, steps stay eager: to look
        for rows that are missing depends on data, which the recording tells.
        """
        gradients = make(update=_leave_to_servers)

        def step(
            features: Any,
            labels: Any,
            after_backward: Callable[[], None] | None = None,
        ) -> Tensor:
            self._exchange.pull(features)
            loss = gradients(features, labels)
            if after_backward is not None:
                after_backward()
            # Here, as the train_op of a worker of tf.estimator does: a server has a part
            # of the gradients, and can't tell their norm.
            loop.clip_trained(run.spec)
            self._exchange.push()
            return loss

        return step

    def steps_taken(self, run: Run) -> int:
        """Return the global step, as server 0 said."""
        self._own_steps += 1
        if self._log is not None and self._log.is_due(self.client.step):
            self._log.mark(self.client.step)
            if _logger.isEnabledFor(logging.INFO):
                self._log_tasks(self._log)
        self._stop_if_asked(run)
        return self.client.step

    def capture(self, run: Run, capture: Callable[[Run], Any]) -> Any:
        """Return a checkpoint of what is in the servers; all else is of this process.

        If it is to be saved, tensors are fetched while they are written.
        """
        if self._exchange is None:
            return capture(run)
        found = snapshot(
            self.client,
            self._variables,
            ["dense", "table"],
            # An evaluation may look at NaN; no file shall have it.
            refuse_nan=self._is_saving,
        )
        if not self._is_saving:
            # All must be here before the next request, which ends the snapshot.
            found = found.fetched()
        trained = {v.name for v in self._variables.all if v.kind != "constant"}
        others = {o: n for o, n in aliases(run.network).items() if n in trained}
        shown = copy.copy(run)
        # The position in the input counts the steps of this process.
        shown.global_step, shown.start_step = found.step, found.step - self._own_steps
        with hidden(run.network, trained | others.keys()):
            captured = capture(shown)
        return join(found, captured, others)

    def refresh(self, run: Run) -> None:
        """Read dense variables; rows of tables are read anew when they are looked up."""
        if self._exchange is not None:
            self._exchange.pull(None)

    def finish(self, run: Run) -> None:
        """Say that this task takes no more steps; the chief waits for the others."""
        if not self.is_chief:
            # Or the chief would wait for it until its lease has run out.
            self.client.ask_all(Message(Op.BYE))
            return
        if run.stop_reason != loop.INPUT_ENDED:  # else others may have more of it
            self.client.ask_all(Message(Op.STOP))
        self._wait_for_workers(run)
        loop.move_to_step(run, max(self.client.step, run.global_step))

    def leave(self, run: Run) -> None:
        """End the servers, if this is the chief."""
        if self.is_chief:
            self._end_servers(Message(Op.SHUTDOWN))

    def close(self) -> None:
        """Let go of the sessions."""
        if self._exchange is not None:
            self._exchange.rows.close()
        self.client.close()

    def _attach(self, run: Run) -> None:
        """Wait until all servers have variables; the chief gives them some, once."""
        end = time.monotonic() + self._attach_timeout
        while True:
            self._check()
            try:
                self.client.connect()
                found = self.client.ask_all(Message(Op.INFO))
            except PeerLostError as error:
                # All sessions anew: an answer may still be owed in some.
                self.client.close()
                problem = str(error)
            else:
                ready = [reply.control["variables"] is not None for reply in found]
                # So they are for a chief that was started again, too: it goes on with
                # what the servers have.
                if all(ready):
                    break
                problem = "They have no variables yet."
                if self.is_chief:
                    self._initialize(run, ready)
                    continue
            if time.monotonic() > end:
                raise TimeoutError(
                    "The parameter servers are not ready after "
                    f"{self._attach_timeout:g} s. {problem}"
                )
            time.sleep(_PAUSE)
        theirs = Variables.from_json(found[0].control["variables"])
        differences = self._variables.differences(theirs)
        if differences:
            listed = "\n  ".join(differences)
            raise ValueError(
                "The parameter servers have the variables of another model:\n  "
                f"{listed}\nStart all tasks with the same program, columns and number of "
                "parameter servers."
            )
        self._load_constants(run)

    def _initialize(self, run: Run, ready: list[bool]) -> None:
        """Give the servers the variables of this process, or those of its checkpoint."""
        if any(ready):
            began = [
                self.client.addresses[ps] for ps, is_ in enumerate(ready) if not is_
            ]
            raise PeerLostError(
                f"The ps at {', '.join(began)} was started again, or began while the "
                "chief died: it has no variables, as others have."
            )
        state = state_of(
            *(self._variables, run.network, run.spec.optimizers), self._resumed_from
        )
        upload(self.client, self._variables, state, run.global_step)

    def _load_constants(self, run: Run) -> None:
        """Set what no optimizer updates to what the chief has drawn, or has saved."""
        names = [v.name for v in self._variables.of_kind("constant")]
        saved = self._resumed_from
        if saved is None:
            served = snapshot(self.client, self._variables, ["constant"]).fetched()
            found = {name: served.tensors[f"variable:{name}"] for name in names}
        else:
            found = {name: saved.variables[name] for name in names}
        tensors = unique_state(run.network)
        with torch.no_grad():
            for name, value in found.items():
                tensors[name].copy_(value)

    def _save(self, run: Run, save: Callable[[Any], None]) -> None:
        """Save what the servers have."""
        self._is_saving = True
        try:
            save(run.capture_checkpoint())
        finally:
            self._is_saving = False

    def _log_tasks(self, timer: Timer) -> None:
        """Log how many tasks train, how fast, and how late their gradients come."""
        # Each push goes to all servers, so that one knows of all.
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

    def _wait_for_workers(self, run: Run) -> None:
        """Return when no other task is at work, and none is expected any more."""
        context = self.input_context
        n_tasks = 1 if context is None else context.num_input_pipelines
        end = time.monotonic() + self._strategy.lease
        while True:
            self._check()
            # All are asked, so that none takes this task for lost.
            stats = self.client.ask_all(Message(Op.STATS))[0].control
            # One that comes too late would wait in vain for the servers.
            is_early = len(stats["tasks"]) < n_tasks and time.monotonic() < end
            is_early &= run.stop_reason != INTERRUPTED
            if not stats["active"] and not is_early:
                return
            time.sleep(_PAUSE)

    def _stop_if_asked(self, run: Run) -> None:
        if self.client.is_stopping and not self.is_chief:
            run.request_stop(_CHIEF_STOPPED)

    def _end_with(self, loss: PeerLostError) -> None:
        """Say what the loss of a server means; the chief ends the other servers."""
        text = f"{loss} {_what_is_left(self._model_dir)}"
        if self.is_chief:
            self._end_servers(Message(Op.SHUTDOWN, control={"failure": text}))
        raise PeerLostError(text) from loss

    def _end_servers(self, message: Message) -> None:
        for ps in range(len(self.client.addresses)):
            try:
                self.client.ask(ps, message)
            except PeerLostError as error:  # one that is gone need not know
                _logger.info("%s", error)


def _leave_to_servers(spec: EstimatorSpec) -> None:
    """Update nothing: servers do, once the gradients were sent."""


def _what_is_left(model_dir: Path | None) -> str:
    """Say which checkpoint there is, and what to do."""
    step = None if model_dir is None else DirectoryStore(model_dir).latest_step()
    if step is None:
        return (
            "The variables are lost with it, and there is no checkpoint: start all tasks "
            "of this training again."
        )
    return (
        f"Variables are lost with it but for the checkpoint of step {step} in "
        f"{str(model_dir)!r}: start all tasks of this training again, and it goes "
        "on from there."
    )
