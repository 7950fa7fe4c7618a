"""The same contract against an independent fake, unmodified: where two readings of Proxmox agree, and where not.

fakepve keeps guests and configs but no volumes' contents and no kernel, and asks whoever logs in for no rights. So the
cases that set up rights, tokens, pools or a cluster's faults do not apply; what is left is run as root. Each difference
is listed with who is right and why, and a listed one that has gone is an error too.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, quote

import pytest
import requests
from fakepve import FakePve, settle  # type: ignore[import-untyped]
from fakepve.certs import make_cert  # type: ignore[import-untyped]
from lab_harness import GIB, TEMPLATE
from test_contract import CASES

from pvelab.conformance.contract import GUESTS

# Reason -> cases. "facts" is facts/proxmox.md; the lab follows it.
DIFFERENCES: dict[str, tuple[str, ...]] = {
    "the lab: it models fewer methods and says 501 instead of inventing an answer": ("unmodelled-branch",),
    "the lab: the path in a 501 is the one below /api2/json (facts 0)": ("unknown-path", "unknown-verb"),
    "the lab: a parameter of the path must not be contradicted (facts 0)": ("path-body-conflict",),
    "the lab: form data knows 0 and 1 only (facts 0)": ("form-true-is-no-boolean",),
    "the lab: the texts for property strings were tried with upstream's code (facts 0)": (
        "mp-unknown-key",
        "mp-dot-dot",
    ),
    "the lab: a repeated form key is a list (facts 0 is silent; the transport joins with NUL)": (
        "repeated-form-key-is-a-list",
    ),
    "the lab: these values are refused by upstream's code, and fakepve takes them": (
        *("dev-bad-path", "startup-zero", "timezone-bad", "entrypoint-bad"),
    ),
    "neither: another login, another answer": ("task-list-own", "cluster-tasks-of-others", "skiplock-by-token"),
    "the lab: required keys come before the others in the normal form (facts 2.3)": (
        "create-mp-not-normalised-with-defaults",
        "allocate-on-put",
        "mount-keepattrs",
        "protected-resize",
        "root-may-bind-mount-with-all-options",
    ),
    "the lab: volumes are made in the order of the slots' numbers (facts 2.3)": ("create-volume-order",),
    "the lab: disk numbers look at every volume with the number (facts 2.3)": (
        "create-number-after-orphan",
        "create-number-in-gap",
    ),
    "the lab: disabled storages and storages of other nodes are refused (facts 2.1)": (
        "create-disabled-storage",
        "create-storage-elsewhere",
    ),
    "the lab: content is checked by the volume's own storage type (facts 2.1)": ("create-template-content",),
    "the lab: fakepve creates without looking for template, volumes and MTU (facts 2.1, 2.3)": (
        "create-missing-template",
        "create-failure-keeps-existing-volume",
        "create-missing-existing-volume",
        "create-mtu",
    ),
    "the lab: the start after a create is a task of its own (facts 2.3)": ("create-start-may-fail-later",),
    "the lab: PUT measures an existing volume and writes size= (facts 3.1)": (
        "attach-adds-size",
        "attach-corrects-size",
        "attach-twice-accepted",
        "attach-of-other-guest-accepted",
        "change-option-parks-nothing",
        "hot-mount-empty-slot",
    ),
    "the lab: lists of name servers are stored with blanks between (upstream's verify_nameserver_list)": (
        "nameservers",
    ),
    "the lab: name servers are addresses (the published format, lxc-ip-with-ll-iface; fakepve does not check it)": (
        "nameserver-that-is-a-name",
        "nameserver-second-bad",
        "nameserver-zone-of-a-global-address",
    ),
    "the lab: a replaced volume is parked, a mounted one is not unused (facts 3.1)": (
        "replace-mount-parks-old",
        "reattach-drops-unused",
    ),
    "the lab: a kernel refuses to free what is mounted (facts 3.1, 5, 10, 11)": (
        "delete-unused-own-used-elsewhere-running",
        "destroy-owner-mounted-in-running",
        "rollback-held-by-other",
        "volume-delete-mounted",
    ),
    "the lab: hot-plug mounts for real (facts 3.2)": (
        "hot-mount-missing-volume",
        "hot-mount-failure-writes-nothing",
        "hot-mount-unformatted",
    ),
    "the lab: the post-stop hook applies what is pending (facts 3.2)": (
        "pending-applied-at-stop",
        "pending-applied-at-shutdown",
    ),
    "neither: root skips the check of a volume's name that a token meets (facts 4)": ("bad-lvm-name-on-put",),
    "the lab: a start looks at volumes, bridges, binds and quota (facts 7)": (
        "start-missing-lv",
        "start-missing-dir-volume",
        "start-unknown-storage",
        "start-unformatted",
        "start-bind-missing",
        "start-unknown-bridge",
        "start-quota",
        "allocated-is-raw",
    ),
    "the lab: systemd without nesting warns (facts 7, 9.2/2)": (
        "start-warns-without-nesting",
        "create-defaults",
        "create-net-normal-form",
        "create-tags-normalised",
        "create-fractional-size",
        "create-terabyte",
        "create-number-ignores-named",
        "create-number-ignores-longer-vmid",
        "create-existing-volume-keeps-no-size",
        "create-privileged-by-root",
        "create-good-ssh-key",
        "create-ssh-keys-with-blank-lines-and-options",
        "create-storage-parameter",
        "create-start",
        "create-on-dir-storage",
        "clone-without-nesting-warns",
    ),
    "the lab: ro and rw of one volume cannot be mounted at once (facts 8, 9.2/1)": (
        "ro-after-rw-fails",
        "rw-after-ro-fails",
        "ro-hot-mount-of-rw",
    ),
    "the lab: a starting node removes locks of backups (pve-manager, startall)": ("startall-removes-backup-locks",),
    "the lab: a Perl die without a line end names its line (facts 9)": ("resize-foreign",),
    "the lab: fakepve accepts move_volume and moves nothing (facts 9)": (
        "protected-move-away",
        "move-both",
        "move-neither",
        "move-rootfs-to-guest",
        "move-unused-to-used",
        "move-to-nobody",
        *("move-to-another-node", "move-to-where-it-is", "move-storage-nothing"),
        "move-locked",
        "move-template",
        "move-digest",
        "move-nothing",
        "move-slot-taken",
        "move-bind",
        "move-running-source",
        "move-dir-storage",
        "move-snapshot",
        "move-to-guest",
        "move-reowns-foreign",
        "move-onto-protected",
        "move-onto-protected-unused",
        "move-storage",
        "move-storage-unused",
        "move-storage-running",
    ),
    "the lab: backups and migrations look at storage and owner (facts 10)": ("backup-wrong-storage", "migrate-foreign"),
    "the lab: the published schema says that template returns null": ("template",),
    "the lab: what a guest can is asked of its storages (9.2/29)": (
        "feature-snapshot-on-lvmthin",
        "feature-copy-on-lvmthin",
        "feature-copy-on-a-folder",
        "feature-clone-of-a-template",
    ),
    "the lab: the text for a missing volume is LVM's (facts 11)": ("volume-info-missing",),
    "neither: addresses of a simulated guest": ("interfaces-running",),
    "the lab: both are parameter errors (facts 13)": (
        "task-bad-upid",
        "task-unknown",
        "task-that-is-not-there-by-a-stranger",
    ),
}
LISTED = {case: reason for reason, cases in DIFFERENCES.items() for case in cases}


def _calls(case: dict[str, Any]) -> list[str]:
    return [case["call"], *case.get("before", [])]


def applies(case: dict[str, Any]) -> bool:
    if case.get("as", "demo") not in ("demo", "root") or {"acl", "faults", "headers", "pools", "raw_body"} & set(case):
        return False
    # Users, roles and ACLs it answers with samples made from the schema.
    if any(re.search(r" /access/(users|roles|groups|acl|permissions)", text) for text in _calls(case)):
        return False
    # A refusal that only a token meets cannot be had from a fake where everyone is root.
    return not (case.get("as", "demo") == "demo" and case.get("status") == 403)


APPLICABLE = [case for case in CASES if applies(case)]


class Fake:
    """One fakepve after the other, on an event loop of their own."""

    def __init__(self, certificate: str, key: str) -> None:
        self._files = (certificate, key)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._session = requests.Session()
        self._session.trust_env = False
        self.pve: Any = None
        self._headers: dict[str, str] = {}

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def close(self) -> None:
        self._session.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def begin(self, case: dict[str, Any]) -> None:
        self.pve = pve = FakePve(host="127.0.0.1", port=0)
        pve.time_scale = 0
        pve.nodes = {"pve": {"online": True}, "pve2": {"online": True}}
        thin = {"type": "lvmthin", "active": 1, "content": "images,rootdir", "vgname": "pve", "thinpool": "data"}
        pve.storages["local"]["files"].add(TEMPLATE.partition("/")[2])
        pve.storages["shared"] = {
            **{"type": "dir", "active": 1, "content": "iso,vztmpl,backup,rootdir,images", "files": set()},
            **{"path": "/mnt/shared", "shared": 1},
        }
        pve.storages["off"] = {**thin, "disable": 1}
        pve.storages["away"] = {**thin, "nodes": "pve2"}
        for vmid, changes in case.get("guests", {}).items():
            options = {**GUESTS.get(vmid, GUESTS[106]), **(changes or {})}
            pve.add_ct(
                vmid,
                node=case.get("nodes", {}).get(vmid, "pve"),
                config={key: value for key, value in options.items() if value is not None},
                defaults=False,
                status="running" if vmid in case.get("running", []) else "stopped",
            )
        for volid, size in {**case.get("volumes", {}), **case.get("raw", {})}.items():
            storage, _, name = volid.partition(":")
            owner = re.findall(r"(?:vm|base)-(\d+)", name)[0]
            pve.storages[storage].setdefault("volumes", {})[name] = {
                **{"content": "images", "format": "raw", "size": int(size * GIB), "vmid": int(owner), "ctime": 1}
            }
        self._run(pve.start(*self._files))
        login = {"username": "root@pam", "password": "secret"}
        ticket = self._session.post(
            pve.url + "/api2/json/access/ticket",
            data=login,
            headers={"Connection": "close"},
            verify=self._files[0],
            timeout=20,
        ).json()["data"]
        self._headers = {
            "Connection": "close",  # a kept connection would outlive the fake that it belongs to
            "Cookie": f"PVEAuthCookie={ticket['ticket']}",
            "CSRFPreventionToken": ticket["CSRFPreventionToken"],
        }

    def end(self) -> None:
        self._run(settle())
        self._run(self.pve.stop())

    def call(
        self, method: str, path: str, data: dict[str, Any] | None = None, json: dict[str, Any] | None = None
    ) -> requests.Response:
        query = method in ("GET", "DELETE")
        return self._session.request(
            method,
            self.pve.url + "/api2/json" + path,
            params=data if query else None,
            data=None if query else data,
            json=json,
            headers=self._headers,
            verify=self._files[0],
            timeout=20,
        )

    def wait(self, upid: str) -> str:
        path = f"/nodes/{upid.split(':')[1]}/tasks/{quote(upid, safe='')}/status"
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            state = self.call("GET", path).json()["data"]
            if state["status"] == "stopped":
                return str(state["exitstatus"])
        raise AssertionError(f"{upid} does not end")


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fake]:
    certificate, key, _ = make_cert(str(tmp_path_factory.mktemp("fakepve")), hosts=("127.0.0.1",))
    running = Fake(certificate, key)
    yield running
    running.close()


def difference(fake: Fake, case: dict[str, Any]) -> str | None:
    """What fakepve does otherwise than the case says, or None."""
    for text in case.get("before", []):
        method, path, *rest = text.split(" ", 2)
        answer = fake.call(method, path, dict(parse_qsl(rest[0])) if rest else None)
        if answer.status_code != 200:
            return f"before: {answer.status_code} {answer.reason}"
        value = answer.json()["data"]
        if isinstance(value, str) and value.startswith("UPID:"):
            fake.wait(value)
    method, path = case["call"].split(" ", 1)
    answer = fake.call(method, path, case.get("with"), case.get("json"))
    return difference_now(fake, case, answer) or difference_after(fake, case)


def difference_now(fake: Fake, case: dict[str, Any], answer: requests.Response) -> str | None:
    if answer.status_code != case.get("status", 200):
        return f"status {answer.status_code} {answer.reason}"
    body = answer.json()
    seen = {"reason": answer.reason, "errors": body.get("errors"), "data": body.get("data")}
    if "task" in case:
        seen["task"] = fake.wait(body["data"]) if isinstance(body["data"], str) else f"no task but {body['data']}"
    wanted = {key: case[key] for key in seen if key in case}
    if answer.status_code >= 400:
        wanted.setdefault("errors", None)
    return next((f"{key} {seen[key]}" for key in wanted if seen[key] != wanted[key]), None)


def difference_after(fake: Fake, case: dict[str, Any]) -> str | None:
    for vmid in case.get("gone", []):
        guest = fake.pve.ct(vmid)
        if guest is not None and guest.node == "pve":
            return f"{vmid} is still there"
    for vmid, wanted in case.get("after", {}).items():
        guest = fake.pve.ct(vmid)
        for key, value in wanted.items():
            found = guest.config.get(key) if guest is not None else None
            if key != "#" and not key.startswith("lxc.") and (None if found is None else str(found)) != value:
                return f"{vmid} {key}: {found}"
    return None


@pytest.mark.parametrize("case", APPLICABLE, ids=[case["id"] for case in APPLICABLE])
def test_fakepve_agrees(fake: Fake, case: dict[str, Any]) -> None:
    fake.begin(case)
    try:
        found = difference(fake, case)
    finally:
        fake.end()
    if case["id"] in LISTED:
        assert found is not None, f"no difference any more: take it off the list ({LISTED[case['id']]})"
    else:
        assert found is None


def test_the_list_names_cases_that_exist() -> None:
    assert set(LISTED) <= {case["id"] for case in APPLICABLE}
    assert len(APPLICABLE) >= 200
