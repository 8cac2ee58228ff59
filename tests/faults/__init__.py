# SPDX-License-Identifier: Apache-2.0
"""Faults: killed processes."""
