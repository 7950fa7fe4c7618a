"""A lab without containers in the tests' own process; and fixtures for pytest, which finds them by itself.

>>> with simulated_lab(tmp_path) as lab:
...     requests.get(f"{lab.endpoint}api2/json/version", headers=lab.headers, verify=str(lab.ca_file))

Fixtures: ``pvelab_session`` is one lab for the whole run; ``pvelab`` is the same one, set back before each test.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pvelab.config import LabConfig
from pvelab.faults import Faults, Rule
from pvelab.server import Credentials, LabServer
from pvelab.simulated import SimulatedRuntime, write_template


class SimulatedLab:
    """A lab that answers: where it is, how one logs in, and what can be done to it."""

    def __init__(self, server: LabServer) -> None:
        self.server = server
        self.credentials: Credentials = server.seed_access()
        self.template = f"local:vztmpl/{write_template(server.config.template_dir(self.node)).name}"

    @property
    def endpoint(self) -> str:
        """``https://127.0.0.1:PORT/``; the API is below ``api2/json``."""
        return self.server.endpoint

    @property
    def ca_file(self) -> Path:
        return self.server.ca_file

    @property
    def node(self) -> str:
        """The first node; all: ``server.config.nodes``."""
        return self.server.config.nodes[0]

    @property
    def api_token(self) -> str:
        """``USER@REALM!NAME=SECRET``"""
        return self.credentials.api_token

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"PVEAPIToken={self.api_token}"}

    @property
    def faults(self) -> Faults:
        return self.server.faults

    def fail(self, **rule: Any) -> int:
        """One more fault, by the fields of :class:`pvelab.faults.Rule`; its number."""
        return self.faults.add(Rule(**rule))

    def wait_idle(self, seconds: float = 30.0) -> None:
        """Return once no task runs; TimeoutError after ``seconds``."""
        if not self.server.cluster.tasks.wait_idle(seconds):
            raise TimeoutError(f"tasks still run after {seconds} s")

    def reset(self) -> None:
        """Be as a new lab, at the same address and with the same token."""
        self.credentials = self.server.reset()


@contextlib.contextmanager
def simulated_lab(folder: Path, **given: Any) -> Iterator[SimulatedLab]:
    """Run a lab in a folder; ``given``: fields of :class:`pvelab.config.LabConfig`. A refused login is told at once."""
    runtime = given.pop("runtime", None) or SimulatedRuntime()
    with LabServer(LabConfig(folder, runtime, **{"auth_delay": 0, "broadcast_interval": 0, **given})) as server:
        yield SimulatedLab(server)


@pytest.fixture(scope="session")
def pvelab_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedLab]:
    """One lab for the whole run, as the tests before left it."""
    with simulated_lab(tmp_path_factory.mktemp("pvelab")) as lab:
        yield lab


@pytest.fixture
def pvelab(pvelab_session: SimulatedLab) -> SimulatedLab:
    """A lab without guests, at an address that is the same for all tests of a run."""
    pvelab_session.reset()
    return pvelab_session
