# SPDX-License-Identifier: Apache-2.0
"""Tests of trainings by several processes."""
