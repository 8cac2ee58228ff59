# SPDX-License-Identifier: Apache-2.0
"""A small server of exported models, for HTTP clients of two protocols."""

from skest.export.serving.requests import Limits
from skest.export.serving.server import ModelServer

__all__ = ["Limits", "ModelServer"]
