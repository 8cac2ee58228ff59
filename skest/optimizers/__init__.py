# SPDX-License-Identifier: Apache-2.0
"""Optimizers: by name, by class or by function, and those that torch lacks.

`make_optimizers` turns what an estimator was given into optimizers of torch; `RowSparse`
lets any of them update only the rows of large tables that a batch has touched. Their
state is kept by the names of parameters, and `schedules` says how rates go with the
global step.
"""

from skest.optimizers.ftrl import Ftrl, ProximalAdagrad
from skest.optimizers.named import (
    OPTIMIZERS,
    NamedOptimizer,
    OptimizerLike,
    OptimizersLike,
    make_optimizer,
    make_optimizers,
)
from skest.optimizers.row_sparse import RowSparse

__all__ = [
    "OPTIMIZERS",
    "Ftrl",
    "NamedOptimizer",
    "OptimizerLike",
    "OptimizersLike",
    "ProximalAdagrad",
    "RowSparse",
    "make_optimizer",
    "make_optimizers",
]
