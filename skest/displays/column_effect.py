# SPDX-License-Identifier: Apache-2.0
"""`ColumnEffectDisplay`: how predictions change with one column of a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from skest.core.texts import is_missing_number
from skest.displays.base import (
    Display,
    check_one_of,
    chosen_class,
    head_names,
    position_of,
    shortened,
)
from skest.feature_columns.cells import holds_lists
from skest.feature_columns.parsed import are_dates

_MISSING = "missing"
_MOST_LETTERS = 30
_BATCH = 2**16  # rows that are predicted at once


@dataclass(eq=False, repr=False)
class ColumnEffectDisplay(Display):
    """The mean prediction if one column had a certain value in all rows.

    This is the partial dependence of Friedman (2001), as in
    `sklearn.inspection.PartialDependenceDisplay`, for columns as tables have them: whole
    numbers, numbers with gaps, strings, numbers written as strings. Of a linear model it
    is the learned curve itself on the scale of its ``decision_function``. It is best made
    by `from_estimator`.

    Parameters
    ----------
    column : str
        Its name.
    values : ndarray of shape (n_values,)
        Increasing numbers or times, or levels in the order of their frequency.
    effects : ndarray of shape (n_values,)
        Mean predictions.
    shares : ndarray of shape (n_values,)
        Which part of the rows has each level; of numbers, zeros.
    missing_effect : float or None
        Of a missing number, if some are.
    deciles : ndarray of shape (9,) or None
        Of numbers.
    what : str
        What is predicted.
    title : str, default=""
        Of which class, or which of several numbers.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
        What it was drawn into.

    Examples
    --------
    >>> import pandas as pd
    >>> from skest import LinearRegressor
    >>> from skest.displays import ColumnEffectDisplay
    >>> X = pd.DataFrame({"rooms": [1, 2, 3, 4] * 5, "town": ["Bern", "Oslo"] * 10})
    >>> y = 100 * X["rooms"] + 50 * (X["town"] == "Oslo")
    >>> model = LinearRegressor(max_iter=100, random_state=0).fit(X, y)
    >>> display = ColumnEffectDisplay.from_estimator(model, X, "rooms")
    >>> display.values
    array([1., 2., 3., 4.])
    >>> float((display.effects[3] - display.effects[0]).round(-1))
    300.0
    """

    column: str
    values: NDArray[Any]
    effects: NDArray[np.float64]
    shares: NDArray[np.float64]
    missing_effect: float | None
    deciles: NDArray[Any] | None
    what: str
    title: str = ""

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        column: str,
        *,
        target: Any = None,
        response_method: str = "auto",
        grid_resolution: int = 50,
        max_levels: int = 15,
        max_rows: int = 500,
        random_state: int | None = 0,
        ax: Any = None,
    ) -> Self:
        """Draw the effect of a column on the predictions of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            Fitted; of skest, or another one that takes the table.
        X : DataFrame or dict of arrays
            Rows like those that it will meet, such as held-out ones.
        column : str
            A column of X.
        target : object, default=None
            The class whose probability is drawn, as the title says; None is the last in
            ``classes_``, of two the positive one. Of several predicted numbers, the
            position of one, or its name where `predict` gives names. Of several heads
            the name of one, and for a class of it a pair ``(name, class)``.
        response_method : {"auto", "predict_proba", "decision_function", "predict"}, \
default="auto"
            "auto" is "predict_proba" where classes are predicted, or else "predict".
        grid_resolution : int, default=50
            Most numbers for which predictions are made: all distinct ones if they are
            no more, or else so many quantiles.
        max_levels : int, default=15
            Most levels of a column of strings; others are left out.
        max_rows : int, default=500
            Of more rows, as many are drawn at random.
        random_state : int or None, default=0
            Seed of that draw.
        ax : matplotlib Axes, default=None
            What to draw into; None makes a figure.

        Returns
        -------
        ColumnEffectDisplay

        Raises
        ------
        ValueError
            If there is no such column or class, there are several numbers or heads and
            no `target`, or the mean of classes is asked for.
        TypeError
            If X has no columns by name.
        ImportError
            If matplotlib is not installed.
        """
        check_is_fitted(estimator)
        table = _frame(X)
        check_one_of(column, "column", list(table.columns))
        cells = table[column]
        numbers = _as_numbers(cells)
        values, shown = _grid(cells, numbers, grid_resolution, max_levels)
        deciles, shares = None, np.zeros(len(values))
        if numbers is None:
            found = (cells.isna() if v is None else cells == v for v in values)
            shares = np.array([is_level.mean() for is_level in found])
        else:
            # Gaps are left out.
            deciles = numbers.quantile(np.arange(1, 10) / 10).to_numpy()
        # Levels and deciles are those of all rows; for a mean, some hundreds suffice.
        some = table
        if len(table) > max_rows:
            some = table.sample(max_rows, random_state=random_state)
        answer, what, title = _response(estimator, response_method, target)
        effects = _mean_answers(answer, some, column, values)
        missing = None
        if numbers is not None and numbers.isna().any():
            gap = cells[numbers.isna()].iloc[0]  # a blank, among strings
            missing = float(_mean_answers(answer, some, column, [gap])[0])
        display = cls(column, shown, effects, shares, missing, deciles, what, title)
        return display.plot(ax=ax)

    def plot(self, *, ax: Any = None) -> Self:
        """Draw it.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            What to draw into; None makes a figure.

        Returns
        -------
        ColumnEffectDisplay
        """
        n_levels = len(self.values) if self.deciles is None else 0
        ax = self._set_axes(
            ax, (6.4, max(2.0, 1.2 + 0.3 * n_levels) if n_levels else 4.0)
        )
        ax.set_title(self.title)
        if self.deciles is None:
            names = [
                shortened(_MISSING if value is None else str(value), _MOST_LETTERS)
                for value in self.values
            ]
            labels = [f"{n} ({s:.0%})" for n, s in zip(names, self.shares, strict=True)]
            ax.plot(self.effects, labels, "o")
            ax.grid(axis="x", linewidth=0.5)
            # The most frequent level is on top.
            ax.invert_yaxis()
            ax.margins(y=0.5 / max(2, n_levels))
            ax.set(xlabel=self.what, ylabel=f"{self.column} (share of rows)")
            return self
        ax.plot(
            self.values, self.effects, marker="." if len(self.values) < 15 else None
        )
        if np.asarray(self.values).dtype.kind == "M":  # long labels would overlap
            from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

            locator = AutoDateLocator(maxticks=6)
            ax.xaxis.set_major_locator(locator)
            ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        # As in scikit-learn, marks at the deciles show where the rows are.
        transform = ax.get_xaxis_transform()
        ax.vlines(self.deciles, 0, 0.04, color="0.4", transform=transform)
        if self.missing_effect is not None:
            ax.axhline(self.missing_effect, color="0.4", linestyle=":", label=_MISSING)
            ax.legend()
        ax.set(xlabel=f"{self.column} (marks: deciles)", ylabel=self.what)
        return self


def _frame(X: Any) -> pd.DataFrame:
    if hasattr(X, "to_pandas"):
        X = X.to_pandas()
    if not isinstance(X, pd.DataFrame | dict):
        raise TypeError(
            "ColumnEffectDisplay draws a column of a DataFrame or a dict of arrays; got "
            f"{type(X).__name__}. For arrays there is sklearn.inspection."
            "PartialDependenceDisplay."
        )
    return pd.DataFrame(X).reset_index(drop=True)


def _as_numbers(cells: pd.Series) -> pd.Series | None:
    """Return a column as numbers or times with gaps, or None if it is another."""
    is_number = pd.api.types.is_numeric_dtype(cells.dtype)
    is_text = cells.dtype == object or pd.api.types.is_string_dtype(cells.dtype)
    if pd.api.types.is_datetime64_any_dtype(cells.dtype):
        return cells
    if pd.api.types.is_bool_dtype(cells.dtype) or not (is_number or is_text):
        return None
    known = cells[cells.notna()]
    if not is_number:  # as columns of estimators read them
        known = known[~known.astype(str).map(is_missing_number).astype(bool)]
    if are_dates(known):
        # In UTC and without a zone, as estimators read dates.
        times = pd.to_datetime(known, utc=True, format="ISO8601", errors="coerce")
        return times.dt.tz_localize(None).reindex(cells.index)
    # One cell that is no number makes it a column of levels.
    numbers = pd.to_numeric(known, errors="coerce").astype(np.float64)
    if numbers.isna().any() or not len(numbers):
        return None
    # Gaps again where no number was.
    return numbers.reindex(cells.index)


def _grid(
    cells: pd.Series, numbers: pd.Series | None, resolution: int, max_levels: int
) -> tuple[list[Any], NDArray[Any]]:
    """Return the cells to put into all rows, and what is drawn of them."""
    if numbers is None:
        if holds_lists(cells.to_numpy()):
            raise TypeError(
                f"Column {cells.name!r} holds lists; ColumnEffectDisplay puts single "
                "values into all rows."
            )
        # A missing level is a level: models have an effect for it.
        gap = [None] if cells.isna().any() else []
        levels = [*cells.value_counts().index[:max_levels], *gap]
        return levels, np.array(levels, dtype=object)
    # One cell of each number, in whatever way it was written.
    distinct = numbers.dropna().drop_duplicates().sort_values()
    if len(distinct) > resolution:
        # Beyond these are few rows, and the picture would show little else.
        shares = np.linspace(0.01, 0.99, resolution)
        distinct = distinct[distinct.isin(numbers.quantile(shares, "nearest"))]
    # The cells themselves go into the table: "007" as a string is not 7 to a model.
    return list(cells.loc[distinct.index]), distinct.to_numpy()


def _response(estimator: Any, method: str, target: Any) -> tuple[Any, str, str]:
    """Return what predicts one number for each row, what it is, and of what."""
    classes: Any = getattr(estimator, "classes_", None)
    names, head, label, title = head_names(estimator), 0, target, ""
    if names:
        name, label = target if isinstance(target, tuple) else (target, None)
        if isinstance(name, str) and name not in names:  # a column of y, or wrong
            classes = None
        else:
            head = position_of(name, names)
            classes, title = classes[head], f"target {names[head]}, "
    if method == "auto":
        method = "predict" if classes is None else "predict_proba"
    if method == "predict":
        title = f"target {target}" if isinstance(target, str) else f"number {target}"

        def one(X: Any) -> Any:
            return _numbers(estimator.predict(X), target, names)

        return one, "mean prediction", "" if target is None else title
    if classes is None:
        raise ValueError(
            f"response_method={method!r} is for classes, and numbers are predicted here. "
            "Take response_method='predict'."
        )
    index, label, of_class = chosen_class(label, list(classes))

    def answer(X: Any) -> Any:
        found = getattr(estimator, method)(X)
        # Of several heads, as scikit-learn's predict_proba of several outputs.
        if isinstance(found, list):
            found = found[head]
        if found.ndim == 1:  # the decision for the second of two classes
            return found if index else -found
        return found[:, index]

    kind = "probability" if method == "predict_proba" else "decision"
    return answer, f"mean {kind} of {label!s}", title + of_class


def _numbers(found: Any, target: Any, heads: Sequence[Any]) -> pd.Series:
    """Return what was predicted for a target, which must be numbers."""
    if not isinstance(found, pd.DataFrame | Mapping):
        matrix = np.asarray(found)
        # (n_rows,) to (n_rows, 1).
        matrix = matrix.reshape(len(matrix), -1)
        n = matrix.shape[1]
        found = dict(zip(heads if len(heads) == n else range(n), matrix.T, strict=True))
    name = list(found)[position_of(target, list(found))]
    cells = pd.Series(list(found[name])).infer_objects()
    if not pd.api.types.is_numeric_dtype(cells):
        raise ValueError(
            "What is predicted is not one number a row, and has no mean. Of classes draw "
            "the probability: response_method='predict_proba'."
        )
    return cells


def _mean_answers(
    answer: Any, table: pd.DataFrame, column: str, values: list[Any]
) -> NDArray[np.float64]:
    """Return the mean answer of all rows for each value of a column."""
    # Several values in one call: each call of an estimator has costs of its own.
    at_once = max(1, _BATCH // len(table))
    means = []
    for start in range(0, len(values), at_once):
        block = values[start : start + at_once]
        # (n_values in the block * n_rows,): the whole table for each value.
        repeated = np.tile(np.arange(len(table)), len(block))
        rows = table.iloc[repeated].reset_index(drop=True)
        cells = [value for value in block for _ in range(len(table))]
        rows[column] = _as_before(pd.Series(cells, dtype=object), table[column].dtype)
        found = np.asarray(answer(rows), dtype=np.float64)
        # (n_values in the block, n_rows)
        means.append(found.reshape(len(block), -1).mean(axis=1))
    return np.concatenate(means)


def _as_before(cells: pd.Series, dtype: Any) -> pd.Series:
    """Return cells in the type of their column, which a gap may not have."""
    if cells.isna().any() and getattr(dtype, "kind", "O") in "biu":
        return cells.astype(np.float64)
    return cells.astype(dtype)
