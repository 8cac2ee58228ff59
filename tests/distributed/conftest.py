# SPDX-License-Identifier: Apache-2.0
"""Parameter servers in threads, for trainings of this process."""

import functools

import pytest

from tests.distributed._servers import LocalServers
from tests.distributed._training import replica


@pytest.fixture
def served(monkeypatch):
    """Return ``served(n, train)``, which trains with n parameter servers; 0 is none.

    ``served.tasks`` is what the first server knew of the tasks then.
    """

    def run(num_ps, train, **options):
        if num_ps == 0:
            return train()
        with LocalServers(num_ps) as servers, monkeypatch.context() as patch:
            make = functools.partial(replica, servers.addresses, **options)
            patch.setattr("skest.estimators.estimator.Replica", make)
            try:
                return train()
            finally:
                run.tasks = servers.servers[0].members.to_json()

    return run
