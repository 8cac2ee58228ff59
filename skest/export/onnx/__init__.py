# SPDX-License-Identifier: Apache-2.0
"""Models as ONNX graphs."""
