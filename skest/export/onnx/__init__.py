# SPDX-License-Identifier: Apache-2.0
"""Models as ONNX graphs: `skest.export.onnx.model` puts the parts together."""

__all__ = []
