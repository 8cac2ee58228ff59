# SPDX-License-Identifier: Apache-2.0
"""tf.estimator and Keras, which work in environments and processes of their own."""

from functools import partial
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.measure import Reported, Settings

PEERS = {
    "tf.estimator 2.15": (peers.TENSORFLOW, "fit_estimator.py"),
    "Keras 3": (peers.KERAS, "fit_keras.py"),
}


def available() -> tuple[frozenset[str], dict[str, str]]:
    """Return the names of the libraries that can be had, and why others cannot."""
    found, missing = set(), {}
    for name, (environment, _) in PEERS.items():
        try:
            environment.interpreter()
        except RuntimeError as error:
            missing[name] = str(error).splitlines()[-1]
        else:
            found.add(name)
    return frozenset(found), missing


def working(
    settings: Settings,
    work: str,
    arrays: dict[str, np.ndarray],
    *,
    but: str = "",
    what: str = "",
    **arguments: Any,
) -> dict[str, Reported]:
    """Return contenders that do a work of the scripts, all but one or all of them."""
    return {
        name: Reported(
            partial(
                peers.run, environment, script, {"work": work, **arguments}, arrays
            ),
            what,
        )
        for name, (environment, script) in PEERS.items()
        if name in settings.peers and name != but
    }
