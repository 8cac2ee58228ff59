# SPDX-License-Identifier: Apache-2.0
"""Trainings of several processes."""

__all__ = []
