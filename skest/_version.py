# SPDX-License-Identifier: Apache-2.0
"""The version of skest."""

__version__ = "0.1.0"
