# SPDX-License-Identifier: Apache-2.0
"""Estimators of several libraries for benchmarks/conformance.py, each in a module.

A module has `PACKAGES`, whose versions are told, and `ESTIMATORS` by name.
"""
