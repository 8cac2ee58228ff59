# SPDX-License-Identifier: Apache-2.0
"""Parameter servers in threads of this process, to test with."""

from typing import Any, Self

from skest.distributed.ps.server import ParameterServer


class LocalServers:
    """Parameter servers on the loopback interface; a context manager.

    Parameters
    ----------
    num_ps : int, default=1
        How many.
    **options
        Of `ParameterServer`.

    Attributes
    ----------
    addresses : list of str
        ``"host:port"`` of each.
    servers : list of ParameterServer
        The servers themselves.

    Examples
    --------
    >>> from skest.distributed.testing import LocalServers
    >>> with LocalServers(2) as servers:
    ...     len(servers.addresses)
    2
    """

    def __init__(self, num_ps: int = 1, **options: Any) -> None:
        self.servers = [
            ParameterServer("127.0.0.1:0", ps, **options) for ps in range(num_ps)
        ]
        self.addresses = [server.address for server in self.servers]

    def __enter__(self) -> Self:
        for server in self.servers:
            server.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for server in self.servers:
            server.stop()
        for server in self.servers:
            server.close()
