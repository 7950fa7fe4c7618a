"""What is declared about the agent, through the real engine as far as the preview: nothing is set up here."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from lab.instance import CHECKOUT
from tests.lifecycle.homesite import Site
from tests.lifecycle.test_refusals import refused

CANARY = "canary-part-of-an-object-31c7"
TELEGRAM = "123456789:" + "A" * 35


GOLDEN = Path(__file__).parents[1] / "golden"
VARYING = {
    r"https://127\.0\.0\.1:\d+": "ENDPOINT",
    r"(?:[0-9A-F]{2}:){5}[0-9A-F]{2}": "MAC",
}


def as_comment(site: Site, *stacks: str, good: bool = True) -> str:
    """What a pull request would be told."""
    command = [str(CHECKOUT / "scripts" / "preview"), *stacks]
    done = subprocess.run(command, env=site.env, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode == 0) is good, done.stdout + done.stderr
    return done.stdout


def is_as_in(file: str, text: str) -> None:
    """The text is the one of tests/golden; WRITE_GOLDEN=1 writes it, for a look with git diff."""
    for pattern, name in VARYING.items():
        text = re.sub(pattern, name, text)
    golden = GOLDEN / file
    if os.environ.get("WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_a_reviewer_reads_what_changes_what_restarts_and_what_takes_two_steps(with_both: Site) -> None:
    site = with_both
    hermes = {"name": "hermes", "storage": "local-lvm", "size": 2, "path": "/mnt/hermes"}
    alice = {**hermes, "name": "alice", "path": "/mnt/alice"}
    # A volume that is added and used at once: the cattle is previewed when the pet has it.
    site.configure(petVolumes=[hermes, alice], cattleVolume="alice", cattleMemory=2048)
    is_as_in("a_new_volume_in_two_steps.md", as_comment(site))
    site.configure(petVolumes=[{**hermes, "size": 4}], cattleVolume="hermes", cattleTags=["agent"])
    is_as_in("a_volume_grows_in_two_steps.md", as_comment(site))
    site.configure(petVolumes=[hermes], cattleMountPath="/srv/hermes", cattleBridge="vmbr7")
    is_as_in("refused.md", as_comment(site, "cattle", good=False))
    assert site.writes == []


def test_a_secret_environment_is_set_part_by_part(with_pet: Site) -> None:
    """The engine tells only that there is a secret in the object; which part is none, its file tells."""
    site = with_pet
    # An empty template: the newest that the node has, for a new guest.
    site.configure(agentMode="bare-metal", agentModelUrl="http://192.0.2.9:4000/v1", agentModel="m", template="")
    site.set_secret("cattle", "agentSecretEnvironment.GOOD", CANARY)
    site.set_secret("cattle", "agentTelegramToken", TELEGRAM)
    good = site.preview("cattle")
    # In every preview, for as long as it is so.
    assert any("agentTelegramAllowedUsers" in message for message in good.messages), good.messages
    assert site.writes == []
    told = as_comment(site, "cattle")
    assert "| cattle | CT 105 is made |" in told
    assert "agentTelegramAllowedUsers" in told
    assert CANARY not in told
    assert TELEGRAM not in told

    text = site.lab.stack_config_file.read_text()
    site.lab.stack_config_file.write_text(text.replace("    GOOD:\n", "    BAD: in-clear\n    GOOD:\n"))
    refused(site, "cattle", "preview", r"agentSecretEnvironment\.BAD = \(hidden\)", "--secret --path")
    site.lab.stack_config_file.write_text(text)

    site.set_secret("cattle", "agentSettings.deep.inside", CANARY)
    refused(site, "cattle", "preview", r"agentSettings = \(hidden\)", r"\$\{NAME\}")
    assert CANARY not in site.raw_log.read_text()
    assert CANARY not in site.lab.stack_config_file.read_text()
