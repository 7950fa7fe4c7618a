"""The managed scope, /etc/hermes: what the operator pins, checked by the agent itself before it is put in place."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from applications.hermes.guest.names import KEPT_FOLDER, MANAGED
from provisioning.guest.common import (
    STATE,
    Refusal,
    account_of,
    answer_in,
    as_user,
    install_file,
    read_home,
    write_home,
)
from provisioning.guest.words import command, names, said
from provisioning.guest.words import name as shown

UNKNOWN = STATE / "unknown-keys.json"


# ---- values that are made once --------------------------------------------------------------------------------------


def persistent_secret(user: str, home: str, name: str, *, preferred: str | None = None) -> str:
    """A random value of 64 hex digits that stays the same as long as the volume does.

    `preferred`: a declared value; it is used and nothing is kept.
    """
    if preferred is not None:
        return preferred
    path = f"{home}/{KEPT_FOLDER}/{name}"
    value = (read_home(user, path, limit=4096) or "").strip()
    if not value:
        value = secrets.token_hex(32)
        write_home(user, path, value)
    if not re.fullmatch("[A-Za-z0-9]{32,200}", value):
        raise Refusal(
            f"{path} does not hold a usable key (32 to 200 letters and digits).\n"
            f"Remove the file to have a new one made: {command('runuser', '-u', user, '--', 'rm', path)}"
        )
    return value


def scrypt_hash(password: str, salt: bytes) -> str:
    """The dashboard's own format: scrypt$N$r$p$salt$key (facts hermes 1, "Dashboard")."""
    key = hashlib.scrypt(password.encode(), salt=salt, n=2**14, r=8, p=1, dklen=32)
    return f"scrypt$16384$8$1${base64.b64encode(salt).decode()}${base64.b64encode(key).decode()}"


def dashboard_hash(password: str, present: str) -> str:
    """The hash of `password`; `present` when that is one of it already, so that nothing restarts for a new salt."""
    parts = present.split("$")
    if len(parts) == 6 and parts[:4] == ["scrypt", "16384", "8", "1"]:
        with contextlib.suppress(ValueError):
            same = scrypt_hash(password, base64.b64decode(parts[4], validate=True))
            if hmac.compare_digest(same, present):
                return present
    return scrypt_hash(password, secrets.token_bytes(16))


# ---- the files ------------------------------------------------------------------------------------------------------


def read_env(path: Path) -> dict[str, str]:
    """The variables of a .env that this program wrote."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {name: value.strip().strip("'") for name, _, value in pairs}


def render_env(values: dict[str, str]) -> str:
    """Single quotes: the one form that both of the agent's readers take literally."""
    lines = [f"{name}='{value}'" for name, value in sorted(values.items())]
    return "\n".join(["# Written by the stack; changes by hand are overwritten.", *lines, ""])


def render_config(config: dict[str, Any]) -> str:
    """JSON is YAML: no quoting surprises, and no YAML library needed here."""
    body = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False)
    return f"# Written by the stack; changes by hand are overwritten.\n{body}\n"


CHECK = """
import json, os, sys
from pathlib import Path
os.environ["HERMES_MANAGED_DIR"] = sys.argv[1]
from hermes_cli import config as own, managed_scope
from hermes_cli.env_loader import _load_dotenv_with_fallback
config, env = managed_scope.load_managed_config(), managed_scope.load_managed_env()
names = set(env)
for name in names:
    os.environ.pop(name, None)
_load_dotenv_with_fallback(Path(sys.argv[1]) / ".env", override=True)
known = set(own.DEFAULT_CONFIG) | set(getattr(own, "_KNOWN_ROOT_KEYS", ()))
tasks = own.DEFAULT_CONFIG.get("auxiliary") or {}
unknown = sorted(key for key in config if key not in known and not key.startswith("_"))
unknown += sorted("auxiliary." + key for key in config.get("auxiliary") or {} if key not in tasks)
skipped = {}
try:
    from hermes_cli.mcp_security import validate_mcp_server_entry
except ImportError:
    pass
else:
    servers = (config.get("mcp_servers") or {}).items()
    skipped = {name: issues for name, server in servers if (issues := validate_mcp_server_entry(name, server))}
shadowed = []
if config.get("providers"):
    from hermes_cli import runtime_provider
    named = getattr(runtime_provider, "_get_named_custom_provider", None)
    shadowed = sorted(name for name in config["providers"] if named is not None and named(name) is None)
loaded = {name: os.environ.get(name) for name in names}
json.dump({"config": config, "env": env, "loaded": loaded, "unknown": unknown, "skipped": skipped,
           "shadowed": shadowed}, sys.stdout)
"""


Reader = Callable[[str, Path], str]
"""Runs a Python program (its text) with the agent's own code on a folder, and answers what it printed."""


def read_with(python: str, user: str) -> Reader:
    """The reader of an installation in the guest: its interpreter, as the agent's user, in an empty home."""

    def read(program: str, folder: Path) -> str:
        with tempfile.TemporaryDirectory(prefix="hermes-check.", dir="/tmp") as empty:
            account = account_of(user)
            os.chown(empty, account.pw_uid, account.pw_gid)
            environment = (
                "env",
                "-i",
                f"HOME={empty}",
                f"HERMES_HOME={empty}",
                "PATH=/usr/bin:/bin",
                "PYTHONDONTWRITEBYTECODE=1",
            )
            told_as = f"the agent's own code, as {user}, with {python},"
            return as_user(user, *environment, python, "-P", "-c", program, str(folder), told_as=told_as)

    return read


def check_managed(folder: Path, reader: Reader, config: dict[str, Any], env: dict[str, str]) -> list[str]:
    """Let the agent itself, as its user, read the files: it ignores a file that it can't parse instead of failing.

    Answers the keys that this version of the agent does not know.
    """
    read = answer_in(reader(CHECK, folder), "the agent's own reading of the managed scope")
    if read["config"] != config:
        wrong = sorted(key for key in {*config, *read["config"]} if config.get(key) != read["config"].get(key))
        raise Refusal(f"the agent reads the managed config.yaml differently than declared, at: {names(wrong)}.")
    wrong = sorted(name for name in env if not env[name] == read["env"].get(name) == read["loaded"].get(name))
    if wrong or set(read["env"]) != set(env):
        raise Refusal(
            f"the agent reads the managed .env differently than declared, at: {names(wrong) or 'extra names'}."
        )
    for name, issues in read["skipped"].items():
        raise Refusal(f"the agent would never start the MCP server {shown(name)}: {said('; '.join(map(str, issues)))}.")
    if read["shadowed"]:
        raise Refusal(
            f"the agent takes {names(read['shadowed'])} for a provider of its own, not the one that is declared.\n"
            "Give it another name in agentProviders, and where it is used."
        )
    unknown: list[str] = read["unknown"]
    return unknown


def known_unknown() -> list[str]:
    """What the last check found, for runs that have nothing to check."""
    try:
        found: list[str] = json.loads(UNKNOWN.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        found = []
    return found


def try_managed(gid: int, reader: Reader, config: dict[str, Any], env: dict[str, str]) -> list[str]:
    """Check what is going to be written, in a folder of its own. Answers the keys unknown to the agent."""
    config_text, env_text = render_config(config), render_env(env)
    MANAGED.mkdir(mode=0o750, exist_ok=True)
    os.chown(MANAGED, 0, gid)
    MANAGED.chmod(0o750)
    same = (MANAGED / "config.yaml", MANAGED / ".env")
    if all(path.exists() for path in same) and [path.read_text() for path in same] == [config_text, env_text]:
        print("managed scope: unchanged")
    else:
        with tempfile.TemporaryDirectory(prefix=".check.", dir=MANAGED) as name:
            folder = Path(name)
            os.chown(folder, 0, gid)
            folder.chmod(0o750)
            install_file(folder / "config.yaml", config_text, mode=0o640, gid=gid)
            install_file(folder / ".env", env_text, mode=0o640, gid=gid)
            unknown = check_managed(folder, reader, config, env)
            install_file(UNKNOWN, json.dumps(unknown), mode=0o644, gid=0)
    return known_unknown()


def write_managed(gid: int, config: dict[str, Any], env: dict[str, str]) -> None:
    """Put both files in place; they have been tried."""
    for name, text in (("config.yaml", render_config(config)), (".env", render_env(env))):
        if install_file(MANAGED / name, text, mode=0o640, gid=gid):
            print(f"managed scope: {MANAGED / name} written")
