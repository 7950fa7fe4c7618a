"""No secret in anything that is written or shown (field reports E4, E6, F4)."""

from __future__ import annotations

from tests.lifecycle.homesite import CATTLE, PET, Site

MODEL_KEY = "canary-model-key-7b1e90"
PASSWORD = "canary-password-55c2aa"
COPY = "canary-of-the-copy-19d3"
COPY_KEY = "canary-of-s3-77e0"


def test_secrets_are_nowhere(site: Site) -> None:
    """The token from the stacks' own settings this time, where it is easiest to leak into the state."""
    token = site.lab.token_file.read_text().strip()
    secret = token.partition("=")[2]
    passphrase = site.lab.passphrase_file.read_text().strip()
    private_key = site.lab.ssh_key_file.read_text().splitlines()[1]
    site.set_secret("pet", "apiToken", token)
    site.set_secret("cattle", "agentModelKey", MODEL_KEY)
    site.set_secret("cattle", "agentDashboardPassword", PASSWORD)
    site.set_secret("cattle", "agentCopyPassword", COPY)
    site.set_secret("cattle", "agentCopySecretKey", COPY_KEY)
    site.configure(agentCopyRepository="s3:https://192.0.2.30/hermes", agentCopyAccessKey="AKIA1")
    site.overrides["PROXMOX_VE_API_TOKEN"] = None
    site.up("pet")
    site.up("cattle")

    # A failing run too: the container can't start.
    site.node.stop(CATTLE)
    site.runtime.broken.add(CATTLE)
    failed = site.pulumi("cattle", "up", "--yes", "--skip-preview", "--refresh")
    assert not failed.ok
    assert f"startup for container '{CATTLE}' failed" in failed.explain()

    where = {str(file): file.read_bytes() for file in [*site.state_files, site.raw_log, site.lab.stack_config_file]}
    where |= {f"guest {vmid}": str(site.node.config(vmid)).encode() for vmid in (PET, CATTLE)}
    where |= {f"request {request}": str(request.params).encode() for request in site.server.requests}
    where["outputs"] = str([site.outputs("pet"), site.outputs("cattle")]).encode()
    found = [
        place
        for place, content in where.items()
        for canary in (secret, passphrase, private_key, MODEL_KEY, PASSWORD, COPY, COPY_KEY)
        if canary.encode() in content
    ]
    assert found == []
    # The search finds what is there.
    assert any(b"pet-storage" in content for content in where.values())
