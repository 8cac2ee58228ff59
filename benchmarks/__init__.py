# SPDX-License-Identifier: Apache-2.0
"""Scripts that measure skest; each runs with ``python -m benchmarks.<name>``."""
