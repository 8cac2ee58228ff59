# SPDX-License-Identifier: Apache-2.0
"""The end of the process of a parameter server."""

import os
import subprocess
import sys
import time

import pytest

from skest.distributed.ps.client import PSClient
from skest.distributed.ps.connection import Peer
from skest.distributed.ps.messages import Message, Op
from skest.distributed.testing import LocalServers

PROGRAM = """
from skest.distributed.ps.server import serve_parameters

serve_parameters("127.0.0.1:0", announce=lambda a: print(a, flush=True))
"""
N_SESSIONS = 40


@pytest.fixture
def process():
    server = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    with server:
        yield server
        server.kill()


def open_session(address, index):
    client = PSClient([address], Peer("worker", index), timeout=10.0)
    client.connect()
    client.ask(0, Message(Op.INFO))
    return client


@pytest.mark.slow
def test_a_server_ends_well_whatever_tasks_do_meanwhile(process):
    """Sessions are closed before its end, during it, and not at all."""
    address = process.stdout.readline().strip()
    clients = [open_session(address, i) for i in range(N_SESSIONS)]
    for client in clients[: N_SESSIONS // 2]:
        client.close()
    last = open_session(address, N_SESSIONS)
    last.ask(0, Message(Op.SHUTDOWN))
    last.close()
    end = time.monotonic() + 60
    for client in clients[N_SESSIONS // 2 : -2]:
        if process.poll() is None:
            time.sleep(0.1)
        client.close()
    assert process.wait(max(1.0, end - time.monotonic())) == 0
    assert "terminate called" not in process.stderr.read()


def test_no_thread_is_left():
    with LocalServers(2) as servers:
        clients = [open_session(a, i) for i, a in enumerate(servers.addresses * 3)]
    for server in servers.servers:
        assert server._threads
        assert not [thread for thread in server._threads if thread.is_alive()]
    for client in clients:
        client.close()
