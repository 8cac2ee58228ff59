# SPDX-License-Identifier: Apache-2.0
"""`ParameterServer`: holds variables, hands them out, and applies gradients to them.

It knows of all tasks how far they are (`Members`).
"""

import contextlib
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from skest.config.run_config import AsyncParameterServer
from skest.distributed.layout import outline, room_for
from skest.distributed.ps.connection import Peer, RefusedError, Session, listen, welcome
from skest.distributed.ps.messages import Message, Op, Reader, Status, WireError
from skest.distributed.ps.optimizers import Shard
from skest.distributed.ps.variables import Part, Variables
from skest.exceptions import PeerLostError

_logger = logging.getLogger("skest")

_SECONDS_OF_FAREWELL = 2.0
_GLANCE = 0.2


@dataclass
class Member:
    """What a server knows of one task.

    Parameters
    ----------
    seen : float
        When it was last heard of.
    staleness : Counter
        How many of its updates came after how many others that their gradients did not
        know.
    has_left : bool
        Whether it said that it does no more.
    """

    # On the monotonic clock: one that is set must end no lease.
    seen: float
    staleness: Counter[int] = field(default_factory=Counter)
    has_left: bool = False


class Members:
    """All tasks that ever had a session with a server.

    Parameters
    ----------
    lease : float, seconds
        After so long a task that was not heard of is taken for lost: nobody waits for it
        any more. It may come back.
    """

    def __init__(self, lease: float) -> None:
        self.lease = lease
        self._all: dict[Peer, Member] = {}
        # Each session has a thread of its own, and all tell of their tasks here.
        self._lock = threading.RLock()

    def heard(self, peer: Peer) -> None:
        """Note that a task is there, or back."""
        with self._lock:
            now = time.monotonic()
            member = self._all.setdefault(peer, Member(now))
            member.seen, member.has_left = now, False

    def pushed(self, peer: Peer, staleness: int) -> None:
        """Note that a task took a step."""
        with self._lock:
            self._all[peer].staleness[staleness] += 1

    def left(self, peer: Peer) -> None:
        """Note that a task takes no more steps."""
        with self._lock:
            self._all[peer].has_left = True

    def active(self, but: Peer) -> list[str]:
        """Return the names of the others that are there and did not leave."""
        with self._lock:
            earliest = time.monotonic() - self.lease
            return [
                str(peer)
                for peer, member in self._all.items()
                if peer != but and not member.has_left and member.seen >= earliest
            ]

    def to_json(self) -> list[dict[str, Any]]:
        """Return what is known of every task."""
        with self._lock:
            return [
                {
                    **peer._asdict(),
                    "pushes": member.staleness.total(),
                    "staleness": sorted(member.staleness.items()),
                    "has_left": member.has_left,
                }
                for peer, member in self._all.items()
            ]

    @property
    def last_heard(self) -> float:
        """When any of them was last heard of; minus infinity if there are none."""
        with self._lock:
            times = (member.seen for member in self._all.values())
            return max(times, default=float("-inf"))


class ParameterServer:
    """One parameter server; call `start`, then `wait`.

    It is given variables once, and ends with them: one that is started again has none,
    and all tasks are to be started again, too.

    Parameters
    ----------
    address : str or socket
        ``"host:port"`` to listen at; port 0 is any that is free. Or a socket that
        listens.
    ps : int, default=0
        Number of this server.
    strategy : AsyncParameterServer, default=None
        Of the training; None is one as constructed.
    secret : str, default=None
        What tasks must prove to know; None is nothing.
    orphan_timeout : float, default=1200.0
        Seconds without any word from any task after which the server ends by itself.

    Attributes
    ----------
    address : str
        With the port.
    step : int
        The global step; that of server 0 counts.
    use_locking : bool
        Whether reads wait for updates; these always wait for each other. May be set while
        tasks train.
    """

    def __init__(
        self,
        address: str | socket.socket,
        ps: int = 0,
        strategy: AsyncParameterServer | None = None,
        *,
        secret: str | None = None,
        orphan_timeout: float = 1200.0,
    ) -> None:
        strategy = strategy or AsyncParameterServer()
        opened = listen(address, secret) if isinstance(address, str) else address
        host, port = opened.getsockname()[:2]
        if isinstance(address, str):
            host = address.rpartition(":")[0]
        self.address = f"{host}:{port}"
        self.ps = ps
        self.members = Members(strategy.lease)
        self.step = self._n_updates = 0
        self.use_locking = strategy.use_locking
        self._listening, self._secret = opened, secret
        self._timeout = strategy.timeout
        self._orphan_timeout = orphan_timeout
        self._shard: Shard | None = None
        self._lock = threading.RLock()  # of what is read
        self._updating = threading.Lock()  # taken before the other one
        self.is_stopping = False
        self._stopped = threading.Event()
        self._failure: str | None = None
        self._started = time.monotonic()
        self._sessions: set[Session] = set()
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def start(self) -> None:
        """Let tasks in, in the background."""
        self._accepting.start()

    def wait(self) -> None:
        """Return when the chief has said so, or nobody has said anything for long.

        Raises
        ------
        PeerLostError
            If the chief has lost another server, without which this one is of no use.
        """
        # tf.train.Server.join never returns, and whoever started it had to kill it. Here a
        # server whose chief was killed for good does not stay on a cluster for ever.
        while not self._stopped.wait(min(1.0, self._orphan_timeout / 4)):
            last = max(self.members.last_heard, self._started)
            if time.monotonic() - last > self._orphan_timeout:
                _logger.warning("No task has been heard of for long: the server ends.")
                break
        self.close(_SECONDS_OF_FAREWELL)
        if self._failure is not None:
            raise PeerLostError(self._failure)

    def close(self, farewell: float = 0.0) -> None:
        """Let nobody in, and end all sessions.

        Parameters
        ----------
        farewell : float, default=0.0
            Seconds that tasks have to close their sessions themselves.
        """
        self._stopped.set()
        # Chief and workers ask all servers at once: one may have told this one that it
        # ends, while an answer to another task is still on its way.
        self._await_end_of_sessions(farewell)
        for session in list(self._sessions):
            session.close()
        # An update under way is brought to its end.
        self._await_end_of_sessions(self._timeout)
        self._accepting.join()
        self._listening.close()

    def _await_end_of_sessions(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._sessions and time.monotonic() < end:
            time.sleep(_GLANCE / 10)

    def stop(self, failure: str | None = None) -> None:
        """Let `wait` return, or raise an error with this text."""
        self._failure = failure
        self._stopped.set()

    def _accept(self) -> None:
        # To see when the server ends.
        self._listening.settimeout(_GLANCE)
        while not self._stopped.is_set():
            try:
                connection, _ = self._listening.accept()
                # A thread for each session: torch lets go of Python's lock while it
                # computes, and who waits for a message takes no time.
                serve = threading.Thread(
                    target=self._serve, args=[connection], daemon=True
                )
                serve.start()
            except TimeoutError:
                continue
            except (OSError, RuntimeError) as error:  # there may be room for it later
                _logger.warning("There is no session with somebody: %s", error)
                time.sleep(_GLANCE)

    def _serve(self, connection: socket.socket) -> None:
        """Answer one task until it leaves; whatever it does, others go on."""
        who = "somebody"
        try:
            who = connection.getpeername()[0]
            peer, session = welcome(connection, self._secret, self._timeout)
        except (PeerLostError, OSError) as error:  # it may have lost its patience
            _logger.info("%s gets no session: %s", who, error)
            return
        except (WireError, RefusedError) as error:
            _logger.warning("%s gets no session: %s", who, error)
            return
        self._sessions.add(session)
        try:
            _Conversation(self, peer, session).run()
        except (PeerLostError, WireError) as error:
            _logger.info("The session with %s ends: %s", peer, error)
        finally:
            self._sessions.discard(session)
            session.close()

    # What follows answers requests.

    def initialize(self, control: Mapping[str, Any], part: Part) -> Message:
        """Begin with the variables of a part."""
        # Made before the locks are taken: that takes long, and nobody can read it yet.
        variables = Variables.from_json(control["variables"])
        shard = Shard(variables, self.ps, part, self._lock)
        with self._updating, self._lock:
            if self._shard is not None:
                raise ValueError("it has variables already, of another chief")
            # It counts on from the step of the checkpoint.
            self._shard, self.step = shard, int(control["step"])
        return self.reply()

    def pull(self, request: Message) -> Message:
        """Return dense variables and rows of tables."""
        with self._lock if self.use_locking else contextlib.nullcontext():
            # Counted first: who does not wait may be given a part of the next update.
            n_updates = self._n_updates
            found = self._held.pull(Reader(request), bool(request.number))
            return self.reply(number=n_updates, payload=found)

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
        shard = self._held
        # Not even without `use_locking`: pushes side by side lost updates, or failed.
        with self._updating:  # an optimizer takes one step at a time
            # Read to its end before the first variable changes: a malformed push changes
            # none.
            gradients = shard.gradients(Reader(request))
            with self._lock:  # not before: reads need not wait for what is above
                shard.set_options(options)
                # How many updates came between the pull that this gradient is of and now.
                staleness = self._n_updates - request.number
                self.members.pushed(peer, staleness)
                self.step += 1
                try:
                    answer(self.reply(number=staleness, control=self.notice))
                finally:  # they count, whether the task is still there or not
                    shard.update(gradients)
                    self._n_updates += 1

    def snapshot(self, kinds: list[str]) -> tuple[Message, Mapping[str, Any]]:
        """Return variables as they are now, but for rows of tables: they are read later."""
        with self._lock:
            part, reply = self._held.state(kinds), self.reply()
        # Only what there is: its values follow in blocks, by FETCH.
        contents = {"tensors": outline(part.tensors), "optimizers": part.optimizers}
        return reply._replace(control=contents), part.tensors

    def reply(self, **fields: Any) -> Message:
        """Return a reply, which tells the global step."""
        return Message(Status.OK, self.step, **fields)

    @property
    def variables(self) -> Variables | None:
        """The variables of the model; None before it was given them."""
        return None if self._shard is None else self._shard.variables

    @property
    def _held(self) -> Shard:
        if self._shard is None:
            raise WireError("It has no variables yet.")
        return self._shard

    @property
    def notice(self) -> dict[str, Any]:
        """What replies tell all tasks from now on: that the chief asks them to stop."""
        return {"stop": True} if self.is_stopping else {}


class _Conversation:
    """The requests of one task, one after the other."""

    def __init__(self, server: ParameterServer, peer: Peer, session: Session) -> None:
        self._server, self._peer, self._session = server, peer, session
        self._arriving: _Arriving | None = None
        self._snapshot: Mapping[str, Any] = {}
        self._options: dict[tuple[int, int], dict[str, Any]] = {}
        self._has_answered = False
        self._error = ""

    def run(self) -> None:
        """Answer until the task leaves, breaks off, or says what is not allowed."""
        self._server.members.heard(self._peer)
        while True:
            request = self._session.receive()
            self._server.members.heard(self._peer)
            self._handle(request)
            if request.code == Op.SHUTDOWN:
                self._server.stop(request.control.get("failure"))

    def _handle(self, request: Message) -> None:
        """Answer a request; an error behind the answer is that to the next request."""
        self._has_answered = False
        # A snapshot holds for the fetches right behind it, and then its memory is free.
        if request.code != Op.FETCH:
            self._snapshot = {}
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
        self._session.send(reply)
        self._has_answered = True

    def _take(self, request: Message) -> None:
        if request.code != Op.PUSH:
            self._send(self._answer(request))
            return
        for i, j, values in request.control.get("options", ()):
            # Tasks tell what has changed: what they told before holds on.
            self._options.setdefault((i, j), {}).update(values)
        self._server.push(self._peer, request, self._options, self._send)

    def _answer(self, request: Message) -> Message:
        server, code, control = self._server, request.code, request.control
        if code == Op.PULL:
            return server.pull(request)
        if code == Op.INIT:
            self._arriving = _Arriving(control)
            return server.reply()
        if code == Op.PUT and self._arriving is not None:
            self._arriving.put(request)
            return server.reply()
        if code == Op.COMMIT and self._arriving is not None:
            arriving, self._arriving = self._arriving, None
            return server.initialize(arriving.control, arriving.complete())
        if code == Op.SNAPSHOT:
            reply, self._snapshot = server.snapshot(list(control["kinds"]))
            return reply
        if code == Op.FETCH:
            rows = self._snapshot[control["name"]]
            if not rows.shape:
                rows = rows.reshape(1)
            first = control["first"]
            return server.reply(payload=[rows[first : first + control["n"]]])
        if code == Op.STATS:
            tasks, active = server.members.to_json(), server.members.active(self._peer)
            return server.reply(control={"tasks": tasks, "active": active})
        if code == Op.STOP:
            server.is_stopping = True
            return server.reply()
        if code in (Op.BYE, Op.SHUTDOWN):
            server.members.left(self._peer)
        if code in (Op.INFO, Op.BYE, Op.SHUTDOWN):
            known = server.variables and server.variables.to_json()
            return server.reply(control={"variables": known, **server.notice})
        raise WireError(f"There is no request {code} here, or not now.")


class _Arriving:
    """The variables of a server, which come block by block.

    Parameters
    ----------
    control : dict
        What announces them.
    """

    def __init__(self, control: Mapping[str, Any]) -> None:
        self.control = control
        self._tensors = room_for(control["tensors"])
        self._left = sum(t.nbytes for t in self._tensors.values())

    def put(self, request: Message) -> None:
        """Write a block of rows."""
        name, first, n_rows = (request.control[key] for key in ("name", "first", "n"))
        tensor = self._tensors[name]
        place = (tensor if tensor.ndim else tensor.reshape(1))[first : first + n_rows]
        place.copy_(Reader(request).take(place.shape, place.dtype))
        self._left -= place.nbytes

    def complete(self) -> Part:
        """Return all; raise WireError if something is missing."""
        if self._left != 0:
            raise WireError(f"{self._left} bytes of the variables did not come.")
        return Part(self.control["optimizers"], self._tensors)


def serve_parameters(address: str | socket.socket, ps: int = 0, **options: Any) -> None:
    """Be a parameter server until the chief ends the training.

    Parameters
    ----------
    address, ps, **options
        Of `ParameterServer`.

    Notes
    -----
    Set ``OMP_NUM_THREADS=1`` in the environment of the process: threads of torch are
    chosen for each thread of a session anew.
    """
    server = ParameterServer(address, ps, **options)
    server.start()
    server.wait()


def serve_at(ps: int, files: list[int], **options: Any) -> None:
    """Do what `serve_parameters` does, at a socket that listens; `files` has it."""
    serve_parameters(socket.socket(fileno=files[0]), ps, **options)
