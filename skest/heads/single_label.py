# SPDX-License-Identifier: Apache-2.0
"""`SingleLabelHead`: what heads for one class per example share."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from skest.heads.labels import (
    check_vocabulary,
    class_names,
    vocabulary_ids,
    vocabulary_index,
)
from skest.heads.single_task import SingleTaskHead
from skest.heads.weights import WeightColumn
from skest.keys import PredictionKeys

__all__ = ["SingleLabelHead"]


class SingleLabelHead(SingleTaskHead):
    """Base of the heads whose labels name one of several classes.

    A subclass defines `n_classes` before it calls this constructor.

    Parameters
    ----------
    label_vocabulary : sequence of str, default=None
        Names of the classes, in the order of their ids. With it, raw labels are names;
        without, they are ids from 0, and the names are their decimal digits.
    weight_column, loss_reduction, loss_fn, name
        See `skest.heads.SingleTaskHead`.
    """

    n_classes: int

    def __init__(
        self,
        weight_column: str | WeightColumn | None,
        label_vocabulary: Sequence[str] | None,
        loss_reduction: str,
        loss_fn: Callable[..., Tensor] | None,
        name: str | None,
    ) -> None:
        super().__init__(weight_column, loss_reduction, loss_fn, name)
        check_vocabulary(label_vocabulary, self.n_classes, self._title)
        self.label_vocabulary = label_vocabulary

    # Both take milliseconds for very many classes and are needed for every batch.

    @cached_property
    def _index(self) -> pd.Index | None:
        vocabulary = self.label_vocabulary
        return None if vocabulary is None else vocabulary_index(vocabulary)

    @cached_property
    def _names(self) -> np.ndarray:
        return class_names(self.label_vocabulary, self.n_classes)

    @property
    def _label_dimension(self) -> int:
        return 1

    @abstractmethod
    def _class_ids(self, logits: Tensor) -> Tensor:
        """Predicted classes (..., 1); the lowest id among equals."""

    @abstractmethod
    def _probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities of the classes (..., n_classes)."""

    @abstractmethod
    def _check_ids(self, labels: np.ndarray) -> np.ndarray:
        """Check class ids; return them as numbers of one of three types."""

    def _encode_array(self, array: np.ndarray, is_encoded: bool) -> np.ndarray:
        if not is_encoded:
            array = vocabulary_ids(array, self._index, self._title)
        return self._check_ids(array)

    def _predictors(self) -> dict[str, Callable[[Tensor], Any]]:
        ids = torch.arange(self.n_classes, dtype=torch.int32)

        def rows(logits: Tensor) -> tuple[int, int]:
            return logits.shape[0], self.n_classes

        return {
            PredictionKeys.LOGITS: lambda logits: logits,
            PredictionKeys.PROBABILITIES: self._probabilities,
            PredictionKeys.CLASS_IDS: self._class_ids,
            PredictionKeys.CLASSES: lambda z: self._names[
                self._class_ids(z).cpu().numpy()
            ],
            PredictionKeys.ALL_CLASS_IDS: lambda z: ids.to(z.device).expand(rows(z)),
            PredictionKeys.ALL_CLASSES: lambda z: np.broadcast_to(self._names, rows(z)),
        }
