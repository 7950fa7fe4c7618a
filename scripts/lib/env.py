"""Points a shell at one's own Proxmox and state: ``eval "$(scripts/env)"``.

What it needs is in one folder, ``~/.config/hermes-homelab``: ``env`` (a line NAME=VALUE each), ``token``,
``passphrase``, ``ca.pem``, and ``s3-credentials`` where the state is in a bucket. `init` makes what is missing. No
secret is printed: the lines for the shell name the files.
"""

from __future__ import annotations

import argparse
import configparser
import getpass
import json
import os
import re
import secrets
import shlex
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from dotenv import dotenv_values

from provisioning.terminal import visible
from proxmox.connection import DEFAULT_PORT, ENVIRONMENT, Connection, check_plugin_trust
from proxmox.errors import Fault, Faults, ProxmoxError
from scripts.lib.ending import end_with
from scripts.lib.trust import TrustError, certificate_of, endpoint_of, fingerprint_of, save

ROOT = Path(__file__).resolve().parents[2]
TOKEN = ENVIRONMENT["apiToken"]
ENDPOINT = ENVIRONMENT["endpoint"]
CA_FILE = ENVIRONMENT["caFile"]
BACKEND = "PULUMI_BACKEND_URL"
PASSPHRASE = "PULUMI_CONFIG_PASSPHRASE"  # noqa: S105 - a variable's name
PASSPHRASE_FILE = f"{PASSPHRASE}_FILE"
LAB = "HERMES_LAB_DIR"
LAB_ONLY = ("PULUMI_OPTION_CONFIG_FILE", "HERMES_SSH_KEY_FILE")
"""What `scripts/lab env` sets, and no longer holds in a shell that leaves the lab."""
KEYS_FILE = "AWS_SHARED_CREDENTIALS_FILE"
KEYS_CA = "AWS_CA_BUNDLE"
KEYS = ("aws_access_key_id", "aws_secret_access_key")
"""What the file of a bucket's keys has, for each profile."""
OTHER_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")
"""Variables that win over that file."""
SECRETS = {
    TOKEN: "token",
    PASSPHRASE: "passphrase",
    "AWS_SECRET_ACCESS_KEY": "s3-credentials",
    "AWS_SESSION_TOKEN": "s3-credentials",
}
"""Variables that are secrets, and the file in which each belongs."""
BACKENDS = ("file", "s3", "gs", "azblob", "postgres", "https")
"""How the address of a backend begins. Anything else is the name of a cloud to Pulumi: it asks for a login there."""
BACKEND_SECONDS = 60
HEAD = """\
# What `scripts/env` gives a shell, NAME=VALUE each. Other variables may be added, as HERMES_SSH_KEY_FILE.
# Secrets are in the files beside this one.
"""


class EnvError(Exception):
    """The command can't go on. The text says what to do."""


@dataclass(frozen=True)
class Home:
    """Where this machine keeps what a shell needs: the folder with its files, and the default folder of the state."""

    folder: Path
    state: Path

    @classmethod
    def of(cls, name: str, environment: Mapping[str, str]) -> Home:
        """The home of a name; the usual one has none."""
        base = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        full = f"hermes-homelab-{name}" if name else "hermes-homelab"
        return cls(base / full, Path.home() / ".local" / "state" / full)

    @property
    def env(self) -> Path:
        return self.folder / "env"

    @property
    def token(self) -> Path:
        return self.folder / "token"

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def passphrase(self) -> Path:
        """The file of the passphrase: beside the state, where earlier versions had people make it, or in the folder."""
        earlier = self.state.with_name(f"{self.state.name}.passphrase")
        return earlier if earlier.exists() else self.folder / "passphrase"

    @property
    def keys(self) -> Path:
        """The keys of a bucket that has the state, as AWS's own tools keep theirs."""
        return self.folder / "s3-credentials"

    def token_text(self) -> str:
        """The token's file as it is; empty where there is none."""
        return self.token.read_text(encoding="utf-8") if self.token.exists() else ""

    def values(self) -> dict[str, str]:
        """The variables of the file `env`, with ~ resolved; without the token."""
        found = dotenv_values(self.env, interpolate=False) if self.env.exists() else {}
        return {name: expanded(name, value) for name, value in found.items() if value}


def short(path: Path) -> str:
    """A path with ~ for the home folder: the files stay right where that is moved or copied."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def expanded(name: str, value: str) -> str:
    """A value with the home folder for ~, where it is a path."""
    if name.endswith(("_FILE", "_BUNDLE")) and value.startswith("~"):
        return str(Path(value).expanduser())
    if name == BACKEND and value.startswith("file://~/"):
        return f"file://{Path.home()}/{value.removeprefix('file://~/')}"
    return value


def tools(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which a shell finds the checkout's own Pulumi, and no plugin that nobody has checked."""
    own = str(ROOT / ".cache" / "pulumi-cli" / "bin")
    path = [entry for entry in environment.get("PATH", "/usr/bin:/bin").split(os.pathsep) if entry != own]
    return {
        "PATH": os.pathsep.join([own, *path]),
        "PULUMI_HOME": str(ROOT / ".cache" / "pulumi-home"),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        # `pulumi stack rm` would delete the stack's settings file, with its encrypted secrets.
        "PULUMI_OPTION_PRESERVE_CONFIG": "true",
        # The engine would download a missing plugin unchecked.
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
    }


# --- what is missing ----------------------------------------------------------------------------


def readable_by_others(file: Path) -> bool:
    """Whether another user could read or write it, or owns it."""
    found = file.stat()
    return found.st_uid != os.geteuid() or bool(found.st_mode & 0o077)


def faults_of(home: Home, values: Mapping[str, str]) -> Iterator[Fault]:
    """What keeps a shell from being pointed at the Proxmox, all of it."""
    if not home.env.exists():
        rule = "is not there: this machine does not know your Proxmox yet"
        yield Fault(str(home.env), "", rule, "scripts/env init https://NODE:8006")
        return
    passphrase, keys = (Path(values[name]) if name in values else None for name in (PASSPHRASE_FILE, KEYS_FILE))
    for file in (home.folder, home.env, home.token, passphrase, keys):
        if file is not None and file.exists() and readable_by_others(file):
            remedy = f"chmod go= {shlex.quote(str(file))}"
            yield Fault(str(file), "", "must be yours, and closed to other users", remedy)
    for name, proper in SECRETS.items():
        if name in values:
            rule = f"does not belong in {home.env}: what is there is printed for the shell"
            yield Fault(name, "(hidden)", rule, f"move the value into the file {home.folder / proper}")
    if not home.token.exists():
        yield Fault(str(home.token), "", "the API token is not there", "scripts/env init asks for it")
    try:
        connection(values, home.token_text())
    except Faults as error:
        yield from (fault for fault in error.faults if home.token.exists() or fault.key != "apiToken")
    yield from state_faults(home, values, passphrase)


def state_faults(home: Home, values: Mapping[str, str], passphrase: Path | None) -> Iterator[Fault]:
    """What is wrong with the place of the state, and with the passphrase."""
    backend = values.get(BACKEND, "")
    kind, _, rest = backend.partition("://")
    if not backend:
        rule = "says where Pulumi keeps its state; without it Pulumi asks for a login at Pulumi Cloud"
        yield Fault(BACKEND, "", rule, f"write into {home.env}: {BACKEND}=file://{home.state}")
    elif kind not in BACKENDS or not rest:
        rule = f"must begin with one of {' '.join(f'{each}://' for each in BACKENDS)}: else Pulumi asks for a login"
        yield Fault(BACKEND, backend, rule, f"correct it in {home.env}: docs/state.md has examples")
    elif kind == "file" and not Path(rest).is_dir():
        rule = "the folder is not there: is a disk not mounted, or was it moved?"
        remedy = f"correct it in {home.env}; for a new state: mkdir -m 700 {shlex.quote(rest)}"
        yield Fault(BACKEND, backend, rule, remedy)
    if kind == "s3" and KEYS_FILE in values:
        yield from keys_faults(Path(values[KEYS_FILE]), backend)
    if passphrase is not None and not (passphrase.is_file() and passphrase.stat().st_size):
        rule = "the file with the passphrase is not there, or is empty; without it no state can be read"
        yield Fault(PASSPHRASE_FILE, str(passphrase), rule, "put it back; for a new state: scripts/env init")


def keys_faults(file: Path, backend: str) -> Iterator[Fault]:
    """What is wrong with the file of a bucket's keys."""
    [profile] = parse_qs(urlsplit(backend).query).get("profile", ["default"])
    found = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        found.read_string(file.read_text(encoding="utf-8"))
        missing = [key for key in KEYS if not found.get(profile, key, fallback="")]
    except (OSError, ValueError, configparser.Error):
        missing = list(KEYS)
    if missing:
        rule = f"the file must be there, with {' and '.join(missing)} below [{profile}]"
        yield Fault(KEYS_FILE, str(file), rule, "scripts/env init --new-keys asks for them")


def connection(values: Mapping[str, str], token: str) -> Connection:
    """The connection that the variables describe. Raises Faults."""
    given = {name: expanded(name, value) for name, value in values.items()}
    return Connection.from_sources({**given, TOKEN: token.strip()}, {"node": "pve"})


# --- the lines for the shell --------------------------------------------------------------------


def shell_lines(home: Home, values: Mapping[str, str], environment: Mapping[str, str]) -> Iterator[str]:
    """What a POSIX shell evaluates. What contradicts it in the shell's present environment is unset."""
    given = {**tools(environment), **values}
    contradicting = {*ENVIRONMENT.values(), *([PASSPHRASE] if PASSPHRASE_FILE in values else ())}
    if KEYS_FILE in values:
        contradicting |= {*OTHER_KEYS}
    if LAB in environment:
        contradicting |= {*LAB_ONLY, *(name for name in environment if name.startswith(("HERMES_LAB_", "PVELAB_")))}
    for name in sorted(contradicting & environment.keys() - given.keys() - {TOKEN}):
        yield f"unset {name}"
    for name, value in given.items():
        yield f"export {name}={shlex.quote(value)}"
    yield f'export {TOKEN}="$(cat {shlex.quote(str(home.token))})"'


# --- asking the node ----------------------------------------------------------------------------


def ask(found: Connection) -> str:
    """One request with the token. Returns the version of Proxmox. Raises ProxmoxError, within seconds."""
    from proxmox.client import Proxmox, Timings  # noqa: PLC0415 - its import takes as long as all others

    ca = {"SSL_CERT_FILE": found.ca_file} if found.ca_file else {}
    if faults := check_plugin_trust(found, {**os.environ, **ca}):
        raise Faults(faults, f"{found.endpoint} can't be used")
    # One attempt: somebody waits for the answer.
    with Proxmox(found, Timings(connect=2.0, read=5.0, retry=0.0)) as client:
        return client.version().version


# --- asking the backend -------------------------------------------------------------------------

REFUSALS = {
    "SignatureDoesNotMatch|InvalidAccessKeyId|InvalidClientTokenId|AccessDenied|StatusCode: 403": (
        "the server does not take the keys",
        "scripts/env init --new-keys asks for them again",
    ),
    "NoSuchBucket|StatusCode: 404": ("the server has no such bucket", "make the bucket, or correct its name in {env}"),
    "get credentials": (
        "there are no keys for it",
        "scripts/env init --new-keys asks for them; or log in with AWS's own tools",
    ),
    "certificate": (
        "the server's certificate can't be verified",
        "scripts/env init --backend-ca FILE: the certificate of its CA",
    ),
    "request send failed|no such host|did not end": (
        "the server does not answer",
        "see whether it runs; correct `endpoint` in {env}",
    ),
}
"""What the engine says of a bucket that it can't use, and what that means: the rule and the remedy."""


def stacks_in(home: Home, values: Mapping[str, str]) -> list[str]:
    """The stacks that the backend has. Raises Faults if it can't be asked."""
    without = {*SECRETS, *(OTHER_KEYS if KEYS_FILE in values else ())}
    kept = {name: value for name, value in os.environ.items() if name not in without}
    given = {name: expanded(name, value) for name, value in values.items()}
    environment = {**kept, **tools(os.environ), **given}
    argv = ["pulumi", "stack", "ls", "--all", "--json", "--non-interactive"]
    try:
        done = subprocess.run(
            argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=BACKEND_SECONDS, check=False
        )
        told = done.stderr.strip()
    except subprocess.TimeoutExpired:
        done, told = None, f"the engine did not end within {BACKEND_SECONDS} s"
    if done is not None and done.returncode == 0:
        return [str(one["name"]) for one in json.loads(done.stdout)]
    for pattern, (rule, remedy) in REFUSALS.items():
        if re.search(pattern, told):
            raise Faults(
                [Fault(BACKEND, values[BACKEND], rule, remedy.format(env=home.env))], "The state can't be reached"
            )
    raise EnvError(f"{values[BACKEND]} can't be used as a backend: {told}")


# --- making the files ---------------------------------------------------------------------------


def write_closed(file: Path, text: str) -> None:
    """Write a file that no other user can read at any moment. It replaces an older one at once."""
    part = file.with_name(f".{file.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as handle:
        handle.write(text)
    part.replace(file)


def quoted(value: str) -> str:
    """A value as the file `env` has it."""
    plain = re.fullmatch(r"[\w@%+=:,./~-]*", value)
    return value if plain else "'" + re.sub(r"([\\'])", r"\\\1", value) + "'"


def answer(question: str, instead: str) -> str:
    """What a person answers. Raises EnvError where nobody can be asked; `instead`: what says it without a question."""
    if not sys.stdin.isatty():
        raise EnvError(f"{question}: nobody can be asked here. Use {instead}")
    return input(f"{question}: ").strip()


def verified_by_system(host: str, port: int) -> bool:
    """Whether this machine trusts the server's certificate already. Raises EnvError if nothing answers."""
    probe = Connection.from_sources(
        {ENDPOINT: f"https://{f'[{host}]' if ':' in host else host}:{port}"},
        {"apiToken": "nobody@pve!none=00000000-0000-0000-0000-000000000000", "node": "pve"},
    )
    return not check_plugin_trust(probe, os.environ)


def trust(home: Home, endpoint: str, options: argparse.Namespace) -> None:
    """Bring about a file that vouches for the server, unless the system's store does, or the file does already."""
    host, port = urlsplit(endpoint).hostname or "", urlsplit(endpoint).port or DEFAULT_PORT
    if options.ca_file is not None:
        try:
            text = options.ca_file.expanduser().read_text(encoding="ascii")
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
        except (OSError, ValueError) as error:
            raise EnvError(f"{options.ca_file} is no readable file of PEM certificates: {error}") from None
        write_closed(home.ca, text)
        return
    pem = certificate_of(host, port)
    seen = fingerprint_of(pem)
    if verified_by_system(host, port):
        return
    wanted = options.fingerprint
    if wanted is None:
        print(f"The certificate of {host} has the SHA-256 fingerprint\n  {seen}", file=sys.stderr)
        print("Compare it with what `pvenode cert info` shows on the node.", file=sys.stderr)
        said = answer("Is it the same (yes, or paste the node's)", "--fingerprint, or --ca-file")
        wanted = seen if said.lower() in ("y", "yes") else said
    save(pem, wanted, home.ca)


def token_for(home: Home, *, again: bool) -> str:
    """The token: the one that is there, or what a person or standard input gives."""
    if not again and (text := home.token_text()):
        return text
    return f"{answer_hidden('The API token, pulumi@pve!hermes=VALUE (not shown)')}\n"


def vouched(endpoint: str, kept: Mapping[str, str]) -> bool:
    """Whether a file or a fingerprint of an earlier `init` belongs to this endpoint."""
    file = Path(kept[CA_FILE]) if CA_FILE in kept else None
    known = file.exists() if file else ENVIRONMENT["fingerprint"] in kept
    return known and kept.get(ENDPOINT) == endpoint


def init(home: Home, options: argparse.Namespace) -> None:
    """Make what is missing. Raises EnvError, TrustError, Faults or another ProxmoxError."""
    kept = home.values()
    given = options.endpoint or kept.get(ENDPOINT)
    endpoint = endpoint_of(given or answer("The address of the node", "scripts/env init https://NODE:8006"))
    make_closed(home.folder)
    values = {**kept, ENDPOINT: endpoint}
    if options.ca_file or options.fingerprint or not vouched(endpoint, kept):
        trust(home, endpoint, options)
        if home.ca.exists():
            values[CA_FILE] = short(home.ca)
    text = token_for(home, again=options.new_token)
    found = connection(values, text)
    version = ask(found)
    write_closed(home.token, text)
    place_state(home, values, options)
    if PASSPHRASE_FILE in values or PASSPHRASE not in os.environ:
        values[PASSPHRASE_FILE] = short(passphrase_for(home, values))
    write_closed(home.env, HEAD + "".join(f"{name}={quoted(value)}\n" for name, value in values.items()))
    print(f"{endpoint} runs Proxmox VE {version} and takes the token {found.token_id}.", file=sys.stderr)
    print(f"Written: {home.folder}. Keep a copy of {values.get(PASSPHRASE_FILE, 'it')}: ", end="", file=sys.stderr)
    print("no state can be read without the passphrase.", file=sys.stderr)
    named = f" --name {options.name}" if options.name else ""
    print(f'Now, and in each new shell:  eval "$(scripts/env{named})"', file=sys.stderr)


def make_closed(folder: Path) -> None:
    """A folder for its owner alone; one that is there is closed."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)


def place_state(home: Home, values: dict[str, str], options: argparse.Namespace) -> None:
    """Settle where the state is, and try it. Raises EnvError or Faults; then the files are as before."""
    if BACKEND not in values and options.backend is None:
        make_closed(home.state)
        values[BACKEND] = f"file://{short(home.state)}"
    values[BACKEND] = options.backend or values[BACKEND]
    if options.backend_ca is not None:
        values[KEYS_CA] = short(options.backend_ca.expanduser().absolute())
    if faults := list(state_faults(home, {BACKEND: expanded(BACKEND, values[BACKEND])}, None)):
        raise Faults(faults, "The state can't be kept there")
    if not values[BACKEND].startswith("s3://"):
        return
    asked = options.new_keys or not home.keys.exists()
    keys = [answer_hidden(f"{name} (not shown; empty: what AWS's own tools use)") for name in KEYS] if asked else []
    part = home.folder / ".s3-credentials.new"
    if any(keys):
        lines = (f"{name} = {key}\n" for name, key in zip(KEYS, keys, strict=True))
        write_closed(part, f"[default]\n{''.join(lines)}")
    elif home.keys.exists():
        values[KEYS_FILE] = short(home.keys)
    try:
        stacks_in(home, {**values, KEYS_FILE: str(part)} if any(keys) else values)
        if any(keys):
            part.replace(home.keys)
            values[KEYS_FILE] = short(home.keys)
    finally:
        part.unlink(missing_ok=True)


def answer_hidden(question: str) -> str:
    """What a person types without an echo, or the next line of standard input; empty at its end."""
    return getpass.getpass(f"{question}: ").strip() if sys.stdin.isatty() else sys.stdin.readline().strip()


def passphrase_for(home: Home, values: Mapping[str, str]) -> Path:
    """The file of the passphrase, made where there is no state yet. Raises EnvError where there is one."""
    file = Path(expanded(PASSPHRASE_FILE, values[PASSPHRASE_FILE])) if PASSPHRASE_FILE in values else home.passphrase
    if not file.is_file() or not file.stat().st_size:
        backend = expanded(BACKEND, values[BACKEND])
        folder = Path(backend.removeprefix("file://")) / ".pulumi" / "stacks"
        if folder.exists() if backend.startswith("file://") else stacks_in(home, values):
            raise EnvError(
                f"{backend} holds a state already, and {file} is not there. A new passphrase could not read it:\n"
                "  put the file with the state's passphrase there"
            )
        write_closed(file, f"{secrets.token_urlsafe(32)}\n")
    return file


# --- the program --------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/env", description="Point a shell at your own Proxmox.")
    parser.add_argument("--name", default="", help="which of several: files in ~/.config/hermes-homelab-NAME")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    make = verbs.add_parser("init", help="make the files: asks for what it needs")
    make.add_argument("endpoint", nargs="?", help="https://NODE:8006")
    how = make.add_mutually_exclusive_group()
    how.add_argument("--ca-file", type=Path, help="/etc/pve/pve-root-ca.pem, copied from the node")
    how.add_argument("--fingerprint", help="the certificate's SHA-256, as `pvenode cert info` shows it")
    make.add_argument("--new-token", action="store_true", help="ask for the token again, after a rotation")
    make.add_argument(
        "--backend", metavar="URL", help="where Pulumi keeps the state, if not in a folder: s3://BUCKET?..."
    )
    make.add_argument(
        "--backend-ca", type=Path, metavar="FILE", help="PEM: whom to trust for it, if not the system's CAs"
    )
    make.add_argument("--new-keys", action="store_true", help="ask for the bucket's keys again, after a rotation")
    verbs.add_parser("check", help="ask the node and the bucket whether address, certificate, token and keys are right")
    options = parser.parse_args()
    if not re.fullmatch(r"[A-Za-z0-9_-]*", options.name):
        parser.error("NAME has letters, digits, - and _ only")
    try:
        home = Home.of(options.name, os.environ)
        if options.verb == "init":
            init(home, options)
            return 0
        values = home.values()
        if faults := list(faults_of(home, values)):
            raise Faults(faults, "This shell can't be pointed at your Proxmox")
        if options.verb == "check":
            found = connection(values, home.token_text())
            print(f"{found.endpoint} runs Proxmox VE {ask(found)} and takes the token {found.token_id}.")
            stacks = stacks_in(home, values)
            print(f"{values[BACKEND]} has {', '.join(stacks) or 'no stack yet'}.")
        elif sys.stdout.isatty():
            print(f'{values[ENDPOINT]}, state in {values[BACKEND]}. To use them:  eval "$(scripts/env)"')
        else:
            print("\n".join(shell_lines(home, values, os.environ)))
    except (EnvError, TrustError, ProxmoxError, RuntimeError, OSError, EOFError, KeyboardInterrupt) as error:
        stopped = isinstance(error, EOFError | KeyboardInterrupt)
        print(f"env: {'stopped; the same command begins again' if stopped else visible(str(error))}", file=sys.stderr)
        if options.verb is None:
            # `eval` of nothing would succeed.
            print("false")
        return 1
    return 0


if __name__ == "__main__":
    end_with(main)
