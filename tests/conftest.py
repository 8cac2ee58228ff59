# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests."""

from hypothesis import settings

# How long an example takes depends on what else the machine does; speed is not tested.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
