# SPDX-License-Identifier: Apache-2.0
"""Comparisons with numbers that tf.estimator 2.15 computed."""
