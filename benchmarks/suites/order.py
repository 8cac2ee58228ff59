# SPDX-License-Identifier: Apache-2.0
"""All suites, in the order in which they run and are shown."""

from benchmarks.measure import Suite
from benchmarks.suites import (
    census,
    dense,
    growth,
    linear,
    memory,
    predict,
    search,
    start,
    wide_deep,
)

__all__ = ["SUITES"]

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        dense.SUITE,
        wide_deep.SUITE,
        linear.SUITE,
        census.SUITE,
        predict.LATENCY,
        predict.THROUGHPUT,
        search.SUITE,
        start.SUITE,
        memory.SUITE,
        growth.ROWS,
        growth.COLUMNS,
    )
}
