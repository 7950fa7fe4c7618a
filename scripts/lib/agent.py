"""A stack's agent from the command line: status, logs, prompt."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from provisioning.errors import ProvisioningError
from provisioning.ssh import HostKey, SshTarget, connect
from provisioning.talk import ask

ROOT = Path(__file__).resolve().parents[2]
OUTPUTS_SECONDS = 60
STATUS = """
for unit in hermes-gateway hermes-dashboard; do
  systemctl show --property=Id,ActiveState,SubState,NRestarts,ActiveEnterTimestamp "$unit.service" | paste -sd ' '
done
printf 'code '; readlink /opt/hermes/current
df -h --output=target,size,avail,pcent /home/hermes | tail -n 1
"""


class AgentError(Exception):
    """What stands in the way; the text says what to do."""


def outputs_of(stack: str) -> dict[str, Any]:
    """The stack's outputs, as the CLI on PATH (or the checkout's own) tells them."""
    environment = {**os.environ}
    environment["PATH"] = f"{ROOT / '.cache' / 'pulumi-cli' / 'bin'}{os.pathsep}{environment.get('PATH', '')}"
    environment.setdefault("PULUMI_HOME", str(ROOT / ".cache" / "pulumi-home"))
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        environment.pop(name, None)
    argv = ["pulumi", "stack", "output", "--json", "--stack", stack, "--non-interactive"]
    done = subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=OUTPUTS_SECONDS, check=False
    )
    if done.returncode:
        raise AgentError(f"the outputs of stack {stack} can't be read:\n{done.stderr.strip()}")
    outputs: dict[str, Any] = json.loads(done.stdout)
    if "sshHostKey" not in outputs:
        raise AgentError(f"stack {stack} has no agent: pulumi up --stack {stack}")
    return outputs


def target_of(outputs: dict[str, Any]) -> SshTarget:
    return SshTarget(outputs["address"], HostKey.parse(outputs["sshHostKey"]), private_key_file=outputs["sshKeyFile"])


def run_in_guest(target: SshTarget, script: str) -> str:
    connection = connect(target)
    try:
        done = connection.run(script)
    finally:
        connection.close()
    if done.status:
        raise AgentError(done.stderr.decode(errors="replace").strip() or f"the command ended with {done.status}")
    return done.stdout.decode(errors="replace")


def follow(target: SshTarget, journal: list[str]) -> int:
    """Hand the terminal to ssh, which can be interrupted; the host key is pinned by a file of its own."""
    pinned = ROOT / ".cache" / "known_hosts"
    pinned.write_text(f"{target.host} {target.host_key.line}\n")
    command = ["ssh", "-o", f"UserKnownHostsFile={pinned}", "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes"]
    command += ["-i", str(target.private_key_file), f"{target.user}@{target.host}", *journal]
    return subprocess.run(command, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/agent", description="Talk to the agent of a stack.")
    parser.add_argument("--stack", default="cattle", help="the cattle stack (cattle)")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("status", help="services, version, health")
    logs = verbs.add_parser("logs", help="the gateway's and the dashboard's journal")
    logs.add_argument("-f", "--follow", action="store_true")
    logs.add_argument("-n", "--lines", type=int, default=50)
    prompt = verbs.add_parser("prompt", help="send one prompt, print its answer")
    prompt.add_argument("text")
    options = parser.parse_args()
    try:
        outputs = outputs_of(options.stack)
        target = target_of(outputs)
        if options.verb == "status":
            sys.stdout.write(run_in_guest(target, STATUS))
        elif options.verb == "logs":
            journal = ["journalctl", "--no-pager", "-u", "hermes-gateway", "-u", "hermes-dashboard"]
            journal += ["-n", str(options.lines), *(["-f"] if options.follow else [])]
            return follow(target, journal)
        else:
            print(ask(target, options.text, api_port=urlsplit(outputs["api"]).port or 8642))
    except (AgentError, ProvisioningError) as error:
        print(f"agent: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
