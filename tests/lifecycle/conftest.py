"""One lab without containers is made once; each journey gets a copy of it, untouched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.engine import Run
from tests.lifecycle.homesite import Request, Site, copied, opened


@dataclass(frozen=True)
class Deployed:
    """A lab as an ``up`` left it, for copies; and what that ``up`` was and asked for."""

    folder: Path
    run: Run
    sent: tuple[Request, ...]


@pytest.fixture(scope="session")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lab with empty stacks, which takes the CLI some seconds to make."""
    folder = tmp_path_factory.mktemp("seed") / "lab"
    with opened(folder):
        pass
    return folder


@pytest.fixture
def site(seed: Path, tmp_path: Path) -> Iterator[Site]:
    """Nothing is deployed yet."""
    with opened(copied(seed, tmp_path / "lab")) as made:
        yield made


@pytest.fixture(scope="session")
def pet_seed(seed: Path, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """A lab where the pet is up, with one volume of 2 GB."""
    folder = copied(seed, tmp_path_factory.mktemp("pet") / "lab")
    with opened(folder) as made:
        made.configure(petVolumes=[{"name": "hermes", "storage": "local-lvm", "size": 2, "path": "/mnt/hermes"}])
        run = made.up("pet")
        return Deployed(folder, run, tuple(made.sent))


@pytest.fixture
def with_pet(pet_seed: Deployed, tmp_path: Path) -> Iterator[Site]:
    """The pet is up."""
    with opened(copied(pet_seed.folder, tmp_path / "lab")) as made:
        yield made


@pytest.fixture(scope="session")
def both_seed(pet_seed: Deployed, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """A lab where both stacks are up."""
    folder = copied(pet_seed.folder, tmp_path_factory.mktemp("both") / "lab")
    with opened(folder) as made:
        run = made.up("cattle")
        return Deployed(folder, run, tuple(made.sent))


@pytest.fixture
def with_both(both_seed: Deployed, tmp_path: Path) -> Iterator[Site]:
    """Pet and cattle are up."""
    with opened(copied(both_seed.folder, tmp_path / "lab")) as made:
        yield made
