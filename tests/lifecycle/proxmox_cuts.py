"""Cutting an operation off at each of its API calls: the tools of the tests about that."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import requests
from pydantic import SecretStr
from requests.adapters import BaseAdapter

from lab.instance import ACCOUNT
from proxmox.client import Proxmox, Timings
from proxmox.connection import Connection
from proxmox.facts import GuestFacts
from pvelab.config import LabConfig
from pvelab.errors import ApiError
from pvelab.routing import Call, not_implemented, prepare
from pvelab.runtime import Runtime
from pvelab.server import LabServer
from pvelab.simulated import SimulatedRuntime

QUICK = Timings(retry=20, lock=20, task=30, poll=0.02, first_poll=0.005)


class KilledError(BaseException):
    """The process is gone: nothing that it would still do reaches the server."""


@dataclass
class Cutter(BaseAdapter):
    """Hands requests on, and does `what` at request number `at`, counted from 0; with `writes`, among the writes.

    kill-before, kill-after: the process dies before or after the request's effect. drop-before, drop-after: the
    connection breaks. error-after: the effect is there, the answer is a proxy's error. lock: the guest is held once.
    """

    inner: BaseAdapter
    at: int = -1
    what: str = ""
    writes: bool = False
    calls: list[str] = field(default_factory=list)
    dead: bool = False
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        with self._guard:
            if self.dead:
                raise KilledError
            counted = not self.writes or request.method != "GET"
            number = sum(not self.writes or not call.startswith("GET") for call in self.calls)
            self.calls.append(f"{request.method} {request.path_url}")
            mine = counted and number == self.at
            self.dead = mine and self.what == "kill-before"
        if mine and self.what == "kill-before":
            raise KilledError
        if mine and self.what == "drop-before":
            raise requests.exceptions.ConnectionError("Connection aborted.", ConnectionResetError(104, "reset"))
        if mine and self.what == "lock":
            return _response(request, 500, "can't lock file '/run/lock/lxc/pve-config-105.lock' - got timeout")
        response = self.inner.send(request, *args, **kwargs)
        if mine and self.what == "kill-after":
            self.dead = True
            raise KilledError
        if mine and self.what == "drop-after":
            raise requests.exceptions.ConnectionError("Connection aborted.", ConnectionResetError(104, "reset"))
        if mine and self.what == "error-after":
            return _response(request, 596, "Connection timed out")
        return response

    def close(self) -> None:
        """Close the connections."""
        self.inner.close()


def _response(
    request: requests.PreparedRequest, status: int, reason: str, body: str = '{"data":null}'
) -> requests.Response:
    response = requests.Response()
    response.status_code, response.reason, response.url, response.request = status, reason, str(request.url), request
    response._content = body.encode()
    return response


class InProcess(BaseAdapter):
    """The lab's core without sockets and TLS between: what makes thousands of histories affordable."""

    def __init__(self, server: LabServer) -> None:
        super().__init__()
        self._server = server

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        del args, kwargs
        url = urlsplit(str(request.url))
        verb, path = str(request.method), unquote(url.path).removeprefix("/api2/json")
        body = request.body.decode() if isinstance(request.body, bytes) else request.body or ""
        values = dict(parse_qsl(f"{body}&{url.query}", keep_blank_values=True))
        try:
            found = self._server._router.find(verb, path)
            who = self._server.cluster.access.authenticate_header(request.headers["Authorization"])
            if found is None:
                raise not_implemented(verb, path)
            method, path_values = found
            call = Call(self._server.cluster, who, values)
            prepare(method, path, path_values, call)
            data = self._server._run_method(method, path, call)
        except ApiError as error:
            told = {"data": None, "message": f"{error.message}\n", "errors": error.errors or {}}
            return _response(request, error.status, error.reason, json.dumps(told))
        return _response(request, 200, "OK", json.dumps({"data": data, **call.extra}))

    def close(self) -> None:
        """Nothing is open."""


class Lab:
    """A lab, without containers unless it is given a runtime that has them, and clients for it."""

    def __init__(self, folder: Path, runtime: Runtime | None = None) -> None:
        self.config = LabConfig(state_dir=folder, runtime=runtime or SimulatedRuntime(), auth_delay=0, account=ACCOUNT)
        self.server = LabServer(self.config)
        self._numbers = count(200, 10)

        self.server.cluster.recover()
        self._adapter = InProcess(self.server)
        token = self.server.seed_access()
        self._hand = SecretStr(self.server.cluster.access.add_token("root@pam", "hand", privsep=False))
        self.connection = Connection(
            "https://lab.invalid:8006", token.token_id, SecretStr(token.secret), "pve", insecure=True
        )

    def by_hand(self) -> Proxmox:
        """A client with the rights of a person at the node."""
        client = Proxmox(replace(self.connection, token_id="root@pam!hand", token_secret=self._hand), QUICK)
        client._session.mount("https://", self._adapter)
        return client

    def close(self) -> None:
        """End the last tasks."""
        for task in self.server.cluster.tasks.active():
            task.aborted.set()
        self.server.cluster.tasks.wait_idle(5.0)
        self.server._access_log.close()

    def client(self, **timings: float) -> Proxmox:
        """A client, with other timings than QUICK's if given."""
        client = Proxmox(self.connection, replace(QUICK, **timings))
        client._session.mount("https://", self._adapter)
        return client

    def cut_client(self, at: int = -1, what: str = "", *, writes: bool = False) -> tuple[Proxmox, Cutter]:
        client = self.client()
        cutter = Cutter(self._adapter, at, what, writes)
        client._session.mount("https://", cutter)
        return client, cutter

    def numbers(self) -> int:
        """The first of ten numbers that no guest has yet."""
        return next(self._numbers)

    # Guests are made and removed as files, as by hand on the node: a thousand histories are then a matter of minutes.

    def image(self, volid: str) -> Path:
        """The file of a volume."""
        return self.config.state_dir / "nodes" / "pve" / "storage" / "local-lvm" / f"{volid.partition(':')[2]}.raw"

    def file(self, vmid: int) -> Path:
        """The configuration file of a container."""
        return self.config.state_dir / "nodes" / "pve" / "lxc" / f"{vmid}.conf"

    def volume(self, volid: str, size: int = 8 << 30) -> None:
        """A volume with a file system."""
        self.config.runtime.format_volume(self.image(volid), size, root_owner=100000, log=lambda _line: None)

    def guest(self, vmid: int, **options: str) -> None:
        """A stopped container, with its root file system."""
        self.volume(f"local-lvm:vm-{vmid}-disk-0", 1 << 30)
        values = {
            "arch": "amd64",
            "features": "nesting=1",
            "hostname": f"ct{vmid}",
            "memory": "256",
            "ostype": "debian",
            "rootfs": f"local-lvm:vm-{vmid}-disk-0,size=1G",
            "unprivileged": "1",
        }
        self.file(vmid).write_text("".join(f"{key}: {value}\n" for key, value in sorted((values | options).items())))

    def remove(self, client: Proxmox, vmid: int) -> None:
        """Take a container and all its volumes away."""
        if not self.file(vmid).exists():
            return
        if client.guest_status("pve", vmid).running:
            client.stop("pve", vmid)
        self.file(vmid).unlink()
        for image in self.image(f"local-lvm:vm-{vmid}-disk-0").parent.glob(f"vm-{vmid}-*"):
            image.unlink()

    def look(self, vmid: int) -> GuestFacts:
        """A container as its file and the runtime have it, past the API."""
        sections = self.file(vmid).read_text().split("\n[")[0]
        config = dict(line.split(": ", 1) for line in sections.splitlines() if ": " in line)
        return GuestFacts(vmid, "pve", running=vmid in self.config.runtime.running("pve"), config=config)

    def snapshots(self, vmid: int) -> list[str]:
        """Names of a container's snapshots."""
        return re.findall(r"^\[(?!pve:)(.+)\]$", self.file(vmid).read_text(), re.MULTILINE)

    def volumes(self, vmid: int) -> list[str]:
        """The volumes of a guest."""
        return sorted(image.stem for image in self.image("x:y").parent.glob(f"vm-{vmid}-*.raw"))


Act = Callable[[Proxmox], object]
