# SPDX-License-Identifier: Apache-2.0
"""`Attachment`: how a task gets to servers that all have the variables of its model."""

import logging
import math
import time
from collections.abc import Callable
from typing import Any

import torch

from skest.checkpoint_format import read_checkpoint
from skest.checkpoint_store import DirectoryStore
from skest.checkpoints import Checkpoint
from skest.distributed.client import PSClient, StaleGenerationError
from skest.distributed.exchange import Exchange
from skest.distributed.gathering import Gathered, gathered
from skest.distributed.patience import Patience
from skest.distributed.remote_checkpoint import restore
from skest.distributed.rewind import Rewind
from skest.distributed.server import LIMIT
from skest.distributed.variables import Variables, split, unique_state
from skest.distributed.wire import Message, Op
from skest.exceptions import PeerLostError
from skest.hooks.base import Run

__all__ = ["LOST", "Attachment"]

_logger = logging.getLogger("skest")

#: What is raised when servers are gone, or have gone back.
LOST = (PeerLostError, StaleGenerationError)
_PAUSE = 0.1


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
        Seconds to wait for servers; see `skest.distributed.async_replica.AsyncReplica`.
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
