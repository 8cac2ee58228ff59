# SPDX-License-Identifier: Apache-2.0
"""Sessions with the fixture ``listener``."""

from datetime import timedelta

from skest.distributed.ps.connection import Peer, client_options, connect

SECONDS = timedelta(seconds=30)  # a machine may be busy, or wait for a name server
LIMIT = 1 << 20
WORKER = Peer("worker", 3)


def session_with(listener, secret="secret"):
    options = client_options(listener.address, SECONDS)
    return connect(listener.address, WORKER, LIMIT, secret, SECONDS, options)
