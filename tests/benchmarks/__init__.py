# SPDX-License-Identifier: Apache-2.0
"""Tests of the helpers of the benchmarks."""
