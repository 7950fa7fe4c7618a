"""Runs in the guest: writes the page and its unit, starts it, and asks it over HTTP. The standard library only."""

from __future__ import annotations

import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning.guest.common import Refusal, as_user, install_file, phase_main, run
from provisioning.guest.typed import read

UNIT = Path("/etc/systemd/system/web.service")
PATIENCE_S = 20.0


@dataclass(frozen=True)
class Page:
    """What is served. `folder`: in the home; the account writes it, because root follows no path in somebody's home."""

    port: int
    text: str
    user: str
    folder: str


def unit(page: Page) -> str:
    return (
        "[Unit]\nDescription=Web service\nAfter=network.target\n"
        f"[Service]\nUser={page.user}\nWorkingDirectory={page.folder}\nRestart=always\n"
        "NoNewPrivileges=yes\nProtectSystem=strict\nPrivateTmp=yes\n"
        f"ExecStart=/usr/bin/python3 -IB -m http.server {page.port}\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


def serve(job: Path) -> dict[str, Any]:
    page = read(Page, (job / "inputs.json").read_text())
    as_user(page.user, "sh", "-c", 'cat >"$1/index.html"', "sh", page.folder, stdin=page.text)
    if install_file(UNIT, unit(page), mode=0o644, gid=0):
        run("systemctl", "daemon-reload")
        run("systemctl", "restart", UNIT.name)
    run("systemctl", "enable", "--quiet", "--now", UNIT.name)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{page.port}/", timeout=5) as answer:
                return {"bytes": len(answer.read())}
        except OSError as error:
            if time.monotonic() > deadline:
                raise Refusal(f"the page does not answer on port {page.port}: {error}") from None
            time.sleep(0.2)


def main() -> int:
    return phase_main(serve)


if __name__ == "__main__":
    sys.exit(main())
