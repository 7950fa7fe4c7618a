"""scripts/permissions on the stack files that people have: secrets and keys of others are in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxmox.errors import Faults
from scripts.lib.permissions import rights_of, stack_of

CATTLE = """
encryptionsalt: v1:abc
config:
  pulumi:tags: {team: home}
  proxmoxve:insecure: "true"
  other-project:key: {secure: v1:x}
  hermes-homelab:cattleVmid: "117"
  hermes-homelab:cattleStorage: fast
  hermes-homelab:apiToken: {secure: v1:x}
  hermes-homelab:agentDashboardHost: 0.0.0.0
  hermes-homelab:agentDashboardPassword: {secure: v1:x}
  hermes-homelab:agentModelUrl: {secure: v1:x}
  hermes-homelab:agentModelProvider: litellm
  hermes-homelab:agentProviders: {litellm: {base_url: "http://192.0.2.1/v1", key_env: LITELLM_KEY}}
  hermes-homelab:agentSecretEnvironment: {LITELLM_KEY: {secure: v1:x}}
"""


def written(tmp_path: Path, text: str, name: str = "Pulumi.cattle-x.yaml") -> Path:
    file = tmp_path / name
    file.write_text(text)
    return file


def test_neither_secrets_nor_keys_of_others_are_in_the_way(tmp_path: Path) -> None:
    rights = rights_of([stack_of(written(tmp_path, CATTLE), {})])
    assert {"/vms/117", "/storage/fast", "/sdn/zones/localnetwork/vmbr0"} <= {right.path for right in rights}


@pytest.mark.parametrize("text", ["", "config:\n", "encryptionsalt: v1:abc\n"])
def test_a_file_without_settings_is_a_stack_of_defaults(tmp_path: Path, text: str) -> None:
    assert "/vms/999" in {right.path for right in rights_of([stack_of(written(tmp_path, text, "Pulumi.pet.yaml"), {})])}


def test_what_a_right_depends_on_must_not_be_encrypted(tmp_path: Path) -> None:
    """It is no secret; a right for the default in its place would be another one's."""
    text = "config:\n  hermes-homelab:cattleVmid: {secure: v1:x}\n"
    with pytest.raises(Faults) as caught:
        stack_of(written(tmp_path, text), {})
    assert [fault.key for fault in caught.value.faults] == ["cattleVmid"]


def test_a_wrong_key_of_ours_is_still_a_fault(tmp_path: Path) -> None:
    with pytest.raises(Faults, match="cattleVmdi"):
        stack_of(written(tmp_path, "config:\n  hermes-homelab:cattleVmdi: 7\n"), {})


@pytest.mark.parametrize("text", ["config: {a: b: c}", "- canary\n", "config: canary\n"])
def test_a_file_that_can_not_be_read_is_a_fault(tmp_path: Path, text: str) -> None:
    with pytest.raises(Faults, match=r"(?s)Pulumi\.cattle-x\.yaml can't be used.*can't be read as a stack's settings"):
        stack_of(written(tmp_path, text), {})
