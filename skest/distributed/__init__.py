# SPDX-License-Identifier: Apache-2.0
"""Training by several processes."""

__all__: list[str] = []
