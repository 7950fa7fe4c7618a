"""A program in a repository of its own that uses the components, with the protections of the stacks."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import yaml

from lab import engine
from lab.environment import CONFIG_FILE_VARIABLE
from lab.instance import CHECKOUT
from tests.lifecycle.homesite import Site, assert_plain, needs_yaml_host

EXAMPLE = CHECKOUT / "examples" / "package"
SDK = os.environ.get("PACKAGE_SDK") or str(CHECKOUT / "tests" / "sdk")
"""A stand-in; or a folder with what ``pulumi package gen-sdk`` has made."""
PET, CATTLE, FILES = 998, 106, 200
AGENTS, SECOND = f"local-lvm:vm-{PET}-disk-1", f"local-lvm:vm-{PET}-disk-2"
MODEL_KEY = "canary-of-the-model-41d0"


def consumer(site: Site, folder: Path, example: Path, **settings: object) -> Path:
    """The example, copied to where it is a repository of its own, and its stack; no package is installed again."""
    shutil.copytree(example, folder)
    (folder / "venv").symlink_to(CHECKOUT / ".cache" / "venv")
    project = yaml.safe_load((folder / "Pulumi.yaml").read_text())
    project["plugins"]["providers"][0]["path"] = str(CHECKOUT / "package")
    (folder / "Pulumi.yaml").write_text(yaml.safe_dump(project))
    site.overrides |= {CONFIG_FILE_VARIABLE: None, "PYTHONPATH": SDK}
    engine.command("stack", "init", "home", cwd=folder, env=site.env)
    file = folder / "Pulumi.home.yaml"
    config = {f"{project['name']}:{key}": value for key, value in {"agentMode": "none", **settings}.items()}
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "config": config}))
    return folder


def test_a_program_of_ones_own_has_the_components_and_their_protections(site: Site, tmp_path: Path) -> None:
    site.node.make_stranger(FILES)
    site.node.call("POST", site.node.guest(FILES, "/status/start"))
    own = consumer(site, tmp_path / "own", EXAMPLE, files=FILES)
    secret = ["config", "set", "--stack", "home", "--secret"]
    token = site.lab.token_file.read_text().strip()
    engine.command(*secret, "modelKey", cwd=own, env=site.env, stdin=MODEL_KEY)
    engine.command(*secret, "hermes-homelab:apiToken", cwd=own, env=site.env, stdin=token)
    site.overrides["PROXMOX_VE_API_TOKEN"] = None

    def pulumi(verb: str, *options: str) -> engine.Run:
        if verb != "preview":
            options = ("--yes", "--skip-preview", *options)
        return site.pulumi("home", verb, *options, cwd=own)

    # With its preview, as a person runs it: the volumes are made by the same program, so nothing is known of them then.
    made = site.pulumi("home", "up", "--yes", cwd=own)
    assert made.ok, made.explain()
    assert site.node.config(PET)["protection"] == 1
    assert site.node.config(CATTLE)["mp0"].startswith(f"{AGENTS},mp=/home/hermes,")
    assert site.node.config(FILES)["mp0"].startswith(f"{SECOND},mp=/srv/files,")
    assert (site.node.running(CATTLE), site.node.running(FILES)) == (True, True)
    found = engine.outputs("home", cwd=own, env=site.env)
    assert (found["vmid"], found["volumes"]["agent"]["volid"]) == (CATTLE, AGENTS)
    written = [site.raw_log, *site.state_files]
    leaks = [file for file in written for canary in (MODEL_KEY, token) if canary in file.read_text(errors="replace")]
    assert leaks == []
    again = pulumi("up")
    assert again.ok, again.explain()
    assert again.changed == {}
    assert site.writes == []

    # One writer: the container that has the volume already is named, in the preview.
    taken = (own / "__main__.py").read_text().replace('pet.volumes["files"]', 'pet.volumes["agent"]')
    (own / "__main__.py").write_text(taken)
    refused = pulumi("preview")
    assert not refused.ok
    # As docs/package.md has it: ours is whole and comes first, and the SDK of the other program adds its own.
    ours, added = refused.errors
    assert ours.startswith("hermes-homelab:index:Attachment resource 'files' has a problem: The volume ")
    assert f"on node pve: pct shutdown {CATTLE}" in ours
    assert re.search(r"[Rr]esource monitor (shut down|has terminated, shutting down)$", added)
    shutil.copy(EXAMPLE / "__main__.py", own)

    kept = site.node.volumes()
    refused = pulumi("destroy")
    assert not refused.ok
    assert "The pet is not destroyed; nothing was changed" in refused.explain()
    assert_plain(refused)
    assert site.writes == []
    gone = pulumi("destroy", "--exclude-protected")
    assert gone.ok, gone.explain()
    assert site.node.vmids() == [FILES, PET]
    assert "mp0" not in site.node.config(FILES)
    assert {volid: kept[volid] for volid in (AGENTS, SECOND)}.items() <= site.node.volumes().items()


@needs_yaml_host
def test_a_program_in_yaml_has_them_too(site: Site, tmp_path: Path) -> None:
    own = consumer(site, tmp_path / "own", EXAMPLE / "yaml")
    engine.command("config", "set", "--stack", "home", "--secret", "modelKey", cwd=own, env=site.env, stdin=MODEL_KEY)
    made = site.pulumi("home", "up", "--yes", "--skip-preview", cwd=own)
    assert made.ok, made.explain()
    assert site.node.config(CATTLE)["mp0"].startswith(f"{AGENTS},mp=/home/hermes,")
    assert engine.outputs("home", cwd=own, env=site.env)["volumes"]["agent"]["volid"] == AGENTS
    assert [file for file in [site.raw_log, *site.state_files] if MODEL_KEY in file.read_text(errors="replace")] == []
    again = site.pulumi("home", "preview", cwd=own)
    assert again.ok, again.explain()
    assert again.changed == {}
