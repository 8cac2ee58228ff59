# SPDX-License-Identifier: Apache-2.0
"""What it costs that reads wait for updates, measured within one training.

Rates of two trainings differ by more than that. Here two workers train with one server,
which lets reads wait and not wait in turn. As a script this is the server: the arguments
are the number of turns and their seconds.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import cluster_task
from skest.distributed.ps.server import ParameterServer

__all__ = ["cost_in_percent", "measured_rates"]

_STEPS_BEFORE = 100
# What slows the machine down more and more then slows both alike.
_WAITS = (True, False, False, True)


def cost_in_percent(rates: Sequence[float]) -> float:
    """Return how much slower steps are if reads wait, of what `measured_rates` returned.

    The median over rounds of four turns; less than zero if they are faster.
    """
    rounds = zip(*[iter(rates)] * len(_WAITS), strict=True)
    costs = []
    for of_round in rounds:
        with_waits = sum(r for r, waits in zip(of_round, _WAITS, strict=True) if waits)
        costs.append(100 * (1 - with_waits / (sum(of_round) - with_waits)))
    return statistics.median(costs)


def measured_rates(
    job: Mapping[str, Any],
    table: Mapping[str, np.ndarray],
    n_rounds: int,
    seconds: float,
) -> list[float]:
    """Return the steps a second in each of four turns a round.

    Parameters
    ----------
    job : mapping
        What `benchmarks.cluster_task` does in two processes; it has to last longer,
        and is broken off.
    table : dict of str to ndarray
        Its columns, and the labels as "y".
    n_rounds : int
        How many rounds.
    seconds : float
        Of a turn.

    Raises
    ------
    RuntimeError
        If one of the processes ends before.
    """
    variables = cluster_task.environment()
    n_turns = len(_WAITS) * n_rounds
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log, said = folder / "log", folder / "said"

        def start(*command: str, out: Path = log, **more: str) -> None:
            with out.open("ab") as stdout, log.open("ab") as stderr:
                process = subprocess.Popen(
                    [sys.executable, *command],
                    env=variables | more,
                    stdout=stdout,
                    stderr=stderr,
                )
            processes.append(process)

        def lines_of_server(n_lines: int) -> list[str]:
            while len(lines := said.read_text().split("\n")[:-1]) < n_lines:
                if any(process.poll() is not None for process in processes):
                    raise RuntimeError(f"A process ended:\n{log.read_text()[-3000:]}")
                time.sleep(0.1)
            return lines

        cluster_task.prepare(folder, job, table)
        try:
            start(__file__, str(n_turns), str(seconds), out=said)
            (address,) = lines_of_server(1)
            cluster = {"chief": [""], "worker": [""], "ps": [address]}
            for task in ("chief", "worker"):
                role = {"cluster": cluster, "task": {"type": task, "index": 0}}
                start(cluster_task.__file__, name, SKEST_CONFIG=json.dumps(role))
            return [float(line) for line in lines_of_server(1 + n_turns)[1:]]
        finally:
            for process in processes:
                process.kill()
                process.wait()


def main(n_turns: int, seconds: float) -> None:
    """Be the server: print its address, and then how fast steps were in each turn."""
    server = ParameterServer("127.0.0.1:0")
    server.start()
    print(server.address, flush=True)
    while server.step < _STEPS_BEFORE:
        time.sleep(0.05)
    for turn in range(n_turns):
        server.use_locking = _WAITS[turn % len(_WAITS)]
        first, begin = server.step, time.perf_counter()
        time.sleep(seconds)
        print((server.step - first) / (time.perf_counter() - begin), flush=True)
    server.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
