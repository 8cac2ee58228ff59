# SPDX-License-Identifier: Apache-2.0
"""``skest serve PATH``."""

import argparse
import logging
import os
import queue
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from skest.command_line import tables
from skest.core.checks import ArgumentParser
from skest.core.files import version_number
from skest.export.artifact import MANIFEST
from skest.export.serving.requests import Limits
from skest.export.serving.server import ModelServer


def main(arguments: Sequence[str], prog: str) -> None:
    """Serve models until the process is asked to stop (SIGTERM, SIGINT).

    Return when all running requests were answered. Otherwise the process ends here, with
    the exit status 1. A model that can't be served from the beginning is an error.
    """
    options = _parser(prog).parse_args(arguments)
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    # A handler may run in the midst of the wait below, where `threading.Event.set` would
    # wait for a lock that the wait holds; the queue is made for that.
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.put(number))
    server = ModelServer(
        _models(options.models),
        host=options.host,
        port=options.port,
        limits=Limits(**{f.name: getattr(options, f.name) for f in fields(Limits)}),
        poll_seconds=options.poll_seconds,
        num_threads=options.num_threads,
        trusted_manifest_sha256=options.trusted_manifest_sha256,
        trial=options.trial,
    ).start()
    # Told here, where the command was given, and not by 503 to the first client.
    for name, reason in server.refused.items():
        # Else threads and port stay where a program calls this function.
        server.stop()
        raise ValueError(f"No version of {name!r} can be served: {reason}")
    # At once, even into a pipe: a script that started it waits for this line.
    print(f"Serving at {server.url}", flush=True)
    signals.get()
    if not server.stop(options.grace):
        # Without the interpreter, whose end aborts what still runs.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = ArgumentParser(
        prog=prog,
        description="Serve exported models by HTTP: TensorFlow Serving REST below /v1, "
        "Open Inference Protocol below /v2.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "models",
        nargs="+",
        metavar="[NAME=]PATH",
        help="the directory of a model's versions, or one version; without NAME the "
        "model is called as the directory",
    )
    options = {
        # Nobody is asked who he is, so that by default only this machine is answered.
        # The port is that of REST in TensorFlow Serving.
        "host": ("127.0.0.1", "address to listen at"),
        "port": (8501, "port to listen at, 0 for a free one"),
        "poll-seconds": (1.0, "seconds from one look for new versions to the next"),
        "num-threads": (1, "threads within one call of a model"),
        "grace": (10.0, "seconds that running requests have when the server stops"),
        "max-request-bytes": (Limits.max_request_bytes, "bytes of a request's body"),
        "max-rows": (Limits.max_rows, "rows of a request"),
        "max-cells": (Limits.max_cells, "values of a feature, and of the answer"),
        "max-running": (Limits.max_running, "requests that are worked on at once"),
        "timeout": (Limits.timeout, "seconds for which a connection may be silent"),
    }
    for name, (default, text) in options.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    parser.add_argument(
        "--trusted-manifest-sha256",
        action="append",
        metavar="DIGEST",
        help="serve only versions whose manifest.json has this SHA-256; may be repeated",
    )
    parser.add_argument(
        # A trial by default: a server loads whatever appears in the directory.
        "--no-trial",
        action="store_false",
        dest="trial",
        help="load versions at once, not in a process of their own first",
    )
    parser.add_argument("--verbose", action="store_true", help="log every request")
    return parser


def _models(arguments: Sequence[str]) -> dict[str, str]:
    models: dict[str, str] = {}
    for argument in arguments:
        name, path = _named(argument)
        if (Path(path) / tables.MODEL).exists():
            raise ValueError(
                f"{path!r} is a model of `skest train`, not an export. Write one by "
                f"`skest export {path} -o DIRECTORY`, and serve that directory."
            )
        if name in models:
            raise ValueError(
                f"Two models are called {name!r}. Give them names by NAME=PATH."
            )
        models[name] = path
    return models


def _named(argument: str) -> tuple[str, str]:
    # Only what can be a name counts as one: the path /data/rate=0.1 has "=", too.
    found = re.fullmatch(r"([\w.-]+)=(.+)", argument, re.ASCII | re.DOTALL)
    if found:
        return found[1], found[2]
    path = Path(os.path.abspath(argument))
    is_numbered = version_number(path.name) is not None
    # Of "census/1700000001" a client would not guess the number as the name.
    one_version = is_numbered and (path / MANIFEST).exists()
    return (path.parent if one_version else path).name, argument
