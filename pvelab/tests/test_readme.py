"""What README.md says, done by a stranger: pvelab alone in an environment of its own, in another folder.

Each line that is run here is a line of the README.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PVELAB = Path(__file__).resolve().parents[1]
README = (PVELAB / "README.md").read_text()
COMMANDS = {
    re.sub(r"\s+#.*", "", line.strip())
    for line in re.sub(r"\\\n\s*", "", README).splitlines()
    if line.startswith("    ")
}
PASSWORD = "said-by-a-stranger"
TOOL = """
import json, ssl, time, urllib.parse, urllib.request

def ask(method, path, form=None):
    body = urllib.parse.urlencode(form).encode() if form else None
    headers = {"Authorization": f"PVEAPIToken={TOKEN}"}
    request = urllib.request.Request(f"{ENDPOINT}api2/json{path}", body, headers, method=method)
    with urllib.request.urlopen(request, context=CONTEXT, timeout=30) as answer:
        return json.load(answer)["data"]

def create(endpoint, *, token, ca_file, template):
    global ENDPOINT, TOKEN, CONTEXT
    ENDPOINT, TOKEN, CONTEXT = endpoint, token, ssl.create_default_context(cafile=ca_file)
    form = {"vmid": 105, "ostemplate": template, "rootfs": "local-lvm:4"}
    upid = urllib.parse.quote(ask("POST", "/nodes/pve/lxc", form), safe="")
    while ask("GET", f"/nodes/pve/tasks/{upid}/status")["status"] != "stopped":
        time.sleep(0.05)

def status(vmid):
    return ask("GET", f"/nodes/pve/lxc/{vmid}/status/current")["status"]
"""


class Stranger:
    """A person with a shell in a folder of their own, who has nothing of this repository but what is installed."""

    def __init__(self, home: Path) -> None:
        self.home = home
        kept = {name: value for name, value in os.environ.items() if name.lower().endswith(("_proxy", "_index_url"))}
        path = f"{home / 'venv' / 'bin'}:/usr/bin:/bin:/usr/sbin:/sbin"
        self._environment = {**kept, "HOME": str(home), "PATH": path, "LANG": "C.UTF-8"}

    def shell(self, *lines: str, cwd: Path | None = None, code: int = 0) -> str:
        """The output of lines in one shell; each is followed by the next if it ends well."""
        done = subprocess.run(
            ["sh", "-ec", "\n".join(lines)],
            cwd=cwd or self.home,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, (lines, done.stdout, done.stderr)
        return done.stdout

    def follow(self, *lines: str, code: int = 0) -> str:
        """The same, of lines that README has word for word."""
        assert set(lines) <= COMMANDS, set(lines) - COMMANDS
        return self.shell(*lines, code=code)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stranger]:
    one = Stranger(tmp_path_factory.mktemp("stranger"))
    venv = one.home / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=120)
    # The pip of an environment takes seconds to be installed.
    pip = shlex.join([sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python")])
    (venv / "bin" / "pip").write_text(f'#!/bin/sh\nexec {pip} --quiet --disable-pip-version-check "$@"\n')
    (venv / "bin" / "pip").chmod(0o755)
    assert "pip install ./pvelab" in COMMANDS
    one.shell("pip install ./pvelab pytest", cwd=PVELAB.parent)
    yield one
    one.shell("pvelab destroy")
    assert not (one.home / ".local/state/pvelab").exists()


def test_it_is_installed_alone(stranger: Stranger) -> None:
    listing = "from importlib.metadata import distributions as d; print(*(one.name.lower() for one in d()))"
    names = set(stranger.shell(f'python -c "{listing}"').split())
    assert "pvelab" in names
    assert not names & {"requests", "proxmoxer", "fakepve", "hypothesis", "mypy"}
    assert "the API and its volumes" in stranger.shell("pvelab doctor || true")


def test_its_own_test_passes_as_it_stands(stranger: Stranger) -> None:
    [example] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    folder = stranger.home / "project"
    folder.mkdir()
    (folder / "my_tool.py").write_text(TOOL)
    (folder / "test_mine.py").write_text(f"import my_tool\n\n\n{example}")
    assert "1 passed" in stranger.shell("python -m pytest -q -p no:cacheprovider", cwd=folder)


def test_the_commands_do_what_they_say(stranger: Stranger) -> None:
    point = 'eval "$(pvelab env)"'
    curl = (
        'curl --cacert "$PROXMOX_VE_CA_FILE" -H "Authorization: PVEAPIToken=$PROXMOX_VE_API_TOKEN" '
        '"${PROXMOX_VE_ENDPOINT}api2/json/version"'
    )
    stranger.follow("pvelab up --no-containers")
    assert json.loads(stranger.follow(point, curl))["data"]["release"]
    assert "daemon" in stranger.follow("pvelab status")
    # A shell without input ends at once.
    stranger.follow("pvelab shell")
    for line in COMMANDS:
        if line.startswith("pvelab faults add"):
            assert stranger.follow(line).strip().isdigit()
    assert stranger.follow("pvelab faults fired") == ""
    stranger.follow("pvelab faults clear")
    before = stranger.follow(point, "pvelab reset", curl)
    stranger.follow("pvelab down")
    assert stranger.shell("pvelab status", code=3)
    stranger.follow("pvelab up --no-containers")
    assert stranger.follow(point, curl) == before


def test_it_holds_a_lab_against_the_contract(stranger: Stranger) -> None:
    """As a node of one's own, with the lab's address, CA and name."""
    [line] = [line for line in COMMANDS if line.startswith("pvelab conformance")]
    assert "pvesh create /pools --poolid unlocked-for-conformance" in COMMANDS
    assert 'echo "$secret" | pvelab passwd' in README
    line = line.replace("https://192.0.2.9:8006", '"$PROXMOX_VE_ENDPOINT"')
    line = line.replace("--fingerprint 5B:A9:...", '--ca-file "$PROXMOX_VE_CA_FILE" --case version --case destroy')
    unlock = (
        'curl --fail --silent --cacert "$PROXMOX_VE_CA_FILE" -H "Authorization: PVEAPIToken=$PROXMOX_VE_API_TOKEN" '
        '"${PROXMOX_VE_ENDPOINT}api2/json/pools" -d poolid=unlocked-for-conformance'
    )
    said = stranger.shell(
        "pvelab up --no-containers",
        'eval "$(pvelab env)"',
        f"secret={PASSWORD}",
        'echo "$secret" | pvelab passwd',
        unlock,
        f"PVELAB_CONFORMANCE_PASSWORD=$secret {line}",
    )
    assert ": 2 same, 0 different, 0 not run" in said
    report = json.loads((stranger.home / "conformance" / "conformance.json").read_text())
    assert [result["outcome"] for result in report["results"]] == ["same", "same"]
    assert PASSWORD not in (stranger.home / "conformance" / "conformance.txt").read_text()
