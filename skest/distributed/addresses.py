# SPDX-License-Identifier: Apache-2.0
"""Addresses of parameter servers: where to listen, and which way leads there."""

import errno
import ipaddress
import socket

__all__ = ["is_loopback", "listen", "own_address", "split_address"]

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


def listen(address: str) -> socket.socket:
    """Return a socket that listens at one address.

    A store that opens its own listens at all addresses of the machine.

    Parameters
    ----------
    address : str
        ``"host:port"``; port 0 is any that is free.

    Raises
    ------
    ValueError
        If the host is another machine, or all addresses of this one.
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
        return socket.create_server(place[:2], family=family, backlog=_BACKLOG)
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


def own_address(address: str) -> str:
    """Return the address of this machine on the way to another one.

    Parameters
    ----------
    address : str
        ``"host:port"`` of the other one.

    Raises
    ------
    OSError
        If no way leads there, now.
    """
    host, port = split_address(address)
    found, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    with socket.socket(*found[:3]) as probe:
        probe.connect(found[4])  # sends nothing, but chooses the way
        own: str = probe.getsockname()[0]
    return own
