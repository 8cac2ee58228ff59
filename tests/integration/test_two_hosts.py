# SPDX-License-Identifier: Apache-2.0
"""Two hosts, made of network namespaces, and a link that is cut for some seconds."""

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from skest.checkpoints.store import DirectoryStore
from tests.distributed import _role
from tests.distributed._processes import is_running, wait_for

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "distributed" / "_role.py"
SECONDS = 60.0
MAX_STEPS = 200
SECONDS_CUT = 3.0
PS_HOST, WORKER_HOST, NOBODY = "10.213.77.1", "10.213.77.2", "10.213.77.3"


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)


@functools.cache
def cannot_be_made():
    """Return why this machine can't have namespaces; None if it can."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        return "there is no program 'ip'"
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    name = f"skest-{os.getpid()}-try"
    try:
        ip("netns", "add", name)
        ip("-n", name, "link", "add", "skest0", "type", "veth", "peer", "skest1")
    except (OSError, subprocess.SubprocessError) as error:
        return f"network namespaces can't be made: {error}"
    finally:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            ip("netns", "delete", name)
    return None


def delete_orphans():
    """Delete the namespaces of tests that were killed."""
    listed = subprocess.run(["ip", "netns"], capture_output=True, text=True, timeout=30)
    for line in listed.stdout.splitlines():
        name = line.split()[0] if line.strip() else ""
        match = re.fullmatch(r"skest-(\d+)-\w+", name)
        if match and not is_running(int(match[1])):
            ip("netns", "delete", name)


class Hosts:
    """Two namespaces and the link between them; ends what runs there."""

    def __init__(self):
        self.names = [f"skest-{os.getpid()}-{role}" for role in ("ps", "worker")]
        self.processes = []

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self):
        first, second = self.names
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        # Made inside, so that names of links need not be unique on this machine.
        ip(
            *("-n", first, "link", "add", "skest0", "type", "veth"),
            *("peer", "name", "skest0", "netns", second),
        )
        for name, address in zip(self.names, (PS_HOST, WORKER_HOST), strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "skest0")
            ip("-n", name, "link", "set", "skest0", "up")

    def __exit__(self, *exc_info):
        for process in self.processes:
            process.kill()
            process.wait()
        for name in self.names:
            with contextlib.suppress(subprocess.SubprocessError):
                ip("netns", "delete", name)

    def start(self, cluster, kind, directory, settings):
        """Start a task on its host, and return it; it logs into `directory`."""
        task = {"cluster": cluster, "task": {"type": kind, "index": 0}}
        environ = {
            **os.environ,
            "SKEST_CONFIG": json.dumps(task),
            "SKEST_SECRET": "of the two hosts",  # others could reach the server
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "RES_OPTIONS": "timeout:1 attempts:1",
        }
        command = [sys.executable, SCRIPT, directory / "model", json.dumps(settings)]
        host = self.names[kind != "ps"]
        with (directory / f"{kind}.log").open("wb") as log:
            process = subprocess.Popen(
                ["ip", "netns", "exec", host, *map(str, command)],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        return process

    def set_link(self, state):
        ip("-n", self.names[0], "link", "set", "skest0", state)


@pytest.fixture
def hosts():
    if reason := cannot_be_made():
        pytest.skip(reason)
    delete_orphans()
    with Hosts() as hosts:
        yield hosts


def cluster_with(ps):
    hosts = {"chief": f"{WORKER_HOST}:2222", "worker": f"{WORKER_HOST}:2223", "ps": ps}
    return {kind: [address] for kind, address in hosts.items()}


def cut_off(hosts, tmp_path, timeout):
    """Start tasks, cut the link between them for a while, and return tasks and store."""
    settings = {"max_steps": MAX_STEPS, "timeout": timeout, "pause": 0.05}
    cluster = cluster_with(f"{PS_HOST}:2222")
    tasks = {kind: hosts.start(cluster, kind, tmp_path, settings) for kind in cluster}
    store = DirectoryStore(tmp_path / "model")
    wait_for(lambda: (store.latest_step() or 0) >= 10, SECONDS)
    hosts.set_link("down")
    time.sleep(1.0)  # for a checkpoint that is being written
    before = store.latest_step()
    time.sleep(SECONDS_CUT - 1.0)
    assert store.latest_step() == before < MAX_STEPS
    hosts.set_link("up")
    return tasks, store


@pytest.mark.slow
def test_training_goes_on_when_the_link_is_back(hosts, tmp_path):
    tasks, store = cut_off(hosts, tmp_path, timeout=30.0)
    for kind, task in tasks.items():
        assert task.wait(SECONDS) == 0, (tmp_path / f"{kind}.log").read_text()
    found = store.latest()
    # The worker may be in a step when the chief takes the last one.
    assert MAX_STEPS <= found.global_step <= MAX_STEPS + 1
    assert all(torch.isfinite(v).all() for v in found.variables.values())
    estimator = _role.make_estimator(tmp_path / "model", _role.SETTINGS)
    assert estimator.evaluate(lambda: _role.batches(5), steps=5)["loss"] < 1.0


@pytest.mark.slow
def test_a_link_that_is_away_for_longer_than_the_timeout_ends_the_chief(
    hosts, tmp_path
):
    tasks, store = cut_off(hosts, tmp_path, timeout=1.5)
    assert tasks["chief"].wait(SECONDS) == 1
    said = (tmp_path / "chief.log").read_text()
    assert f"PeerLostError: The session with ps at {PS_HOST}:2222 broke" in said
    assert f"the checkpoint of step {store.latest_step()} in" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "address", "expected"),
    [
        ("ps", f"{WORKER_HOST}:2224", f"'{WORKER_HOST}' is no address of this machine"),
        ("chief", f"{NOBODY}:2222", f"no answer from the ps at {NOBODY}:2222"),
    ],
)
def test_a_server_that_is_elsewhere(hosts, tmp_path, kind, address, expected):
    settings = {"attach_timeout": 3.0}
    task = hosts.start(cluster_with(address), kind, tmp_path, settings)
    assert task.wait(SECONDS) != 0
    assert expected in (tmp_path / f"{kind}.log").read_text()
