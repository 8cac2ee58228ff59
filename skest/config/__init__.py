# SPDX-License-Identifier: Apache-2.0
"""Config: what a user says of a run before it begins.

`RunConfig` holds it; the cluster comes from the environment (``SKEST_CONFIG``,
``TF_CONFIG``, torchrun, SLURM), and a strategy says how its tasks share the work. These
are values: nothing here trains or opens a connection.
"""
