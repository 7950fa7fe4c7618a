"""A cattle that is cloned from a golden template: the real engine and the plugin, on a node without containers."""

from __future__ import annotations

import json
import subprocess

import pytest

from lab.stacks import PROJECT, make_stack
from tests.lifecycle.homesite import CATTLE, NODE, PET, Site

GOLDEN = 9000
CLONE = f"POST /nodes/{NODE}/lxc/{GOLDEN}/clone"
CREATE = f"POST /nodes/{NODE}/lxc"


def image_stack_was_up(site: Site, **outputs: object) -> None:
    """Its state, as far as a cattle reads it. What makes it: tests/api/test_golden.py."""
    make_stack(site.lab, "image")
    public = subprocess.run(
        ["ssh-keygen", "-y", "-f", site.env["HERMES_SSH_KEY_FILE"]],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    told = {"vmid": GOLDEN, "node": NODE, "storage": "local-lvm", "keys": [public.stdout.strip()], **outputs}
    urn = f"urn:pulumi:image::{PROJECT}::pulumi:pulumi:Stack::{PROJECT}-image"
    root = {"urn": urn, "custom": False, "type": "pulumi:pulumi:Stack", "outputs": told}
    state = {"version": 3, "deployment": {"manifest": {"time": "2026-01-01T00:00:00Z"}, "resources": [root]}}
    site.command("stack", "import", "--stack", "image", stdin=json.dumps(state))


def make_template(site: Site) -> None:
    site.node.make_stranger(GOLDEN, rootfs="local-lvm:4", net0="name=eth0,bridge=vmbr0,ip=dhcp", tags="image")
    site.node.call("POST", site.node.guest(GOLDEN, "/template"))
    assert site.server.cluster.tasks.wait_idle(30.0)


def may_clone(site: Site) -> None:
    roles = site.server.cluster.access.roles
    roles["LabGuests"] |= {"VM.Clone"}


@pytest.mark.timeout(300)
def test_a_cattle_is_cloned_and_then_like_any_other(with_pet: Site) -> None:
    site = with_pet
    site.configure(goldenTemplate="image")
    refused = site.pulumi("cattle", "preview")
    assert "must be an image stack that has been up" in refused.explain()
    image_stack_was_up(site)
    # Nothing is changed before the right is there, and the template.
    refused = site.pulumi("cattle", "up", "--yes", "--skip-preview")
    assert "the token lacks VM.Clone" in refused.explain()
    assert not [request for request in site.sent if request.write]
    may_clone(site)
    refused = site.pulumi("cattle", "preview")
    assert f"CT {GOLDEN} on node {NODE} is no template" in refused.explain()
    make_template(site)

    site.up("cattle")
    writes = [f"{request.method} {request.path}" for request in site.sent if request.write]
    # Cloned and given what it lacks; then the plugin finds it, and takes it over (facts proxmox 15).
    own = f"/nodes/{NODE}/lxc/{CATTLE}"
    assert writes[:3] == [CLONE, f"PUT {own}/config", f"PUT {own}/resize"]
    assert set(writes[3:-2]) == {CREATE}
    assert {request.status for request in site.sent if str(request).startswith("POST /nodes/pve/lxc ")} <= {500}
    assert writes[-2:] == [f"PUT {own}/config", f"POST {own}/status/start"]
    config = site.node.config(CATTLE)
    assert config["rootfs"] == f"local-lvm:vm-{CATTLE}-disk-0,size=20G"
    assert config["tags"] == "agent;ai;pulumi"
    assert config["mp0"].startswith(f"local-lvm:vm-{PET}-disk-1,mp=/home/hermes")
    assert site.node.running(CATTLE)
    # Nothing is left to be done, and nothing says in the state how it was made.
    assert site.preview("cattle").changed == {}
    assert not site.resources("cattle")["cattle-container"]["inputs"].get("clone")
    # It needs neither template nor image stack any more, and no setting makes it anew.
    site.node.destroy(GOLDEN)
    image_stack_was_up(site, vmid=None)
    assert site.preview("cattle").changed == {}
    site.configure(goldenTemplate=None)
    assert site.preview("cattle").changed == {}
    site.destroy("cattle")
    assert site.node.vmids() == [PET]
    assert f"local-lvm:vm-{PET}-disk-1" in site.node.volumes()


@pytest.mark.timeout(300)
def test_a_run_that_is_killed_after_the_clone_is_gone_on_with(with_pet: Site) -> None:
    site = with_pet
    site.configure(goldenTemplate="image")
    image_stack_was_up(site)
    may_clone(site)
    make_template(site)
    site.break_off("cattle", "up", lambda request, when: when == "after" and request.path.endswith("/clone"))
    site.cancel("cattle")
    site.up("cattle")
    assert not [request for request in site.sent if request.path.endswith("/clone")]
    config = site.node.config(CATTLE)
    assert config["rootfs"] == f"local-lvm:vm-{CATTLE}-disk-0,size=20G"
    assert config["hostname"] == "hermes"
    assert site.preview("cattle").changed == {}
