"""A lab without containers: how cases set it up, ask it, and look below its surface."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests

from pvelab.access import ROOT, User
from pvelab.conformance.contract import GUESTS
from pvelab.runtime import Mount
from pvelab.server import LabServer
from pvelab.simulated import SimulatedRuntime

TEMPLATE = "local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst"
ROOT_PASSWORD = "root-of-the-lab"
GIB = 1 << 30


class Lab:
    """A lab and the ways to set it up, to ask it and to look below its surface."""

    def __init__(self, server: LabServer, runtime: SimulatedRuntime) -> None:
        self.server = server
        self.runtime = runtime
        self.cluster = server.cluster
        self.config = server.config
        self.base = server.endpoint + "api2/json"
        self._session = requests.Session()
        self._session.trust_env = False
        self._headers: dict[str, dict[str, str]] = {}

    def close(self) -> None:
        self._session.close()

    # --- the state before ---

    def reset(self) -> None:
        self.runtime.__init__()  # type: ignore[misc]  # as new
        self.server.faults.clear()
        self.server.faults.log_file.unlink(missing_ok=True)
        # Without the account: a case that wants it has it made.
        self.cluster.reset()
        self._headers = {}

    def volume(self, volid: str, size: int, *, formatted: bool = True, node: str = "pve") -> Path:
        image = self.cluster.volumes.path(node, self.cluster.volumes.parse(volid))
        image.parent.mkdir(parents=True, exist_ok=True)
        if formatted:
            self.runtime.format_volume(image, size, root_owner=100000, log=lambda _text: None)
        else:
            self.runtime.allocate_raw(image, size)
        return image

    def guest(self, vmid: int, changes: dict[str, str | None] | None = None, node: str = "pve") -> None:
        """Write a guest's file and make the own volumes it names."""
        options: dict[str, str | None] = {**GUESTS.get(vmid, GUESTS[106]), **(changes or {})}
        lines = [f"{key}: {value}\n" for key, value in sorted(options.items()) if value is not None]
        (self.config.guest_dir(node) / f"{vmid}.conf").write_text("".join(lines))
        for key, value in options.items():
            if value is None or not (key == "rootfs" or key.startswith(("mp", "unused"))):
                continue
            volid, _, rest = value.partition(",")
            if f"vm-{vmid}-" in volid:
                size = next((part[5:] for part in rest.split(",") if part.startswith("size=")), "1G")
                self.volume(volid, int(size.rstrip("G")) * GIB, node=node)

    def boot(self, vmid: int, node: str = "pve") -> None:
        self.runtime.start(self.cluster.spec(node, vmid, self.cluster.load(node, vmid)), lambda _text: None)
        self.cluster.running(node)

    def allow(self, grants: list[dict[str, Any]], name: str = "custom") -> None:
        """A user ``<name>@pve`` and its privilege-separated token ``test`` with the same rights."""
        access = self.cluster.access
        userid, tokenid = f"{name}@pve", f"{name}@pve!test"
        access.users.setdefault(userid, User())
        for number, grant in enumerate(grants):
            role = f"Test{name}{number}"
            access.roles[role] = frozenset(grant["privs"])
            for kind, ugid in (("user", userid), ("token", tokenid)):
                if grant.get("only") in (None, kind):
                    access.grant(grant["path"], kind, ugid, role, grant.get("propagate", True))

    # --- who asks ---

    def headers(self, who: str) -> dict[str, str]:
        if who not in self._headers:
            self._headers[who] = self._login(who)
        return self._headers[who]

    def _login(self, who: str) -> dict[str, str]:
        access = self.cluster.access
        if who == "nothing":
            return {}
        if who == "demo":
            return {"Authorization": "PVEAPIToken=" + self.server.seed_access().api_token}
        if who == "root":
            access.set_password(ROOT, ROOT_PASSWORD)
            ticket, csrf = access.login(ROOT, ROOT_PASSWORD)
            return {"Cookie": f"PVEAuthCookie={quote(ticket)}", "CSRFPreventionToken": csrf}
        userid = ROOT if who == "root-token" else f"{who}@pve"
        access.users.setdefault(userid, User())
        secret = access.add_token(userid, "test", privsep=who != "root-token")
        return {"Authorization": f"PVEAPIToken={userid}!test={secret}"}

    # --- asking ---

    def call(
        self,
        method: str,
        path: str,
        data: dict[str, Any] | str | None = None,
        *,
        who: str = "demo",
        json: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> requests.Response:
        query = method in ("GET", "DELETE")
        return self._session.request(
            method,
            self.base + path,
            params=data if query else None,
            data=None if query else data,
            json=json,
            headers={**self.headers(who), **(headers or {})},
            verify=str(self.server.ca_file),
            timeout=30,
        )

    def wait(self, upid: str, who: str = "root") -> str:
        """The exit text of a task, seen through the API."""
        node = upid.split(":")[1]
        task = next((t for t in self.cluster.tasks.active() if str(t.upid) == upid), None)
        if task is not None:
            assert task.done.wait(20), f"{upid} does not end"
        assert self.cluster.tasks.wait_idle(20)
        answer = self.call("GET", f"/nodes/{node}/tasks/{quote(upid, safe='')}/status", who=who).json()["data"]
        assert answer["status"] == "stopped"
        return str(answer["exitstatus"])

    def log(self, upid: str) -> list[str]:
        node = upid.split(":")[1]
        answer = self.call("GET", f"/nodes/{node}/tasks/{quote(upid, safe='')}/log", {"limit": 0}, who="root").json()
        return [line["t"] for line in answer["data"]]

    def do(self, method: str, path: str, data: dict[str, Any] | None = None, *, who: str = "root") -> Any:
        """A call that must succeed, its task included."""
        answer = self.call(method, path, data, who=who)
        assert answer.status_code == 200, f"{method} {path}: {answer.status_code} {answer.reason}"
        value = answer.json()["data"]
        if isinstance(value, str) and value.startswith("UPID:"):
            assert re.fullmatch(r"OK|WARNINGS: \d+", self.wait(value)), self.log(value)
        assert self.cluster.tasks.wait_idle(20)
        return value

    # --- the state after ---

    def sections(self, vmid: int, node: str = "pve") -> dict[str, dict[str, str]]:
        """The guest's file, read without the lab's own parser: section name -> options."""
        found: dict[str, dict[str, str]] = {"": {}}
        section = ""
        for line in (self.config.guest_dir(node) / f"{vmid}.conf").read_text().splitlines():
            if line.startswith("["):
                section = line.strip("[]")
                found[section] = {}
            elif line.startswith("#"):
                found[section]["#"] = found[section].get("#", "") + line[1:] + "\n"
            elif line.strip():
                key, _, value = line.partition(": ")
                found[section][key] = value
        return found

    # As the contract looks at it (pvelab.conformance.judge.State).

    def task(self, upid: str) -> str:
        return self.wait(upid)

    def options(self, vmid: int) -> dict[str, str] | None:
        return self.sections(vmid)[""] if self.exists(vmid) else None

    def pending(self, vmid: int) -> dict[str, str]:
        return self.sections(vmid).get("pve:pending", {})

    def snapshot(self, vmid: int, name: str) -> dict[str, str] | None:
        return self.sections(vmid).get(name)

    def is_up(self, vmid: int) -> bool:
        return vmid in self.runtime.running("pve")

    def exists(self, vmid: int, node: str = "pve") -> bool:
        return (self.config.guest_dir(node) / f"{vmid}.conf").exists()

    def has_volume(self, volid: str, node: str = "pve") -> bool:
        storage, _, name = volid.partition(":")
        directory = self.config.storage_dir(node, storage)
        return (directory / f"{name}.raw").exists() or (directory / "images" / name).exists()

    def mounts(self, vmid: int) -> tuple[Mount, ...]:
        """What the simulated kernel has mounted for a guest that runs."""
        return self.runtime._running["pve", vmid].mounts
