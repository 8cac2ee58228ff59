# SPDX-License-Identifier: Apache-2.0
"""``skest inspect PATH``."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from skest.command_line import tables
from skest.core.console import text_table
from skest.core.files import list_versions
from skest.export.artifact import described_type, versions_at
from skest.export.runtime import load

# What a command says: of people, and of JSON.
_Answer = tuple[Callable[[], None], dict[str, Any]]


def main(arguments: Sequence[str], prog: str) -> None:
    """Tell what is at a path."""
    parser = tables.command_parser(
        prog,
        "Tell what a model of `skest train`, a model_dir, a checkpoint or an export is.",
    )
    parser.add_argument("path", help="its directory")
    options = parser.parse_args(arguments)
    tell, found = _inspected(Path(options.path))
    if options.json:
        tables.print_json(found)
    else:
        tell()


def _inspected(path: Path) -> _Answer:
    if not path.is_dir():
        raise FileNotFoundError(
            f"There is no directory {str(path)!r}. Give that of a model of `skest train`, "
            "a checkpoint or an export."
        )
    if (path / tables.MODEL).exists():
        # Its report alone is read: unpickling a model may run any code.
        return _model(path)
    if versions_at(path):
        return _export(path)
    from skest.checkpoints.format import is_checkpoint  # PyTorch takes a second

    if is_checkpoint(path):
        return _checkpoint(path)
    if any(is_checkpoint(entry) for entry in path.glob("ckpt-*")):
        return _model_dir(path)
    # An estimator that keeps its checkpoints writes a model_dir for each fit.
    fits = sorted(entry.name for entry in path.glob("fit-*"))
    hint = f" It has the model_dirs {', '.join(fits)}: give one." if fits else ""
    raise ValueError(
        f"{str(path)!r} is no model of `skest train`, no model_dir with a checkpoint, no "
        f"checkpoint and no export.{hint}"
    )


def _model(path: Path) -> _Answer:
    report = tables.load_report(str(path))

    def tell() -> None:
        print(
            f"A model of {report['target']!r}, trained on {report['rows_trained']:,} rows "
            f"of {report['data']}"
        )
        print(*report["summary"], sep="\n")
        if report["metrics"]:
            print(f"\nOn {report['rows_held_out']:,} rows that were held out")
            tables.print_metrics(report["metrics"], report["classes"])

    return tell, {"kind": "model", **report}


def _checkpoint(path: Path) -> _Answer:
    from skest.checkpoints.checkpoint import layers_of
    from skest.checkpoints.format import read_checkpoint

    # Reads all of it: the checksums tell whether it is whole.
    checkpoint = read_checkpoint(path)
    shapes = {name: list(v.shape) for name, v in checkpoint.variables.items()}

    def tell() -> None:
        print(f"A checkpoint of step {checkpoint.global_step:,}")
        print(layers_of(checkpoint).text())

    found = {"kind": "checkpoint", "global_step": checkpoint.global_step}
    return tell, {**found, "variables": shapes}


def _model_dir(path: Path) -> _Answer:
    from skest.checkpoints.format import is_checkpoint
    from skest.checkpoints.store import DirectoryStore, read_eval_results

    store = DirectoryStore(path)
    # Its file `checkpoint` says which, as tf.train.latest_checkpoint has it.
    latest = store.latest_path()
    if latest is None:
        raise ValueError(f"{str(path)!r} points to no checkpoint.")
    tell_latest, found = _checkpoint(latest)
    names = sorted(entry.name for entry in path.glob("ckpt-*") if is_checkpoint(entry))
    evaluations = {
        entry.name: results
        # eval, and eval_NAME of an evaluation with a name, as in tf.estimator.
        for entry in sorted(path.glob("eval*"))
        if (results := read_eval_results(entry))
    }

    def tell() -> None:
        print(
            f"A model_dir with {', '.join(names)}; training goes on from {latest.name}"
        )
        if store.stop_reason() is not None:
            print(f"The last training ended: {store.stop_reason()}")
        tell_latest()
        for name, results in evaluations.items():
            # By step; no two are the same.
            step, metrics = max(results.items())
            s = "s" * (len(results) != 1)
            print(f"\n{name}, at step {step:,} ({len(results)} evaluation{s})")
            tables.print_metrics(metrics)

    return tell, {
        **found,
        "kind": "model_dir",
        "checkpoints": names,
        "latest": latest.name,
        "stop_reason": store.stop_reason(),
        "evaluations": evaluations,
    }


def _export(path: Path) -> _Answer:
    # `load` compares the checksums of the files.
    model = load(path)
    made_of = model.manifest.get("model", {})
    versions = [version.name for version in list_versions(path)]

    def tell() -> None:
        name = made_of.get("estimator", made_of.get("name", "model"))
        print(f"An export of {name}, version {model.path.name}: files are whole")
        if len(versions) > 1:
            print(f"Versions: {', '.join(versions)}")
        rows = [
            (n, described_type(s), str(s["shape"])) for n, s in model.features.items()
        ]
        print("\nTakes")
        print(text_table([("feature", "type", "shape"), *rows]))
        for feature in model.features:
            names = [name for name, its in model.names_of().items() if its == feature]
            # A feature of several columns, as those of a matrix.
            if names != [feature]:
                print(f"{feature} is made of the columns {', '.join(names)}")
        print("\nGives")
        rows = [
            (name, str(signature["method"]), ", ".join(signature["outputs"]))
            for name, signature in model.signatures.items()
        ]
        print(text_table([("signature", "method", "outputs"), *rows], widest=200))

    return tell, {
        "kind": "export",
        "version": model.path,
        "versions": versions,
        "model": made_of,
        "features": model.features,
        "signatures": model.signatures,
    }
