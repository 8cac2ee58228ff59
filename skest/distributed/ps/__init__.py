# SPDX-License-Identifier: Apache-2.0
"""Parameter servers: processes that hold variables while others train them.

A worker asks for the rows that its batch needs and for the dense variables, computes
gradients, and sends them; the server that holds the variables applies them at once, in the
order in which they come. Only the chief reads and writes checkpoints: rows travel in
blocks between its files and the servers.
"""
