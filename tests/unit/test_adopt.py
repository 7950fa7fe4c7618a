"""What scripts/adopt takes out of a stack's file when the passphrase is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from proxmox.facts import GuestFacts
from scripts.lib import adopt as program
from scripts.lib.adopt import AdoptError, follow, how_to_set, in_order, look, settings_of, where_now, without_secrets
from settings.stack import Role

FILE = """\
config:
  hermes-homelab:node: pve
  hermes-homelab:agentModelKey:
    secure: v1:AAAA
  hermes-homelab:agentSecretEnvironment:
    TOKEN:
      secure: v1:BBBB
    OTHER:
      secure: v1:CCCC
  hermes-homelab:petVolumes:
    - {name: hermes, size: 10}
encryptionsalt: v1:DDDD
"""


def test_the_secrets_go_and_all_else_stays() -> None:
    text, lost = without_secrets(FILE)
    assert yaml.safe_load(text) == {
        "config": {"hermes-homelab:node": "pve", "hermes-homelab:petVolumes": [{"name": "hermes", "size": 10}]}
    }
    assert lost == ["agentModelKey", "agentSecretEnvironment.TOKEN", "agentSecretEnvironment.OTHER"]
    assert without_secrets(text) == (text, [])


def test_what_is_in_clear_beside_a_secret_stays() -> None:
    part = "config: {hermes-homelab:a: {one: 1, two: {secure: x}}}"
    assert yaml.safe_load(without_secrets(part)[0]) == {"config": {"hermes-homelab:a": {"one": 1}}}
    assert settings_of(FILE) == {"node": "pve", "petVolumes": [{"name": "hermes", "size": 10}]}


@pytest.mark.parametrize(
    ("path", "options"),
    [("agentModelKey", "--secret agentModelKey"), ("a.B", "--secret --path a.B")],
)
def test_each_secret_has_the_command_that_asks_for_it(path: str, options: str) -> None:
    assert how_to_set("cattle", path) == f"pulumi config set --stack cattle {options}"


def test_a_pet_comes_before_the_cattle_that_mount_its_volumes() -> None:
    assert [(stack, role) for stack, role, _ in in_order(["cattle", "pet"])] == [
        ("pet", Role.PET),
        ("cattle", Role.CATTLE),
    ]


@pytest.mark.parametrize("text", ["config: [", "config: 7", "- a list"])
def test_a_file_that_is_none_of_settings_is_named(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lab.yaml"
    file.write_text(text)
    monkeypatch.setenv("PULUMI_OPTION_CONFIG_FILE", str(file))
    with pytest.raises(AdoptError, match="can't be read as a stack's settings") as told:
        in_order(["pet"])
    assert str(file) in str(told.value)


def test_a_number_that_is_none_is_named() -> None:
    token = "a@pve!ci=00000000-0000-0000-0000-000000000000"
    given = {"endpoint": "https://192.0.2.1:8006", "apiToken": token, "node": "pve", "petVmid": "many"}
    with pytest.raises(AdoptError, match="pet: petVmid is 'many', and must be a whole number: correct it"):
        look("pet", given, Role.PET, made=False)


def test_a_state_follows_in_what_it_says_of_the_node_and_in_nothing_else() -> None:
    access = {"node": "pve", "vmid": 105, "address": "192.0.2.5", "host_key": "ssh-ed25519 AAAA", "notes": "on pve"}
    state = {"deployment": {"resources": [{"urn": "a"}, {"urn": "b", "inputs": access, "outputs": dict(access)}]}}
    state["deployment"]["resources"].append({"urn": "c", "inputs": {"nodeName": "pve", "hostname": "pve"}})
    assert follow(state, "pve2") == {"pve"}
    there = {**access, "node": "pve2"}
    assert state["deployment"]["resources"] == [
        {"urn": "a"},
        {"urn": "b", "inputs": there, "outputs": there},
        {"urn": "c", "inputs": {"nodeName": "pve2", "hostname": "pve"}},
    ]
    assert follow(state, "pve2") == set()
    assert follow({}, "pve2") == set()


CLAIM = "0b8f6a1e-58c3-4a6e-9d0b-0f6b1a2c3d4e"


def test_only_the_guest_that_has_the_claim_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[GuestFacts | None] = [None]
    monkeypatch.setattr(program, "find", lambda *_: ("pve2", 105, found[0]))
    # A cattle that went with its node is made again; a pet has to be restored.
    assert where_now("cattle", {}, Role.CATTLE, CLAIM) == (
        "pve2",
        "there is no guest 105 any more; pulumi up makes it on node pve2",
    )
    with pytest.raises(AdoptError, match="restore it first"):
        where_now("pet", {}, Role.PET, CLAIM)
    found[0] = GuestFacts(105, "pve2", config={"description": f"claim: {CLAIM}"})
    assert where_now("cattle", {}, Role.CATTLE, CLAIM)[0] == "pve2"
    with pytest.raises(AdoptError, match=f"has the claim {CLAIM}, and the state another"):
        where_now("cattle", {}, Role.CATTLE, "another")
    found[0] = GuestFacts(105, "pve", config={"description": f"claim: {CLAIM}"})
    with pytest.raises(AdoptError, match="the settings say node pve2: correct it"):
        where_now("cattle", {}, Role.CATTLE, CLAIM)


@pytest.mark.parametrize(("end", "words"), [(EOFError("EOF"), "scripts/adopt --yes"), (KeyboardInterrupt(), "stopped")])
def test_no_answer_is_no_traceback(
    end: BaseException, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(_stacks: object, *, yes: bool) -> int:
        del yes
        raise end

    monkeypatch.setattr(program, "adopt", ended)
    monkeypatch.setattr("sys.argv", ["adopt"])
    assert program.main() == 1
    assert words in capsys.readouterr().err


def test_what_another_token_wrote_reaches_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A guest's name and its mounts are whose who may set them; a terminal obeys what it is shown."""
    evil = "\x1b]0;title\x07\u202e"
    config = {"hostname": f"a{evil}", "mp0": f"local:vm-999-disk-1,mp=/data{evil}", "description": f"claim: {CLAIM}"}
    guests = {"cattle": GuestFacts(105, "pve", config=config), "cattle-b": GuestFacts(106, f"pve{evil}", config=config)}
    monkeypatch.setattr(program, "find", lambda stack, *_: ("pve", 105, guests[stack]))
    monkeypatch.setattr(program, "known_stacks", set)
    monkeypatch.setattr(program, "in_order", lambda stacks: [(each, Role.CATTLE, {}) for each in stacks])
    monkeypatch.setattr("builtins.input", lambda _: "no")
    monkeypatch.setattr("sys.argv", ["adopt", "cattle", "cattle-b"])
    assert program.main() == 1
    monkeypatch.setattr(program, "in_order", lambda _: [("pet", Role.PET, {})])
    guests["pet"] = guests["cattle-b"]
    assert program.main() == 1
    shown = "".join(capsys.readouterr())
    assert shown.count("\\x1b]0;title") >= 5
    assert not [each for each in shown if not each.isprintable() and each != "\n"]
