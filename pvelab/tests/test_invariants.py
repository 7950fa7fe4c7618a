"""What must hold after any history of calls, valid or not (issue 4, proof).

- Only what carries the guest's number is freed by a call on that guest: no volume of another owner ever goes.
- A protected guest survives every DELETE, with every volume that it mounts.
- The files parse back to the same state, and no ``unusedN`` names a volume that is mounted.
- No lock and no task is left over, and nothing is an internal error of the lab.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab_harness import TEMPLATE, Lab

from pvelab import guestfile
from pvelab.guestfile import is_unused, mount_points

GUESTS = (105, 106, 999)
SLOTS = ("mp0", "mp1", "mp2")
Call = tuple[str, str, dict[str, Any], int | None]
"""Method, path, parameters, and the guest whose volumes the call may free (None: any, as the caller asked for it)."""

vmids = st.sampled_from(GUESTS)
slots = st.sampled_from(SLOTS)
volumes = st.builds(
    lambda owner, number: f"local-lvm:vm-{owner}-disk-{number}", st.sampled_from((*GUESTS, 9105)), st.integers(0, 4)
)


def on_guest(make: Callable[..., Call], *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    return st.builds(make, vmids, *arguments)


def put(vmid: int, options: dict[str, Any]) -> Call:
    return "PUT", f"/nodes/pve/lxc/{vmid}/config", options, vmid


CALLS: st.SearchStrategy[Call] = st.one_of(
    on_guest(
        lambda vmid, start: (
            "POST",
            "/nodes/pve/lxc",
            {"vmid": vmid, "ostemplate": TEMPLATE, "rootfs": "local-lvm:1", "start": start, "features": "nesting=1"},
            vmid,
        ),
        st.sampled_from((0, 1)),
    ),
    on_guest(
        lambda vmid, force, all_: (
            "DELETE",
            f"/nodes/pve/lxc/{vmid}",
            {"force": force, "destroy-unreferenced-disks": all_},
            vmid,
        ),
        st.sampled_from((0, 1)),
        st.sampled_from((0, 0, 0, 1)),
    ),
    on_guest(lambda vmid, slot, volume: put(vmid, {slot: f"{volume},mp=/{slot}"}), slots, volumes),
    on_guest(lambda vmid, slot: put(vmid, {slot: f"local-lvm:1,mp=/{slot}"}), slots),
    on_guest(lambda vmid, slot: put(vmid, {"delete": slot}), slots),
    on_guest(lambda vmid, number: put(vmid, {"delete": f"unused{number}"}), st.integers(0, 2)),
    on_guest(lambda vmid, flag: put(vmid, {"protection": flag}), st.sampled_from((0, 1))),
    on_guest(lambda vmid, text: put(vmid, {"description": text}), st.text(max_size=20)),
    on_guest(lambda vmid: put(vmid, {"bogus": 1, "memory": "lots"})),
    on_guest(
        lambda vmid, verb: ("POST", f"/nodes/pve/lxc/{vmid}/status/{verb}", {}, vmid),
        st.sampled_from(("start", "stop", "shutdown", "reboot")),
    ),
    on_guest(
        lambda vmid, slot, size: ("PUT", f"/nodes/pve/lxc/{vmid}/resize", {"disk": slot, "size": size}, vmid),
        st.sampled_from((*SLOTS, "rootfs")),
        st.sampled_from(("+1G", "1G", "3G")),
    ),
    on_guest(lambda vmid: ("POST", f"/nodes/pve/lxc/{vmid}/snapshot", {"snapname": "s1"}, vmid)),
    on_guest(lambda vmid: ("DELETE", f"/nodes/pve/lxc/{vmid}/snapshot/s1", {}, vmid)),
    on_guest(
        lambda vmid, other, slot, target: (
            "POST",
            f"/nodes/pve/lxc/{vmid}/move_volume",
            {"volume": slot, "target-vmid": other, "target-volume": target},
            None,
        ),
        vmids,
        slots,
        st.sampled_from((*SLOTS, "unused3")),
    ),
)


def present(lab: Lab) -> set[str]:
    """Every logical volume of the node, snapshots apart."""
    directory = lab.config.storage_dir("pve", "local-lvm")
    return {path.stem for path in directory.glob("*.raw") if not path.name.startswith("snap_")}


def mounted_by(lab: Lab, vmid: int) -> set[str]:
    config = guestfile.parse((lab.config.guest_dir("pve") / f"{vmid}.conf").read_text())
    return {mount["volume"].partition(":")[2] for _, mount in mount_points(config.options)}


def check_files(lab: Lab) -> None:
    for path in lab.config.guest_dir("pve").glob("[0-9]*.conf"):
        text = path.read_text()
        config = guestfile.parse(text)
        assert config.render() == text
        assert "lock" not in config.options
        used = {mount["volume"] for _, mount in mount_points(config.options)}
        assert not any(is_unused(key) and value in used for key, value in config.options.items())


@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(CALLS, min_size=4, max_size=14), st.sampled_from(("demo", "root")))
def test_any_history(lab: Lab, history: list[Call], who: str) -> None:
    lab.reset()
    for vmid in GUESTS:
        lab.guest(vmid)
    lab.volume("local-lvm:vm-9105-disk-0", 1 << 30)
    for method, path, data, freed_of in history:
        before = present(lab)
        protected = {v for v in GUESTS if lab.exists(v) and lab.sections(v)[""].get("protection") == "1"}
        kept = {vmid: mounted_by(lab, vmid) & before for vmid in protected}
        answer = lab.call(method, path, data, who=who)
        assert lab.cluster.tasks.wait_idle(10)
        assert "internal error" not in answer.text
        upid = (answer.json() if answer.content else {}).get("data")
        if isinstance(upid, str) and upid.startswith("UPID:"):
            assert "internal error" not in lab.wait(upid)
        gone = before - present(lab)
        if freed_of is not None:
            for name in gone:
                assert re.match(rf"(vm|base)-{freed_of}-", name), f"{method} {path} {data} freed {name}"
        if method == "DELETE" and path.count("/") == 4:
            for vmid in protected:
                assert lab.exists(vmid)
                if vmid == freed_of:
                    assert kept[vmid] <= present(lab)
        check_files(lab)
        for vmid in GUESTS:
            with lab.cluster.locks.hold_if_free(vmid) as free:
                assert free, f"the lock of {vmid} is still held"


NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,8}[a-z0-9]", fullmatch=True)
OPTIONS = st.fixed_dictionaries(
    {"memory": st.integers(16, 99999).map(str), "rootfs": st.just("local-lvm:vm-105-disk-0,size=4G")},
    optional={
        "hostname": NAMES,
        "description": st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=40).map(
            lambda text: text + "\n"
        ),
        "tags": NAMES,
        "mp0": st.just("volume=local-lvm:vm-999-disk-1,mp=/data"),
        "unused0": st.just("local-lvm:vm-999-disk-2"),
    },
)


@given(
    OPTIONS,
    OPTIONS,
    st.dictionaries(NAMES, OPTIONS, max_size=3),
    st.lists(st.sampled_from(["mp1", "net0"]), unique=True),
)
@settings(derandomize=True)
def test_files_parse_back(
    main: dict[str, str], pending: dict[str, str], snapshots: dict[str, dict[str, str]], delete: list[str]
) -> None:
    """Description, pending section, deletions and snapshots survive writing and reading, whatever text they hold."""
    config = guestfile.GuestConfig(
        guestfile.Section(main, [("lxc.apparmor.profile", "unconfined")]),
        guestfile.Section(pending),
        delete,
        {name: guestfile.Section(options) for name, options in snapshots.items()},
    )
    again = guestfile.parse(config.render())
    assert (again.main, again.pending, again.delete, again.snapshots) == (
        config.main,
        config.pending,
        config.delete,
        config.snapshots,
    )
