# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests."""

import gc
import signal

from hypothesis import settings

# How long an example takes depends on what else the machine does; speed is not tested.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# A shell lets commands with an ampersand ignore Ctrl-C; what answers it is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Begin with modules that take minutes, or one of two workers waits for them."""
    items.sort(key=lambda item: "faults" not in item.path.parts)


def pytest_collection_finish():
    """Spare the garbage collector a million objects, tests above all, that stay anyway."""
    gc.freeze()
