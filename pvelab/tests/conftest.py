"""One lab without containers for the whole level, set back before each case."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from lab_harness import Lab

from pvelab.config import DEFAULT_STORAGES, SHARED, LabConfig, StorageConfig
from pvelab.conformance.contract import ACCOUNT
from pvelab.release import DEFAULT
from pvelab.server import LabServer
from pvelab.simulated import SimulatedRuntime, write_template
from pvelab.testing import pvelab, pvelab_session  # noqa: F401 - as the plugin, where pvelab is not installed

# Neither the speed of a machine nor chance decides a test: hypothesis has limits of its own, and other cases each time.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None, derandomize=True
)
settings.load_profile("any-machine")


def _lab(folder: Path, pve: str = DEFAULT) -> Iterator[Lab]:
    runtime = SimulatedRuntime()
    storages = (
        *DEFAULT_STORAGES,
        SHARED,
        StorageConfig("off", "lvmthin", frozenset({"rootdir", "images"}), enabled=False),
        StorageConfig("away", "lvmthin", frozenset({"rootdir", "images"}), nodes=frozenset({"pve2"})),
    )
    config = LabConfig(
        folder,
        runtime,
        nodes=("pve", "pve2"),
        storages=storages,
        auth_delay=0,
        lock_timeout=0.3,
        create_lock_timeout=0.2,
        broadcast_interval=0,
        account=ACCOUNT,
        pve=pve,
    )
    with LabServer(config) as server:
        write_template(config.template_dir("pve"))
        lab = Lab(server, runtime)
        yield lab
        lab.close()


@pytest.fixture(scope="session")
def _session_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    yield from _lab(tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="session")
def _session_lab_8(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    yield from _lab(tmp_path_factory.mktemp("lab8"), "8")


@pytest.fixture
def lab(_session_lab: Lab) -> Lab:
    _session_lab.reset()
    return _session_lab


@pytest.fixture
def lab_8(_session_lab_8: Lab) -> Lab:
    """The same as Proxmox VE 8."""
    _session_lab_8.reset()
    return _session_lab_8
