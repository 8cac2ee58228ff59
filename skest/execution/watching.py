# SPDX-License-Identifier: Apache-2.0
"""What recordings take for fixed, and who else wants to be called in a step."""

from torch.nn.modules import module as _modules
from torch.optim import optimizer as _optimizers

from skest.spec import EstimatorSpec

__all__ = ["has_hooks_of_all_modules", "has_hooks_of_updates"]


def has_hooks_of_all_modules() -> bool:
    """Tell whether hooks are registered that are called for every module there is.

    Examples
    --------
    >>> from torch.nn.modules.module import register_module_forward_hook
    >>> from skest.execution.watching import has_hooks_of_all_modules
    >>> handle = register_module_forward_hook(lambda module, inputs, output: None)
    >>> has_hooks_of_all_modules()
    True
    >>> handle.remove()
    >>> has_hooks_of_all_modules()
    False
    """
    return bool(
        _modules._global_forward_hooks
        or _modules._global_forward_pre_hooks
        or _modules._global_backward_hooks
        or _modules._global_backward_pre_hooks
    )


def has_hooks_of_updates(spec: EstimatorSpec) -> bool:
    """Tell whether somebody wants to be called when an optimizer takes a step.

    Parameters
    ----------
    spec : EstimatorSpec
        Model of mode TRAIN.
    """
    if (
        _optimizers._global_optimizer_pre_hooks
        or _optimizers._global_optimizer_post_hooks
    ):
        return True
    for optimizer in spec.optimizers:
        for rule in (optimizer, getattr(optimizer, "inner", optimizer)):
            if rule._optimizer_step_pre_hooks or rule._optimizer_step_post_hooks:
                return True
            if "step" in vars(rule):  # replaced, by a wrapper that does more
                return True
    return False
