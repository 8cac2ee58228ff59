# SPDX-License-Identifier: Apache-2.0
"""`ParameterServer`: holds variables, hands them out, and applies gradients to them."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import DistError

from skest.distributed.ps.checkpoint import read_part, shard_of, write_part
from skest.distributed.ps.connection import Listener, Peer, Session
from skest.distributed.ps.messages import (
    HEADER_BYTES,
    LIMIT,
    Message,
    Op,
    Pull,
    Reader,
    Status,
    WireError,
)
from skest.distributed.ps.optimizers import Shard
from skest.distributed.ps.tasks import Members
from skest.distributed.ps.transfer import (
    Arriving,
    FrozenPart,
    block_of,
    blocks_of,
    table_of_contents,
)
from skest.distributed.ps.variables import Part, Variables
from skest.exceptions import PeerLostError

_logger = logging.getLogger("skest")
_FOREVER = timedelta(days=365)
_FAREWELL = 2.0
_GLANCE = 0.01
_MOST = 1 << 62  # so that messages, which have 64 bits for a number, hold some more


class ParameterServer:
    """One parameter server; call `start`, then `wait`.

    Parameters
    ----------
    address : str
        ``"host:port"`` to listen at; port 0 is any that is free.
    ps : int, default=0
        Number of this server.
    secret : str, default=None
        What tasks must prove to know; None is nothing.
    lease : float, default=60.0
        Seconds after which a silent task is taken for lost.
    max_staleness : int, default=None
        How many steps a task may be ahead of the slowest. Only server 0 holds it back.
    use_locking : bool, default=True
        Whether reads wait for updates; these always wait for each other.
    timeout : float, default=30.0
        Seconds that a task has to take what it asked for.
    orphan_timeout : float, default=1200.0
        Seconds without any word from any task after which the server ends by itself.
    model_dir : path, default=None
        Where it writes and reads its shards of checkpoints; messages name checkpoints in
        it, and reach no other files. None is nowhere: values travel to the chief, as
        they do if the chief has a directory that is not on the same file system.

    Attributes
    ----------
    address : str
        With the port.
    step : int
        The global step; that of server 0 counts.
    generation : int
        How often the variables were initialized or restored; 0 is never.
    use_locking : bool
        As given; may be set while tasks train.
    """

    def __init__(
        self,
        address: str,
        ps: int = 0,
        *,
        secret: str | None = None,
        lease: float = 60.0,
        max_staleness: int | None = None,
        use_locking: bool = True,
        timeout: float = 30.0,
        orphan_timeout: float = 1200.0,
        model_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self._timeout = timedelta(seconds=timeout)
        self._listener = Listener(address, secret, self._timeout)
        self.address = self._listener.address
        self.ps = ps
        self.members = Members(lease, max_staleness)
        self.step = self.generation = self._n_updates = 0
        self._orphan_timeout = orphan_timeout
        self._model_dir = None if model_dir is None else Path(model_dir)
        self._shard: Shard | None = None
        self._lock = threading.RLock()  # of what is read
        self._updating = threading.Lock()  # taken before the other one
        self.use_locking = use_locking
        self._is_stopping = False
        self._stopped = threading.Event()
        self._started = time.monotonic()
        self._threads: list[threading.Thread] = []
        self._sessions: set[Session] = set()

    def start(self) -> None:
        """Let tasks in, in the background."""
        self._start(self._accept)

    def wait(self) -> None:
        """Return when the chief has said so, or nobody has said anything for long.

        No thread of the server is left then.
        """
        while not self._stopped.wait(min(1.0, self._orphan_timeout / 4)):
            last = max(self.members.last_heard, self._started)
            if time.monotonic() - last > self._orphan_timeout:
                _logger.warning("No task has been heard of for long: the server ends.")
                break
        self.close(_FAREWELL)

    def close(self, farewell: float = 0.0) -> None:
        """Let nobody in, and end all sessions and threads.

        Parameters
        ----------
        farewell : float, default=0.0
            Seconds that tasks have to close their sessions themselves.
        """
        self._stopped.set()
        self._listener.stop()
        self.members.dismiss()
        polite = time.monotonic() + farewell
        while time.monotonic() < polite and self._sessions:
            time.sleep(_GLANCE)
        # A thread that wakes up in gloo when the interpreter has ended aborts the process.
        end = time.monotonic() + _FAREWELL + self._timeout.total_seconds()
        while any(t.is_alive() for t in self._threads) and time.monotonic() < end:
            for session in list(self._sessions):
                session.break_off()
            time.sleep(_GLANCE)

    def stop(self) -> None:
        """Let `wait` return."""
        self._stopped.set()

    def _accept(self) -> None:
        while not self._stopped.is_set():
            accepted = self._listener.accept(LIMIT)
            if accepted is None:
                continue
            try:
                self._start(self._serve, *accepted)
            except RuntimeError as error:  # there may be room for it later
                _logger.warning("There is no session with %s: %s", accepted[0], error)

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        self._threads = [t for t in self._threads if t.is_alive()]
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self, peer: Peer, join: Callable[[], Session]) -> None:
        """Answer one task until it leaves; whatever it does, others go on."""
        try:
            session = join()
        except (PeerLostError, WireError, DistError) as error:
            _logger.warning("There is no session with %s: %s", peer, error)
            return
        self.members.join(peer)
        self._sessions.add(session)
        try:
            _Conversation(self, peer, session).run()
        except (PeerLostError, WireError) as error:
            _logger.info("The session with %s ends: %s", peer, error)
        finally:
            self._sessions.discard(session)
            session.close()

    # What follows answers requests.

    def info(self) -> Message:
        """Return what a task has to know before it begins."""
        variables = None if self._shard is None else self._shard.variables.to_json()
        return self._reply(
            control={"variables": variables, "ps": self.ps, **self._notice}
        )

    def initialize(self, control: Mapping[str, Any], part: Part) -> Message:
        """Begin with the variables of a part."""
        generation, step = (_count(control, key) for key in ("generation", "step"))
        try:
            variables = Variables.from_json(control["variables"])
            shard = Shard(variables, self.ps, part)
        except Exception as error:  # whatever it is, the chief shall raise it
            return Message(Status.REFUSED, control={"error": str(error)})
        with self._updating, self._lock:
            if generation <= self.generation:
                return self._reply(Status.STALE)
            self._shard, self.generation, self.step = shard, generation, step
        return self._reply()

    def pull(self, peer: Peer, request: Message) -> Message:
        """Return dense variables and rows of tables."""
        is_ahead = request.number == Pull.AHEAD
        if (
            self.ps == 0
            and request.number
            and self.members.must_wait(peer, int(is_ahead))
        ):
            if not is_ahead:  # to wait would hold up the gradients behind this request
                # Who hears nothing for as long as its timeout takes this for lost.
                self.members.wait_for_others(peer, self._timeout.total_seconds() / 2)
            # Other servers did not wait: what they answered is from before that.
            return self._reply(Status.LATER)
        with self._lock if self.use_locking else contextlib.nullcontext():
            refused = self._refusal(request)
            if refused is not None or self._shard is None:
                return refused or self._reply(Status.NOT_READY)
            # Counted first: who does not wait may be given a part of the next update.
            n_updates = self._n_updates
            found = self._shard.pull(Reader(request), bool(request.number))
            return self._reply(number=n_updates, payload=found)

    def push(
        self,
        peer: Peer,
        request: Message,
        options: dict[Any, Any],
        answer: Callable[[Message], None],
    ) -> None:
        """Answer, and apply gradients then: their task need not wait for that.

        Who waits for updates finds them applied afterwards. What is wrong with a request
        is raised before the answer; an error behind it is one of the optimizer.
        """
        with self._updating:  # an optimizer takes one step at a time
            refused = self._refusal(request)
            if refused is not None or self._shard is None:
                self.members.refused(peer)
                answer(refused or self._reply(Status.NOT_READY))
                return
            gradients = self._shard.gradients(Reader(request))
            with self._lock:  # not before: reads need not wait for what is above
                self._shard.set_options(options)
                staleness = self._n_updates - request.number
                self.members.pushed(peer, staleness)
                self.step += 1
                try:
                    answer(self._reply(number=staleness, control=self._notice))
                finally:  # they count, whether the task is still there or not
                    self._shard.update(gradients)
                    self._n_updates += 1

    def snapshot(self, kinds: list[str]) -> tuple[Message, FrozenPart | None]:
        """Keep variables as they are now, while gradients go on being applied."""
        with self._lock:
            if self._shard is None:
                return self._reply(Status.NOT_READY), None
            part = self._shard.frozen(kinds, self._lock)
            reply = self._reply()
        contents = {"tensors": table_of_contents(part), "optimizers": part.optimizers}
        return reply._replace(control=contents), part

    def write(self, control: Mapping[str, Any], part: FrozenPart) -> Message:
        """Write kept variables into a checkpoint; meanwhile gradients come in."""
        shard, name = self._shard, control["directory"]
        if shard is None:
            return self._reply(Status.NOT_READY)
        own = shard_of(shard.variables, self.ps, part, control["aliases"])
        try:
            record = write_part(self._model_dir, name, own)
        except OSError as error:
            return self._reply(control={"failure": str(error)})
        return self._reply(control={"record": record})

    def read(self, control: Mapping[str, Any]) -> Part | None:
        """Return what this server has in a checkpoint, None if that is not here."""
        variables = Variables.from_json(control["variables"])
        where = (self._model_dir, control["directory"], control["checksum"])
        return read_part(*where, variables, self.ps, control["optimizers"])

    def stats(self, peer: Peer) -> Message:
        """Return what is known of tasks."""
        tasks = self.members.to_json()
        known = {
            "ps": self.ps,
            "tasks": tasks,
            "active": self.members.active(but=peer),
            "updates": sum(task["pushes"] for task in tasks),
        }
        return self._reply(control=known)

    def ask_to_stop(self) -> Message:
        """Tell all tasks from now on that the chief asks them to stop."""
        self._is_stopping = True
        return self._reply()

    @property
    def _notice(self) -> dict[str, Any]:
        return {"stop": True} if self._is_stopping else {}

    def _reply(self, status: Status = Status.OK, **fields: Any) -> Message:
        return Message(status, self.generation, self.step, **fields)

    def _refusal(self, request: Message) -> Message | None:
        """Refuse what is about variables that are not there any more."""
        if request.generation == self.generation:
            return None
        return self._reply(Status.STALE)


class _Conversation:
    """The requests of one task, one after the other."""

    def __init__(self, server: ParameterServer, peer: Peer, session: Session) -> None:
        self._server, self._peer, self._session = server, peer, session
        self._arriving: Arriving | None = None
        self._ready: tuple[Mapping[str, Any], Callable[[], Part]] | None = None
        self._snapshot: FrozenPart | None = None
        self._left_to_fetch = 0
        self._options: dict[tuple[int, int], dict[str, Any]] = {}
        self._has_answered = False
        self._error = ""

    def run(self) -> None:
        """Answer until the task leaves, breaks off, or says what is not allowed."""
        inbox = torch.empty(LIMIT, dtype=torch.uint8)  # pages not used are no memory
        seen_in = seen_out = 0
        while True:
            session, receive = self._session, self._session.expect(inbox)
            request = receive(_FOREVER)
            new_in, new_out = (
                session.bytes_received - seen_in,
                session.bytes_sent - seen_out,
            )
            self._server.members.heard(self._peer, new_in, new_out)
            seen_in, seen_out = session.bytes_received, session.bytes_sent
            if not HEADER_BYTES <= request.room:
                raise WireError("A request has no room for its reply.")
            session.limit = request.room
            # Nobody shall wait for this task where variables are locked.
            session.settle(self._server._timeout)
            self._handle(request)
            if request.code == Op.SHUTDOWN:
                self._server.stop()
            if request.code in (Op.BYE, Op.SHUTDOWN):
                self._server.members.left(self._peer)

    def _handle(self, request: Message) -> None:
        """Answer a request; an error behind the answer is that to the next request."""
        self._has_answered = False
        try:
            if not self._error:
                self._take(request)
        except Exception as problem:  # whatever it is, others go on
            self._error = f"{type(problem).__name__}: {problem}"
            if self._has_answered:  # the task may not ask for anything more
                _logger.error("An update by %s failed: %s", self._peer, self._error)
        if self._error and not self._has_answered:
            self._send(Message(Status.REFUSED, control={"error": self._error}))
            raise WireError(self._error)

    def _send(self, reply: Message) -> None:
        self._session.send(reply, self._server._timeout)
        self._has_answered = True

    def _take(self, request: Message) -> None:
        if request.code != Op.PUSH:
            self._send(self._answer(request))
            return
        for i, j, values in request.control.get("options", ()):
            self._options.setdefault((i, j), {}).update(values)
        self._server.push(self._peer, request, self._options, self._send)

    def _answer(self, request: Message) -> Message:
        server, code, control = self._server, request.code, request.control
        if code == Op.PULL:
            return server.pull(self._peer, request)
        if code == Op.INIT:
            self._arriving = Arriving(control["tensors"], control["optimizers"])
            self._ready = (control, self._arriving.complete)
            return server.info()
        if code == Op.RESTORE:
            part, self._arriving = server.read(control), None
            self._ready = None if part is None else (control, lambda: part)
            return Message(Status.OK, control={"is_here": part is not None})
        if code == Op.PUT and self._arriving is not None:
            self._arriving.put(control, request.payload[0])
            return Message(Status.OK)
        if code == Op.COMMIT and self._ready is not None:
            (announced, complete), self._ready, self._arriving = self._ready, None, None
            return server.initialize(announced, complete())
        if code in (Op.PUT, Op.COMMIT):
            raise WireError("Variables came without an announcement.")
        if code == Op.SNAPSHOT:
            reply, self._snapshot = server.snapshot(list(control["kinds"]))
            contents = reply.control.get("tensors", [])
            self._left_to_fetch = sum(block.size for block in blocks_of(contents))
            return reply
        if code == Op.FETCH and self._snapshot is not None:
            content = block_of(self._snapshot, control)
            self._left_to_fetch -= len(content)
            if self._left_to_fetch <= 0:
                self._snapshot = None
            return Message(Status.OK, payload=[content])
        if code == Op.WRITE and self._snapshot is not None:
            reply = server.write(control, self._snapshot)
            if reply.control != {"record": None}:  # else values will be fetched
                self._snapshot = None
            return reply
        if code == Op.STATS:
            return server.stats(self._peer)
        if code == Op.STOP:
            return server.ask_to_stop()
        if code in (Op.INFO, Op.BYE, Op.SHUTDOWN):
            self._snapshot = None
            return server.info()
        raise WireError(f"There is no request {code} here.")


def _count(control: Mapping[str, Any], key: str) -> int:
    """Return what every answer will have, so that a bad one would end all sessions."""
    found = control[key]
    if type(found) is not int or not 0 <= found <= _MOST:
        raise WireError(
            f"Variables must come with a {key} from 0 to {_MOST}; got {found!r}."
        )
    return found


def serve_parameters(
    address: str,
    ps: int = 0,
    *,
    announce: Callable[[str], None] | None = None,
    **options: Any,
) -> None:
    """Be a parameter server until the chief ends the training.

    Parameters
    ----------
    address : str
        ``"host:port"`` to listen at; port 0 is any that is free.
    ps : int, default=0
        Number of this server.
    announce : callable, default=None
        Called with the address that others can connect to.
    **options
        Of `ParameterServer`.

    Notes
    -----
    Set ``OMP_NUM_THREADS=1`` in the environment of the process: threads of torch are
    chosen for each thread of a session anew.
    """
    server = ParameterServer(address, ps, **options)
    server.start()
    if announce is not None:
        announce(server.address)
    server.wait()
