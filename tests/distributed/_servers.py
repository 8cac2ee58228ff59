# SPDX-License-Identifier: Apache-2.0
"""Parameter servers in threads of this process, for the tests."""

from skest.distributed.ps.server import ParameterServer


class LocalServers:
    """Servers on the loopback interface; options are those of `ParameterServer`."""

    def __init__(self, num_ps=1, **options):
        self.servers = [
            ParameterServer("127.0.0.1:0", ps, **options) for ps in range(num_ps)
        ]
        self.addresses = [server.address for server in self.servers]

    def __enter__(self):
        for server in self.servers:
            server.start()
        return self

    def __exit__(self, *exc_info):
        for server in self.servers:
            server.stop()
        for server in self.servers:
            server.close()
