"""Code from the agent's folders in the place of the installed one.

Nothing that it can write is imported or sourced by a service, by a phase, or by a command of root's.
"""

from __future__ import annotations

import base64

from tests.attacks.attack import WORKSPACE, Scene, attack

# A module or a start-up file that is taken up leaves a line: whose process it was, and which.
ACCOUNT = "10000"
PROOF = f"{WORKSPACE}/proof"
MODULE = f"""import os, sys
with open({PROOF!r}, "a") as proof:
    print(os.getuid(), __name__, open("/proc/self/cmdline").read().replace(chr(0), " ")[:300], file=proof)
raise SystemExit("not the module that was meant")
"""
SOURCED = f"echo $(id -u) shell $(tr '\\\\0' ' ' </proc/$$/cmdline) >>{PROOF}\n"

# All the names of the standard library and of the build (of whatever version, whichever way it was installed).
NAMES = """
import os, sys, glob
names = set(sys.stdlib_module_names) | {"sitecustomize", "usercustomize"}
found = glob.glob("/opt/hermes/*/venv/lib/python3*/site-packages") + glob.glob("/opt/hermes/*/hermes-agent")
found += glob.glob("/opt/hermes/.venv/lib/python3*/site-packages") + ["/opt/hermes"]
for folder in filter(os.path.isdir, found):
    for entry in os.listdir(folder):
        name = entry.partition(".")[0]
        if name.isidentifier() and (entry.endswith(".py") or os.path.isdir(os.path.join(folder, entry))):
            names.add(name)
"""


def plant(folders: list[str]) -> str:
    return f"""{NAMES}
for folder in {folders!r}:
    os.makedirs(folder, exist_ok=True)
    for name in names:
        with open(os.path.join(folder, name + ".py"), "w") as module:
            module.write({MODULE!r})
print(len(names), "names")
"""


# For its system prompt the agent looks which Pythons its shell finds (tools/env_probe.py), by a child that may fail.
PROBE = f"{ACCOUNT} importlib python3 -m pip --version "


def proofs(scene: Scene) -> list[str]:
    """What has taken up something that was planted; its own tools may, that is no wall."""
    lines = scene.root(f"cat {PROOF} 2>/dev/null || true").splitlines()
    return [line for line in lines if line != PROBE and not line.startswith(f"{ACCOUNT} shell ")]


@attack()
def files_named_like_modules(scene: Scene) -> None:
    """By accident (email.py) or on purpose (hermes_bootstrap.py): `python -m` would put the working folder first."""
    scene.undo(f"cd / && runuser -u hermes -- find {WORKSPACE} -maxdepth 1 -type f -delete")
    assert " names" in scene.agent_program(plant([WORKSPACE]))
    assert int(scene.root(f"ls {WORKSPACE} | wc -l")) > 300
    scene.root(f"rm -f {PROOF}")
    scene.restart()
    scene.proved()
    # Where somebody stands makes no difference, either.
    assert "Hermes Agent v" in scene.root(f"cd {WORKSPACE} && hermes --version")
    assert proofs(scene) == [], proofs(scene)


@attack()
def startup_files_in_the_home(scene: Scene) -> None:
    """What Python, shells, git, ssh and systemd read in a home is read by the agent's own processes alone."""
    site = "/home/hermes/.local/lib/python3.11/site-packages"
    planted = f".local .ssh .bash* .profile .hook .gitconfig .pam_environment .config .env-before {PROOF}"
    scene.undo(f"runuser -u hermes -- sh -c 'cd /home/hermes && rm -rf {planted}'")
    dotenv = "test ! -f .env-before || mv .env-before .hermes/.env"
    scene.undo(f"runuser -u hermes -- sh -c 'cd /home/hermes && {dotenv}'")
    scene.agent_program(
        f"""{plant([site, "/home/hermes/.local/evil"])}
with open({site!r} + "/evil.pth", "w") as file:
    file.write("import hermes_bootstrap\\n")
home = "/home/hermes/"
os.makedirs(home + ".ssh", exist_ok=True)
os.makedirs(home + ".config/environment.d", exist_ok=True)
for name in (".bashrc", ".bash_profile", ".bash_login", ".profile", ".bash_logout", ".ssh/rc"):
    with open(home + name, "w") as file:
        file.write({SOURCED!r})
with open(home + ".hook", "w") as file:
    file.write("#!/bin/sh\\n" + {SOURCED!r})
os.chmod(home + ".hook", 0o755)
with open(home + ".gitconfig", "w") as file:
    file.write("[core]\\n fsmonitor = " + home + ".hook\\n hooksPath = " + home + "\\n")
leads = "PYTHONPATH=" + home + ".local/evil"
for name in (".pam_environment", ".config/environment.d/evil.conf", ".ssh/environment"):
    with open(home + name, "w") as file:
        file.write(leads + "\\n")
dotenv = home + ".hermes/.env"
if os.path.exists(dotenv):
    import shutil
    shutil.copy2(dotenv, home + ".env-before")
with open(dotenv, "a") as file:
    file.write("\\n" + leads + "\\nPYTHONSTARTUP=" + home + ".local/evil/email.py\\nBASH_ENV=" + home + ".profile\\n")
"""
    )
    scene.root(f"rm -f {PROOF}")
    scene.restart()
    scene.proved()
    assert "Hermes Agent v" in scene.root("cd /home/hermes && hermes --version")
    scene.root("cd /home/hermes && /usr/local/lib/hermes-stack/status.py; /usr/local/lib/hermes-stack/backups list")
    assert proofs(scene) == [], proofs(scene)


COMPILE = f"""
import glob, importlib.util, marshal, os
wrote = []
for source in glob.glob("/opt/hermes/*/venv/lib/python3*/site-packages/hermes_bootstrap.py") + glob.glob(
    "/opt/hermes/*/hermes-agent/hermes_bootstrap.py"
):
    state = os.stat(source)
    # What counts as compiled from a source: its time and size (PEP 552).
    begin = importlib.util.MAGIC_NUMBER + bytes(4) + int(state.st_mtime).to_bytes(4, "little")
    begin += state.st_size.to_bytes(4, "little")
    beside = importlib.util.cache_from_source(source)
    for place in (beside, "/var/cache/hermes/pycache" + beside.replace("/__pycache__", "")):
        try:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place + ".new", "wb") as file:
                file.write(begin + marshal.dumps(compile({MODULE!r}, source, "exec")))
            os.rename(place + ".new", place)
            wrote.append(place)
        except OSError:
            pass
print("wrote", *wrote)
"""


@attack("bare-metal")
def compiled_code(scene: Scene) -> None:
    """Beside the code, or in the cache that an earlier version of the stack gave to the agent's account."""
    scene.undo("rm -rf /var/cache/hermes")
    assert "tool said: " in scene.agent_program(COMPILE)
    assert "pycache" not in scene.root("find /opt/hermes ! -user root")
    # As it was left on a container of an earlier version: by the account, outside of today's sandbox.
    scene.root("install -d -o hermes -g hermes /var/cache/hermes")
    encoded = base64.b64encode(COMPILE.encode()).decode()
    account = "runuser -u hermes --"
    said = scene.root(f"cd / && echo {encoded} | base64 -d | {account} python3 -I -")
    assert said.startswith("wrote /var/cache/hermes/"), said
    assert "/opt/" not in said.replace("/var/cache/hermes/pycache/opt/", "")
    scene.root(f"rm -f {PROOF}")
    scene.restart()
    scene.proved()
    assert "Hermes Agent v" in scene.root("cd / && hermes --version")
    assert proofs(scene) == [], proofs(scene)
