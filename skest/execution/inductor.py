# SPDX-License-Identifier: Apache-2.0
"""`InductorProgram`: a recorded step compiled by ``torch.compile``."""

from skest.execution.program import Program

__all__ = ["InductorProgram"]


class InductorProgram(Program):
    """x"""
