# SPDX-License-Identifier: Apache-2.0
"""Stochastic dual coordinate ascent, as an optimizer of torch."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor
from torch.optim import Optimizer

from skest.core.resources import without_dynamo
from skest.optimizers.ftrl import loss_of

_SUM = "dual_sum"
_IDS, _DUALS = "example_ids", "duals"
# Of 300,000 random examples none took more than 15; it is NaN that comes nowhere.
_MAX_NEWTON_STEPS = 50
_NEWTON_TOLERANCE = 1e-8  # of a step; after it, the error is about the square
# Of the mean squared norm of examples. With .03, a regression of diabetes with l2=.001
# stops too early, with R² of .504; .2 is faster there, but not where l2 is strong.
_PULL = 0.1


class Examples(NamedTuple):
    """A batch of a linear model, example by example.

    Attributes
    ----------
    ids : Tensor of int64, shape (n_rows,)
        The same number for an example whenever it comes, and for no other.
    labels : Tensor of shape (n_rows,)
        In [0, 1] for the logistic loss.
    weights : Tensor of shape (n_rows,) or None
        At least 0. None is one for all.
    dense : Tensor of shape (n_rows, n_elements)
        What multiplies the elements of the first parameters, all of them in order.
    looked_up : sequence of Tensor of int64, shape (n_rows, n_values)
        For each of the other parameters, its elements that are added; -1 for none.
    factors : sequence of (Tensor of shape (n_rows, n_values) or None)
        For each of `looked_up`, what multiplies the elements. None is one for all, as
        is an empty sequence for all parameters.
    """

    ids: Tensor
    labels: Tensor
    weights: Tensor | None
    dense: Tensor
    looked_up: Sequence[Tensor] = ()
    factors: Sequence[Tensor | None] = ()


class DualAscent(Optimizer):
    r"""Coordinate ascent in the dual of a regularised linear model.

    For scores :math:`z_i = x_i^\top v` it minimises

    .. math::
        \sum_i c_i\,\mathrm{loss}(y_i, z_i) + \mathrm{l1}\,\|v\|_1
        + \tfrac{1}{2}\,\mathrm{l2}\,\|v\|_2^2

    Every example has a dual variable :math:`\alpha_i`, which starts at zero and at the
    optimum is minus the derivative of its loss. The slot ``dual_sum`` of the parameters
    keeps :math:`s = \sum_i c_i \alpha_i x_i`, and the parameters always are
    :math:`v = \operatorname{shrink}(s, \mathrm{l1}) / \mathrm{l2}`, with exact zeros. A
    step takes the examples of the batch in their order; for each it sets the dual to the
    exact maximum of the (proximal) dual objective along this coordinate. There is no
    learning rate, and the penalties may change between two runs.

    A gradient is a sum over a batch, and this needs the examples one by one: hand them
    to `observe` before every `step`. Gradients are not used.

    Parameters
    ----------
    params : iterable of Tensor
        All weights of the model, of shape (n,) or (n, 1), and zero.
    loss : {"logistic", "squared"}
        :math:`\log(1 + e^z) - y z`, or :math:`(y - z)^2 / 2`.
    l1 : float, default=0.0
        Strength of the L1 penalty, >= 0.
    l2 : float, default=1.0
        Strength of the L2 penalty, > 0.
    proximal : bool, default=False
        Whether to hold the weights near those at which a round began, when all examples
        had come once. The optimum is the same, and it takes a few rounds with weak
        penalties, too, where without it takes some :math:`\|x\|^2 / \mathrm{l2}`. All
        examples must come again and again.

    Notes
    -----
    With `proximal`, a round that begins at the weights :math:`w` minimises the objective
    and :math:`\tfrac{1}{2}\,k\,\|v - w\|_2^2`, so that
    :math:`v = \operatorname{shrink}(s + k w, \mathrm{l1}) / (\mathrm{l2} + k)`; k goes by
    the norms of the examples.

    A step costs some microseconds of Python for an example, because each depends on the
    one before it; the cost does not depend on the sizes of the parameters. The slots
    ``example_ids`` and ``duals`` of the first parameter grow with the number of
    different examples, 16 bytes for each, on the CPU. Numbers are float64 within a step.

    References
    ----------
    Shalev-Shwartz and Zhang, "Stochastic Dual Coordinate Ascent Methods for Regularized
    Loss Minimization", JMLR 2013; "Accelerated Proximal Stochastic Dual Coordinate
    Ascent for Regularized Loss Minimization", ICML 2014. Rockafellar, "Monotone Operators
    and the Proximal Point Algorithm", SIAM J. Control and Optimization 1976.

    Examples
    --------
    >>> import torch
    >>> from skest.optimizers.dual_ascent import DualAscent, Examples
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> optimizer = DualAscent([weight], "squared", l2=1.0)
    >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    >>> batch = Examples(torch.arange(2), torch.tensor([1.0, 3.0]), None, x)
    >>> for _ in range(30):
    ...     optimizer.observe(batch)
    ...     optimizer.step()
    >>> torch.linalg.solve(x.T @ x + torch.eye(2), x.T @ batch.labels)
    tensor([1., 1.])
    >>> weight.detach().round(decimals=4)
    tensor([1., 1.])
    """

    # Their sizes follow from the data, not from the parameter they belong to.
    free_slots = frozenset({_IDS, _DUALS})

    # A step needs a call of `observe`, and not only gradients: no recording will do.
    is_recordable = False

    _duals: "_Duals | None" = None  # read from the slots in the first step
    _batch: Examples | None = None
    _pull = 0.0  # the k of the notes

    def __init__(
        self,
        params: Iterable[Tensor],
        loss: str,
        l1: float = 0.0,
        l2: float = 1.0,
        *,
        proximal: bool = False,
    ) -> None:
        options = {"loss": loss, "l1": l1, "l2": l2, "proximal": proximal}
        super().__init__(params, options)
        for param in self._params:
            self.state[param] = {_SUM: torch.zeros_like(param, requires_grad=False)}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as in torch.optim."""
        without_dynamo(Optimizer.add_param_group)(self, param_group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Also the last step of load_state_dict.
        super().__setstate__(state)
        self._duals = self._batch = None

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state, as in torch.optim."""
        without_dynamo(Optimizer.load_state_dict)(self, dict(state_dict))
        # It casts slots to the type of their parameter, which would spoil these.
        # Parameters are numbers in a state.
        first = state_dict["param_groups"][0]["params"][0]
        saved = state_dict["state"].get(first, {})
        for name in self.free_slots & saved.keys():
            self.state[self._params[0]][name] = saved[name].cpu().clone()

    def observe(self, examples: Examples) -> None:
        """Take the examples of the next `step`.

        Raises
        ------
        ValueError
            If a weight is negative.
        """
        weights = examples.weights
        # With a negative one the objective may have no minimum.
        if weights is not None and bool((weights < 0).any()):
            raise ValueError(
                "Dual coordinate ascent needs weights of examples >= 0, got "
                f"{weights.min().item():g}. Correct the weight column."
            )
        self._batch = examples

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update the duals of the examples in hand, and the parameters.

        Parameters
        ----------
        closure : callable, optional
            Hands over the examples and returns the loss.

        Returns
        -------
        loss : float or None
            What `closure` returned.

        Raises
        ------
        RuntimeError
            If no examples were handed over since the last step.
        ValueError
            If different examples have the same id, or the first step finds weights that
            are not zero.
        """
        loss = loss_of(closure)
        if self._batch is None:
            raise RuntimeError("DualAscent.step needs a call of observe before it.")
        batch, self._batch = self._batch, None
        if self._duals is None:
            self._duals = self._begin(batch)
        elif self.param_groups[0]["proximal"] and self._duals.are_all_updated(
            batch.ids
        ):
            self._begin_round()
        self._update(batch, self._duals)
        self.state[self._params[0]].update(self._duals.as_slots())
        return loss

    @property
    def _params(self) -> list[Tensor]:
        (group,) = self.param_groups
        return group["params"]

    def _begin(self, batch: Examples) -> "_Duals":
        """Bring parameters and duals in line with the slots, before the first step."""
        slots = self.state[self._params[0]]
        if _DUALS not in slots and any(bool(p.any()) for p in self._params):
            raise ValueError(
                "Dual coordinate ascent starts from weights that are zero, because they "
                "are a function of the duals; got other weights without their duals. "
                "Restore the optimizer with them, or start anew."
            )
        if self.param_groups[0]["proximal"]:
            l2 = self.param_groups[0]["l2"]
            self._pull = max(0.0, _PULL * _mean_square(batch) - l2)
        # The penalties may be others than when the sums were saved.
        self._begin_round()
        return _Duals(slots.get(_IDS), slots.get(_DUALS))

    def _begin_round(self) -> None:
        """Hold the weights near the present ones from now on."""
        self._centers = [self._pull * param for param in self._params]
        for param, center in zip(self._params, self._centers, strict=True):
            param.copy_(self._weights(self.state[param][_SUM] + center))

    def _weights(self, sums: Tensor) -> Tensor:
        (group,) = self.param_groups
        # The gradient of the conjugate of the penalties; see Prox-SDCA (2014).
        return F.softshrink(sums, group["l1"]) / (group["l2"] + self._pull)

    def _update(self, batch: Examples, duals: "_Duals") -> None:
        (group,) = self.param_groups
        slots = [self.state[param][_SUM] for param in self._params]
        # Of a parameter that is looked up, only the rows that the batch touches.
        found = [
            # -1 becomes row 0, with a factor of 0.
            ids.clamp(min=0).unique(return_inverse=True)
            for ids in batch.looked_up
        ]
        rows = [None] * (len(slots) - len(found)) + [touched for touched, _ in found]
        sizes = [len(s if r is None else r) for s, r in zip(slots, rows, strict=True)]
        # (n_columns,): the first parameters, and what is touched of the others.
        old, center = _touched(slots, rows), _touched(self._centers, rows)
        sums = _float64(old) + _float64(center)
        positions = duals.positions(batch.ids)  # makes room for the new ones
        factors = _factors(batch, [local for _, local in found], len(sums))
        options = {**group, "l2": group["l2"] + self._pull}
        _ascend(sums, duals.values, positions, factors, batch, options)
        # Back to the type and device of the parameters.
        new = torch.from_numpy(sums - _float64(center)).to(slots[0])
        weights = self._weights(new + center)
        for targets, values in ((slots, new), (self._params, weights)):
            for target, r, part in zip(targets, rows, values.split(sizes), strict=True):
                if r is None:
                    target.copy_(part.view_as(target))
                else:
                    target[r] = part.view(len(r), *target.shape[1:])


class _Duals:
    """Duals by example id, in arrays that grow by doubling."""

    def __init__(self, ids: Tensor | None, duals: Tensor | None) -> None:
        self._ids = np.empty(0, np.int64) if ids is None else ids.numpy()
        self.values = np.empty(0) if duals is None else duals.numpy()
        # A dictionary and no search in an array: ids come in any order.
        self._position = {id_: i for i, id_ in enumerate(self._ids.tolist())}
        self._n_updated = 0  # in the present round

    def are_all_updated(self, ids: Tensor) -> bool:
        """Tell whether a round has ended and these known examples begin another."""
        is_over = self._n_updated >= len(self._position) and all(
            id_ in self._position for id_ in ids.tolist()
        )
        if is_over:
            self._n_updated = 0
        return is_over

    def positions(self, ids: Tensor) -> list[int]:
        """Return where in `values` the duals of examples are; new ones start at zero."""
        known = self._position
        found = [known.setdefault(id_, len(known)) for id_ in ids.tolist()]
        self._n_updated += len(found)
        if len(known) > len(self._ids):
            # Doubled, so that n examples are copied fewer than 2 n times.
            size = max(len(known), 2 * len(self._ids))
            self._ids = _enlarged(self._ids, size)
            self.values = _enlarged(self.values, size)
        self._ids[found] = ids.cpu().numpy()
        return found

    def as_slots(self) -> dict[str, Tensor]:
        """Return ids and duals of all examples seen so far; views, not copies."""
        n_seen = len(self._position)
        return {
            _IDS: torch.from_numpy(self._ids[:n_seen]),
            _DUALS: torch.from_numpy(self.values[:n_seen]),
        }


def _enlarged(array: NDArray[Any], size: int) -> NDArray[Any]:
    return np.concatenate([array, np.zeros(size - len(array), array.dtype)])


def _touched(parts: Sequence[Tensor], rows: Sequence[Tensor | None]) -> Tensor:
    """Return all of the first parts and some rows of the others, as one vector."""
    pairs = zip(parts, rows, strict=True)
    return torch.cat([(p if r is None else p[r]).ravel() for p, r in pairs])


def _float64(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.detach().cpu().double().numpy()


def _mean_square(batch: Examples) -> float:
    """Return the mean squared norm of examples, weighted."""
    factors = batch.factors or [None] * len(batch.looked_up)
    squares = batch.dense.double().square().sum(dim=1)
    for ids, factor in zip(batch.looked_up, factors, strict=True):
        ones = (ids >= 0).double()
        squares += (ones if factor is None else ones * factor).square().sum(dim=1)
    weights = 1.0 if batch.weights is None else batch.weights
    return float((weights * squares).mean())


def _factors(batch: Examples, local: Sequence[Tensor], n_columns: int) -> csr_array:
    """Return what multiplies the touched elements, with a row for each example.

    `local` holds the columns of looked-up elements, counted in each parameter from zero.
    Factors of an element that an example looks up twice are added.
    """
    n_rows, start = batch.dense.shape
    # (n_rows, n_elements), then (n_rows, n_values) for each look-up.
    columns = [torch.arange(start).expand(n_rows, start)]
    factors = [batch.dense.cpu().double()]
    given = batch.factors or [None] * len(local)
    for ids, places, factor in zip(batch.looked_up, local, given, strict=True):
        columns.append(places.cpu() + start)
        ones = (ids >= 0).cpu().double()
        factors.append(ones if factor is None else ones * factor.cpu().double())
        # `places` number the touched elements without a gap.
        start = int(columns[-1].max()) + 1
    indices, data = torch.cat(columns, dim=1), torch.cat(factors, dim=1)
    # (n_rows + 1,): all rows have as many entries, some of them zero.
    ends = np.arange(0, data.numel() + 1, data.shape[1])
    matrix = csr_array(
        (data.ravel().numpy(), indices.ravel().numpy(), ends), shape=(n_rows, n_columns)
    )
    # So that `_ascend` may write to its columns at once.
    matrix.sum_duplicates()
    return matrix


def _ascend(
    sums: NDArray[np.float64],
    duals: NDArray[np.float64],
    positions: list[int],
    factors: csr_array,
    batch: Examples,
    options: Mapping[str, Any],
) -> None:
    """Maximise the dual in one example after the other; `sums` and `duals` change."""
    l1, l2, new_dual = options["l1"], options["l2"], _NEW_DUALS[options["loss"]]
    labels = _float64(batch.labels)
    weights = np.ones_like(labels) if batch.weights is None else _float64(batch.weights)
    indices, data = factors.indices, factors.data
    # Every row has entries, zero or not; of an empty one reduceat would take the next.
    # (n_rows,): the squared norm of each example.
    squares = np.add.reduceat(data * data, factors.indptr[:-1])
    _check_repeated(positions, labels, squares)
    bounds = factors.indptr.tolist()
    for start, stop, position, label, weight, curvature in zip(
        bounds[:-1],
        bounds[1:],
        positions,
        labels.tolist(),
        weights.tolist(),
        # How fast the score grows with the dual: exact without L1, and with it the
        # bound that Prox-SDCA (2014) maximises instead.
        (weights * squares / l2).tolist(),
        strict=True,
    ):
        # (n_entries,)
        columns, x = indices[start:stop], data[start:stop]
        current = sums[columns]
        # The clipped part is what the soft threshold takes away.
        shrunk = current - np.minimum(np.maximum(current, -l1), l1) if l1 else current
        score = float(shrunk @ x) / l2
        old = duals.item(position)
        # In place: the next example sees the sums as this one leaves them.
        new = duals[position] = new_dual(label, score, old, curvature)
        sums[columns] = current + weight * (new - old) * x


def _check_repeated(
    positions: list[int], labels: NDArray[np.float64], squares: NDArray[np.float64]
) -> None:
    """Raise ValueError if an id stands for examples that differ."""
    distinct, first, inverse = np.unique(
        positions, return_index=True, return_inverse=True
    )
    if len(distinct) == len(positions):
        return
    same = (labels == labels[first][inverse]) & (squares == squares[first][inverse])
    if not same.all():
        row = int(np.flatnonzero(~same)[0])
        raise ValueError(
            f"Rows {first[inverse[row]]} and {row} of a batch have the same example id "
            "but are different examples. Take ids that are unique: there is one dual "
            "variable for each."
        )


def _logistic_dual(label: float, score: float, dual: float, curvature: float) -> float:
    """Return the dual ``label - sigmoid(t)`` that agrees with the score ``t`` it causes.

    The score becomes ``t = score + curvature * (label - sigmoid(t) - dual)``, so t is the
    root of an increasing function, which is convex below zero and concave above.
    """
    target = score + curvature * (label - dual)
    mirrored = target > curvature / 2  # a root t > 0 becomes one at -t
    if mirrored:
        target, score = curvature - target, -score
    # Where the function is convex, Newton's steps cannot miss the root.
    t = min(score, 0.0)
    for _ in range(_MAX_NEWTON_STEPS):
        e = math.exp(t)
        p = e / (1 + e)
        slope = p / (1 + e)
        step = (t + curvature * p - target) / (1 + curvature * slope)
        if abs(step) < _NEWTON_TOLERANCE:
            break
        t = min(t - step, 0.0)
    # The last step is taken in p, to first order, which saves an exponential.
    p -= slope * step
    return label - (1 - p if mirrored else p)


# The maximum along one coordinate in closed form: SDCA for the squared loss.
def _squared_dual(label: float, score: float, dual: float, curvature: float) -> float:
    return (label - score + curvature * dual) / (1 + curvature)


_NEW_DUALS: Mapping[str, Callable[[float, float, float, float], float]] = {
    "logistic": _logistic_dual,
    "squared": _squared_dual,
}
