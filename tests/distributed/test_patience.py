# SPDX-License-Identifier: Apache-2.0
import time

import pytest

from skest.distributed.ps.worker import Patience


def test_the_time_since_the_first_failure_counts(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    patience = Patience(30.0)
    patience.failed(OSError("lost."), 5.0)
    now = 105.0
    patience.failed(OSError("lost."), 5.0)
    now = 105.5
    with pytest.raises(
        TimeoutError, match="more than 5 s. lost. Set 'timeout' .* 30 s"
    ):
        patience.failed(OSError("lost."), 5.0)
    patience.answered()
    patience.failed(OSError("lost."), 5.0)
