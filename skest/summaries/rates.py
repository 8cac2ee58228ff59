# SPDX-License-Identifier: Apache-2.0
"""Learning rates under names that tell what they are the rates of."""

from skest.spec import EstimatorSpec

__all__ = ["learning_rates"]

_TAG = "learning_rate"


def learning_rates(spec: EstimatorSpec) -> dict[str, float]:
    """Return the present learning rates of all parameter groups.

    Parameters
    ----------
    spec : EstimatorSpec
        Model of mode TRAIN.

    Returns
    -------
    dict of str to float
        "learning_rate" if there is one group only; otherwise
        "learning_rate/<module path>", with the innermost module that has all variables
        of the group, or with the number of the group where that leaves no difference.

    Examples
    --------
    >>> import torch
    >>> from skest import EstimatorSpec, ModeKeys
    >>> from skest.summaries.rates import learning_rates
    >>> network = torch.nn.ModuleDict(
    ...     {"wide": torch.nn.Linear(1, 1), "deep": torch.nn.Linear(1, 1)}
    ... )
    >>> parts = [(network["wide"], 0.5), (network["deep"], 0.1)]
    >>> spec = EstimatorSpec(
    ...     ModeKeys.TRAIN,
    ...     network=network,
    ...     loss=lambda labels, logits, features: (labels - logits).square().mean(),
    ...     optimizer=[torch.optim.SGD(m.parameters(), lr=lr) for m, lr in parts],
    ... )
    >>> learning_rates(spec)
    {'learning_rate/wide': 0.5, 'learning_rate/deep': 0.1}
    """
    groups = [g for optimizer in spec.optimizers for g in optimizer.param_groups]
    rates = [float(group["lr"]) for group in groups if "lr" in group]
    if len(rates) == 1:
        return {_TAG: rates[0]}
    paths = {} if spec.network is None else dict(spec.network.named_parameters())
    path_of = {id(parameter): name for name, parameter in paths.items()}
    names = [
        _common_module([path_of.get(id(p), "") for p in group["params"]])
        for group in groups
        if "lr" in group
    ]
    if "" in names or len(set(names)) < len(names):
        names = [str(number) for number in range(len(names))]
    return {f"{_TAG}/{n}": rate for n, rate in zip(names, rates, strict=True)}


def _common_module(paths: list[str]) -> str:
    """Return the path of the innermost module that has all variables."""
    parts = [path.split(".")[:-1] for path in paths]
    shared = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return "/".join(shared)
