#!/usr/bin/python3 -I
"""Configure: write the managed scope and the units, start or restart exactly what reads something new.

Runs in the container as root, with the standard library only. HP_JOB is the job's folder, HP_SECRETS a JSON file.
Safe to repeat. The agent's own code runs only as its user, and only to check what it is going to read.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import pwd
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MANAGED = Path("/etc/hermes")
UNITS = Path("/etc/systemd/system")
STARTED = Path("/var/lib/hermes-provision/started.json")
LIBRARY = Path("/usr/local/lib/hermes-stack")
CURRENT = Path("/opt/hermes/current")
GATEWAY = "hermes-gateway.service"
DASHBOARD = "hermes-dashboard.service"
# On the volume, so that they outlive the container: what clients and browsers hold against us.
KEPT_FOLDER = ".hermes-stack"


class Refusal(Exception):  # noqa: N818 - a reason to stop, no fault of the program
    """A reason to stop, in words for the operator."""


def run(*command: str, stdin: str | None = None, check: bool = True) -> str:
    """Run a command; its error text becomes ours."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=120)
    if check and done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise Refusal(f"`{' '.join(command[:4])}` failed with {done.returncode}: {words}")
    return done.stdout


def as_user(user: str, *command: str, stdin: str | None = None, check: bool = True) -> str:
    """Run a command as the agent's user; its home is touched this way only: root would follow planted links."""
    return run("runuser", "--user", user, "--", *command, stdin=stdin, check=check)


# ---- values that are made once --------------------------------------------------------------------------------------


def kept(user: str, home: str, name: str, *, preferred: str | None = None) -> str:
    """A random value of 64 hex digits that stays the same as long as the volume does.

    `preferred`: a declared value; it is used and nothing is kept.
    """
    if preferred is not None:
        return preferred
    script = (
        'set -eu; umask 077; cd "$1"; mkdir -p "$2"; chmod 700 "$2"; f="$2/$3"; '
        'if [ ! -s "$f" ]; then cat >"$f.part"; mv "$f.part" "$f"; fi; head -c 200 "$f"'
    )
    value = as_user(user, "sh", "-c", script, "sh", home, KEPT_FOLDER, name, stdin=secrets.token_hex(32)).strip()
    if len(value) < 32 or not value.isalnum():
        raise Refusal(
            f"{home}/{KEPT_FOLDER}/{name} does not hold a usable key (32 or more letters and digits).\n"
            "Remove the file to have a new one made."
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


# ---- the managed scope ----------------------------------------------------------------------------------------------


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
from hermes_cli import managed_scope
from hermes_cli.env_loader import _load_dotenv_with_fallback
config, env = managed_scope.load_managed_config(), managed_scope.load_managed_env()
names = set(env)
for name in names:
    os.environ.pop(name, None)
_load_dotenv_with_fallback(Path(sys.argv[1]) / ".env", override=True)
json.dump({"config": config, "env": env, "loaded": {name: os.environ.get(name) for name in names}}, sys.stdout)
"""


def check_managed(folder: Path, python: str, user: str, config: dict[str, Any], env: dict[str, str]) -> None:
    """Let the agent itself, as its user, read the files: it ignores a file that it can't parse instead of failing."""
    with tempfile.TemporaryDirectory(prefix="hermes-check.", dir="/tmp") as empty:
        account = pwd.getpwnam(user)
        os.chown(empty, account.pw_uid, account.pw_gid)
        environment = (
            "env",
            "-i",
            f"HOME={empty}",
            f"HERMES_HOME={empty}",
            "PATH=/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE=1",
        )
        read = json.loads(as_user(user, *environment, python, "-c", CHECK, str(folder)))
    if read["config"] != config:
        wrong = sorted(key for key in {*config, *read["config"]} if config.get(key) != read["config"].get(key))
        raise Refusal(f"the agent reads the managed config.yaml differently than declared, at: {', '.join(wrong)}.")
    wrong = sorted(name for name in env if not env[name] == read["env"].get(name) == read["loaded"].get(name))
    if wrong or set(read["env"]) != set(env):
        raise Refusal(
            f"the agent reads the managed .env differently than declared, at: {', '.join(wrong) or 'extra names'}."
        )


def install_file(path: Path, text: str, *, mode: int, gid: int) -> bool:
    """Atomic replace; False when it was there already with this content, owner and mode."""
    with contextlib.suppress(FileNotFoundError):
        state = path.lstat()
        same = (state.st_mode & 0o7777, state.st_uid, state.st_gid) == (mode, 0, gid)
        if same and not path.is_symlink() and path.read_text(encoding="utf-8") == text:
            return False
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            os.fchmod(stream.fileno(), mode)
            os.fchown(stream.fileno(), 0, gid)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).rename(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    return True


def write_managed(inputs: dict[str, Any], python: str, config: dict[str, Any], env: dict[str, str]) -> None:
    """Check in a folder of its own first, then put both files in place."""
    gid, user = inputs["gid"], inputs["user"]
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
            check_managed(folder, python, user, config, env)
    for name, text in (("config.yaml", config_text), (".env", env_text)):
        if install_file(MANAGED / name, text, mode=0o640, gid=gid):
            print(f"managed scope: {MANAGED / name} written")


# ---- services -------------------------------------------------------------------------------------------------------


def render_unit(template: str, directory: str) -> str:
    """Fill in the real folder, not the `current` link: a running service must not load code of two versions."""
    names = (("HERMES_BUNDLED_SKILLS", "skills"), ("HERMES_OPTIONAL_SKILLS", "optional-skills"))
    found = [f"{name}={directory}/src/{folder}" for name, folder in names if Path(directory, "src", folder).is_dir()]
    skills = f"Environment={' '.join(found)}" if found else "# no skills come with this build"
    return template.replace("@AGENT_DIRECTORY@", directory).replace("@SKILLS@", skills)


def is_active(unit: str) -> bool:
    return run("systemctl", "show", "--property=ActiveState", "--value", unit).strip() in (
        "active",
        "activating",
        "reloading",
    )


def refuse_taken_port(host: str, port: int, what: str) -> None:
    """A port that somebody else holds makes the service start and die for ever; the holder is named instead."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1" if host == "localhost" else host, port))
        except OSError as error:
            holder = run(
                "ss", "--no-header", "--listening", "--tcp", "--numeric", "--processes", f"sport = :{port}", check=False
            )
            raise Refusal(
                f"the {what} can't listen on {host} port {port}: {error.strerror}.\n"
                f"{holder.strip() or 'No process is shown for it: the address may not be one of this container.'}\n"
                "Choose another port or address, or end the process that holds it."
            ) from None


def refuse_user_units(home: str, user: str) -> None:
    """A second gateway on the same home, as a user's unit, and ours would end each other (facts hermes 3)."""
    found = as_user(
        user, "sh", "-c", 'ls -d "$1"/.config/systemd/user/hermes-*.service 2>/dev/null || true', "sh", home
    ).split()
    if found:
        raise Refusal(
            "the home holds units of its own for the agent, which would run a second gateway on the same data:\n"
            + "\n".join(f"  {path}" for path in found)
            + "\nRemove them; the services are the stack's business."
        )


def wanted_state(gateway_text: str, dashboard_text: str, config: dict[str, Any], env: dict[str, str]) -> dict[str, str]:
    """Per unit a digest of all that it reads at its start. The dashboard's own settings are none of the gateway's."""

    def digest(*parts: Any) -> str:
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    others = {key: value for key, value in config.items() if key != "dashboard"}
    env_others = {key: value for key, value in env.items() if not key.startswith("HERMES_DASHBOARD_")}
    return {GATEWAY: digest(gateway_text, others, env_others), DASHBOARD: digest(dashboard_text, config, env)}


def start_services(wanted: dict[str, str], ports: dict[str, tuple[str, int, str]]) -> list[str]:
    """Start what does not run, restart what runs with something older. Returns the units that were touched."""
    try:
        started: dict[str, str] = json.loads(STARTED.read_text())
    except (FileNotFoundError, ValueError):
        started = {}
    stale = [unit for unit in wanted if not is_active(unit) or started.get(unit) != wanted[unit]]
    for unit in stale:
        if not is_active(unit):
            refuse_taken_port(*ports[unit])
    if wanted:
        run("systemctl", "enable", "--quiet", *wanted)
    if stale:
        # A counter from earlier troubles is no news; verify wants it at 0.
        run("systemctl", "reset-failed", *stale, check=False)
        run("systemctl", "restart", *stale)
    install_file(STARTED, json.dumps(wanted, indent=1), mode=0o644, gid=0)
    return stale


def configure(job: Path, secrets_file: Path) -> dict[str, Any]:
    inputs = json.loads((job / "inputs.json").read_text())
    hidden: dict[str, str] = json.loads(secrets_file.read_text())
    user, home = inputs["user"], inputs["home"]
    if not os.path.ismount(home):
        raise Refusal(
            f"nothing is mounted at {home}. Attach the volume and restart the container; nothing was changed."
        )
    directory = inputs["agent_directory"] or os.path.realpath(CURRENT)
    try:
        installed = json.loads(Path(directory, "install.json").read_text())
    except FileNotFoundError:
        raise Refusal(f"{directory} is no complete installation; the agent phase has to run first.") from None
    dashboard = inputs["dashboard"]
    if dashboard["enabled"] and not installed["dashboard_available"]:
        raise Refusal(
            f"the dashboard is asked for, but {directory} has no web UI: its source brings none built.\n"
            "Set agentDashboard to false, agentWebUi to build, or agentSource to pypi, which brings one."
        )
    refuse_user_units(home, user)

    env: dict[str, str] = dict(inputs["environment"])
    for name in (*inputs["secret_environment"], inputs["model_api_key_variable"]):
        if name in hidden:
            env[name] = hidden[name]
    env["API_SERVER_KEY"] = kept(user, home, "api-server-key", preferred=hidden.get("API_SERVER_KEY"))
    if dashboard["enabled"] and dashboard["authenticated"]:
        present = read_env(MANAGED / ".env").get("HERMES_DASHBOARD_BASIC_AUTH_PASSWORD_HASH", "")
        env["HERMES_DASHBOARD_BASIC_AUTH_USERNAME"] = dashboard["username"]
        env["HERMES_DASHBOARD_BASIC_AUTH_PASSWORD_HASH"] = hidden.get("dashboard.password_hash") or dashboard_hash(
            hidden["dashboard.password"], present
        )
        env["HERMES_DASHBOARD_BASIC_AUTH_SECRET"] = kept(user, home, "dashboard-session-key")

    config = {**inputs["config"], "_config_version": installed["config_version"]}
    write_managed(inputs, f"{directory}/venv/bin/python", config, env)

    LIBRARY.mkdir(mode=0o755, parents=True, exist_ok=True)
    install_file(LIBRARY / "verify.py", (job / "verify.py").read_text(), mode=0o755, gid=0)

    texts = {unit: render_unit((job / "units" / unit).read_text(), directory) for unit in (GATEWAY, DASHBOARD)}
    wanted = wanted_state(texts[GATEWAY], texts[DASHBOARD], config, env)
    changed = False
    if not dashboard["enabled"]:
        del wanted[DASHBOARD]
        if (UNITS / DASHBOARD).exists():
            run("systemctl", "disable", "--now", "--quiet", DASHBOARD)
            (UNITS / DASHBOARD).unlink()
            changed = True
            print(f"services: {DASHBOARD} removed")
    for unit in wanted:
        if install_file(UNITS / unit, texts[unit], mode=0o644, gid=0):
            changed = True
            print(f"services: {UNITS / unit} written")
    if changed:
        run("systemctl", "daemon-reload")
    api = inputs["api_server"]
    ports = {
        GATEWAY: (api["host"], api["port"], "API server"),
        DASHBOARD: (dashboard["host"], dashboard["port"], "dashboard"),
    }
    restarted = start_services(wanted, ports)
    print(f"services: {'restarted ' + ', '.join(restarted) if restarted else 'nothing to restart'}")
    return {
        "restarted": restarted,
        "agent_directory": directory,
        "agent_version": installed["version"],
        "api_url": f"http://{bracket(api['host'])}:{api['port']}/v1",
        "dashboard_url": f"http://{bracket(dashboard['host'])}:{dashboard['port']}/" if dashboard["enabled"] else None,
        "auth_required": dashboard["auth_required"],
    }


def bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def main() -> int:
    job = Path(os.environ["HP_JOB"])
    # /etc/environment may have narrowed it; runuser is in sbin.
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"
    try:
        outputs = configure(job, Path(os.environ["HP_SECRETS"]))
    except Refusal as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return 1
    (job / "result.json").write_text(json.dumps(outputs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
