# SPDX-License-Identifier: Apache-2.0
"""Faults, with real processes: SIGKILL, Ctrl-C, full disks, damaged files."""
