# SPDX-License-Identifier: Apache-2.0
"""The same work for each library, a module for each, which imports no other library.

``fit_dense(X, y, batch_size, n_epochs, ...)`` trains a network of 128 and 64 units with
Adam 1e-3. ``fit_wide_deep`` and ``fit_linear`` are there where the library has such models.
They return a function from X to the probabilities of the second class.
"""
