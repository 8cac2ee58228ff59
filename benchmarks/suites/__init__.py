# SPDX-License-Identifier: Apache-2.0
"""What `benchmarks.run` measures: a file for each kind of work."""
