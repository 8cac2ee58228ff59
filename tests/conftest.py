# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests."""

import gc
import os
import signal

from hypothesis import settings

# How long an example takes depends on what else the machine does; speed is not tested.
settings.register_profile("untimed", deadline=None, max_examples=40)
settings.load_profile("untimed")

# Several workers of pytest on few cores: threads that wait for each other make small
# steps thirty times as long. Read when PyTorch is imported, also by processes of tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Every connection with a store asks for the name of its peer; without a name server, 5 s
# are lost now and then. A process reads it once, when it first looks up a name.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

# A shell lets commands with an ampersand ignore Ctrl-C; what answers it is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


LONGEST = (
    *("test_estimator_checks", "test_examples", "test_memory"),
    *("test_two_hosts", "test_kill_tasks"),
)


def pytest_collection_modifyitems(items):
    """Begin with modules that take minutes, or one of two workers waits for them."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


def pytest_collection_finish():
    """Spare the garbage collector a million objects, tests above all, that stay anyway."""
    gc.freeze()
