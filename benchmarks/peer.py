"""The peer: the same agent by OpenTofu with bpg's provider, and one Ansible playbook. Its files are in peer/.

Its home is on the container's own disk, as that of the stacks' cold `up`. It has no pet and pins no host key, and a bad
update of it does not go back. What both do is compared.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lab.engine import Run, Span
from lab.instance import CACHE

if TYPE_CHECKING:
    from benchmarks.rounds import Bench

FILES = Path(__file__).resolve().parent / "peer"
VMID = 130
DEADLINE = 1200.0


class PeerError(Exception):
    """A command of the peer failed; the text has its last lines."""


def why_no_peer() -> str | None:
    """What is missing on PATH; None: nothing is."""
    ways = {"tofu": "https://opentofu.org/docs/intro/install/", "ansible-playbook": "pip install ansible-core"}
    missing = [f"{name} is not on PATH ({way})" for name, way in ways.items() if shutil.which(name) is None]
    return "; ".join(missing) or None


@dataclass
class Peer:
    """Its files in a folder of their own, filled in for a lab."""

    folder: Path
    address: str
    key: Path
    env: dict[str, str] = field(repr=False)
    rounds: int = 0

    @classmethod
    def on(cls, bench: Bench, provider: Path | None) -> Peer:
        """`provider`: the folder with the program of bpg's provider; None: OpenTofu gets it as it is set up to."""
        lab, folder = bench.lab, bench.scratch / "peer"
        ready = lab.ready()
        shutil.copytree(FILES, folder)
        where = bench.free_address(VMID)
        public_key = lab.ssh_key_file.with_suffix(".pub").read_text().strip()
        container = {"node": ready.node, "vmid": VMID, "template": ready.template, "address": where}
        container |= {"gateway": ready.gateway, "public_key": public_key}
        (folder / "terraform.tfvars.json").write_text(json.dumps(container))
        agent = {
            "uv": str(CACHE / "uv" / "bin" / "uv"),
            "repository": ready.source_url,
            "tag": ready.source_tag,
            "model_url": ready.model_url,
            "model": ready.model,
            "model_key": lab.model_key_file.read_text().strip(),
            "api_key": secrets.token_urlsafe(32),
        }
        variables = folder / "agent.json"
        variables.touch(mode=0o600)
        variables.write_text(json.dumps(agent))
        env = {**bench.env, "SSL_CERT_FILE": bench.env["PROXMOX_VE_CA_FILE"], "TF_IN_AUTOMATION": "1"}
        peer = cls(folder, where.partition("/")[0], lab.ssh_key_file, env)
        if provider is not None:
            overrides = f'dev_overrides {{\n "bpg/proxmox" = {json.dumps(str(provider.resolve()))}\n}}\ndirect {{}}'
            (folder / "tofu.rc").write_text(f"provider_installation {{\n{overrides}\n}}\n")
            env["TF_CLI_CONFIG_FILE"] = str(folder / "tofu.rc")
        else:
            peer._call({**env, "SSL_CERT_FILE": os.environ.get("SSL_CERT_FILE", "")}, "tofu", "init", "-input=false")
        return peer

    def round(self) -> Iterator[tuple[str, Run]]:
        """The peer's life: from nothing, twice with nothing to do, and gone."""
        self.rounds += 1
        (self.folder / "known_hosts").unlink(missing_ok=True)
        # What ssh keeps open leads to the container of the round before.
        self.env["ANSIBLE_SSH_CONTROL_PATH_DIR"] = str(self.folder / f"ssh{self.rounds}")
        apply = ("tofu", "apply", "-input=false", "-auto-approve")
        playbook = (
            *("ansible-playbook", "--inventory", f"{self.address},", "--user", "root", "--private-key", str(self.key)),
            *("--extra-vars", "@agent.json", "playbook.yml"),
        )
        yield "peer-up", self.run({"tofu apply": apply, "playbook": playbook})
        yield "peer-plan", self.run({"tofu plan": ("tofu", "plan", "-input=false")})
        yield "peer-nothing", self.run({"tofu apply": apply, "playbook": playbook})
        yield "peer-destroy", self.run({"tofu destroy": ("tofu", "destroy", "-input=false", "-auto-approve")})

    def run(self, commands: dict[str, Sequence[str]]) -> Run:
        """Some commands as one run of the engine."""
        run, begin, used = Run(), time.monotonic(), _used()
        for name, command in commands.items():
            began = time.monotonic() - begin
            self._call(self.env, *command)
            run.spans.append(Span(name, "peer", "run", began, time.monotonic() - begin))
        run.seconds, run.cpu, run.returncode = time.monotonic() - begin, _used() - used, 0
        return run

    def _call(self, env: dict[str, str], *command: str) -> None:
        done = subprocess.run(
            command, cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=DEADLINE, check=False,
        )  # fmt: skip
        if done.returncode:
            raise PeerError(f"the peer's {' '.join(command)} failed:\n{done.stdout[-3000:]}")


def _used() -> float:
    """CPU seconds of all children that have ended, and of those that they waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
