"""Nobody logs in as the agent's account: what verify looks for."""

from __future__ import annotations

import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from applications.hermes.guest import verify
from provisioning.guest.common import Refusal

# As `sshd -T` of OpenSSH 9.2 says it: one line per word and name.
SSHD = "port 22\npermitrootlogin without-password\ndenyusers bob\ndenyusers hermes\nauthorizedkeysfile none\n"
CLOSED = {
    "shell": "/usr/sbin/nologin",
    "sshd": SSHD,
    "cron_allow": None,
    "cron_deny": "bob\nhermes\n",
    "manager": "masked",
}


@pytest.mark.parametrize(
    ("opened", "words"),
    [
        ({}, []),
        ({"shell": "/bin/false"}, []),
        ({"sshd": "denyusers bob hermes\n"}, []),
        ({"shell": "/bin/bash"}, ["its shell is /bin/bash"]),
        ({"sshd": "port 22\n"}, ["sshd lets it in"]),
        # Another account, whose name only begins alike.
        ({"sshd": "denyusers hermes2\n"}, ["sshd lets it in"]),
        ({"cron_deny": ""}, ["cron takes"]),
        ({"cron_deny": "hermes2\n"}, ["cron takes"]),
        # With cron.allow the other file counts for nothing (crontab(1)).
        ({"cron_allow": "root\n", "cron_deny": ""}, []),
        ({"cron_allow": "root\nhermes\n"}, ["cron takes"]),
        ({"manager": "static"}, ["its own systemd may be started (static)"]),
        ({"shell": "/bin/sh", "sshd": "", "cron_deny": "", "manager": ""}, ["its shell", "sshd", "cron", "its own"]),
    ],
)
def test_each_way_in_is_found(opened: dict[str, str], words: list[str]) -> None:
    found = verify.ways_in("hermes", **{**CLOSED, **opened})  # type: ignore[arg-type]
    assert len(found) == len(words)
    assert all(text.startswith(begin) for text, begin in zip(found, words, strict=True))


def test_the_fault_names_them_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, says in (("sshd", "echo port 22"), ("systemctl", "echo masked")):
        (programs / name).write_text(f"#!/bin/sh\n{says}\n")
        (programs / name).chmod(0o755)
    (tmp_path / "cron.deny").write_text("hermes\n")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr(verify, "SSHD", str(programs / "sshd"))
    monkeypatch.setattr(verify, "ETC", tmp_path)
    monkeypatch.setattr(pwd, "getpwnam", lambda _: SimpleNamespace(pw_shell="/usr/sbin/nologin"))
    with pytest.raises(Refusal, match=r"sshd lets it in with a key that it keeps itself\.\nTake back .* pulumi up"):
        verify.check_account("hermes", 10000)
    (programs / "sshd").write_text("#!/bin/sh\necho denyusers hermes\n")
    verify.check_account("hermes", 10000)
    (programs / "sshd").write_text("#!/bin/sh\necho 'line 7: bad option' >&2; exit 255\n")
    with pytest.raises(Refusal, match="line 7: bad option"):
        verify.check_account("hermes", 10000)
