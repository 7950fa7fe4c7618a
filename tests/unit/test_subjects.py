"""What the settings and Pulumi add to the faults and refusals of `proxmox`, which knows neither."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxmox import errors
from proxmox.errors import Fault, Subject
from settings.read import SETTINGS
from settings.subjects import KEYS, REMEDIES, explained, of_stack

PROXMOX = Path(errors.__file__).parent


def test_each_subject_is_a_setting_or_has_a_remedy() -> None:
    assert set(Subject) == KEYS.keys() | REMEDIES.keys()
    assert {key for keys in KEYS.values() for key in keys if key} <= SETTINGS.keys()


def test_proxmox_knows_no_setting_and_no_command_of_ours() -> None:
    """Those of the way to the API are its own: connection.py reads them."""
    ours = sorted(key for key in SETTINGS if re.search(r"[A-Z]", key) and key not in ("apiToken", "caFile"))
    words = re.compile(rf"\b({'|'.join(ours)}|pulumi (up|destroy|refresh|state|stack)|README)\b")
    found = {file.name: words.findall(file.read_text()) for file in PROXMOX.glob("*.py")}
    assert not {name: hits for name, hits in found.items() if hits}


def test_a_fault_gets_the_name_of_its_setting() -> None:
    fault = Fault("storage and volume", "hdd", "must exist", "correct the name")
    assert of_stack(fault, "pet") == Fault("petStorage and petVolumes", "hdd", "must exist", "correct the name")
    assert of_stack(fault, "cattle").key == "cattleStorage and cattleVolume"
    # What is no subject stays: a path of rights, a reading.
    assert of_stack(Fault("/vms", "", "r", "d"), "pet") == Fault("/vms", "", "r", "d")


def test_what_is_to_be_pasted_stays_a_line_of_its_own() -> None:
    fault = of_stack(Fault(Subject.ROOT, "w", "r", "paste this:\n         pct set 105"), "cattle")
    assert fault.key == "cattleHostMounts"
    assert fault.remedy.splitlines()[1:] == ["         pct set 105", f"       {REMEDIES[Subject.ROOT]}"]


def test_what_only_root_may_set_is_told_once_by_all_its_settings() -> None:
    fault = of_stack(Fault(f"{Subject.ROOT} and {Subject.KEYCTL}", "w", "r", "paste this"), "cattle")
    assert fault.key == "cattleHostMounts and cattleKeyctl"
    assert fault.remedy.count("nodeSshHostKey") == 1


@pytest.mark.parametrize(
    ("error", "last"),
    [
        (errors.PetRunning("CT 999 runs", "both would write", "stop it"), "petStarted"),
        (errors.NotOurs("CT 105 exists", "w", "choose another", Subject.STRANGER), "Take over a guest"),
        (errors.NotOurs("CT 105 exists", "w", "do"), "do:  do"),
        (errors.HostFolderForeign("/srv is not empty", "w", "choose another source"), "cattleHostMounts"),
        (ValueError("plain"), "plain"),
    ],
)
def test_a_refusal_says_what_pulumi_has_to_do_with_it(error: Exception, last: str) -> None:
    lines = explained(error).splitlines()
    assert last in lines[-1]
    assert lines[0] == str(error).splitlines()[0]
