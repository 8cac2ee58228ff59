# SPDX-License-Identifier: Apache-2.0
"""Processes that start at once: forks of one that has imported everything."""

import multiprocessing

# The server starts once, for all tests, so that each must find here what it needs.
PRELOADED = [
    *(
        "skest.estimators.estimator",
        "skest.estimators.train_and_evaluate",
        "skest.adapters.dnn",
        "skest.inputs",
        "skest.distributed.synchronous",
    ),
    *("sklearn.model_selection", "pyarrow.dataset", "pandas", "tests._models"),
    # What the first optimizer imports, and the first exports, also of traced modules.
    *("torch._dynamo", "onnx", "onnxscript", "networkx"),
    *("skest.export.onnx.model", "torch.onnx._internal.exporter._core"),
]


def context():
    """Return the context of such processes."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(PRELOADED)
    return found
