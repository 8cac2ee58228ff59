# SPDX-License-Identifier: Apache-2.0
"""What both ends of a new session say first: that they know the secret.

Each proof is about a number that the other end has drawn just now, about what both have
agreed on, and about who says it, so that it holds once, here, and in one direction.
"""

import secrets
from collections.abc import Callable
from datetime import timedelta

import torch

from skest.distributed.authentication import is_proved, proof
from skest.distributed.session import RefusedError, Session
from skest.distributed.wire import Message, Op
from skest.exceptions import PeerLostError

__all__ = ["HELLO_BYTES", "introduce", "welcome"]

#: Room for each of these messages.
HELLO_BYTES = 1024
_SERVER, _CLIENT = "server", "client"


def welcome(
    session: Session, secret: str | None, agreed: tuple[str, ...], timeout: timedelta
) -> None:
    """Be the server: let the other end prove the secret, then prove it to that.

    Parameters
    ----------
    session : Session
        In which nothing was said yet.
    secret : str or None
        What must be proved; None is nothing.
    agreed : tuple of str
        What both ends must know of the session.
    timeout : timedelta
        For each message.

    Raises
    ------
    PeerLostError
        If the other end breaks off, or does not prove the secret.
    WireError
        If what it says is no message.
    """
    nonce = secrets.token_hex()
    hear = _expect(session)
    session.send(Message(Op.HELLO, control={"nonce": nonce}), timeout)
    heard = hear(timeout)
    said = (*agreed, nonce, str(heard.control.get("nonce")))
    is_hello = heard.code == Op.HELLO
    if not (is_hello and is_proved(heard.control.get("proof"), secret, _CLIENT, *said)):
        raise PeerLostError(
            f"Who came as {session.name} did not prove the shared secret, or asked for "
            "something before."
        )
    shown = {"proof": proof(secret, _SERVER, *said)}
    session.send(Message(Op.HELLO, control=shown), timeout)


def introduce(
    session: Session, secret: str | None, agreed: tuple[str, ...], timeout: timedelta
) -> None:
    """Be the client: prove the secret, and let the server prove it.

    Parameters
    ----------
    session, secret, agreed, timeout
        As in `welcome`.

    Raises
    ------
    PeerLostError
        If the server breaks off.
    RefusedError
        If it does not prove the secret.
    WireError
        If what it says is no message.
    """
    nonce = secrets.token_hex()
    said = (*agreed, str(_expect(session)(timeout).control.get("nonce")), nonce)
    shown = {"nonce": nonce, "proof": proof(secret, _CLIENT, *said)}
    hear = _expect(session)
    session.send(Message(Op.HELLO, control=shown), timeout)
    if not is_proved(hear(timeout).control.get("proof"), secret, _SERVER, *said):
        raise RefusedError(
            f"The {session.name} does not prove the shared secret: set the same "
            "SKEST_SECRET for all tasks."
        )


def _expect(session: Session) -> Callable[[timedelta], Message]:
    return session.expect(torch.empty(HELLO_BYTES, dtype=torch.uint8))
