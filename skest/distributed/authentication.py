# SPDX-License-Identifier: Apache-2.0
"""The proof that both ends know a secret, without telling it."""

import hashlib
import hmac
import os


def secret_of_cluster() -> str | None:
    """Return the environment variable ``SKEST_SECRET``; None if it is empty or not set."""
    return os.environ.get("SKEST_SECRET") or None


def may_lack_secret() -> bool:
    """Tell whether ``SKEST_WITHOUT_SECRET=1`` lets all who reach a server in."""
    return os.environ.get("SKEST_WITHOUT_SECRET") == "1"


def proof(secret: str | None, *said: str) -> str:
    """Return the HMAC-SHA256 of what was said; "" without a secret.

    Parameters
    ----------
    secret : str or None
        Shared by all tasks of a cluster.
    *said : str
        Must have a part that the other side chose just now, so that the proof holds but
        once.

    Examples
    --------
    >>> from skest.distributed.authentication import is_proved, proof
    >>> is_proved(proof("s", "4711", "worker"), "s", "4711", "worker")
    True
    >>> is_proved(proof("t", "4711", "worker"), "s", "4711", "worker")
    False
    """
    if secret is None:
        return ""
    # Lengths in front, so that no two lists of texts are one and the same message.
    message = "".join(f"{len(text)}:{text}" for text in said)
    # What others said may have any character of JSON.
    encoded = message.encode(errors="surrogatepass")
    return hmac.new(secret.encode(), encoded, hashlib.sha256).hexdigest()


def is_proved(found: object, secret: str | None, *said: str) -> bool:
    """Tell whether `found` is the proof; without a secret, anything is."""
    if secret is None:
        return True
    is_text = isinstance(found, str) and found.isascii()
    return is_text and hmac.compare_digest(str(found), proof(secret, *said))
