# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's checks of skest, and of what else makes estimators of neural networks.

``python -m benchmarks.conformance [FOLDER]`` writes docs/conformance.md. The results are
kept in FOLDER as JSON (default: ``conformance`` in the folder for temporary files), and
libraries whose results are there are not run again. scikeras gets a virtual environment of
its own there.
"""

import json
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "conformance.md"
MODULES = ["skest_models", "sklearn_models", "skorch_models", "scikeras_models"]
SCIKERAS = ["scikeras==0.13.0", "keras==3.11.3", "tensorflow-cpu==2.20.0"]

TEMPLATE = """\
<!-- Written by benchmarks/conformance.py. -->
# scikit-learn's checks

scikit-learn comes with the checks that its own estimators have to pass, and runs them on
anybody's:

```python
from sklearn.utils.estimator_checks import check_estimator

from skest import DNNClassifier

results = check_estimator(
    DNNClassifier((16,), learning_rate=0.05, max_iter=40), on_skip=None, on_fail=None
)
assert {{result["status"] for result in results}} <= {{"passed", "skipped"}}
```

Which checks there are depends on what an estimator says that it can do: take weights,
several labels per row, `partial_fit`. So the number of checks counts, too.

{table}

{versions}, with `SCIPY_ARRAY_API=1`, without which one check is skipped.
`python -m benchmarks.conformance` makes this page.

## How they were taken

- **skest** and **scikit-learn's MLP** as they are constructed, without parameters.
  `ModelFn…` got the model function of a perceptron, for they have none. `…Estimator`
  without a head is for any target, so that no check of classifiers or regressors is run.
- **skorch, documented**: `NeuralNetClassifier(module)`, `NeuralNetRegressor(module)`; the
  module is written for one number of features and of classes, as in its documentation.
- **skorch, with glue**: the module finds the number of features by itself and has room for
  five classes; a subclass turns X into float32, seeds torch, and gives a regression the `y`
  of two dimensions that it needs.
- **scikeras, as it is**: a function builds the network from `meta`, as in its
  documentation. With this version of scikit-learn, `is_classifier` says no to it, so that
  no check of classifiers is run.
- **scikeras, with tags**: a subclass says that it is a classifier, or a regressor.

## What was not passed

{rest}

## More than these

The tests run the checks for other configurations, too
(`tests/conformance/test_configurations.py`; most of them at night, by `make test-nightly`),
and those that scikit-learn runs on its own estimators only
(`tests/conformance/test_second_tier.py`).

Some configurations cannot pass every check, and are spared them by name (`WITHOUT` in that
file; a test sees that they do fail): the equivalence of weights and repeated rows to seven
digits in float32, and with dropout, mini-batches or early stopping, all with
`sampling="epoch"`; weights of classes of 1000 : 0.0001 with early stopping; and with
`warm_start=True` the two checks that fit one object twice and expect the same.
"""


def environment(folder: Path) -> Path:
    """Return the Python of a virtual environment with scikeras, made if need be."""
    python = folder / "scikeras" / "bin" / "python"
    if not python.exists():
        from sklearn import __version__

        venv.create(folder / "scikeras", with_pip=True)
        wanted = [
            *SCIKERAS,
            f"scikit-learn=={__version__}",
            "pandas",
            "array-api-strict",
        ]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
    return python


def results_of(module: str, folder: Path) -> dict[str, Any]:
    """Return what `benchmarks.entrants.run` prints, run once."""
    kept = folder / f"{module}.json"
    if not kept.exists():
        alone = module == "scikeras_models"
        python = environment(folder) if alone else Path(sys.executable)
        command = [python, "-m", "benchmarks.entrants.run", module]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
        kept.write_bytes(done.stdout.splitlines()[-1])
    return json.loads(kept.read_text())


def table(results: dict[str, Any]) -> str:
    """Return a line for every estimator."""
    lines = ["| | checks | passed | failed | skipped |", "|---|---|---|---|---|"]
    for name, result in results.items():
        numbers = [result["checks"], result["passed"]]
        numbers += [len(result["failed"]), len(result["skipped"])]
        lines.append(f"| {name} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


def not_passed(results: dict[str, Any]) -> str:
    """Return the names of the checks of each estimator that were not passed."""
    lines = []
    for title, result in results.items():
        for status in ("failed", "skipped"):
            counted = Counter(result[status]).items()
            names = ", ".join(
                n if times == 1 else f"{n} ({times} times)" for n, times in counted
            )
            if names:
                lines.append(f"- {title}, {status}: {names}.")
    return "\n".join(lines)


def main() -> None:
    """Write the page."""
    default = Path(tempfile.gettempdir()) / "conformance"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    versions: dict[str, str] = {}
    for module in MODULES:
        found = results_of(module, folder)
        results |= found["results"]
        versions |= found["versions"]
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    PAGE.write_text(
        TEMPLATE.format(
            table=table(results), versions=listed, rest=not_passed(results)
        ),
        encoding="utf-8",
    )
    print(table(results))


if __name__ == "__main__":
    main()
