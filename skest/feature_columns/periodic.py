# SPDX-License-Identifier: Apache-2.0
"""`periodic_column`: numbers beside waves of them that a network learns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor, nn

from skest.core.checks import check_integer, check_positive
from skest.feature_columns.base import TrainedColumn
from skest.feature_columns.numeric import NumericColumn, OverNumeric
from skest.feature_columns.table import Table

#: Names of what a network trains.
PARAMETERS = ("frequencies", "phases", "weights", "bias")


def periodic_column(
    source_column: NumericColumn,
    dimension: int = 4,
    n_frequencies: int = 16,
    scale: float = 0.1,
) -> "PeriodicColumn":
    """Give a network waves of a number, of frequencies that it learns, beside the number.

    A network of scaled numbers learns slowly what goes up and down often; here it has
    cosines to put together. Use this column in place of the numeric column.

    Parameters
    ----------
    source_column : NumericColumn
        Without indicators of missing numbers. Its numbers should be scaled, best by
        ``normalizer="robust"``.
    dimension : int, default=4
        Into how many numbers a network turns each element of a cell, 2 or more: itself,
        and linear functions of the waves.
    n_frequencies : int, default=16
        How many waves each element has.
    scale : float, default=0.1
        Standard deviation of the frequencies at the start: the greater, the more often a
        function may go up and down.

    Returns
    -------
    PeriodicColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong.

    Notes
    -----
    This is the embedding "PBLD" of RealMLP (Holzmüller, Grinsztajn and Steinwart 2024,
    "Better by Default", arXiv:2407.04491). Of an element x it makes x and
    ``bias + cos(2 * pi * x * frequencies + phases) @ weights``, of shape
    (dimension - 1,), where `frequencies` and `phases` have the shape (n_frequencies,).
    At the start, frequencies are normal with standard deviation `scale`, phases uniform
    between -pi and pi, weights and bias between ``-n_frequencies**-0.5`` and
    ``n_frequencies**-0.5``. Each element has its own; a network trains them all, at the
    learning rate of its layers (RealMLP takes a tenth for them).

    `transform` gives what a fitted estimator has learned. Linear models refuse the
    column: a linear function of waves is none of the number.

    Examples
    --------
    >>> import torch
    >>> from skest.feature_columns import DenseFeatures, FeatureColumns
    >>> from skest.feature_columns import numeric_column, periodic_column
    >>> columns = FeatureColumns([periodic_column(numeric_column("size", shape=2))])
    >>> dense = DenseFeatures(columns)
    >>> {name: tuple(p.shape) for name, p in dense.named_parameters()}
    {'size_periodic.frequencies': (2, 16), 'size_periodic.phases': (2, 16),
     'size_periodic.weights': (2, 16, 3), 'size_periodic.bias': (2, 3)}
    >>> dense(columns.encode({"size": [[0.5, -0.5]]}))[:, [0, 4]].tolist()
    [[0.5, -0.5]]
    """
    return PeriodicColumn(source_column, dimension, n_frequencies, scale).validated()


@dataclass(eq=False, repr=False)
class PeriodicColumn(OverNumeric, TrainedColumn):
    """Column made by `periodic_column`, where the parameters are documented.

    Attributes
    ----------
    source_column_ : NumericColumn
        The fitted source.
    weights_ : dict of str to ndarray
        The learned parameters of `PeriodicNumbers`. The estimator sets them on its
        fitted copy of the column; `transform` needs them, and `fit` refuses to lose them.
    """

    source_column: NumericColumn
    dimension: int = 4
    n_frequencies: int = 16
    scale: float = 0.1

    @property
    def name(self) -> str:
        """Name of the source and ``_periodic``."""
        return f"{self.source_column.name}_periodic"

    @property
    def encoded_key(self) -> str:
        """Key of the numbers of the source: the name and ``_numbers``."""
        return f"{self.name}_numbers"

    @property
    def size(self) -> int:
        """Numbers for all elements, `dimension` for each."""
        return self.dimension * self.source_column.n_elements

    def _validate(self) -> None:
        owner = self._validate_source("periodic")
        check_integer(self.dimension, "dimension", owner, minimum=2)
        check_integer(self.n_frequencies, "n_frequencies", owner, minimum=1)
        check_positive(self.scale, "scale", owner)

    def _encoded(self, table: Table) -> dict[str, np.ndarray]:
        numbers = self.source._encoded(table)[self.source.encoded_key]
        return {self.encoded_key: numbers}

    def _matrix(self, table: Table) -> np.ndarray:
        learned = {name: torch.tensor(v) for name, v in self._trained_weights.items()}
        dtype = learned["bias"].dtype
        network = PeriodicNumbers(self, dtype, initialize=False)
        network.load_state_dict(learned)
        numbers = torch.from_numpy(self._encoded(table)[self.encoded_key]).to(dtype)
        with torch.no_grad():
            return network(numbers).numpy()

    def _output_names(self) -> list[str]:
        return [
            f"{name}_periodic_{i}"
            for name in self.source._element_names
            for i in range(self.dimension)
        ]


class PeriodicNumbers(nn.Module):
    """Numbers and waves of them, as `periodic_column` says.

    Parameters
    ----------
    column : PeriodicColumn
        Which numbers.
    dtype : torch.dtype, default=torch.float32
        Type of the parameters and of the output.
    generator : torch.Generator, default=None
        Source of the initial parameters, on the CPU.
    initialize : bool, default=True
        Without, the parameters are left as memory was, for a checkpoint to fill.
    """

    def __init__(
        self,
        column: PeriodicColumn,
        dtype: torch.dtype = torch.float32,
        generator: Generator | None = None,
        initialize: bool = True,
    ) -> None:
        super().__init__()
        waves = (column.source_column.n_elements, column.n_frequencies)
        n_out = column.dimension - 1
        self.frequencies = nn.Parameter(torch.empty(waves, dtype=dtype))
        self.phases = nn.Parameter(torch.empty(waves, dtype=dtype))
        self.weights = nn.Parameter(torch.empty(*waves, n_out, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(waves[0], n_out, dtype=dtype))
        if initialize:
            # As nn.Linear with so many inputs.
            bound = column.n_frequencies**-0.5
            nn.init.normal_(self.frequencies, std=column.scale, generator=generator)
            nn.init.uniform_(self.phases, -math.pi, math.pi, generator=generator)
            nn.init.uniform_(self.weights, -bound, bound, generator=generator)
            nn.init.uniform_(self.bias, -bound, bound, generator=generator)

    def forward(self, numbers: Tensor) -> Tensor:
        """Return numbers of shape (n_rows, size) for some of shape (n_rows, n_elements)."""
        return _with_waves(numbers, *self.parameters()).flatten(1)


def computed_together(
    networks: Sequence[PeriodicNumbers], numbers: Sequence[Tensor]
) -> list[Tensor]:
    """Return what each network makes of its numbers; all have as many waves and outputs.

    Many columns of one number each take many small operations, this takes few.
    """
    if len(networks) == 1:
        return [networks[0](numbers[0])]
    parameters = zip(*(network.parameters() for network in networks), strict=True)
    joined = [torch.cat(several) for several in parameters]
    found = _with_waves(torch.cat(list(numbers), dim=1), *joined)
    parts = found.split([own.shape[1] for own in numbers], dim=1)
    return [part.flatten(1) for part in parts]


def _with_waves(
    numbers: Tensor, frequencies: Tensor, phases: Tensor, weights: Tensor, bias: Tensor
) -> Tensor:
    """Return numbers beside waves of them, of shape (n_rows, n_elements, dimension)."""
    x = numbers.T.unsqueeze(-1)
    speeds = (2 * math.pi * frequencies).unsqueeze(1)
    waves = torch.addcmul(phases.unsqueeze(1), x, speeds).cos()
    found = torch.baddbmm(bias.unsqueeze(1), waves, weights)
    return torch.cat([x, found], dim=-1).transpose(0, 1)
