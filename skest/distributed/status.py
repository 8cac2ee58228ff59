# SPDX-License-Identifier: Apache-2.0
"""Shows how a training with parameter servers is going.

``python -m skest.distributed.status --ps HOST:PORT`` asks the parameter servers and
prints a table of the tasks that train and one of the servers. It takes no part in the
training. ``SKEST_SECRET`` must be that of the cluster, if it has one.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence

from skest.cluster import ClusterSpec, task_from_env
from skest.distributed.authentication import secret_of_cluster
from skest.distributed.supervisor import res_options

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the status of a training; return the exit status.

    Parameters
    ----------
    argv : sequence of str, default=None
        Arguments, see ``--help``; None is the command line.

    Returns
    -------
    int
        0 if a server answered (the last time that it was asked), 1 if none did.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    addresses = options.ps or task_from_env().cluster.job_tasks("ps")
    if not addresses:
        parser.error(
            "there is nobody to ask: give the addresses of parameter servers, --ps "
            "HOST:PORT ..., or set SKEST_CONFIG to that of a task of the cluster"
        )
    # What imports torch comes after the environment is set, see below.
    from skest.distributed.cluster_status import as_table
    from skest.distributed.observer import Observer

    observer = Observer(addresses, secret_of_cluster(), options.timeout)
    is_answered = False
    try:
        while True:
            status = observer.look()
            is_answered = status["step"] is not None
            print(json.dumps(status) if options.json else as_table(status), flush=True)
            if options.watch is None:
                break
            if not options.json:
                print(flush=True)
            time.sleep(options.watch)
    except KeyboardInterrupt:
        pass
    finally:
        observer.close()
    return int(not is_answered)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m skest.distributed.status",
        description="Show how a training with parameter servers is going.",
    )
    parser.add_argument(
        "--ps",
        nargs="+",
        type=_address,
        metavar="HOST:PORT",
        help="parameter servers (default: those of SKEST_CONFIG or TF_CONFIG)",
    )
    parser.add_argument(
        "--watch",
        type=_seconds,
        metavar="SECONDS",
        help="go on, and look again after so many seconds",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a line instead of tables"
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=5.0,
        metavar="SECONDS",
        help="how long to wait for a server (default: 5)",
    )
    return parser


def _address(text: str) -> str:
    try:
        ClusterSpec({"chief": [""], "ps": [text]})
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(
            f"must be a positive number of seconds; got {text!r}"
        )
    return seconds


if __name__ == "__main__":
    # A server that is gone is a line of the table, not one of the log of torch. All this
    # is read once, by torch and the resolver.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    os.environ.update(res_options())
    sys.exit(main())
