# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: the state of a training, and what may be known of a model from it.

A `Checkpoint` is variables, state of optimizers, global step and state of generators. A
store keeps some of them, in memory or in ``model_dir``, in the files that `format`
describes; results of evaluations lie beside them. A warm start reads variables of another
training from them.
"""
