# SPDX-License-Identifier: Apache-2.0
"""`StatusLog`: lines about the tasks of a training in the log of its chief."""

import logging

from skest.distributed.client import PSClient, StaleGenerationError
from skest.distributed.cluster_status import as_line, cluster_status
from skest.distributed.wire import Message, Op
from skest.exceptions import PeerLostError
from skest.hooks.timer import Timer

__all__ = ["StatusLog"]

_logger = logging.getLogger("skest")


class StatusLog:
    """Logs what the parameter servers know (logger "skest", level INFO).

    Parameters
    ----------
    client : PSClient
        Asks the servers; nothing is asked that nobody will read.
    every_steps : int or None
        Global steps between two lines; None is no lines.
    start_step : int
        The global step at the beginning.
    """

    def __init__(
        self, client: PSClient, every_steps: int | None, start_step: int
    ) -> None:
        self._client = client
        self._timer: Timer | None = None
        if every_steps is not None:
            self._timer = Timer(every_steps)
            self._timer.mark(start_step)  # there is nothing to say before

    def after_step(self, step: int) -> None:
        """Log a line if it is due."""
        if self._timer is None or not self._timer.is_due(step):
            return
        self._timer.mark(step)
        if not _logger.isEnabledFor(logging.INFO):
            return
        try:
            replies = self._client.ask_all(Message(Op.STATS))
        except (PeerLostError, StaleGenerationError) as error:  # the next step mends it
            _logger.info("step %d: %s", step, error)
            return
        answers = dict(zip(self._client.addresses, replies, strict=True))
        _logger.info("step %d: %s", step, as_line(cluster_status(answers)))
