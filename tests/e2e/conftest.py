"""What the tests of phases in a real container stand on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.phase_guest import HOME, Guest, Proxy, a_guest


@pytest.fixture(scope="module")
def guest(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """With its volume where the module's MOUNT_PATH says."""
    home = getattr(request.module, "MOUNT_PATH", HOME)
    with a_guest(tmp_path_factory.mktemp("provisioning-lab"), home) as made:
        yield made


@pytest.fixture
def proxy(guest: Guest) -> Iterator[Proxy]:
    made = Proxy(guest.address)
    yield made
    made.close()
