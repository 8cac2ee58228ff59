# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests."""

import signal

from hypothesis import settings

# How long an example takes depends on what else the machine does; speed is not tested.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# A shell lets commands with an ampersand ignore Ctrl-C; what answers it is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
