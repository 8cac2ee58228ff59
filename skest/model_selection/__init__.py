# SPDX-License-Identifier: Apache-2.0
"""Many models at once."""

from skest.model_selection.fit_many import fit_many

__all__ = ["fit_many"]
