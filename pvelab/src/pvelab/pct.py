"""``pct``, as root on a node runs it: over the same core as the API, and with root@pam's rights.

    python -m pvelab.pct [--lab DIR] VERB VMID [OPTIONS]

``list``, ``config``, ``status``, ``set``, ``start``, ``stop``, ``shutdown``, ``reboot``, ``destroy``, ``restore``,
``fsck``, ``unlock`` and ``exec``. What Proxmox allows to root@pam only - bind mounts, ``keyctl`` - goes through here
(facts proxmox 1, 2.2). A failure is one text on the error output and exit status 255, as with Perl's die.
"""

from __future__ import annotations

import argparse
import base64
import json
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pvelab import guestfile
from pvelab.access import ROOT
from pvelab.control import ControlError, Operation, send
from pvelab.ending import end_with
from pvelab.errors import die
from pvelab.instance import default_folder
from pvelab.storages import RAW

if TYPE_CHECKING:
    from pvelab.cluster import Cluster

FAILED = 255
VERBS = (
    *("list", "config", "status", "set", "start", "stop", "shutdown", "reboot", "destroy"),
    *("restore", "fsck", "unlock", "exec"),
)
Stdin = Callable[[], bytes]
_EXEC_DEADLINE = 600.0
_REQUEST_DEADLINE = 90.0
_POLL_PAGE = 500
_POLL_INTERVAL = 0.1


# --- what the lab's process does for it -------------------------------------------------------------------------------


def node_operations(cluster: Cluster) -> dict[str, Operation]:
    """What root on a node has beside the API: a ticket and a password of root@pam, ``unlock`` and ``exec``."""

    def ticket(_order: dict[str, Any]) -> dict[str, Any]:
        value, csrf = cluster.access.issue_ticket(ROOT)
        return {"ticket": value, "csrf": csrf}

    def password(order: dict[str, Any]) -> dict[str, Any]:
        cluster.access.set_password(ROOT, str(order["password"]))
        return {}

    def place(order: dict[str, Any]) -> tuple[str, int]:
        vmid = int(order["vmid"])
        if order.get("node") is not None:
            return str(order["node"]), vmid
        found = cluster.guests().get(vmid)
        node = found.node if found is not None else cluster.config.nodes[0]
        return node, vmid

    def unlock(order: dict[str, Any]) -> dict[str, Any]:
        node, vmid = place(order)
        with cluster.locked(vmid):
            config = cluster.load(node, vmid)
            config.options.pop("lock", None)
            cluster.store(node, vmid, config)
        return {}

    def execute(order: dict[str, Any]) -> dict[str, Any]:
        node, vmid = place(order)
        config = cluster.load(node, vmid)
        if not cluster.is_running(node, vmid):
            raise ValueError(f"container '{vmid}' not running!")
        done = cluster.runtime.execute(
            cluster.spec(node, vmid, config), list(order["argv"]), base64.b64decode(order.get("stdin", ""))
        )
        return {
            "returncode": done.returncode,
            "stdout": base64.b64encode(done.stdout).decode(),
            "stderr": base64.b64encode(done.stderr).decode(),
        }

    def fsck(order: dict[str, Any]) -> dict[str, Any]:
        """src/PVE/CLI/pct.pm fsck: under the guest's lock; whether another guest runs on the volume is not asked."""
        node, vmid = place(order)
        device = str(order["device"])
        with cluster.locked(vmid):
            config = cluster.load(node, vmid)
            if device not in config.options:
                raise die(f"cannot run command on non-existing mount point {device}")
            if cluster.is_running(node, vmid):
                raise die("cannot run fsck when container is running")
            volume = guestfile.parse_mount(device, config.options[device])["volume"]
            if guestfile.mount_type(volume) != "volume":
                raise die(f"path '{volume}' does not point to a block device")
            if (form := cluster.volumes.parse(volume).format) != RAW:
                raise die(f"unable to run fsck for '{volume}' (format == {form})")
            done = cluster.runtime.check_volume(cluster.volumes.find(node, volume), force=bool(order["force"]))
        told = (done.stdout + done.stderr).decode(errors="replace")
        return {"told": told, "returncode": done.returncode}

    return {"ticket": ticket, "password": password, "unlock": unlock, "exec": execute, "fsck": fsck}


# --- the command ------------------------------------------------------------------------------------------------------


class PctError(Exception):
    """The text that ``pct`` writes before it ends with 255."""


class Node:
    """The API as root@pam, by a ticket from the control socket."""

    def __init__(self, state_dir: Path, node: str | None = None) -> None:
        self._node = node
        described = json.loads((state_dir / "server.json").read_text())
        self._base = described["endpoint"] + "api2/json"
        self._context = ssl.create_default_context(cafile=described["ca_file"])
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._context)
        )
        held = send(state_dir, "ticket")
        self._headers = {
            "Cookie": f"PVEAuthCookie={urllib.parse.quote(held['ticket'])}",
            "CSRFPreventionToken": held["csrf"],
        }

    def call(self, method: str, path: str, **params: str) -> Any:
        """The ``data`` of an answer; PctError with the message and the parameter errors."""
        query = urllib.parse.urlencode(params)
        url, body = self._base + path, None
        if method in ("POST", "PUT"):
            body = query.encode()
        elif query:
            url += f"?{query}"
        request = urllib.request.Request(url, data=body, method=method, headers=self._headers)  # noqa: S310 - https
        try:
            with self._opener.open(request, timeout=_REQUEST_DEADLINE) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            told: dict[str, Any] = json.loads(text) if text.startswith("{") else {"message": str(error.reason)}
            lines = [f"{error.code} {told['message']}" if error.code == 400 else told["message"]]
            lines += [f"{name}: {fault}" for name, fault in sorted((told.get("errors") or {}).items())]
            raise PctError("\n".join(line.rstrip("\n") for line in lines)) from None
        except OSError as error:
            raise PctError(f"the lab's API does not answer: {error}") from None

    def node_of(self, vmid: str) -> str:
        """The node that is asked; where none is named the guest's, or for an unknown one the first."""
        if self._node is not None:
            return self._node
        for guest in self.call("GET", "/cluster/resources", type="vm"):
            if str(guest["vmid"]) == vmid:
                return str(guest["node"])
        return str(self.call("GET", "/nodes")[0]["node"])

    def follow(self, upid: str) -> Iterator[str]:
        """The lines of a task's log until it ends; PctError with its exit status when that is a failure."""
        node = upid.split(":")[1]
        path = f"/nodes/{node}/tasks/{urllib.parse.quote(upid, safe='')}"
        seen = 0
        while True:
            state = self.call("GET", f"{path}/status")
            for line in self.call("GET", f"{path}/log", start=str(seen), limit=str(_POLL_PAGE)):
                seen += 1
                if not line["t"].startswith("TASK ") and line["t"] != "no content":
                    yield line["t"]
            if state["status"] == "stopped":
                if state["exitstatus"] != "OK" and not state["exitstatus"].startswith("WARNINGS"):
                    raise PctError(state["exitstatus"])
                return
            time.sleep(_POLL_INTERVAL)


def _options(words: Sequence[str]) -> dict[str, str]:
    """``-mp0 VALUE``, ``--mp0 VALUE``, ``--mp0=VALUE``; a name without a value is a flag."""
    found: dict[str, str] = {}
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("-"):
            raise PctError(f"unexpected argument '{word}'")
        name, equals, value = word.lstrip("-").partition("=")
        if not equals:
            value = waiting.pop(0) if waiting and not waiting[0].startswith("-") else "1"
        found[name] = value
    return found


def run(
    state_dir: Path,
    verb: str,
    vmid: str,
    words: Sequence[str],
    read_stdin: Stdin = lambda: b"",
    *,
    node: str | None = None,
) -> tuple[int, str, str]:
    """Exit status, output and error output of one command; PctError or ControlError for what ``pct`` would die of.

    Only ``exec`` calls ``read_stdin``. ``node``: the one that the command runs on, which knows its own guests only;
    None for the guest's.
    """
    if verb == "unlock":
        send(state_dir, "unlock", vmid=vmid, node=node)
        return 0, "", ""
    if verb == "exec":
        return _exec(state_dir, vmid, words[1:] if words[:1] == ["--"] else words, read_stdin(), node)
    if verb == "fsck":
        return _fsck(state_dir, vmid, _options(words), node)
    api = Node(state_dir, node)
    if verb == "restore":
        return 0, _restore(api, vmid, words), ""
    return 0, _list(api, node) if verb == "list" else _on_guest(api, verb, vmid, _options(words)), ""


def _own_stdin() -> bytes:
    return b"" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read()


def _exec(state_dir: Path, vmid: str, argv: Sequence[str], stdin: bytes, node: str | None) -> tuple[int, str, str]:
    given = base64.b64encode(stdin).decode()
    done = send(state_dir, "exec", _EXEC_DEADLINE, vmid=vmid, argv=list(argv), stdin=given, node=node)
    output, errors = (base64.b64decode(done[name]).decode(errors="replace") for name in ("stdout", "stderr"))
    return int(done["returncode"]), output, errors


def _fsck(state_dir: Path, vmid: str, options: dict[str, str], node: str | None) -> tuple[int, str, str]:
    """Whatever fsck does not end with 0 is a failure to pct (PVE::Tools run_command), a repair too: fsck(8), 1."""
    device, force = options.get("device", "rootfs"), options.get("force", "0") == "1"
    done = send(state_dir, "fsck", _EXEC_DEADLINE, vmid=vmid, device=device, force=force, node=node)
    command = f"fsck -a -l{' -f' if force else ''}"
    if done["returncode"]:
        return FAILED, done["told"], f"command '{command}' failed: exit code {done['returncode']}\n"
    return 0, done["told"], ""


def _restore(api: Node, vmid: str, words: Sequence[str]) -> str:
    if not words or words[0].startswith("-"):
        raise PctError("400 not enough arguments")
    where = api.node_of(vmid)
    upid = api.call("POST", f"/nodes/{where}/lxc", vmid=vmid, ostemplate=words[0], restore="1", **_options(words[1:]))
    return "".join(f"{line}\n" for line in api.follow(upid))


def _on_guest(node: Node, verb: str, vmid: str, options: dict[str, str]) -> str:
    base = f"/nodes/{node.node_of(vmid)}/lxc/{vmid}"
    if verb == "config":
        return _config(node.call("GET", f"{base}/config", **options))
    if verb == "status":
        return f"status: {node.call('GET', f'{base}/status/current')['status']}\n"
    if verb == "set":
        node.call("PUT", f"{base}/config", **options)
        return ""
    if verb == "destroy":
        upid = node.call("DELETE", base, **options)
    else:
        upid = node.call("POST", f"{base}/status/{verb}", **options)
    return "".join(f"{line}\n" for line in node.follow(upid))


def _list(node: Node, only: str | None) -> str:
    nodes = [only] if only is not None else [entry["node"] for entry in node.call("GET", "/nodes")]
    guests = [guest for name in nodes for guest in node.call("GET", f"/nodes/{name}/lxc")]
    if not guests:
        return ""
    rows = [("VMID", "Status", "Lock", "Name")]
    rows += [(str(g["vmid"]), g["status"], g.get("lock", ""), g.get("name", "")) for g in guests]
    return "".join("{:<10} {:<10} {:<12} {:<20}\n".format(*row) for row in rows)


def _config(options: dict[str, Any]) -> str:
    raw = options.pop("lxc", [])
    options.pop("digest", None)
    if "description" in options:
        options["description"] = urllib.parse.quote(str(options["description"]), safe=" ")
    lines = [f"{key}: {value}" for key, value in sorted(options.items())]
    return "".join(f"{line}\n" for line in [*lines, *(f"{key}: {value}" for key, value in raw)])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="pct", description="Manage the lab's containers as root on its node does.")
    parser.add_argument("--lab", type=Path, default=default_folder())
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("vmid", nargs="?", default="")
    known, words = parser.parse_known_args(argv)
    if known.verb != "list" and not known.vmid.isdigit():
        parser.error("the container's number is missing")
    try:
        status, output, errors = run(known.lab, known.verb, known.vmid, words, _own_stdin)
    except (PctError, ControlError, FileNotFoundError) as error:
        sys.stderr.write(f"{error}\n")
        return FAILED
    sys.stdout.write(output)
    sys.stderr.write(errors)
    return status


if __name__ == "__main__":
    end_with(main)
