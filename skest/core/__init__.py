# SPDX-License-Identifier: Apache-2.0
"""Core: what every part of skest may use, and what knows nothing of models.

Checks of arguments, files that are complete whenever they can be seen, random numbers
of one run, device and threads of one call, and Ctrl-C. Nothing here imports another
part of skest but its exceptions.
"""
