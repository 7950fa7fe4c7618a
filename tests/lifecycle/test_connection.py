"""Another token, another port: what reaches Proxmox today is what counts, not what the state remembers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import trustme

from lab.instance import ACCOUNT, CHECKOUT, write_secret
from tests.lifecycle.homesite import CATTLE, PET, Site, opened

VOLID = f"local-lvm:vm-{PET}-disk-1"


def rotate(site: Site) -> str:
    """A new secret for the same token; the old one is worth nothing from now on. Answers the old one."""
    old = site.lab.token_file.read_text().strip()
    access = site.server.cluster.access
    del access.users[ACCOUNT.user].tokens[ACCOUNT.token]
    secret = access.add_token(ACCOUNT.user, ACCOUNT.token, privsep=True)
    write_secret(site.lab.token_file, f"{ACCOUNT.user}!{ACCOUNT.token}={secret}\n")
    return old


def test_a_rotated_token_and_a_moved_endpoint(with_both: Site) -> None:
    """Field reports E5."""
    rotate(with_both)
    assert with_both.refresh("cattle").changed == {}
    assert {request.status for request in with_both.server.requests} == {200}
    assert with_both.up("cattle").changed == {}

    state_dir: Path = with_both.lab.state_dir
    port = with_both.server.port
    with_both.server.stop()
    with opened(state_dir) as moved:
        assert moved.server.port != port
        assert moved.up("cattle").changed == {}
        assert moved.refresh("cattle").changed == {}
        assert moved.writes == []
        rotate(moved)
        moved.destroy("cattle")
        assert moved.node.vmids() == [PET]
        assert VOLID in moved.node.volumes()
        assert 401 not in {request.status for request in moved.server.requests}


def test_a_revoked_token_is_told_as_such(with_both: Site) -> None:
    access = with_both.server.cluster.access
    del access.users[ACCOUNT.user].tokens[ACCOUNT.token]
    secret = with_both.lab.token_file.read_text().strip().partition("=")[2]
    run = with_both.pulumi("cattle", "preview")
    assert not run.ok
    assert "401" in run.explain()
    assert secret not in run.explain()
    assert "Traceback" not in run.explain()


def test_a_certificate_with_the_right_fingerprint_is_trusted_by_client_and_plugin(
    with_both: Site, tmp_path: Path
) -> None:
    """scripts/trust: the server's own certificate as the file to trust, once it has the fingerprint that was named."""
    host, port = urlsplit(with_both.server.endpoint).hostname, urlsplit(with_both.server.endpoint).port
    seen = subprocess.run(
        [CHECKOUT / "scripts" / "trust", f"{host}:{port}"], capture_output=True, text=True, check=True, timeout=60
    )
    fingerprint = re.findall(r"(?:[0-9A-F]{2}:){31}[0-9A-F]{2}", seen.stdout)[0]
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "a folder")}

    def trust(wanted: str) -> subprocess.CompletedProcess[str]:
        command = [str(CHECKOUT / "scripts" / "trust"), f"{host}:{port}", wanted]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)

    wrong = trust("00:" + fingerprint[3:] if not fingerprint.startswith("00") else "11:" + fingerprint[3:])
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "Nothing was saved" in wrong.stderr
    assert not (tmp_path / "a folder").exists()

    right = trust(fingerprint)
    assert right.returncode == 0, right.stderr
    file = shlex.split(right.stdout)[1].removeprefix("PROXMOX_VE_CA_FILE=")
    with_both.overrides["PROXMOX_VE_CA_FILE"] = file
    # A refresh asks both: our client, and the plugin for the container.
    assert with_both.refresh("cattle").changed == {}
    assert any(request.path.endswith(f"/lxc/{CATTLE}/config") for request in with_both.sent)


def test_another_ca_is_not_trusted(with_both: Site, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    with_both.overrides["PROXMOX_VE_CA_FILE"] = str(other)
    run = with_both.pulumi("cattle", "preview")
    assert not run.ok
    assert "certificate" in run.explain()
    assert "Traceback" not in run.explain()
    assert with_both.sent == []
    assert CATTLE in with_both.node.vmids()


def test_the_texts_of_engine_and_plugin_are_those_that_the_documents_explain(with_both: Site, tmp_path: Path) -> None:
    """What is said before the program runs, in a shell that lacks something, is none of the program's texts."""
    table = (CHECKOUT / "docs" / "errors.md").read_text().partition("### Of the engine")[2].partition("\n## ")[0]
    explained = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong\n")
    missing: list[tuple[str, str, dict[str, str | None], str]] = [
        ("cattle", "preview", {"PULUMI_BACKEND_URL": f"file://{tmp_path}/nowhere"}, ""),
        ("cattle", "preview", {"PULUMI_CONFIG_PASSPHRASE_FILE": None}, ""),
        ("cattle", "preview", {"PULUMI_CONFIG_PASSPHRASE_FILE": str(wrong)}, ""),
        ("cattle-that-is-not", "preview", {}, ""),
        # On a stack that exists the refresh comes first: ours speaks before the plugin all the same.
        ("cattle", "preview", {"PROXMOX_VE_API_TOKEN": None}, "an API token is needed"),
        ("cattle", "destroy", {"PROXMOX_VE_API_TOKEN": None}, "an API token is needed"),
        ("pet", "refresh", {"PROXMOX_VE_ENDPOINT": None}, "the address of the Proxmox API is needed"),
        ("cattle", "up", {"PROXMOX_VE_ENDPOINT": "https://127.0.0.1:9"}, "did not answer GET /version"),
    ]
    told = []
    for stack, verb, overrides, ours in missing:
        with_both.overrides = overrides
        run = with_both.pulumi(stack, verb, *([] if verb == "preview" else ["--yes", "--skip-preview"]))
        assert not run.ok
        assert ours in run.explain()
        assert "sdk-v2" not in run.explain()
        assert "[ERROR]" not in run.explain()
        told.append(run.explain())
    with_both.overrides = {}
    for broken in ("  hermes-homelab:cattleVmid: many\n", "\tname: x\n"):
        with_both.lab.stack_config_file.write_text(f"config:\n{broken}")
        told.append(with_both.pulumi("cattle", "preview").explain())
    found = {text for text in explained if any(text in " ".join(said.split()) for said in told)}
    assert found == set(explained)
    assert with_both.writes == []
