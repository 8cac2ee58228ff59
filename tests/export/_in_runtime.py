# SPDX-License-Identifier: Apache-2.0
"""Runs exported models where only NumPy and ONNX Runtime are installed."""

import json
import sys


def answers(cases):
    """Return the outputs of versions for raw columns, and the version of the engine."""
    import onnxruntime

    from skest import export

    found = []
    for version, columns in cases:
        outputs = export.load(version).run(columns, "predict")
        found.append({name: values.tolist() for name, values in outputs.items()})
    heavy = {"torch", "sklearn", "onnx", "pandas"} & set(sys.modules)
    return {
        "engine": onnxruntime.__version__,
        "found": found,
        "imported": sorted(heavy),
    }


if __name__ == "__main__":
    with open("arguments.json", encoding="utf-8") as file:
        arguments = json.load(file)
    sys.path.insert(0, arguments["checkout"])
    with open("result.json", "w", encoding="utf-8") as file:
        json.dump(answers(arguments["cases"]), file)
