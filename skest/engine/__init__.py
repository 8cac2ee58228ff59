# SPDX-License-Identifier: Apache-2.0
"""Engine: one call of an Estimator, from a model function to a last checkpoint.

`model` calls the model function and restores its variables; `training`, `evaluation` and
`prediction` each are one call; `loop` takes the steps, with hooks around them. `recorded`
computes steps faster, bit for bit the same. A `Replica` is the part of this process where
several train.
"""
