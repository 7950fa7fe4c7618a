"""The second copy of the backups, in another place: where, by which keys, how many stay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr

from proxmox.errors import Fault
from settings.kinds import WHY_NO_LOGIN, host_key_of, matching, or_empty, plain_path, secret
from settings.section import Section, refuse, rule, setting

Kind = Literal["folder", "sftp", "s3", "rest"]
_HOST = r"(?P<host>[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])"
_PORT = r"(:(?P<port>[1-9]\d{0,4}))?"
_PATH = r"[A-Za-z0-9._~/-]+"
# As restic reads them (doc/030_preparing_a_new_repo.rst). Its name for a login's relative path is one slash less.
_SFTP = re.compile(rf"sftp:(//)?(?P<user>[A-Za-z_][A-Za-z0-9._-]*)@{_HOST}(?(1){_PORT}/|:){_PATH}")
_S3 = re.compile(rf"s3:(https?://)?{_HOST}{_PORT}/[A-Za-z0-9][A-Za-z0-9._/-]{{2,}}")
_REST = re.compile(rf"rest:https?://{_HOST}{_PORT}/({_PATH})?")
SSH_PORT = 22


@dataclass(frozen=True)
class SshLogin:
    """Of an SFTP server."""

    user: str
    host: str
    port: int


def kind_of(repository: str) -> Kind | None:
    """By what restic takes it for; None for anything else."""
    found: tuple[tuple[Kind, re.Pattern[str]], ...] = (("sftp", _SFTP), ("s3", _S3), ("rest", _REST))
    if repository.startswith("/"):
        return "folder"
    return next((kind for kind, pattern in found if pattern.fullmatch(repository)), None)


def _repository(value: str) -> str:
    kind = kind_of(value)
    if kind == "folder":
        return plain_path(value)
    if kind is None:
        scheme, _, rest = value.partition(":")
        if scheme in ("s3", "rest") and "@" in rest:
            raise refuse(f"must be without a login: {WHY_NO_LOGIN}", "set agentCopyAccessKey and agentCopySecretKey")
        raise refuse(
            "must be a folder, sftp:USER@HOST:/PATH, s3:https://HOST/BUCKET or rest:https://HOST/PATH",
            "write it like sftp:backup@192.168.1.20:/srv/hermes",
        )
    return value


_KEY_FORM = re.compile(
    r"-----BEGIN (?P<kind>(OPENSSH |RSA |EC )?PRIVATE KEY)-----\n[A-Za-z0-9+/=\n]+\n-----END (?P=kind)-----\n"
)


def _private_key(value: str) -> str:
    """With the line break at its end, which a pasted one has lost and ssh wants."""
    text = value.replace("\r\n", "\n").strip() + "\n"
    if not _KEY_FORM.fullmatch(text):
        raise refuse(
            "must be a whole private SSH key without a passphrase",
            "pulumi config set --secret agentCopySshKey <FILE; ssh-keygen -t ed25519 -N '' -f FILE makes one",
        )
    return text


_one_line = matching(
    r"[!-~][ -~]{10,}[!-~]", "must be 12 or more characters of ASCII in one line", "openssl rand -base64 24"
)
_token = matching(r"[!-~]+", "must be of ASCII and without a blank", "paste it again, as its maker shows it")
Kept = Annotated[int, Field(ge=0, le=1000)]


class CopySettings(Section):
    """A second copy of each backup, made by restic and encrypted before it leaves the cattle."""

    for_secrets: ClassVar[str] = "set agentCopyPassword, agentCopySecretKey or agentCopySshKey"
    repository: Annotated[str, or_empty(_repository)] = setting(
        "agentCopyRepository",
        "",
        "Where restic puts a second copy of the backups: sftp:USER@HOST:/PATH, s3:https://HOST/BUCKET, "
        "rest:https://HOST/PATH, or a folder in one of cattleHostMounts that has owner 0. Empty: there is none.",
    )
    password: Annotated[SecretStr, secret(_one_line)] = setting(
        "agentCopyPassword",
        "",
        "The password that the copy is encrypted with. Keep it elsewhere, too: without it nobody can read the copy.",
    )
    access_key: Annotated[str, or_empty(_token)] = setting(
        "agentCopyAccessKey", "", "With s3: the access key's id. With rest: the user, where the server asks for one."
    )
    secret_key: Annotated[SecretStr, secret(_token)] = setting(
        "agentCopySecretKey", "", "With s3: the secret key. With rest: the user's password."
    )
    region: Annotated[
        str, or_empty(matching(r"[A-Za-z0-9-]+", "must be a region's name", "write it like eu-central-1"))
    ] = setting("agentCopyRegion", "", "With s3: the region, where the server has any but us-east-1.")
    ssh_key: Annotated[SecretStr, secret(_private_key)] = setting(
        "agentCopySshKey", "", "With sftp: the private key that logs in there, the whole text, without a passphrase."
    )
    ssh_host_key: Annotated[str, host_key_of("the SFTP server")] = setting(
        "agentCopySshHostKey", "", "With sftp: the server's public host key, TYPE BASE64. No other server gets a copy."
    )
    kept_last: Kept = setting("agentCopyKeptLast", 3, "The number of the newest copies that stay.")
    kept_days: Kept = setting("agentCopyKeptDays", 7, "The number of days of which the last copy stays.")
    kept_weeks: Kept = setting("agentCopyKeptWeeks", 4, "The number of weeks of which the last copy stays.")
    kept_months: Kept = setting(
        "agentCopyKeptMonths",
        6,
        "The number of months of which the last copy stays. With 0 in all four nothing is removed, as an append-only "
        "server wants it.",
    )
    check_days: Annotated[int, Field(ge=0, le=365)] = setting(
        "agentCopyCheckDays",
        7,
        "The number of days after which restic checks the copy again, and reads a tenth of its data. 0: never.",
    )

    @property
    def kind(self) -> Kind | None:
        """None where there is no copy."""
        return kind_of(self.repository)

    @property
    def login(self) -> SshLogin | None:
        """With sftp: where ssh goes."""
        found = _SFTP.fullmatch(self.repository)
        if found is None:
            return None
        return SshLogin(found["user"], found["host"].strip("[]"), int(found["port"] or SSH_PORT))

    @rule
    def _has_what_its_kind_needs(self) -> Iterator[Fault]:
        needed = {
            "sftp": {"ssh_key": "agentCopySshKey", "ssh_host_key": "agentCopySshHostKey"},
            "s3": {"access_key": "agentCopyAccessKey", "secret_key": "agentCopySecretKey"},
        }
        if self.kind is None:
            return
        for name, key in {"password": "agentCopyPassword", **needed.get(self.kind, {})}.items():
            if not getattr(self, name):
                plain = name in ("ssh_host_key", "access_key")
                remedy = f"set {key}" if plain else f"pulumi config set --secret {key}"
                yield self.fault(name, f"is missing, and agentCopyRepository is {self.repository}", remedy)
        if self.kind == "rest" and bool(self.access_key) != bool(self.secret_key):
            missing = "secret_key" if self.access_key else "access_key"
            yield self.fault(missing, "a login has a user and a password", "set both, or none")
