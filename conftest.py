# SPDX-License-Identifier: Apache-2.0
"""Settings for the whole test run."""

import os

# scikit-learn skips its array-API check unless SciPy was imported with this.
os.environ.setdefault("SCIPY_ARRAY_API", "1")
