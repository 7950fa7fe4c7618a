"""What stays in the container beside the services: the command `hermes`, the probe, and what both have to know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from provisioning.guest.common import FACTS, LIBRARY, Refusal, as_user, install_file

COMMAND = Path("/usr/local/bin/hermes")
SUDOERS = Path("/etc/sudoers.d/hermes-stack")
STATE_FILE = "state.db"  # there once the agent has run (facts hermes 1, "Gateway")
DEFAULT_STATE = ".hermes"


def program(module: str) -> str:
    """A program that runs a module of this package, isolated from the caller's Python settings."""
    return f"""#!/usr/bin/python3 -IB
# Written by the stack; changes by hand are overwritten.
import sys
sys.path.insert(0, "{LIBRARY}")
from provisioning.guest.{module} import main
sys.exit(main())
"""


def facts_of(inputs: dict[str, Any]) -> dict[str, Any]:
    """What the programs have to know. Everybody may read it: no secret is in it."""
    names = (
        "stack",
        "user",
        "uid",
        "home",
        "home_on_root",
        "hermes_home",
        "working_directory",
        "users_group",
        "api_server",
        "backups_kept",
        "probe",
    )
    return {name: inputs[name] for name in names} | {"container": inputs["container"] is not None}


def sudoers(user: str, group: str) -> str:
    """Members of the group become the agent's account, for its command line only, and nobody else."""
    return (
        "# Written by the stack; changes by hand are overwritten.\n"
        f"%{group} ALL=({user}) NOPASSWD: {COMMAND}\n"
        f'Defaults:%{group} env_keep += "COLORTERM NO_COLOR TZ EDITOR VISUAL"\n'
    )


def install_programs(job: Path, inputs: dict[str, Any]) -> None:
    """Safe to repeat; what is there with the same content is not touched."""
    package = LIBRARY / "provisioning" / "guest"
    for folder in (LIBRARY, LIBRARY / "provisioning", package, SUDOERS.parent):
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    install_file(LIBRARY / "provisioning" / "__init__.py", "", mode=0o644, gid=0)
    for source in sorted((job / "provisioning" / "guest").glob("*.py")):
        install_file(package / source.name, source.read_text(encoding="utf-8"), mode=0o644, gid=0)
    for name in ("verify", "status"):
        install_file(LIBRARY / f"{name}.py", program(name), mode=0o755, gid=0)
    install_file(LIBRARY / "backups", program("backups"), mode=0o755, gid=0)
    install_file(SUDOERS, sudoers(inputs["user"], inputs["users_group"]), mode=0o440, gid=0)
    if install_file(COMMAND, program("cli"), mode=0o755, gid=0):
        print(f"command line: {COMMAND} written")


def install_facts(inputs: dict[str, Any]) -> None:
    """What these programs have to know of the agent that runs: goes with its configuration, and back with it."""
    install_file(FACTS, json.dumps(facts_of(inputs), indent=1, sort_keys=True), mode=0o644, gid=0)


def refuse_moved_state(user: str, home: str, hermes_home: str, kept_folder: str) -> None:
    """Another state directory would make the agent forget everything without a word; the volume knows the last one."""
    # Arguments: the home, the folder of the record, the wanted and the usual directory, the file that tells.
    script = (
        'set -eu; umask 077; cd "$1"; mkdir -p "$2"; chmod 700 "$2"; f="$2/state-directory"; '
        'last=$(head -c 4096 "$f" 2>/dev/null || printf %s "$4"); '
        'if [ "$last" != "$3" ] && [ -e "$last/$5" ] && [ ! -e "$3/$5" ]; then printf %s "$last"; exit 0; fi; '
        'printf %s "$3" >"$f.part"; mv "$f.part" "$f"'
    )
    wanted = hermes_home.removeprefix(f"{home}/")
    last = as_user(user, "sh", "-c", script, "sh", home, kept_folder, wanted, DEFAULT_STATE, STATE_FILE)
    if last:
        raise Refusal(
            f"the agent's data is in {home}/{last}, and {hermes_home} has none: it would forget everything.\n"
            f"Set agentStateDirectory to {home}/{last}, or move the data on purpose:\n"
            "  systemctl stop 'hermes-*'\n"
            f"  runuser -u {user} -- rm -r {hermes_home}     # what baseline made: empty folders\n"
            f"  runuser -u {user} -- mv {home}/{last} {hermes_home}"
        )
