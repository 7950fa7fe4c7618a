"""Who may reach the dashboard, and how they log in: the settings' rules, and what the agent is told of them."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme

from applications.hermes.phases import probe_of, render_configure
from tests.settings import OIDC, cattle, faults

ROOT = Path(__file__).resolve().parents[2]
EVERYWHERE = "0.0.0.0"  # noqa: S104 - a value
HASH = "scrypt$16384$8$1$" + base64.b64encode(b"s" * 16).decode() + "$" + base64.b64encode(b"k" * 32).decode()
OPEN: dict[str, Any] = {"agentDashboardHost": EVERYWHERE}


def test_an_authority_of_ones_own_is_in_pem() -> None:
    [(key, (_, rule, _))] = faults("cattle", agentCaFile=str(ROOT / "README.md")).items()
    assert key == "agentCaFile"
    assert "PEM certificates" in rule


def test_faults_of_several_keys_are_told_together() -> None:
    given = {**OIDC, "agentDashboardOidcIssuer": "x", "agentDashboardPasswordHash": "y", "agentDashboardPublicUrl": "z"}
    assert sorted(faults("cattle", **given)) == [
        "agentDashboardOidcIssuer",
        "agentDashboardPasswordHash",
        "agentDashboardPublicUrl",
    ]


@pytest.mark.parametrize("key", ["agentDashboardPasswordHash", "agentDashboardOidcClientSecret"])
def test_a_secret_in_clear_is_refused(key: str) -> None:
    value = HASH if key.endswith("Hash") else "oidc-canary-1"
    found = faults("cattle", **{**OIDC, key: value}, in_clear=frozenset({key}))
    assert found[key][1] == "a secret must not be stored in clear"
    assert value not in str(found)


@pytest.mark.parametrize(
    ("given", "providers"),
    [
        ({**OPEN, "agentDashboardPassword": "long enough words"}, ["basic"]),
        ({**OPEN, "agentDashboardPasswordHash": HASH}, ["basic"]),
        (OIDC, ["self-hosted"]),
        ({**OIDC, "agentDashboardPasswordHash": HASH}, ["basic", "self-hosted"]),
        ({}, []),
    ],
)
def test_the_ways_in_are_what_verify_asks_for(given: dict[str, Any], providers: list[str]) -> None:
    wanted = probe_of(cattle(**given))
    assert list(wanted.auth_providers) == providers
    assert wanted.auth_required is bool(providers)


def test_what_the_agent_reads_of_provider_and_proxy() -> None:
    """The names are the agent's own: plugins/dashboard_auth/self_hosted, dashboard_auth/prefix.py, uvicorn's Config."""
    plan = render_configure(cattle(**OIDC))
    inputs = json.loads(next(file.content for file in plan.files if file.path == "inputs.json"))
    expected = {
        "HERMES_DASHBOARD_OIDC_ISSUER": "https://login.example.org/application/o/hermes",
        "HERMES_DASHBOARD_OIDC_CLIENT_ID": "hermes",
        "HERMES_DASHBOARD_OIDC_SCOPES": "openid profile email",
        "HERMES_DASHBOARD_PUBLIC_URL": "https://hermes.example.org",
        "FORWARDED_ALLOW_IPS": "127.0.0.1,192.0.2.5,198.51.100.0/24",
    }
    assert expected.items() <= inputs["environment"].items()
    assert inputs["config"]["dashboard"] == {"trusted_proxies": ["192.0.2.5", "198.51.100.0/24"]}
    assert inputs["secret_environment"] == ["HERMES_DASHBOARD_OIDC_CLIENT_SECRET"]
    assert plan.secrets["HERMES_DASHBOARD_OIDC_CLIENT_SECRET"] == "oidc-canary-1"
    assert not [file.path for file in plan.files if b"oidc-canary" in file.content]
    assert "oidc-canary" not in json.dumps(plan.declared)


def test_nothing_of_a_dashboard_that_does_not_run_reaches_the_agent() -> None:
    plan = render_configure(cattle(**{**OIDC, "agentDashboard": False}))
    inputs = json.loads(next(file.content for file in plan.files if file.path == "inputs.json"))
    assert not [name for name in inputs["environment"] if "DASHBOARD" in name or "FORWARDED" in name]
    assert "dashboard" not in inputs["config"]
    assert inputs["secret_environment"] == []


def test_an_authority_of_ones_own_reaches_the_container_and_both_services(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    authority = trustme.CA()
    certificate = authority.cert_pem.bytes().decode()
    file.write_text(f"# mine: ü\n{authority.private_key_pem.bytes().decode()}{certificate}")
    plan = render_configure(cattle(agentCaFile=str(file)))
    content = {file.path: file.content.decode() for file in plan.files}
    assert json.loads(content["inputs.json"])["ca_certificates"] == certificate
    for unit in ("units/hermes-gateway.service", "units/hermes-dashboard.service"):
        assert "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt" in content[unit]
    assert not [path for path, text in content.items() if "PRIVATE KEY" in text]
    without = render_configure(cattle())
    assert not [file.path for file in without.files if b"SSL_CERT_FILE" in file.content and "units" in file.path]


def hash_password(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "lib" / "agent.py"), "hash-password"],
        input=line,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"},
    )


def test_the_command_s_hash_is_of_the_password_and_is_taken_by_the_settings() -> None:
    password = "ein langes Paßwort"
    done = hash_password(password + "\n")
    assert done.returncode == 0, done.stderr
    text = done.stdout.strip()
    _, n, r, p, salt, key = text.split("$")
    derived = hashlib.scrypt(password.encode(), salt=base64.b64decode(salt), n=int(n), r=int(r), p=int(p), dklen=32)
    assert base64.b64decode(key) == derived
    assert cattle(**OPEN, agentDashboardPasswordHash=text).agent.dashboard.has_password


def test_a_short_password_is_not_hashed() -> None:
    done = hash_password("elevenchars\n")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "12 characters or more" in done.stderr
