# SPDX-License-Identifier: Apache-2.0
"""Tests of how training steps are carried out."""
