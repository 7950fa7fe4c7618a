"""Blocks of commands from the documents, run in a shell word for word."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from collections.abc import Mapping
from pathlib import Path

from lab.instance import CHECKOUT
from tests.lifecycle.homesite import Site

PATIENCE = 300


def blocks_of(document: Path) -> list[str]:
    """The blocks of a document that are commands: fenced with sh or bash, or indented by four spaces."""
    text = document.read_text()
    fenced = re.findall(r"^```(?:sh|bash)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    without = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"(?:^|\n\n)((?: {4}[^\n]*\n(?:\n(?= {4}))?)+)", without)
    return [*fenced, *(textwrap.dedent(block) for block in indented)]


def block(document: str, beginning: str) -> str:
    """The one block of a document that begins so."""
    [found] = [one for one in blocks_of(CHECKOUT / document) if one.startswith(beginning)]
    return found


def run(site: Site, script: str, folder: Path) -> str:
    """Run a block in a shell of the lab's, in a folder that looks like the checkout. It has to succeed."""
    return run_with(site.env, script, folder)


def run_with(environment: Mapping[str, str], script: str, folder: Path) -> str:
    """Run a block in a shell with these variables. The folder is like the checkout, but for its own files."""
    folder.mkdir(exist_ok=True)
    for entry in CHECKOUT.iterdir():
        if not (folder / entry.name).exists():
            (folder / entry.name).symlink_to(entry)
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env={**environment, "PULUMI_SKIP_CONFIRMATIONS": "true", "PATH": environment.get("PATH", os.defpath)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout
