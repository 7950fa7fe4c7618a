"""What is declared about the agent, through the real engine as far as the preview: nothing is set up here."""

from __future__ import annotations

from tests.comments import as_comment, is_as_in
from tests.lifecycle.homesite import NODE, Site
from tests.lifecycle.test_refusals import refused

CANARY = "canary-part-of-an-object-31c7"
TELEGRAM = "123456789:" + "A" * 35


def test_a_reviewer_reads_what_changes_what_restarts_and_what_takes_two_steps(with_both: Site) -> None:
    site = with_both
    hermes = {"name": "hermes", "storage": "local-lvm", "size": 2, "path": "/mnt/hermes"}
    alice = {**hermes, "name": "alice", "path": "/mnt/alice"}
    # A volume that is added and used at once: the cattle is previewed when the pet has it.
    site.configure(petVolumes=[hermes, alice], cattleVolume="alice", cattleMemory=2048)
    is_as_in("a_new_volume_in_two_steps.md", as_comment(site.env))
    site.configure(petVolumes=[{**hermes, "size": 4}], cattleVolume="hermes", cattleTags=["agent"])
    is_as_in("a_volume_grows_in_two_steps.md", as_comment(site.env))
    site.configure(petVolumes=[hermes], cattleMountPath="/srv/hermes", cattleBridge="vmbr7")
    is_as_in("refused.md", as_comment(site.env, "cattle", good=False))
    another = "debian-13-standard_13.1-1_amd64.tar.zst"
    (site.server.config.template_dir(NODE) / another).write_bytes(b"not a real archive\n")
    site.configure(cattleMountPath=None, cattleBridge=None, cattleTags=None, template=f"local:vztmpl/{another}")
    is_as_in("another_template.md", as_comment(site.env, "cattle"))
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
    told = as_comment(site.env, "cattle")
    is_as_in("a_new_cattle.md", told)
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
