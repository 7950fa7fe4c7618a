"""The first command of the README, as a newcomer types it: everything real, and nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pvelab.place import Place

ROOT = Path(__file__).parents[2]
DEADLINE = 1200

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="real containers need root")


def left_behind(place: Place) -> dict[str, list[str]]:
    """What of a lab is still on the machine: mounts, loop devices, network devices, packet filter tables, processes."""

    def lines(*command: str) -> list[str]:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        return done.stdout.splitlines()

    marks = (str(place.state_dir), str(place.run_dir), place.bridge, place.table)
    found = {
        "mounts": Path("/proc/self/mountinfo").read_text().replace("\\040", " ").splitlines(),
        "loop devices": lines("losetup", "--list", "--output", "BACK-FILE"),
        "network": lines("ip", "-o", "link"),
        "tables": lines("nft", "list", "tables"),
        "processes": [
            path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if path.parent.name != str(os.getpid()) and path.exists()
        ],
    }
    mine = {
        what: [entry for entry in entries if any(mark in entry for mark in marks)] for what, entries in found.items()
    }
    return {what: entries for what, entries in mine.items() if entries}


@pytest.fixture
def lab_dir(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "a lab"
    yield folder
    environment = {**os.environ, "HERMES_LAB_DIR": str(folder)}
    subprocess.run([ROOT / "scripts" / "lab", "destroy"], env=environment, check=False, timeout=120)


@pytest.mark.timeout(DEADLINE + 60)
def test_the_demo_holds_what_it_claims_and_cleans_up(lab_dir: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    # docs/demo.svg is made so.
    recording = Path(os.environ.get("DEMO_RECORDING") or tmp_path / "demo.svg").resolve()
    done = subprocess.run(
        [ROOT / "scripts" / "demo", "--down", "--json", figures, "--record", recording],
        env={**os.environ, "HERMES_LAB_DIR": str(lab_dir)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for claim in (
        "answers a prompt",
        "keeps a memory",
        "pet: no changes",
        "cattle: no changes",
        "is still there",
        "its bytes are unchanged",
        "a new host key is pinned",
        "the agent remembers",
    ):
        assert claim in done.stdout, done.stdout
    phases = json.loads(figures.read_text())["phases"]
    assert set(phases) == {"ensure pet", "create", "ssh", "attach", "baseline", "agent", "configure", "verify"}
    recorded = recording.read_text()
    assert "agent&#160;remembers" in recorded
    assert not lab_dir.exists()
    assert left_behind(Place.of(lab_dir)) == {}
