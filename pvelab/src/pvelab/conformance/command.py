"""``pvelab conformance``: what a node of one's own answers otherwise than the contract says."""

from __future__ import annotations

import argparse
import getpass
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pvelab.conformance import contract
from pvelab.conformance.client import Client, ClientError
from pvelab.conformance.names import VMIDS
from pvelab.conformance.run import NotAllowedError, Options, Run, clean_up, enter
from pvelab.conformance.world import RefusedError
from pvelab.release import RELEASES

PASSWORD_VARIABLE = "PVELAB_CONFORMANCE_PASSWORD"  # noqa: S105 - the name of a variable
SAME, DIFFERENT, REFUSED, UNFINISHED = range(4)
"""Exit codes: all as the contract says; something differs; nothing was done; it ended early or left something."""


def _range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)-(\d+)", text)
    first, last = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 100 <= first <= last - len(VMIDS) + 1 or last > 999_999_999:
        raise argparse.ArgumentTypeError(f"FIRST-LAST with at least {len(VMIDS)} numbers from 100 to 999999999")
    return first, last


def _prefix(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9]{3,15}-", text):
        raise argparse.ArgumentTypeError("4 to 16 lower case letters and digits, the first a letter, and a hyphen")
    return text


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    found = argparse.ArgumentParser(
        prog="pvelab conformance",
        description="Hold an empty Proxmox node against the contract that pvelab keeps. The node's owner unlocks it "
        "twice: by --unlock, and by a pool on the node. The password of root@pam is read from --password-file, else "
        f"from {PASSWORD_VARIABLE}, else asked for.",
    )
    add = found.add_argument
    add("--endpoint", required=True, help="https://HOST:8006")
    add("--node", required=True, help="the node's name")
    add("--unlock", required=True, metavar="NODE", help="the node's name again: it is mine, and it is empty")
    add("--vmids", required=True, type=_range, metavar="FIRST-LAST", help="the numbers that guests may have")
    add("--prefix", type=_prefix, default="conformance-", help="of users, roles, groups, pools, tokens (%(default)s)")
    trust = found.add_mutually_exclusive_group()
    trust.add_argument("--ca-file", help="the CA of the node's certificate (default: the system's)")
    trust.add_argument("--fingerprint", metavar="SHA256", help="of the node's certificate, instead of a CA")
    add("--password-file", type=Path, help="its first line is the password of root@pam")
    add("--storage", default="local-lvm", help="LVM-thin, for the guests' volumes (%(default)s)")
    add("--bridge", default="vmbr0", help="for the guests (%(default)s)")
    add("--template", metavar="VOLID", help="of Debian 12 (default: the newest in local)")
    add("--case", action="append", default=[], metavar="ID", help="run this case; may be repeated (default: all)")
    add("--deadline", type=float, default=14400.0, metavar="SECONDS", help="for all cases (%(default).0f)")
    add("--report", type=Path, metavar="FOLDER", help="write conformance.json and conformance.txt there")
    add("--clean-up", action="store_true", help="only remove what a killed run left in --vmids and with --prefix")
    return found


def _password(file: Path | None) -> str:
    if file is not None:
        return (file.read_text().splitlines() or [""])[0]
    return os.environ.get(PASSWORD_VARIABLE) or getpass.getpass("Password of root@pam: ")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns one of the exit codes above."""
    reader = parser()
    given = reader.parse_args(arguments)
    if given.unlock != given.node:
        reader.error(f"--unlock {given.unlock} is not the node {given.node}")
    if strange := sorted(set(given.case) - {case["id"] for pve in RELEASES for case in contract.cases("", pve)}):
        reader.error(f"no such case: {', '.join(strange)}")
    first, last = given.vmids
    options = Options(
        *(
            given.node,
            first,
            last,
            given.prefix,
            given.storage,
            given.bridge,
            given.template,
            given.deadline,
            given.case,
        )
    )
    try:
        client = Client(given.endpoint, ca_file=given.ca_file, fingerprint=given.fingerprint)
        password = _password(given.password_file)
    except (ClientError, OSError) as error:
        return _refused(str(error))
    try:
        world, facts = enter(client, options, password)
        if given.clean_up:
            left = clean_up(world)
            print("".join(f"still there: {name}\n" for name in left) or "nothing is left\n", end="")
            return UNFINISHED if left else SAME
        report = Run(world, facts, options, lambda line: print(line, file=sys.stderr)).report(given.endpoint)
    except (ClientError, NotAllowedError, RefusedError) as error:
        return _refused(client.hide(str(error)))
    finally:
        client.close()
    print(report.text(), end="")
    if given.report:
        report.write(given.report)
    if report.left or report.interrupted:
        return UNFINISHED
    return DIFFERENT if report.count("different") else SAME


def _refused(text: str) -> int:
    print(f"pvelab conformance: {text}", file=sys.stderr)
    return REFUSED
