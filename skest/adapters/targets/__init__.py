# SPDX-License-Identifier: Apache-2.0
"""What ``y`` of scikit-learn means to a head."""
