"""One lab without containers for the whole level, set back before each case."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab_harness import Lab

from pvelab.config import DEFAULT_STORAGES, SHARED, LabConfig, StorageConfig
from pvelab.conformance.contract import ACCOUNT
from pvelab.server import LabServer
from pvelab.simulated import SimulatedRuntime, write_template
from pvelab.testing import pvelab, pvelab_session  # noqa: F401 - as the plugin, where pvelab is not installed


@pytest.fixture(scope="session")
def _session_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    runtime = SimulatedRuntime()
    storages = (
        *DEFAULT_STORAGES,
        SHARED,
        StorageConfig("off", "lvmthin", frozenset({"rootdir", "images"}), enabled=False),
        StorageConfig("away", "lvmthin", frozenset({"rootdir", "images"}), nodes=frozenset({"pve2"})),
    )
    config = LabConfig(
        tmp_path_factory.mktemp("lab"),
        runtime,
        nodes=("pve", "pve2"),
        storages=storages,
        auth_delay=0,
        lock_timeout=0.3,
        create_lock_timeout=0.2,
        broadcast_interval=0,
        account=ACCOUNT,
    )
    with LabServer(config) as server:
        write_template(config.template_dir("pve"))
        lab = Lab(server, runtime)
        yield lab
        lab.close()


@pytest.fixture
def lab(_session_lab: Lab) -> Lab:
    _session_lab.reset()
    return _session_lab
