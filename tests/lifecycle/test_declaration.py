"""What is declared about the agent, through the real engine as far as the preview: nothing is set up here."""

from __future__ import annotations

import re
import subprocess

from lab.instance import CHECKOUT
from tests.lifecycle.homesite import Site
from tests.lifecycle.test_refusals import refused

CANARY = "canary-part-of-an-object-31c7"
TELEGRAM = "123456789:" + "A" * 35


def as_comment(site: Site, stack: str) -> str:
    """What a pull request would be told."""
    command = [str(CHECKOUT / "examples" / "pull-request" / "preview.sh"), stack]
    return subprocess.run(command, env=site.env, capture_output=True, text=True, check=True, timeout=300).stdout


def test_a_secret_environment_is_set_part_by_part(with_pet: Site) -> None:
    """The engine tells only that there is a secret in the object; which part is none, its file tells."""
    site = with_pet
    site.configure(agentMode="bare-metal", agentModelUrl="http://192.0.2.9:4000/v1", agentModel="m")
    site.set_secret("cattle", "agentSecretEnvironment.GOOD", CANARY)
    site.set_secret("cattle", "agentTelegramToken", TELEGRAM)
    good = site.preview("cattle")
    # In every preview, for as long as it is so.
    assert any("agentTelegramAllowedUsers" in message for message in good.messages), good.messages
    assert site.writes == []
    told = as_comment(site, "cattle")
    assert re.match(r"### cattle: \+ \d+ to create", told), told
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
