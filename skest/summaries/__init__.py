# SPDX-License-Identifier: Apache-2.0
"""Summaries: what TensorBoard shows of a run, in event files."""

from skest.summaries.writer import SummaryWriter

__all__ = ["SummaryWriter"]
