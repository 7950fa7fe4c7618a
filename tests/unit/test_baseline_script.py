"""Packages and account of the baseline phase with their tools under control: each step fails once, read as a person.

Only that part of the script is run: what follows changes the machine that it runs on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from applications.hermes.phases import render_baseline
from provisioning.job import LOG_TAIL_LINES
from tests.settings import cattle
from tests.unit.guest_script import run_main

REASON = "the true reason, in its own words"
# A home on a good disk, no account and no package yet; where the words in the file `fails` are in the call, it fails.
ACTIONS = {
    "findmnt": "echo ext4",
    "stat": "echo 10000",
    "getent": "exit 2",
    "dpkg-query": "exit 1",
    "dpkg": 'case "$*" in --audit) echo "half configured";; esac',
    "apt-get": "",
    "groupadd": "",
    "useradd": "",
    "id": "echo 0",
    "usermod": "",
    "passwd": "echo hermes P",
}
STEPS = [
    ("apt-get .*update", "the package lists can't be brought up to date."),
    ("apt-get .* install ", "these packages can't be installed: ca-certificates git python3 ripgrep"),
    ("dpkg --configure", "dpkg can't finish what an earlier run has begun."),
    ("groupadd --gid", "this command failed with 7: groupadd"),
    ("useradd", "this command failed with 7: useradd"),
    ("usermod --groups", "this command failed with 7: usermod --groups"),
    ("usermod --lock", "this command failed with 7: usermod --lock"),
]


def run(root: Path, fails: str, **more: str) -> str:
    """What it logs. `more`: what a tool does, by its name."""
    for folder in ("bin", "job"):
        (root / folder).mkdir()
    for name, action in {**ACTIONS, **{name.replace("_", "-"): action for name, action in more.items()}}.items():
        path = root / "bin" / name
        path.write_text(
            f'#!/bin/sh\ncall="{name} $*"\n'
            f"if printf '%s' \"$call\" | grep -qE '{fails}'; then echo '{REASON}' >&2; exit 7; fi\n{action}\n"
        )
        path.chmod(0o755)
    for file in render_baseline(cattle()).files:
        text = file.content.decode().replace("export PATH=", f"export PATH={root}/bin:")
        if file.path == "main":
            text = text.partition("# ---- ways around")[0]
            text += "close_ssh() { :; }\nclose_cron() { :; }\nclose_manager() { :; }\n"
            text += "check_home\ncheck_account\ninstall_packages\n"
        (root / "job" / file.path).write_text(text)
    return run_main(root / "job")


def test_a_new_container_gets_its_packages(tmp_path: Path) -> None:
    log = run(tmp_path, "nothing fails")
    assert log.endswith("\n0"), log
    assert "packages: installing ca-certificates git python3 ripgrep" in log


@pytest.mark.parametrize(("fails", "what"), STEPS, ids=[fails for fails, _ in STEPS])
def test_a_step_that_fails_ends_with_the_tools_own_words(tmp_path: Path, fails: str, what: str) -> None:
    shown = run(tmp_path, fails).splitlines()
    assert shown.pop() != "0"
    shown = shown[-LOG_TAIL_LINES:]
    assert what in shown[shown.index(REASON) + 1]
    assert len(shown) > shown.index(REASON) + 2, "what to do stands behind it"


def test_the_account_is_made_while_the_lists_come_and_before_any_package(tmp_path: Path) -> None:
    """Packages make accounts of their own, and two that write /etc/passwd at once would wait for each other."""
    waits = f"""case "$*" in
*update*)
  i=0
  until [ -e {tmp_path}/locked ]; do i=$((i + 1)); [ $i -lt 200 ] || exit 9; sleep 0.05; done;;
*install*) [ -e {tmp_path}/locked ] || exit 9; touch {tmp_path}/installed;;
esac"""
    # The last of what makes the account.
    locks = f'[ "$1" != --lock ] || {{ [ ! -e {tmp_path}/installed ] || exit 9; touch {tmp_path}/locked; }}'
    log = run(tmp_path, "nothing fails", apt_get=waits, usermod=locks)
    assert log.endswith("\n0"), log
    assert (tmp_path / "installed").exists()


def test_lists_that_can_not_be_had_are_told_last(tmp_path: Path) -> None:
    log = run(tmp_path, "apt-get .*update|usermod --lock")
    shown = [line for line in log.splitlines() if line.startswith("error: ")]
    assert shown[0] == "error: the package lists can't be brought up to date."
    assert not [line for line in shown if "usermod" in line]
