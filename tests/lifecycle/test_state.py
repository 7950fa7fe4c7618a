"""The state on another machine and in a bucket, as docs/state.md says; and a whole life with a state in a bucket."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.bucket import Bucket, running
from tests.lifecycle import documented
from tests.lifecycle.homesite import CATTLE, PET, Site, assert_plain

WORDS = "what the agent wrote"
VOLID = f"local-lvm:vm-{PET}-disk-1"
OWN = ("PROXMOX_", "PULUMI_", "HERMES_", "PVELAB_", "XDG_", "SSL_", "AWS_")


class Machine:
    """A person's machine: a home, and a clone of their repository with the settings of both stacks."""

    def __init__(self, folder: Path, site: Site) -> None:
        self.home, self.clone = folder / "home", folder / "a clone"
        self.home.mkdir(parents=True)
        self.clone.mkdir()
        for stack in ("pet", "cattle"):
            # No key of the one is the other's, so the lab's one file can be the file of each.
            shutil.copy(site.lab.stack_config_file, self.clone / f"Pulumi.{stack}.yaml")

    @property
    def environment(self) -> Mapping[str, str]:
        """Of a new shell, which knows nothing."""
        found = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
        return {**found, "HOME": str(self.home), "HERMES_TOOLCHAIN": os.environ.get("HERMES_TOOLCHAIN", "")}

    def run(self, script: str) -> str:
        return documented.run_with(self.environment, script, self.clone)


def own_machine(folder: Path, site: Site) -> Machine:
    """The one that has brought up both stacks, with the state in a folder."""
    made = Machine(folder, site)
    kept = made.home / ".config" / "hermes-homelab"
    kept.mkdir(parents=True, mode=0o700)
    shutil.copy(site.lab.passphrase_file, kept / "passphrase")
    shutil.copytree(site.lab.pulumi_state, made.home / ".local" / "state" / "hermes-homelab")
    (made.home / ".ssh").mkdir()
    for name in ("", ".pub"):
        shutil.copy(f"{site.lab.ssh_key_file}{name}", made.home / ".ssh" / f"id_ed25519{name}")
    (made.home / "given").write_text(site.lab.token_file.read_text())
    made.run(f"scripts/env init {site.server.endpoint} --ca-file {site.server.ca_file} <~/given; rm ~/given")
    return made


def test_a_state_moves_to_another_machine_and_into_a_bucket(with_both: Site, tmp_path: Path) -> None:
    site = with_both
    site.write_data(VOLID, WORDS)
    old, new = own_machine(tmp_path / "old", site), Machine(tmp_path / "new", site)
    before = {vmid: site.node.config(vmid) for vmid in (PET, CATTLE)}
    site.forget()
    old.run(documented.block("docs/state.md", "(umask 077; tar -C ~ -cf"))
    (old.clone / "hermes-homelab.tar").rename(new.clone / "hermes-homelab.tar")
    new.run(documented.block("docs/state.md", "tar -C ~ -xf"))

    with running(tmp_path / "bucket") as bucket:
        script = documented.block("docs/state.md", "(umask 077; pulumi stack export")
        given = new.home / "given"
        given.write_text(f"{bucket.key}\n{bucket.secret}\n")
        address = f"{bucket.url}' --backend-ca '{bucket.ca}"
        shown = "s3://pulumi-state?endpoint=https://nas.lan:9000&region=us-east-1&s3ForcePathStyle=true"
        assert shown in script
        new.run(f'eval "$(scripts/env)"; {{ {script.replace(shown, address)} }} <~/given')
        assert not (new.clone / "pet.json").exists()
        assert site.writes == []
        assert {vmid: site.node.config(vmid) for vmid in (PET, CATTLE)} == before
        lives(site, bucket, new.home / ".config" / "hermes-homelab" / "s3-credentials")


def lives(site: Site, bucket: Bucket, keys: Path) -> None:
    """Destroy, forget, begin again, kill, go on: with the state in the bucket alone."""
    site.overrides |= {
        "PULUMI_BACKEND_URL": bucket.url,
        "AWS_SHARED_CREDENTIALS_FILE": str(keys),
        "AWS_CA_BUNDLE": str(bucket.ca),
    }
    shutil.rmtree(site.lab.pulumi_state)
    assert "The pet is not destroyed" in site.pulumi("pet", "destroy", "--yes", "--skip-preview").explain()
    site.destroy("cattle")
    assert site.node.vmids() == [PET]
    site.remove("cattle")
    assert not [name for name in bucket.objects() if name.endswith("/cattle.json")]
    site.init("cattle")
    # A killed engine leaves its lock in the bucket.
    site.break_off("cattle", "up", lambda request, when: when == "after" and str(request).startswith(f"PUT {CATTLE}/"))
    locked = site.pulumi("cattle", "up", "--yes", "--skip-preview")
    assert "the stack is currently locked by 1 lock(s)" in locked.explain()
    assert_plain(locked)
    site.cancel("cattle")
    site.up("cattle")
    assert site.node.running(CATTLE)
    assert WORDS.encode() in site.data(VOLID)
    stored = bucket.objects()
    assert {"pet.json", "cattle.json"} <= {name.rpartition("/")[2] for name in stored}
    token = site.lab.token_file.read_text().strip().partition("=")[2]
    secrets = (token, site.lab.model_key_file.read_text().strip(), bucket.secret)
    assert not [name for name, content in stored.items() for secret in secrets if secret.encode() in content]
