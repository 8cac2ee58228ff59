# SPDX-License-Identifier: Apache-2.0
"""How steps and predictions are computed: eagerly, or recorded once and replayed."""

from skest.execution.choice import make_inference, make_step
from skest.execution.inference import Inference
from skest.execution.step import GraphStep

__all__ = ["GraphStep", "Inference", "make_inference", "make_step"]
