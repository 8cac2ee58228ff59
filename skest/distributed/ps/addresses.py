# SPDX-License-Identifier: Apache-2.0
"""Addresses of parameter servers, and the sockets that listen there."""

import errno
import ipaddress
import os
import socket

_BACKLOG = 4096


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``"host:port"``; brackets of IPv6 are left out.

    Raises
    ------
    ValueError
        If it is something else.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(
            f"The address of a parameter server must be 'host:port'; got {address!r}."
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Tell whether an IP address is one that only this machine reaches."""
    return ipaddress.ip_address(host).is_loopback


def listen(address: str, secret: str | None) -> socket.socket:
    """Return a socket that listens at one address, as a parameter server does.

    Parameters
    ----------
    address : str
        ``"host:port"``; port 0 is any that is free.
    secret : str or None
        What others will have to prove.

    Raises
    ------
    ValueError
        If the host is another machine, or all addresses of this one; or if other
        machines reach it and there is no secret, unless ``SKEST_WITHOUT_SECRET=1`` is in
        the environment.
    OSError
        If the port is in use.
    """
    host, port = split_address(address)
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if ipaddress.ip_address(place[0]).is_unspecified:
            raise ValueError(
                f"A parameter server can't listen at {address!r}, which stands for all "
                "addresses of a machine: the cluster must have one that other tasks can "
                "connect to."
            )
        opened = socket.create_server(place[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise ValueError(
                f"A parameter server can't listen at {address!r}: {host!r} is no address "
                f"of this machine, {socket.gethostname()!r} ({error}). Start it where the "
                "cluster says that it is, or correct the cluster for all tasks."
            ) from error
        raise OSError(
            error.errno,
            f"A parameter server can't listen at {address!r}: {error.strerror}. Choose a "
            "port that is free.",
        ) from error
    if secret is None and not is_loopback(str(place[0])) and not _may_lack_secret():
        opened.close()
        raise ValueError(
            f"A parameter server does not listen at {address} without a secret: whoever "
            "reaches it could read and change the model. Set SKEST_SECRET to the same "
            "string for all tasks, or SKEST_WITHOUT_SECRET=1 where all who reach it are "
            "trusted."
        )
    return opened


def _may_lack_secret() -> bool:
    """Tell whether ``SKEST_WITHOUT_SECRET=1`` lets all who reach a server in."""
    return os.environ.get("SKEST_WITHOUT_SECRET") == "1"


def secret_of_cluster() -> str | None:
    """Return the environment variable ``SKEST_SECRET``; None if it is empty or not set."""
    return os.environ.get("SKEST_SECRET") or None
