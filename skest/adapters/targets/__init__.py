# SPDX-License-Identifier: Apache-2.0
"""What ``y`` of scikit-learn means to a head."""

from skest.adapters.targets.base import Target
from skest.adapters.targets.classes import ClassTarget, LabelsTarget
from skest.adapters.targets.infer import GivenTarget
from skest.adapters.targets.numbers import NumberTarget
from skest.adapters.targets.several import SeveralTargets

__all__ = [
    "ClassTarget",
    "GivenTarget",
    "LabelsTarget",
    "NumberTarget",
    "SeveralTargets",
    "Target",
]
