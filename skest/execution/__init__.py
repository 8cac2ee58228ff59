# SPDX-License-Identifier: Apache-2.0
"""How training steps are carried out: eagerly, or recorded once and replayed."""

from skest.execution.choice import make_step
from skest.execution.graph import GraphStep

__all__ = ["GraphStep", "make_step"]
