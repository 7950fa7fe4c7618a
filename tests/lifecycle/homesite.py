"""A home for the two stacks: a node's API without containers, and the real engine and plugins in front of it.

:class:`Site` runs ``pulumi`` against a :class:`RecordingServer` and tells what reached the API;
:class:`Operator` is the person at the node, who changes things behind the stacks' back.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote

import pytest
import requests
import yaml
from aiohttp import web

from lab import engine
from lab.environment import CONFIG_FILE_VARIABLE, environment
from lab.instance import ACCOUNT, CHECKOUT, Lab, Ready, write_secret
from lab.stacks import PROJECT, prepare_stacks
from pvelab.config import DEFAULT_STORAGES, LabConfig
from pvelab.server import BASE, LabServer
from pvelab.simulated import CONTENT, CONTENT_OFFSET, SimulatedRuntime, write_template

NODE = "pve"
PET = 999
CATTLE = 105
STACK_USER = "pulumi@pve"
POWER = re.compile(r"/status/(start|stop|shutdown|reboot|suspend|resume)$")
ENGINE_DEADLINE = 120.0
DATA_BYTES = 1 << 16
needs_yaml_host = pytest.mark.skipif(
    shutil.which("pulumi-language-yaml") is None,
    reason="the CLI here is a stand-in without the YAML host, which the official archive has",
)
TEMPLATE = "debian-12-standard_12.12-1_amd64.tar.zst"


@dataclass(frozen=True)
class Request:
    """One request as it reached the API. ``path`` is below ``/api2/json``; ``status`` 0 means not answered."""

    method: str
    path: str
    params: Mapping[str, str]
    authid: str
    status: int = 0

    @property
    def write(self) -> bool:
        return self.method != "GET"

    @property
    def power(self) -> bool:
        return self.write and POWER.search(self.path) is not None

    def __str__(self) -> str:
        """``PUT 105/config delete=mp0``: as the journeys list them."""
        where = self.path.removeprefix(f"/nodes/{NODE}/lxc/")
        what = " ".join(f"{key}={value}" for key, value in sorted(self.params.items()) if key != "digest")
        return f"{self.method} {where} {what}".rstrip()


When = Literal["before", "after"]
Watch = Callable[[Request, When], bool]
"""Sees every request twice; True means: cut the connection here."""


class RecordingServer(LabServer):
    """The lab's API, with a record of who asked what."""

    def __init__(self, config: LabConfig) -> None:
        super().__init__(config)
        self.requests: list[Request] = []
        self.watch: Watch | None = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.text()
        params = dict(parse_qsl(request.rel_url.raw_query_string, keep_blank_values=True))
        params |= dict(parse_qsl(body, keep_blank_values=True))
        found = re.match(r"PVEAPIToken[ =]([^=]+)=", request.headers.get("Authorization", ""))
        path = unquote(request.rel_url.raw_path).removeprefix(BASE)
        seen = Request(request.method, path, params, found.group(1) if found else "")
        if self._cut(request, seen, "before"):
            self.requests.append(seen)
            return web.Response(status=500)
        response = await super()._handle(request)
        answered = Request(seen.method, seen.path, seen.params, seen.authid, response.status)
        self.requests.append(answered)
        self._cut(request, answered, "after")
        return response

    def _cut(self, request: web.Request, seen: Request, when: When) -> bool:
        watch = self.watch
        if watch is None or not watch(seen, when):
            return False
        if request.transport is not None:
            request.transport.abort()
        return True


class Operator:
    """The person at the node: root, by a token of his own."""

    def __init__(self, server: RecordingServer) -> None:
        self._server = server
        self._token = f"root@pam!hands={server.cluster.access.add_token('root@pam', 'hands', privsep=False)}"

    def call(self, method: str, path: str, **params: str | int) -> Any:
        """One call, its task followed to a good end; AssertionError when either fails."""
        with requests.Session() as session:
            session.trust_env = False
            base = self._server.endpoint.rstrip("/") + BASE
            answer = session.request(
                method,
                base + path,
                data={key.replace("_", "-"): value for key, value in params.items()} if method != "GET" else None,
                params=params if method == "GET" else None,
                headers={"Authorization": f"PVEAPIToken={self._token}"},
                verify=str(self._server.ca_file),
                timeout=30,
            )
        assert answer.status_code == 200, f"{method} {path}: {answer.status_code} {answer.reason}"
        data = answer.json()["data"]
        if isinstance(data, str) and data.startswith("UPID:"):
            assert self._server.cluster.tasks.wait_idle(30.0), f"{data} goes on"
            status = self.call("GET", f"/nodes/{NODE}/tasks/{data}/status")
            assert status["exitstatus"] == "OK" or status["exitstatus"].startswith("WARNINGS"), status
        return data

    def guest(self, vmid: int, what: str = "") -> str:
        return f"/nodes/{NODE}/lxc/{vmid}{what}"

    def config(self, vmid: int) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", self.guest(vmid, "/config"))
        return found

    def running(self, vmid: int) -> bool:
        return bool(self.call("GET", self.guest(vmid, "/status/current"))["status"] == "running")

    def vmids(self) -> list[int]:
        return sorted(int(guest["vmid"]) for guest in self.call("GET", f"/nodes/{NODE}/lxc"))

    def volumes(self, storage: str = "local-lvm") -> dict[str, int]:
        """Size in GiB by volid."""
        rows = self.call("GET", f"/nodes/{NODE}/storage/{storage}/content")
        return {row["volid"]: row["size"] >> 30 for row in rows}

    def set(self, vmid: int, **options: str | int) -> None:
        self.call("PUT", self.guest(vmid, "/config"), **options)

    def stop(self, vmid: int) -> None:
        self.call("POST", self.guest(vmid, "/status/stop"))

    def destroy(self, vmid: int) -> None:
        self.call("DELETE", self.guest(vmid), force=1)

    def make_stranger(self, vmid: int, **options: str | int) -> None:
        """A container that is none of the stacks'."""
        self.call(
            "POST",
            f"/nodes/{NODE}/lxc",
            vmid=vmid,
            ostemplate=f"local:vztmpl/{TEMPLATE}",
            storage="local-lvm",
            hostname="stranger",
            unprivileged=1,
            **options,
        )


@dataclass
class Site:
    """One lab, its two stacks, and the settings of both."""

    lab: Lab
    server: RecordingServer
    runtime: SimulatedRuntime
    node: Operator
    overrides: dict[str, str | None] = field(default_factory=dict)
    runs: int = 0

    # --- settings ---

    def configure(self, **settings: object) -> None:
        """Set these keys of the project for both stacks; None removes one."""
        file = self.lab.stack_config_file
        content = yaml.safe_load(file.read_text())
        for key, value in settings.items():
            if value is None:
                content["config"].pop(f"{PROJECT}:{key}", None)
            else:
                content["config"][f"{PROJECT}:{key}"] = value
        file.write_text(yaml.safe_dump(content, sort_keys=False))

    def set_secret(self, stack: str, key: str, value: str) -> None:
        """``key``: KEY, or KEY.PART of an object."""
        self.command(
            "config", "set", "--stack", stack, "--secret", *(["--path"] if "." in key else []), key, stdin=value
        )

    def command(self, *argv: str, stdin: str = "") -> str:
        return engine.command(*argv, cwd=CHECKOUT, env=self.env, stdin=stdin)

    @property
    def env(self) -> dict[str, str]:
        values: dict[str, str | None] = {**os.environ, **environment(self.lab), **self.overrides}
        values |= {"PULUMI_AUTOMATION_API_SKIP_VERSION_CHECK": "true"}
        return {name: value for name, value in values.items() if value is not None}

    # --- the engine ---

    def pulumi(
        self, stack: str, verb: str, *more: str, before: Sequence[str] = (), cwd: Path | None = None
    ) -> engine.Run:
        """One run of the engine, good or bad; what reached the API during it is in ``sent``.

        ``before``: a command that runs it; ``cwd``: the project, where it is another than this one.
        """
        self.forget()
        self.runs += 1
        return engine.pulumi(
            [verb, "--stack", stack, *more],
            cwd=cwd or CHECKOUT,
            env=self.env,
            log=self.raw_log,
            timeout=ENGINE_DEADLINE,
            before=before,
        )

    def up(self, stack: str, *more: str) -> engine.Run:
        """An ``up`` that has to work."""
        return good(self.pulumi(stack, "up", "--yes", "--skip-preview", *more))

    def preview(self, stack: str, *more: str) -> engine.Run:
        return good(self.pulumi(stack, "preview", *more))

    def refresh(self, stack: str) -> engine.Run:
        return good(self.pulumi(stack, "refresh", "--yes", "--skip-preview"))

    def destroy(self, stack: str, *more: str) -> engine.Run:
        return good(self.pulumi(stack, "destroy", "--yes", "--skip-preview", *more))

    @property
    def raw_log(self) -> Path:
        """All that the engine ever printed here."""
        return self.lab.state_dir / "engine.log"

    @property
    def state_files(self) -> list[Path]:
        """Every file of the backend: state, history, backups."""
        return [file for file in self.lab.pulumi_state.rglob("*") if file.is_file()]

    def outputs(self, stack: str) -> dict[str, Any]:
        return engine.outputs(stack, cwd=CHECKOUT, env=self.env)

    def resources(self, stack: str) -> dict[str, dict[str, Any]]:
        """The stack's state: each resource by its name; secrets, which each run encrypts anew, are left out."""
        file = self.lab.pulumi_state / ".pulumi" / "stacks" / PROJECT / f"{stack}.json"
        latest = json.loads(file.read_text(), object_hook=_without_ciphertext)["checkpoint"]["latest"]
        return {entry["urn"].rsplit("::", 1)[1]: entry for entry in latest.get("resources") or []}

    def break_off(self, stack: str, verb: str, at: Watch, victims: str = "") -> int:
        """Run the engine and kill -9 it the first time that ``at`` says so; answers how many processes died.

        ``victims``: a pattern for the command lines of the processes to kill; empty kills engine and plugins at once.
        """
        self.forget()
        hits: list[int] = []
        # The engine is dead before all of its plugins are: whoever waited for it also waits for the count.
        counting = threading.Lock()
        log = self.lab.state_dir / "broken-off.log"
        with log.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(
                ["pulumi", verb, "--stack", stack, "--yes", "--skip-preview", "--non-interactive", "--color", "never"],
                cwd=CHECKOUT,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        def watch(request: Request, when: When) -> bool:
            with counting:
                if hits or not request.authid.startswith(STACK_USER) or not at(request, when):
                    return False
                hits.append(engine.kill_session(process.pid, victims))
                return True

        self.server.watch = watch
        try:
            process.wait(ENGINE_DEADLINE)
        finally:
            self.server.watch = None
            engine.kill_session(process.pid)
            process.wait(10)
        self.server.cluster.tasks.wait_idle(10.0)
        with counting:
            killed = sum(hits)
        sent = "\n".join(map(str, self.sent))
        self.forget()
        assert killed, f"never cut off ({hits}); the engine said:\n{log.read_text()}\nthe API saw:\n{sent}"
        return killed

    def forget_resource(self, stack: str, urn: str) -> None:
        """Take one resource out of the state, as a run that was killed before it could write would leave it."""
        self.command("state", "delete", urn, "--stack", stack, "--yes", "--force")

    def rename(self, stack: str, name: str) -> None:
        """Give a stack another name."""
        self._elsewhere("rename", name, "--stack", stack)

    def init(self, stack: str) -> None:
        """Make a stack."""
        self._elsewhere("init", "--no-select", stack)

    def remove(self, stack: str) -> None:
        """Remove a stack that has no resource left."""
        self._elsewhere("rm", "--yes", stack)

    def _elsewhere(self, *argv: str) -> None:
        """A command about stacks, outside of the checkout, where the CLI would change the settings file as well."""
        elsewhere = self.lab.state_dir / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        shutil.copy(CHECKOUT / "Pulumi.yaml", elsewhere)
        without = {name: value for name, value in self.env.items() if name != CONFIG_FILE_VARIABLE}
        engine.command("stack", *argv, cwd=elsewhere, env=without)

    def cancel(self, stack: str) -> None:
        """Take away the lock that a killed engine has left in a file backend, as its own message says."""
        self.command("cancel", "--stack", stack, "--yes")

    # --- what the API saw ---

    def forget(self) -> None:
        self.server.requests.clear()

    @property
    def sent(self) -> list[Request]:
        """What engine and plugins asked since the last run began."""
        return [request for request in self.server.requests if request.authid.startswith(STACK_USER)]

    @property
    def writes(self) -> list[str]:
        return [str(request) for request in self.sent if request.write]

    # --- the volumes' bytes ---

    def image(self, volid: str) -> Path:
        """The volume's image, or its folder."""
        volumes = self.server.cluster.volumes
        return volumes.path(NODE, volumes.parse(volid))

    def write_data(self, volid: str, text: str) -> None:
        """Stands for what an agent wrote: a file, or behind the file system's head, which has to stay."""
        image = self.image(volid)
        if image.is_dir():
            (image / CONTENT).write_text(text)
            return
        with image.open("r+b") as handle:
            handle.seek(CONTENT_OFFSET)
            handle.write(text.encode())

    def data(self, volid: str) -> bytes:
        image = self.image(volid)
        with (image / CONTENT if image.is_dir() else image).open("rb") as handle:
            return handle.read(DATA_BYTES)


def _without_ciphertext(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in ("ciphertext", "modified")}


def good(run: engine.Run) -> engine.Run:
    assert run.ok, run.explain()
    assert run.changes, "the engine gave no summary"
    return run


@contextlib.contextmanager
def opened(state_dir: Path, port: int = 0, **config: Any) -> Iterator[Site]:
    """A lab in this process whose settings and stacks lie in ``state_dir``; both are made when they are not there."""
    lab = Lab(state_dir)
    lab.prepare()
    runtime = SimulatedRuntime(state_dir / "simulated.json")
    given = {"auth_delay": 0.0, "control": False, **config}
    more = [storage.name for storage in config.get("storages", ()) if storage not in DEFAULT_STORAGES]
    account = ACCOUNT.on_storages(more)
    made = LabConfig(state_dir=state_dir, runtime=runtime, port=port, account=account, **given)
    write_template(made.template_dir(NODE), TEMPLATE)
    server = RecordingServer(made)
    with server:
        write_secret(lab.token_file, server.seed_access().api_token + "\n")
        tell_ready(lab, server)
        prepare_stacks(lab)
        site = Site(lab, server, runtime, Operator(server))
        # Nothing runs in these containers, so nothing can be set up in them: the other levels do that.
        site.configure(agentMode="none")
        yield site


def tell_ready(lab: Lab, server: LabServer) -> None:
    lab.say_ready(
        Ready(
            containers=False,
            endpoint=server.endpoint,
            port=server.port,
            ca_file=str(server.ca_file),
            node=NODE,
            template=f"local:vztmpl/{TEMPLATE}",
            model_url="http://127.0.0.1:9/v1",
            model="lab-model",
        )
    )


def copied(seed: Path, target: Path) -> Path:
    """A lab that was never used, made from one that has its stacks and certificates already."""
    shutil.copytree(
        seed, target, ignore=shutil.ignore_patterns("*.log", "server.json", "*.sock"), copy_function=_copy_file
    )
    return target


def _copy_file(source: str, target: str) -> None:
    """Volumes are mostly holes: what there is of them lies at their beginning."""
    if not source.endswith(".raw"):
        shutil.copy2(source, target)
        return
    with Path(source).open("rb") as old, Path(target).open("wb") as new:
        new.write(old.read(DATA_BYTES))
        new.truncate(Path(source).stat().st_size)


def assert_plain(run: engine.Run) -> None:
    """No Python traceback, nor the noise that the SDK makes around one."""
    told = run.explain()
    for noise in ("Traceback", 'File "', "KeyboardInterrupt", "Resource monitor has terminated"):
        assert noise not in told, told
