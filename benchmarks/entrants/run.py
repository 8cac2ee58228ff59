# SPDX-License-Identifier: Apache-2.0
"""Runs scikit-learn's checks of the estimators of one module.

``python -m benchmarks.entrants.run MODULE`` prints one line of JSON. It needs scikit-learn
and what the module needs.
"""

import importlib
import json
import os
import sys
import warnings
from importlib.metadata import version
from typing import Any

os.environ["SCIPY_ARRAY_API"] = "1"  # read by SciPy; without, a check is skipped
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"


def checked(estimator: Any) -> dict[str, Any]:
    """Return the number of checks by status, and the names of those not passed."""
    from sklearn.utils.estimator_checks import check_estimator

    results = check_estimator(estimator, on_fail=None, on_skip=None)
    names: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
    for result in results:
        names[result["status"]].append(result["check_name"].removeprefix("check_"))
    return {
        "checks": len(results),
        "passed": len(names["passed"]),
        "failed": sorted(names["failed"]),
        "skipped": sorted(names["skipped"]),
    }


def main() -> None:
    """Check the estimators of the module that is named in the command."""
    warnings.simplefilter("ignore")
    module = importlib.import_module(f"benchmarks.entrants.{sys.argv[1]}")
    versions = {name: version(name) for name in ["scikit-learn", *module.PACKAGES]}
    results = {name: checked(e) for name, e in module.ESTIMATORS.items()}
    print(json.dumps({"versions": versions, "results": results}))


if __name__ == "__main__":
    main()
