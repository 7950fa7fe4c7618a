"""The contract: what a Proxmox answers, as cases, each naming the section of the facts it comes from.

A case (``cases/*.yaml``)::

    id: destroy-protected            # unique
    facts: "5"                       # section of facts/proxmox.md;  "9.2/5": row of facts/proxmox-9.2.md;  else a file
    guests: {105: {protection: "1"}} # written before; null removes an option of the standard guest
    running: [105]
    volumes: {"local-lvm:vm-9105-disk-0": 8}    # GiB, formatted;  raw: the same without a file system
    acl: [{path: /vms, privs: [VM.Audit]}]      # for the user and token "custom"
    faults: [{kind: offline, node: pve2}]       # that hold while the call is made (pvelab.faults)
    before: ["PUT /nodes/pve/lxc/105/config delete=mp0"]   # calls of root that must succeed
    as: demo                         # nothing, nobody, custom, demo, root-token, root; demo when not given
    call: DELETE /nodes/pve/lxc/105  # $UPID: the task that the last call of before returned
    with: {force: 1}                 # json: for a JSON body;  raw_body: the form's text as it is sent
    status: 500
    reason: can't remove CT 105 - protection mode enabled
    reason_like: unable to .*        # an expression for it
    errors: {…}                      # the whole errors object;  errors_like: an expression for each text
    body: {…}                        # the whole body of a 401, which is empty otherwise
    data: …                          # the whole data;  has: {…}  a part of it;  members: parts of a pool's rows
    task: OK                         # exit text of the task that the call returned;  log: [lines it has]
    after: {105: {mp0: null}}        # options in the file; null is absent
    pending: {105: {…}}              # the whole pending section;  sections: {105: {s1: {…}}} for snapshots
    pve: "9"                         # the one release that it is of;  in8: what is otherwise with Proxmox VE 8
    gone: [105]    kept: [volids]    freed: [volids]    up: [105]    down: [105]
"""

from __future__ import annotations

import importlib.resources
from typing import Any

import yaml

from pvelab.config import Account
from pvelab.release import DEFAULT

# The one in C reads the cases ten times as fast; it is not in every build of the library.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

KNOWN = frozenset(
    (
        *("id", "facts", "guests", "running", "volumes", "raw", "acl", "before", "as", "call", "with", "json"),
        *("headers", "status", "reason", "errors", "data", "has", "lacks", "task", "log", "after", "pending"),
        *("sections", "gone", "kept", "freed", "up", "down", "pools", "nodes"),
        *("raw_body", "errors_like", "body", "members", "pve", "in8", "faults", "reason_like"),
    )
)


ACCOUNT = Account(
    roles={
        "LabGuests": (
            *("VM.Allocate", "VM.Audit", "VM.Config.CPU", "VM.Config.Disk", "VM.Config.Memory", "VM.Config.Network"),
            *("VM.Config.Options", "VM.PowerMgmt"),
        ),
        "LabVolumes": ("Datastore.AllocateSpace", "Datastore.Audit"),
        "LabTemplates": ("Datastore.Audit",),
        "LabBridge": ("SDN.Use",),
    },
    acl=(
        ("/vms", "LabGuests"),
        ("/storage/local-lvm", "LabVolumes"),
        ("/storage/local", "LabTemplates"),
        ("/sdn/zones/localnetwork/vmbr0", "LabBridge"),
        ("/sdn/zones/intra/intra01", "LabBridge"),
    ),
)
"""Who a case's "demo" is: one role per kind of path, nothing on "/" (facts proxmox 14)."""

GUESTS: dict[int, dict[str, str]] = {
    105: {
        "arch": "amd64",
        "cores": "2",
        "features": "nesting=1",
        "hostname": "guest1",
        "memory": "2048",
        "net0": "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:3A:5F:01,ip=10.9.0.5/24,type=veth",
        "ostype": "debian",
        "rootfs": "local-lvm:vm-105-disk-0,size=20G",
        "swap": "512",
        "unprivileged": "1",
    },
    106: {
        "arch": "amd64",
        "features": "nesting=1",
        "hostname": "other",
        "memory": "512",
        "ostype": "debian",
        "rootfs": "local-lvm:vm-106-disk-0,size=4G",
        "swap": "512",
        "unprivileged": "1",
    },
    999: {
        "arch": "amd64",
        "hostname": "pet-storage",
        "memory": "256",
        "mp0": "local-lvm:vm-999-disk-1,mp=/data,backup=1,size=8G",
        "ostype": "debian",
        "rootfs": "local-lvm:vm-999-disk-0,size=2G",
        "swap": "0",
        "unprivileged": "1",
    },
}
"""The guests that cases start from: a cattle, a neighbour and a pet that owns ``vm-999-disk-1``."""


def cases(template: str, pve: str = DEFAULT) -> list[dict[str, Any]]:
    """All cases of a release, in the order of their files; ``template``: the volid of the template they create from."""
    folder = importlib.resources.files(__package__) / "cases"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    texts = (file.read_text().replace("$TEMPLATE", template) for file in files)
    every = (case for text in texts for case in yaml.load(text, Loader=LOADER))  # noqa: S506 - a safe one
    other = f"in{pve}"
    return [{**case, **case.get(other, {})} for case in every if case.get("pve", pve) == pve]
