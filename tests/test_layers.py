# SPDX-License-Identifier: Apache-2.0
"""The house: imports go down the layers, and name the module that defines a name.

A layer may import from those above it in `LAYERS`, which begins at the ground. Inside a
layer imports are free as long as they make no circle.
"""

import ast
import functools
import importlib
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "skest"

LAYERS = [
    {"_version", "exceptions", "keys"},
    {"core"},
    {"config"},
    {"optimizers"},
    {"losses", "metrics", "spec"},
    {"feature_columns"},
    {"heads"},
    {"networks"},
    {"checkpoints"},
    {"inputs"},
    {"hooks"},
    {"engine"},
    {"canned"},
    {"distributed"},
    {"export"},
    {"estimators"},
    {"adapters"},
    {"model_selection"},
    {"displays"},
    {"command_line", "__main__"},
]
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}


def module_name(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
PACKAGES = {name for name, path in FILES.items() if path.name == "__init__.py"}
MODULES = sorted(set(FILES) - PACKAGES)


@functools.cache
def tree(module):
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


@functools.cache
def imports(module):
    """Return (module, name or None, line) of all imports, also those in functions."""
    found = []
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found += [(alias.name, None, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            found += [(source, alias.name, node.lineno) for alias in node.names]
    return found


def own_imports(module):
    """Return (module, name, line) of imports from skest; submodules are resolved."""
    for source, name, line in imports(module):
        if source.partition(".")[0] == "skest":
            if f"{source}.{name}" in FILES:
                source, name = f"{source}.{name}", None
            yield source, name, line


def part_of(module):
    return module.split(".")[1]


def defined(module):
    """Return the names that a module defines, and those in its ``__all__``."""
    names = set(exported(module))
    branches = [node for node in tree(module).body if isinstance(node, ast.If)]
    inner = [node for branch in branches for node in branch.body + branch.orelse]
    for node in tree(module).body + inner:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {ast.unparse(target) for target in node.targets}
        elif isinstance(node, ast.AnnAssign):
            names.add(ast.unparse(node.target))
    return names


def exported(module):
    """Return ``__all__`` of a module: what users see has one."""
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


def test_every_module_has_a_layer():
    unknown = {part_of(module) for module in MODULES} - set(RANK)
    assert not unknown, f"Give {sorted(unknown)} a place in LAYERS."


def test_imports_go_down():
    upward = [
        f"{FILES[module]}:{line}: {source}"
        for module in MODULES
        for source, _, line in own_imports(module)
        if source != "skest" and RANK[part_of(source)] > RANK[part_of(module)]
    ]
    assert not upward, "imports from a layer above their own:\n" + "\n".join(upward)


def test_imports_are_from_the_defining_module():
    wrong = []
    for module in MODULES:
        for source, name, line in own_imports(module):
            place = f"{FILES[module]}:{line}: "
            if source in PACKAGES:
                wrong.append(f"{place}{name} comes from the __init__ of {source}")
            elif source not in FILES:
                wrong.append(f"{place}there is no module {source}")
            elif name is not None and name not in defined(source):
                wrong.append(f"{place}{name} is not defined in {source}")
    assert not wrong, "\n".join(wrong)


def test_there_are_no_circles():
    graph = {
        module: {source for source, _, _ in own_imports(module) if source in MODULES}
        for module in MODULES
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_a_package_lists_its_names_and_all_can_be_imported():
    for package in sorted(PACKAGES):
        listed = exported(package)
        assert listed == sorted(set(listed), key=isort_key)
        module = importlib.import_module(package)
        for name in listed:
            assert getattr(module, name, None) is not None, name
        names = {
            name for source, name, _ in imports(package) if source.startswith("skest")
        }
        assert names == set(listed)
        for source, name, _ in own_imports(package):
            assert source in MODULES, f"{name} comes from the __init__ of {source}"
            assert name in defined(source), f"{name} is not defined in {source}"


def isort_key(name):
    """The order of ruff: constants, classes, functions."""
    kind = 0 if name.isupper() else 1 if name[:1].isupper() else 2
    return kind, name


def test_the_lazy_names_are_those_for_type_checkers():
    skest = importlib.import_module("skest")
    assert set(skest._MODULES) == set(skest.__all__)
    for source, name, _ in imports("skest"):
        if source.startswith("skest"):
            assert f"skest.{skest._MODULES[name]}" == source
    for name in skest._SUBPACKAGES:
        assert getattr(skest, name).__name__ == f"skest.{name}"
        assert name in dir(skest)
    with pytest.raises(AttributeError, match="'skest' has no attribute 'nothing'"):
        _ = skest.nothing


def imported_with(imported, names):
    """Return which modules are loaded in a process that imports some."""
    script = (
        f"import sys, {imported}\nprint(*[n for n in {names!r} if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_importing_skest_is_cheap():
    heavy = ["torch", "sklearn", "pandas", "numpy", "scipy", "skorch"]
    assert imported_with("skest", heavy) == []
    assert imported_with("numpy", heavy) == ["numpy"]


def test_starting_processes_needs_no_pytorch():
    names = "skest.distributed.launch, skest.distributed.task"
    assert imported_with(names, ["torch"]) == []


def test_training_alone_loads_nothing_of_export_or_distribution():
    idle = [name for name in FILES if part_of(f"{name}.") in ("export", "distributed")]
    names = "skest.adapters.dnn, skest.estimators.train_and_evaluate"
    assert imported_with(names, idle) == []


def test_modules_begin_with_the_license():
    license = "# SPDX-License-Identifier: Apache-2.0\n"
    assert not [
        file for file in FILES.values() if not file.read_text().startswith(license)
    ]
