# SPDX-License-Identifier: Apache-2.0
"""Settings for tests with sockets."""

import os

# Every store connection asks for the name of its peer; without a name server, 5 s are lost
# now and then.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
