"""The types of settings, each rule once: as wide as what reads the value. Where a rule is ours, its text says why."""

from __future__ import annotations

import base64
import ipaddress
import re
import ssl
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from settings.section import OfFile, refuse

USUAL_UID = 10000
"""Of the account that an application runs as, where no setting names another."""
LONGEST_FILE = 1 << 20
"""Bytes. Hermes itself cuts a document at some ten thousand characters; beyond this it is the wrong file."""
_PLAIN = re.compile(r"(/[A-Za-z0-9._-]+)+")


def matching(pattern: str, rule: str, remedy: str) -> Callable[[str], str]:
    """A check that the whole text matches."""
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise refuse(rule, remedy)
        return value

    return check


def matches(pattern: str, rule: str, remedy: str) -> AfterValidator:
    """The whole text has to match."""
    return AfterValidator(matching(pattern, rule, remedy))


def or_empty(check: Callable[[str], str]) -> AfterValidator:
    """An empty text means "not set"."""
    return AfterValidator(lambda value: check(value) if value else value)


def once(values: list[str]) -> list[str]:
    """Sorted, and each once."""
    return sorted(set(values))


# --- paths --------------------------------------------------------------------------------------


def absolute_path(value: str) -> str:
    """A path in a guest or on a node, in its plain form. A comma would end it in Proxmox's configuration."""
    path = PurePosixPath(value)
    if not path.is_absolute() or ".." in path.parts or "," in value or str(path) != value or value == "/":
        raise refuse(
            "must be an absolute path below /, without .., a comma or a slash at its end", "write it like /mnt/hermes"
        )
    if not value.isprintable():
        # The commands for it are printed, and pasted.
        raise refuse("must hold no line break or other control character", "rename the folder")
    return value


def plain_path(value: str) -> str:
    """A path that systemd, compose, a shell and the agent all read alike."""
    if not _PLAIN.fullmatch(absolute_path(value)):
        raise refuse(
            "must be a path of letters, digits, '.', '_' and '-': systemd, compose and the agent would not agree on "
            "others",
            "write it like /data",
        )
    return value


def local_file(name: str) -> Path:
    """A path on this machine, ~ expanded; the refusal says why that can't be done."""
    if not name.isprintable():
        raise refuse("a path can't hold a line break or another control character", "correct the path")
    try:
        return Path(name).expanduser()
    except RuntimeError:
        home = name.split("/", maxsplit=1)[0]
        raise refuse(f"this machine knows no home folder for {home}", "write the whole path, from / on") from None


def read_text(name: str) -> str:
    """The text of a file on this machine; a refusal that names it when it can't be had."""
    path = local_file(name)
    try:
        if path.stat().st_size > LONGEST_FILE:
            raise refuse(f"the file {name} is larger than 1 MiB", "name the right file")
        # Some editors put a mark before the text (UTF-8's byte order mark), which is no part of it.
        return path.read_text(encoding="utf-8-sig")
    except UnicodeError:
        raise refuse(f"the file {name} is not a text in UTF-8", "name the right file") from None
    except OSError as error:
        rule = f"the file {name} can't be read: {error.strerror}"
        raise refuse(rule, "correct the path or the file's mode") from None


def _certificates(name: str) -> str:
    """The PEM certificates of a file and nothing else of it: a private key beside them stays where it is."""
    text = read_text(name)
    found = re.findall(r"^-----BEGIN CERTIFICATE-----$.+?^-----END CERTIFICATE-----$", text, re.DOTALL | re.MULTILINE)
    certificates = "".join(f"{each}\n" for each in found)
    try:
        ssl.create_default_context(cadata=certificates or "none")
    except (ssl.SSLError, ValueError):
        raise refuse(
            f"the file {name} holds no PEM certificates" if not found else f"the certificates in {name} are broken",
            "name the CA's certificate, the text with -----BEGIN CERTIFICATE-----",
        ) from None
    return certificates


Claim = Annotated[
    str,
    or_empty(
        matching(
            r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
            "must be a claim, as in the notes of a guest of this stack",
            'copy what stands there behind "claim:"',
        )
    ),
]
AbsolutePath = Annotated[str, AfterValidator(absolute_path)]
PlainPath = Annotated[str, AfterValidator(plain_path)]
OptionalPlainPath = Annotated[str, or_empty(plain_path)]
LocalFile = Annotated[str, or_empty(lambda name: str(local_file(name)))]
"""A file on this machine that is read later, ~ expanded."""
Certificates = Annotated[str, or_empty(_certificates), OfFile()]

# --- addresses ----------------------------------------------------------------------------------


def _host_address(value: str) -> str:
    if value != "localhost":
        try:
            ipaddress.ip_address(value)
        except ValueError:
            raise refuse("must be an IP address of the cattle's, or localhost", "leave it at 127.0.0.1") from None
    return value


def is_loopback(host: str) -> bool:
    """Whether an address (or localhost) is reached from the same machine only."""
    return host == "localhost" or ipaddress.ip_address(host).is_loopback


Port = Annotated[int, Field(ge=1, le=65535)]
HostAddress = Annotated[str, AfterValidator(_host_address)]
WHY_NO_LOGIN = "a login in it would be shown in the preview, and kept in clear"


url = matching(
    r"https?://[^\s/@?#'\"\\]+(/[^\s'\"\\]*)?",
    f"must be an http or https URL without user or password: {WHY_NO_LOGIN}",
    "write it like http://192.168.1.10:4000/v1",
)
Url = Annotated[str, AfterValidator(url)]
OptionalUrl = Annotated[str, or_empty(url)]
LinkUrl = Annotated[
    str,
    or_empty(
        matching(
            r"https?://[A-Za-z0-9][A-Za-z0-9._~:/?#@!$&*+,;=%-]*",
            "must be an http or https URL without blanks, brackets or quotes: it is the target of a link in Markdown",
            "write it like https://github.com/me/hermes-homelab; %28 and %29 stand for brackets",
        )
    ),
]
"""A link in a guest's notes."""

# --- what Proxmox names --------------------------------------------------------------------------

Vmid = Annotated[int, Field(ge=100, le=999_999_999)]
Cores = Annotated[int, Field(ge=1, le=8192)]
Hostname = Annotated[
    str,
    matches(
        r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*",
        "must be a DNS name",
        "use letters, digits and hyphens",
    ),
]
StorageId = Annotated[
    str, matches(r"[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]", "must be the name of a storage", "list them with: pvesm status")
]
Volid = Annotated[
    str,
    matches(
        r"[A-Za-z][A-Za-z0-9._-]*:[^\s,:]+",
        "must be a volid, STORAGE:NAME",
        "write it like local-lvm:vm-999-disk-1",
    ),
]
Template = Annotated[
    str,
    or_empty(
        matching(
            r"[A-Za-z][A-Za-z0-9._-]*:vztmpl/[^\s,]+\.tar\.(gz|xz|zst)",
            "must be the volid of a container template",
            "list them on the node with: pveam list local",
        )
    ),
]
VOLUME_NAME = r"[a-z][a-z0-9-]{0,38}[a-z0-9]"
VolumeName = Annotated[
    str, matches(VOLUME_NAME, "2 to 40 lower-case letters, digits and hyphens", "name it like hermes")
]


def _tags(value: list[str]) -> list[str]:
    """As Proxmox stores them: lower case, sorted, once (facts proxmox 2.3)."""
    for tag in value:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_+.-]*", tag):
            raise refuse("a tag has letters, digits and _ + . - only", f"change the tag {tag!r}")
    return once([tag.lower() for tag in value])


Tags = Annotated[list[str], AfterValidator(_tags)]

# --- keys of SSH ---------------------------------------------------------------------------------

SHOWS_HOST_KEY = "cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub"


def key_type(line: str) -> str:
    """The type of a public key, `TYPE BASE64 [comment]`. ValueError when it is none."""
    name, blob = [*line.split(), "", ""][:2]
    try:
        content = base64.b64decode(blob, validate=True)
    except ValueError:  # binascii's own, and that of letters beyond ASCII
        raise ValueError("the second word is not base64") from None
    # The blob begins with its own type name, length first: a line whose two halves disagree is a mistake.
    if not name or content[4 : 4 + int.from_bytes(content[:4], "big")] != name.encode():
        raise ValueError("the blob is of another type")
    return name


def host_key_of(whose: str) -> AfterValidator:
    """The public host key of a machine, "the node"; it may be empty."""

    def check(value: str) -> str:
        try:
            key_type(value)
        except ValueError:
            rule = f"must be {whose}'s public host key in one line, TYPE BASE64"
            raise refuse(rule, f"on {whose}'s console: {SHOWS_HOST_KEY}") from None
        return " ".join(value.split()[:2])

    return or_empty(check)


def _public_key(value: str) -> str:
    """Normalised, so that white space is never a difference (bpg: a changed key replaces the guest)."""
    try:
        found = key_type(value)
    except ValueError:
        found = ""
    if not re.fullmatch(r"(ssh|ecdsa|sk)-[a-z0-9@.-]+", found):
        # Proxmox would refuse it in the middle of a replacement, when the old container is gone already.
        raise refuse("must be a public key in one line", "paste the line of the .pub file: ssh-ed25519 AAAA... name")
    return " ".join(value.split())


PublicKey = Annotated[str, AfterValidator(_public_key)]

# --- the guest's system ---------------------------------------------------------------------------

USERS_GROUP = "hermes-users"
"""Who may use the agent's command line beside root, where sudo is installed."""


def _account(value: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,30}", value):
        raise refuse("must be the name of an account", "use lower-case letters, digits, - and _")
    if value in ("root", USERS_GROUP):
        raise refuse(f"the agent can't run as {value}", "choose a name of its own, hermes for one")
    return value


def _debian_packages(value: list[str]) -> list[str]:
    for name in value:
        # Debian policy 5.6.1.
        if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", name):
            raise refuse("must be names of Debian packages", f"change {name!r}")
    return once(value)


Account = Annotated[str, AfterValidator(_account)]
AccountId = Annotated[int, Field(ge=1000, le=60000)]
DebianPackages = Annotated[list[str], AfterValidator(_debian_packages)]
PythonPackage = Annotated[
    str,
    matches(
        r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?\s*(==|>=|~=)\s*[A-Za-z0-9.*+!_-]+",
        "must name a package with a version",
        "write it like httpx==0.28.1",
    ),
]

# --- variables of the agent's environment ---------------------------------------------------------


def unfit_for_env(value: str) -> str | None:
    """Why the agent would read a value of its managed .env otherwise than written, or None.

    It reads the file twice, by python-dotenv and by a reader of its own: one expands ${...} and knows escapes, the
    other strips quotes.
    """
    if "\n" in value or "\r" in value or "\0" in value:
        return "a value can't hold a line break"
    if value != value.strip() or value != value.strip('"'):
        return "a value can't begin or end with a blank or a quote; the agent would drop it"
    found = next((bad for bad in ("'", "\\", "${") if bad in value), None)
    return None if found is None else f"a value can't hold {found}; the agent would read it in two ways"


def variable_name(value: str) -> str:
    """The name of an environment variable."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        rule = f"{value!r} is not an environment variable name: letters, digits and _, no digit first"
        raise refuse(rule, "correct it")
    return value


def for_env(value: str) -> str:
    """A value of the agent's managed .env."""
    if (unfit := unfit_for_env(value)) is not None:
        raise refuse(unfit, "use letters, digits and - . _; of a secret, have its maker make another one")
    return value


def secret(check: Callable[[str], str]) -> AfterValidator:
    """A rule for a secret that may be left empty. What it refuses must not repeat the value."""

    def checked(value: SecretStr) -> SecretStr:
        return SecretStr(check(value.get_secret_value())) if value else value

    return AfterValidator(checked)


VariableName = Annotated[str, AfterValidator(variable_name)]
EnvText = Annotated[str, AfterValidator(for_env)]
EnvSecret = Annotated[SecretStr, secret(for_env)]
"""A secret that reaches the agent as a variable of its environment."""
