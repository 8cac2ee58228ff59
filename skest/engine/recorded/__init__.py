# SPDX-License-Identifier: Apache-2.0
"""Steps and predictions that are recorded once and replayed.

`recording` notes the operations of the first step while they run; `simplify` leaves out
what nobody reads and fuses the rest; `program` runs them with memory that is planned once.
`step` and `inference` are what the loops call; `choice` says whether they or plain steps
are taken.
"""
