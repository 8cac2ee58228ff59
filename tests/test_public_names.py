# SPDX-License-Identifier: Apache-2.0
"""The public names, where users find them, with their arguments and defaults.

``python -m tests.test_public_names`` writes the list anew.
"""

import importlib
import inspect
from pathlib import Path

LIST = Path(__file__).with_name("public_names.txt")
MODULES = [
    *("skest", "skest.adapters", "skest.adapters.skorch", "skest.canned"),
    *("skest.displays", "skest.distributed"),
    *("skest.exceptions", "skest.export", "skest.feature_columns", "skest.heads"),
    *("skest.hooks", "skest.inputs", "skest.keys", "skest.losses", "skest.metrics"),
    *("skest.model_selection", "skest.networks", "skest.optimizers"),
]


def arguments(function):
    """Return the arguments of a function without their types."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    plain = [
        parameter.replace(
            annotation=parameter.empty,
            default=parameter.default
            if isinstance(parameter.default, int | float | str | tuple | None)
            else ...,
        )
        if parameter.default is not parameter.empty
        else parameter.replace(annotation=parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return str(inspect.Signature(plain))


def members(cls):
    """Return lines for what a class of skest has, each where it is defined."""
    for owner in cls.__mro__:
        if owner.__module__.partition(".")[0] != "skest":
            continue
        for name, value in vars(owner).items():
            value = getattr(value, "__func__", value)
            hooked = getattr(value, "hooked", False)  # by PyTorch, where it is used
            if hooked and value.__qualname__ != f"{owner.__qualname__}.{name}":
                continue
            if name.startswith("_") or inspect.isdatadescriptor(value):
                continue
            if callable(value):
                yield f"{owner.__qualname__}.{name}{arguments(value)}"


def public_names():
    """Return one line for each public name."""
    lines, where = set(), {}
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            value, full = getattr(module, name), f"{module.__name__}.{name}"
            first = where.setdefault(id(value), full)
            if first != full:
                lines.add(f"{full} is {first}")
                continue
            lines.add(full + arguments(value) if callable(value) else full)
            if inspect.isclass(value):
                lines.update(members(value))
    return sorted(lines)


def test_public_names_are_those_of_the_list():
    found, listed = set(public_names()), set(LIST.read_text().splitlines())
    assert sorted(listed - found) == [], "These are gone, or have other arguments."
    assert sorted(found - listed) == [], "These are new, or have other arguments."


if __name__ == "__main__":
    LIST.write_text("\n".join(public_names()) + "\n")
