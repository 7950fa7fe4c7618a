"""What stays in the container beside the services: the command `hermes`, the probe, and what both have to know."""

from __future__ import annotations

from pathlib import Path

from applications.hermes.guest.inputs import Configure
from applications.hermes.guest.names import FACTS
from provisioning.guest.common import LIBRARY, Refusal, as_user, install_file, read_home
from provisioning.guest.typed import as_json
from provisioning.guest.words import command, plain_path, said

COMMAND = Path("/usr/local/bin/hermes")
SUDOERS = Path("/etc/sudoers.d/hermes-stack")
STATE_FILE = "state.db"  # there once the agent has run (facts hermes 1, "Gateway")
PACKAGES = ("applications", "provisioning")
DEFAULT_STATE = ".hermes"


def program(module: str) -> str:
    """A program that runs a module of this package, isolated from the caller's Python settings."""
    return f"""#!/usr/bin/python3 -IB
# Written by the stack; changes by hand are overwritten.
import sys
sys.path.insert(0, "{LIBRARY}")
from applications.hermes.guest.{module} import main
sys.exit(main())
"""


def sudoers(user: str, group: str) -> str:
    """Members of the group become the agent's account, for its command line only, and nobody else."""
    return (
        "# Written by the stack; changes by hand are overwritten.\n"
        f"%{group} ALL=({user}) NOPASSWD: {COMMAND}\n"
        f'Defaults:%{group} env_keep += "COLORTERM NO_COLOR TZ EDITOR VISUAL"\n'
    )


def install_programs(job: Path, inputs: Configure) -> None:
    """Safe to repeat; what is there with the same content is not touched."""
    install_packages(job)
    SUDOERS.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name in ("verify", "status"):
        install_file(LIBRARY / f"{name}.py", program(name), mode=0o755, gid=0)
    for name in ("backups", "supervise"):
        install_file(LIBRARY / name, program(name), mode=0o755, gid=0)
    install_file(SUDOERS, sudoers(inputs.facts.user, inputs.facts.users_group), mode=0o440, gid=0)
    if install_file(COMMAND, program("cli"), mode=0o755, gid=0):
        print(f"command line: {COMMAND} written")


def install_packages(job: Path) -> None:
    """The job's Python packages below LIBRARY, and nothing else of them: an earlier release had other modules."""
    sent = {file.relative_to(job): file for top in PACKAGES for file in sorted((job / top).rglob("*.py"))}
    for name, file in sent.items():
        # One by one: a mode is given to the last part only.
        for folder in reversed((LIBRARY / name).parents):
            folder.mkdir(mode=0o755, exist_ok=True)
        install_file(LIBRARY / name, file.read_text(encoding="utf-8"), mode=0o644, gid=0)
    for file in [file for top in PACKAGES for file in (LIBRARY / top).rglob("*.py")]:
        if file.relative_to(LIBRARY) not in sent:
            file.unlink()


def install_facts(inputs: Configure) -> None:
    """What these programs have to know of the agent that runs: goes with its configuration, and back with it."""
    install_file(FACTS, as_json(inputs.facts), mode=0o644, gid=0)


def refuse_moved_state(user: str, home: str, hermes_home: str, kept_folder: str) -> None:
    """Another state directory would make the agent forget everything without a word; the volume knows the last one."""
    wanted, note = hermes_home.removeprefix(f"{home}/"), f"{home}/{kept_folder}/state-directory"
    last = (read_home(user, note, limit=4096) or DEFAULT_STATE).replace("\0", "")
    # Arguments: the home, the note and its folder, the wanted directory and the last, the file that tells.
    script = (
        'set -eu; umask 077; cd "$1"; '
        'if [ "$5" != "$4" ] && [ -e "$5/$6" ] && [ ! -e "$4/$6" ]; then echo moved; exit 0; fi; '
        'mkdir -p "$3"; chmod 700 "$3"; printf %s "$4" >"$2.part"; mv "$2.part" "$2"'
    )
    told_as = f"looking for the agent's data in {home}"
    arguments = (home, note, kept_folder, wanted, last, STATE_FILE)
    if not as_user(user, "sh", "-c", script, "sh", *arguments, told_as=told_as):
        return
    name = plain_path(last)
    if name is None:
        raise Refusal(
            f"{hermes_home} has no data, and {note} names another folder that has some: it would forget everything.\n"
            f"The home says: {said(last)}, which is no name for agentStateDirectory. Look at it, and move or remove it."
        )
    raise Refusal(
        f"the agent's data is in {home}/{name}, and {hermes_home} has none: it would forget everything.\n"
        f"Set agentStateDirectory to {home}/{name}, or move the data on purpose:\n"
        "  systemctl stop 'hermes-*'\n"
        f"  {command('runuser', '-u', user, '--', 'rm', '-r', hermes_home)}     # what baseline made: empty folders\n"
        f"  {command('runuser', '-u', user, '--', 'mv', f'{home}/{name}', hermes_home)}"
    )
