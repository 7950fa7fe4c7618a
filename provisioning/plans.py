"""A phase's plan: what a job in the guest gets, and when it has to run again. Pure: nothing here touches the network.

A plan's digest covers scripts, templates and what the guest gets of the settings: it is what decides whether a phase
runs again. Secrets enter it through scrypt only, because the digest is stored in clear.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from provisioning.guest.typed import as_json
from provisioning.job import Job, LargeFile, PayloadFile, run_job
from provisioning.kept import KEPT
from provisioning.ssh import OnLine, SshTarget

ROOT = Path(__file__).resolve().parents[1]

READ_AT_START = "read_at_start"
"""The part of `declared` that says which service would restart: a word for each, of all that it reads at its start."""


@dataclass(frozen=True)
class PhasePlan:
    """One phase, ready to run.

    `declared`: what the preview shows, without secrets. `digest`: 64 hex digits. `secrets`: by name, for the
    container's eyes only. `large_files` are no part of the digest: they are tools, not results. `fresh`, `ahead`: see
    Job.
    """

    name: str
    files: tuple[PayloadFile, ...]
    declared: Mapping[str, Any]
    digest: str
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    large_files: tuple[LargeFile, ...] = ()
    fresh: bool = False
    ahead: tuple[LargeFile, ...] = ()

    @property
    def job(self) -> Job:
        return Job(self.name, self.digest, self.files, self.secrets, self.large_files, self.fresh, self.ahead)

    def as_json(self) -> str:
        """What has to run, secrets included: only for a Pulumi secret. This program's own files are named in it."""
        return json.dumps(
            {
                "name": self.name,
                "files": {file.path: file.origin or [file.content.decode(), file.mode] for file in self.files},
                "digest": self.digest,
                "secrets": dict(self.secrets),
                "large_files": _named(self.large_files),
                "fresh": self.fresh,
                "ahead": _named(self.ahead),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> PhasePlan:
        """What `as_json` has written, by the same program; what was declared is not in it."""
        given = json.loads(text)
        files = tuple(
            own_file(path, file) if isinstance(file, str) else PayloadFile(path, file[0].encode(), file[1])
            for path, file in given.pop("files").items()
        )
        large, ahead = (
            tuple(LargeFile(Path(local), sha256) for local, sha256 in given.pop(name))
            for name in ("large_files", "ahead")
        )
        return cls(files=files, declared={}, large_files=large, ahead=ahead, **given)


def _named(files: tuple[LargeFile, ...]) -> list[list[str]]:
    return [[str(file.local), file.sha256] for file in files]


@dataclass(frozen=True)
class PhaseResult:
    """`seconds` of wall time; `outputs` as the phase's script reports them, without secrets."""

    seconds: float
    outputs: dict[str, Any]
    picked_up: bool = False


def run_phase(target: SshTarget, plan: PhasePlan, *, on_line: OnLine, timeout_s: float = 900.0) -> PhaseResult:
    """Run a plan in the container at `target`, or pick up the run of the same digest that is under way there.

    Blocks, calls `on_line` at least every few seconds. Errors: see provisioning.errors.
    """
    began = time.monotonic()
    result = run_job(lambda: KEPT.connect(target), plan.job, on_line=on_line, timeout_s=timeout_s)
    return PhaseResult(round(time.monotonic() - began, 2), result.outputs, result.picked_up)


# -- building a plan ---------------------------------------------------------------------------------------------------


def plan_of(
    name: str,
    script: str,
    variables: Mapping[str, str],
    *,
    declared: Mapping[str, Any],
    given: Any = None,
    more: tuple[PayloadFile, ...] = (),
    secrets: Mapping[str, str] | None = None,
) -> PhasePlan:
    payload = [PayloadFile("main", script.encode(), 0o700), *more]
    if variables:
        payload.append(env_file(variables))
    if given is not None:
        payload.append(inputs_file(given))
    digest = digest_of(
        {
            "files": {file.path: hashlib.sha256(file.content).hexdigest() for file in payload},
            "secrets": _seal(secrets or {}),
        }
    )
    return PhasePlan(name, tuple(payload), declared, digest, dict(secrets or {}))


def as_declared(given: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(as_json(given))
    return found


def inputs_file(given: Any) -> PayloadFile:
    return PayloadFile("inputs.json", as_json(given).encode())


def env_file(variables: Mapping[str, str]) -> PayloadFile:
    """Shell assignments, each value quoted."""
    lines = (f"{name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()))
    return PayloadFile("inputs.env", "".join(lines).encode())


def _seal(secrets: Mapping[str, str]) -> str:
    """A fingerprint of secrets that is costly to guess from: it ends up in a digest that is no secret."""
    if not secrets:
        return ""
    text = json.dumps(dict(secrets), sort_keys=True).encode()
    return hashlib.scrypt(text, salt=b"provisioning phase digest", n=2**14, r=8, p=1, dklen=32).hex()


@cache
def shown_secret(name: str, secret: str) -> str:
    """A word for a secret that changes with it: 24 bits of scrypt, far too few to find the secret by."""
    salt = f"provisioning shown secret {name}".encode()
    return f"[secret {hashlib.scrypt(secret.encode(), salt=salt, n=2**14, r=8, p=1, dklen=3).hex()}]"


def shown_text(text: str) -> str:
    """A text by its size in bytes and the begin of its SHA-256."""
    content = text.encode()
    return f"{len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()[:12]}"


def digest_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def own_file(path: str, origin: str) -> PayloadFile:
    """A file of this checkout for the payload."""
    return PayloadFile(path, text_of(origin).encode(), origin=origin)


def scripts(*names: str) -> tuple[PayloadFile, ...]:
    """What a phase's script reads beside itself."""
    return tuple(own_file(name, f"provisioning/scripts/{name}") for name in names)


@cache
def guest_package(*more: str) -> tuple[PayloadFile, ...]:
    """provisioning.guest and other packages, as a payload: they are imported in the guest by the same names as here."""
    folders = [Path(package.replace(".", "/")) for package in ("provisioning.guest", *more)]
    above = sorted({f"{parent}/__init__.py" for folder in folders for parent in folder.parents[:-1]})
    modules = sorted(file.relative_to(ROOT).as_posix() for folder in folders for file in (ROOT / folder).glob("*.py"))
    return (*(PayloadFile(path, b"") for path in above), *(own_file(path, path) for path in modules))


def guest_main(module: str) -> str:
    """The payload's `main` that runs a module in the guest. Isolated, so the job's folder is named."""
    return f"""#!/usr/bin/python3 -IB
import os, sys
sys.path.insert(0, os.environ["HP_JOB"])
from {module} import main
sys.exit(main())
"""


@cache
def text_of(origin: str) -> str:
    """A file of this checkout."""
    return (ROOT / origin).read_text(encoding="utf-8")


# -- comparing two -----------------------------------------------------------------------------------------------------


def differing_keys(old: object, new: object, path: str = "") -> Iterator[str]:
    """The dotted keys at which two trees differ; of what is only in one of them, the key where it begins."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in old.keys() | new.keys():
            name = f"{path}.{key}" if path else str(key)
            one, other = old.get(key), new.get(key)
            if one is None or other is None:
                # The engine may drop what is null; another release may know a key that nothing is declared for.
                if (other if one is None else one) not in (None, {}, []):
                    yield name
            else:
                yield from differing_keys(one, other, name)
    elif old != new:
        yield path
