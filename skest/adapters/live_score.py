# SPDX-License-Identifier: Apache-2.0
"""`LiveScore`: the validation score of a network in training."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from skest.adapters.rows import Rows
from skest.adapters.target_scale import TargetScale
from skest.adapters.targets.base import Target
from skest.evaluation import predict_batch
from skest.hooks.base import Run
from skest.inputs.array_dataset import ArrayDataset
from skest.inputs.batches import Source, tensor_batches

__all__ = ["LiveScore"]


class LiveScore:
    """Scores the network in training on validation rows, which are encoded once.

    Parameters
    ----------
    target : Target
        What the score is.
    scale : TargetScale or None
        The scale of the labels in training.
    rows : Rows
        The validation rows.
    batch_size : int
        Rows predicted at once.
    weighted : bool
        Whether the model in training has weights.
    """

    def __init__(
        self,
        target: Target,
        scale: TargetScale | None,
        rows: Rows,
        batch_size: int,
        weighted: bool,
    ) -> None:
        self._target = target
        self._scale = scale
        self._batch_size = batch_size
        self._rows = rows
        self._features = rows.features
        if weighted:  # the model in training asks for weights; the score has its own
            weight = np.ones(rows.n_rows) if rows.weight is None else rows.weight
            self._features = rows._replace(weight=weight).with_normalised_weight()
        self._batches: list[Any] = []

    def begin(self, run: Run) -> None:
        """Encode the rows; wrong ones are refused before the first step."""
        self._target.check_validation(self._rows.labels)
        dataset = ArrayDataset(
            self._features, self._rows.labels, batch_size=self._batch_size
        )
        run.held_out = dataset
        parameter = next(run.network.parameters())
        self._batches = list(
            tensor_batches(
                Source(dataset),
                run.spec.encode,
                None,
                parameter.device,
                parameter.dtype,
                with_labels=False,
            )
        )

    @property
    def _beside(self) -> dict[str, Any]:
        """What the heads read beside the logits, of all rows."""
        head: Any = self._target.head(None)
        heads = getattr(head, "heads", [head])
        keys = {key for part in heads for key in (part.weight_key, part.features_key)}
        batches = [features for features, _ in self._batches]
        return {
            key: _joined([batch[key] for batch in batches])
            for key in keys
            if key in batches[0]
        }

    def __call__(self, run: Run) -> float:
        """Return the score of the present network."""
        keys = self._target.validation_keys
        run.refresh()
        run.network.eval()
        try:
            batches = [
                predict_batch(run.spec, features, keys) for features, _ in self._batches
            ]
        finally:
            run.network.train()
        predictions = {key: np.concatenate([b[key] for b in batches]) for key in keys}
        return self._target.validation_score(
            predictions, self._rows.labels, self._rows.weight, self._scale, self._beside
        )


def _joined(parts: list[Any]) -> Any:
    """Return the rows of all batches, of tensors or dictionaries of them."""
    if isinstance(parts[0], Mapping):
        return {key: _joined([part[key] for part in parts]) for key in parts[0]}
    return torch.cat(parts).cpu()
