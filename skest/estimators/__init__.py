# SPDX-License-Identifier: Apache-2.0
"""Estimators: train, evaluate, predict and export with a model function.

`Estimator` holds checkpoints, never a live module: every call builds a fresh model in
`skest.engine`. `train_and_evaluate` trains with evaluations and exports along the way, in
one process or as one task of a cluster.
"""
