# SPDX-License-Identifier: Apache-2.0
"""A model in the browser: train wide & deep on Census income, export it, serve the page.

Run it with ``python examples/web/export_census.py`` and open the address it prints. The
page needs no Python: copy the folder ``--site`` to any web server. The engine comes from a
CDN, in the version and with the digests that the page names; ``--runtime DIR`` takes it
from the folder ``dist`` of a local copy (``npm i onnxruntime-web@1.30.0``). The table is
found as in ``examples/census_wide_deep.py``.
"""

import argparse
import functools
import http.server
import json
import shutil
import sys
import tempfile
from pathlib import Path

import pandas as pd

from skest import DNNLinearCombinedClassifier

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # the other examples

from census_wide_deep import make_columns  # noqa: E402
from mixed_tables import MixedTable, load_census  # noqa: E402

PAGE = ("index.html", "page.js", "style.css")
ENGINE = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")
CDN = "https://cdn.jsdelivr.net/npm/onnxruntime-web@1.30.0/dist"


def train(table: MixedTable, epochs: int) -> DNNLinearCombinedClassifier:
    """Return the wide & deep model of ``census_wide_deep.py``."""
    wide, deep = make_columns(table)
    model = DNNLinearCombinedClassifier(
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_optimizer="adagrad",
        dnn_learning_rate=0.05,
        max_iter=epochs,
        random_state=0,
    )
    return model.fit(features_of(table.X_train, table), table.y_train)


def features_of(X: pd.DataFrame, table: MixedTable) -> pd.DataFrame:
    """Return the columns that the model looks at."""
    return X[[*table.numeric, *table.categorical]]


def fields_of(table: MixedTable) -> dict[str, dict[str, object]]:
    """Return what a form should offer: ranges, categories, and a typical value."""
    X: pd.DataFrame = table.X_train
    fields: dict[str, dict[str, object]] = {
        name: {
            "min": float(X[name].min()),
            "max": float(X[name].max()),
            "value": float(X[name].median()),
        }
        for name in table.numeric
    }
    for name in table.categorical:
        counts = X[name].value_counts()
        fields[name] = {"choices": sorted(counts.index), "value": counts.index[0]}
    return fields


def make_site(
    site: Path,
    model: DNNLinearCombinedClassifier,
    fields: dict[str, dict[str, object]],
    runtime: Path | None = None,
) -> None:
    """Write the page, the exported model and, if it is local, the engine."""
    site.mkdir(parents=True, exist_ok=True)
    for name in PAGE:
        shutil.copyfile(HERE / name, site / name)
    with tempfile.TemporaryDirectory() as directory:
        described = Path(directory) / "fields.json"
        described.write_text(json.dumps(fields), encoding="utf-8")
        version = model.export(
            Path(directory) / "model", assets={"fields.json": described}
        )
        shutil.copytree(version, site / "model", dirs_exist_ok=True)
    if runtime is not None:
        (site / "engine").mkdir(exist_ok=True)
        for name in ENGINE:
            shutil.copyfile(runtime / name, site / "engine" / name)
        page = (site / "index.html").read_text(encoding="utf-8")
        page = page.replace(CDN, "./engine")
        (site / "index.html").write_text(page, encoding="utf-8")


def serve(site: Path, port: int) -> http.server.ThreadingHTTPServer:
    """Return a server of the folder on this machine."""
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=str(site)
    )
    return http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, help="folder with adult.data and adult.test"
    )
    parser.add_argument("--site", type=Path, default=HERE / "site")
    parser.add_argument("--runtime", type=Path, help="dist of onnxruntime-web")
    parser.add_argument("--epochs", type=int, default=15, metavar="N")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument(
        "--no-server", action="store_true", help="write the folder only"
    )
    options = parser.parse_args()

    table = load_census(options.data, offline=False)
    if table is None:
        raise SystemExit("The Census table is not at hand.")
    model = train(table, options.epochs)
    X_test = features_of(table.X_test, table)
    print(f"Accuracy on test rows: {model.score(X_test, table.y_test):.4f}")
    make_site(options.site, model, fields_of(table), options.runtime)
    print(f"Wrote {options.site}")
    if not options.no_server:
        print(f"Open http://127.0.0.1:{options.port}")
        serve(options.site, options.port).serve_forever()


if __name__ == "__main__":
    main()
