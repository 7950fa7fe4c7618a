"""The host keys that a create task's log tells, and whose creation it was."""

from __future__ import annotations

import base64

import pytest

from proxmox.client import Address, Interface, PastTask
from proxmox.errors import ProxmoxError
from proxmox.hostkeys import birth, fingerprints, made_host_keys, shown_host_key
from tests.unit.proxmox_http import Answer, Request, Server, data, die

# From a real node's log (public repository text): the whole end of a creation.
LOG = """\
extracting archive '/mnt/pve/nfsproxmox/template/cache/centos-7-default_20190926_amd64.tar.xz'
Total bytes read: 422809600 (404MiB, 27MiB/s)
Detected container architecture: amd64
Creating SSH host key 'ssh_host_rsa_key' - this may take some time ...
done: SHA256:kRa2EvDfuCCr1sCvWiesCagyZavwXuUmDidElKIi478 root@localhost
Creating SSH host key 'ssh_host_dsa_key' - this may take some time ...
done: SHA256:ekVDa80Q+uxvEfMSXux0S46LesgDGTePoUgcS/3KuiQ root@localhost
Creating SSH host key 'ssh_host_ecdsa_key' - this may take some time ...
done: SHA256:mk7y2H/nKvhhWHYDP9cKwuricMMYisUz+d9LBlCD8Os root@localhost
Creating SSH host key 'ssh_host_ed25519_key' - this may take some time ...
done: SHA256:AjQAs5YD7uTWfzmQFt1o4SjfPfdfOuMAm7B30H8tdVg root@localhost
TASK OK
""".splitlines()
TOLD = {
    "SHA256:kRa2EvDfuCCr1sCvWiesCagyZavwXuUmDidElKIi478",
    "SHA256:ekVDa80Q+uxvEfMSXux0S46LesgDGTePoUgcS/3KuiQ",
    "SHA256:mk7y2H/nKvhhWHYDP9cKwuricMMYisUz+d9LBlCD8Os",
    "SHA256:AjQAs5YD7uTWfzmQFt1o4SjfPfdfOuMAm7B30H8tdVg",
}


def test_the_fingerprints_of_a_real_log() -> None:
    assert fingerprints(LOG) == TOLD


@pytest.mark.parametrize(
    "line",
    [
        "",
        "TASK OK",
        "done: SHA256:short root@h",
        "done: SHA256:AjQAs5YD7uTWfzmQFt1o4SjfPfdfOuMAm7B30H8tdVgX root@h",
        "done: SHA256:AjQAs5YD7uTWfzmQFt1o4SjfPfdfOuMAm7B30H8tdVg",
        "done: SHA256:AjQAs5YD7uTWfzmQFt1o4SjfPfdfOuMAm7B30H8tdVg root@h and more",
        "tar: done: SHA256:AjQAs5YD7uTWfzmQFt1o4SjfPfdfOuMAm7B30H8tdVg root@h",
        "done: 43:51:43:a1:b5:fc:8b:b7:0a:3a:a9:b1:0f:66:73:a8 root@h",  # MD5, of Debian 8's ssh-keygen
    ],
)
def test_what_is_no_such_line(line: str) -> None:
    assert fingerprints([line]) == set()


def task(kind: str, second: int, *, ok: bool = True, worker: int = 1) -> PastTask:
    upid = f"UPID:pve:00000001:{worker:08X}:{second:08X}:{kind}:105:pulumi@pve!ci:"
    return PastTask(upid, kind, (second, worker), ok)


@pytest.mark.parametrize(
    ("tasks", "second"),
    [
        ([], None),
        ([task("vzcreate", 5)], 5),
        # A replacement: the old one's log is not the new one's.
        ([task("vzcreate", 5), task("vzdestroy", 7), task("vzcreate", 9)], 9),
        ([task("vzcreate", 9), task("vzcreate", 5)], 9),
        # In one second: the worker that began later.
        ([task("vzdestroy", 9, worker=1), task("vzcreate", 9, worker=2)], 9),
        ([task("vzcreate", 9, worker=1), task("vzdestroy", 9, worker=2)], None),
        # One that failed made nothing.
        ([task("vzcreate", 5), task("vzcreate", 9, ok=False)], 5),
        ([task("vzcreate", 5, ok=False)], None),
        # Restored since, or destroyed and made by somebody whose tasks are not seen.
        ([task("vzcreate", 5), task("vzrestore", 9)], None),
        ([task("vzcreate", 5), task("vzdestroy", 9)], None),
    ],
)
def test_whose_creation_it_was(tasks: list[PastTask], second: int | None) -> None:
    found = birth(tasks)
    assert (None if found is None else found.began[0]) == second


UPID = "UPID:pve:0012A4F1:0A3C5E77:68B0C1D2:vzcreate:105:pulumi@pve!ci:"
LISTED = {"upid": UPID, "type": "vzcreate", "status": "WARNINGS: 1", "id": "105"}


def node(tasks: Answer, log: Answer) -> Server:
    """A node that lists `tasks` as those of kind vzcreate, and none of another kind."""

    def listed(request: Request) -> Answer:
        assert request.values["vmid"] == "105"
        return tasks if request.values["typefilter"] == "vzcreate" else data([])

    return Server({"GET /nodes/pve/tasks": listed, f"GET /nodes/pve/tasks/{UPID}/log": log})


def test_the_log_of_the_creation_is_read() -> None:
    log = data([{"n": number, "t": line} for number, line in enumerate(LOG, 1)])
    assert made_host_keys(node(data([LISTED]), log).client(), "pve", 105) == TOLD


def test_where_no_task_is_seen_no_key_is_known() -> None:
    assert made_host_keys(node(data([]), die("not asked for")).client(), "pve", 105) == set()


def test_a_log_that_cannot_be_read_is_not_one_without_keys() -> None:
    """Else who cuts that one answer off has the first contact taken as it comes."""
    with pytest.raises(ProxmoxError):
        made_host_keys(node(data([LISTED]), die("no way")).client(), "pve", 105)


DIGEST = bytes(range(32))
SHOWN = (
    "fd01:1:203:405:607:809:a0b:c0d",
    "fd02:e0f:1011:1213:1415:1617:1819:1a1b",
    "fd03:1c1d:1e1f:6870:2d68:6f73:746b:6579",
)
"""The bytes 0 to 31 and "hp-hostkey", 14 in each address, behind fd and the number of the part."""


def loopback(*addresses: str, name: str = "lo") -> Interface:
    own = (Address("inet", "127.0.0.1", 8), Address("inet6", "::1", 128))
    return Interface(name, "00:00:00:00:00:00", (*own, *(Address("inet6", one, 128) for one in addresses)))


def test_a_clone_shows_its_key_on_its_loopback() -> None:
    found = f"SHA256:{base64.b64encode(DIGEST).decode().rstrip('=')}"
    assert shown_host_key([loopback(*SHOWN)]) == found
    # In any order, and beside addresses of other kinds.
    assert (
        shown_host_key([loopback(name="eth0"), loopback(SHOWN[2], "fd00::1", "fd04::1", SHOWN[0], SHOWN[1])]) == found
    )


@pytest.mark.parametrize(
    "interfaces",
    [
        [],
        [loopback()],
        # Whoever is on the network can send to another card; it is not looked at.
        [loopback(*SHOWN, name="eth0")],
        [loopback(*SHOWN[:2])],
        [loopback(SHOWN[0], SHOWN[1], "fd03::1")],
    ],
)
def test_what_is_no_whole_proof_is_none(interfaces: list[Interface]) -> None:
    assert shown_host_key(interfaces) is None
