# SPDX-License-Identifier: Apache-2.0
"""What all displays have in common."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skest.adapters.base import SkestEstimator
from skest.core.checks import needing


class Display:
    """Draws into axes that are given, or its own; not for direct use."""

    ax_: Any
    figure_: Any

    def _set_axes(self, ax: Any, figsize: tuple[float, float] = (6.4, 4.8)) -> Any:
        """Return axes to draw into, and remember them."""
        if ax is None:
            with needing("matplotlib", type(self).__name__):
                # An extra; axes that are given need no import, and no backend.
                import matplotlib.pyplot as plt
            _, ax = plt.subplots(figsize=figsize, layout="constrained")
        self.ax_, self.figure_ = ax, ax.figure
        return ax


def skest_estimator(estimator: Any, owner: str) -> SkestEstimator:
    """Return the fitted estimator of skest inside of a search or a Pipeline.

    Raises
    ------
    TypeError
        If there is none.
    NotFittedError
        If it is not fitted.
    """
    model = estimator
    while not isinstance(model, SkestEstimator):
        # A search in a Pipeline in a search is gone through to its end.
        if hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        elif hasattr(model, "steps"):
            model = model.steps[-1][1]
        else:
            end = "" if model is estimator else f", whose end is {type(model).__name__}"
            raise TypeError(
                f"{owner} draws a fitted estimator of skest, or a Pipeline or search "
                f"that ends with one; got {type(estimator).__name__}{end}. Of an "
                "ensemble give a member, such as the 'single_' of a search."
            )
    check_is_fitted(model)
    return model


def head_names(estimator: Any) -> list[Any]:
    """Return the names of the heads, or their positions; nothing if there is one target."""
    classes = getattr(estimator, "classes_", ())
    # Of several heads there is an array for each, or None where it predicts numbers.
    if not any(of_head is None or np.ndim(of_head) for of_head in classes):
        return []
    try:
        # As `predict` names them.
        return list(skest_estimator(estimator, "head_names")._target.targets)
    except TypeError:  # of another library
        return list(range(len(classes)))


def check_one_of(value: Any, name: str, choices: Any) -> None:
    """Raise ValueError, naming what there is, unless a value is among some choices."""
    if value not in choices:
        plain = (c.item() if hasattr(c, "item") else c for c in choices)  # of NumPy
        known = ", ".join(map(repr, plain)) or "none"
        raise ValueError(f"There is no {name} {value!r}; there is {known}.")


def position_of(target: Any, names: Sequence[Any]) -> int:
    """Return the position of a target, which is a name or a position.

    Raises
    ------
    ValueError
        If there is none such, or it is None and there are several.
    """
    if target is None and len(names) > 1:
        *some, last = map(repr, names)
        known = f"{', '.join(some)} or {last}"
        raise ValueError(
            f"Several targets are predicted; choose one with target={known}."
        )
    if target is None:
        return 0
    # A name may be a number, and goes before a position.
    if target not in names and target in range(len(names)):
        return int(target)
    check_one_of(target, "target", names)
    return list(names).index(target)


def chosen_class(label: Any, classes: list[Any]) -> tuple[int, Any, str]:
    """Return position, label and title of a class; None is the last, or positive, one."""
    label = classes[-1] if label is None else label
    check_one_of(label, "class", classes)
    n = len(classes)
    title = f"class {label} (one of {n})" if n > 2 else f"class {label}"
    return classes.index(label), label, title


def shortened(text: str, most: int) -> str:
    """Return a label of at most so many letters, so that it leaves room for the axes."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
