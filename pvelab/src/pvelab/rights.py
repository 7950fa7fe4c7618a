"""Which privilege a guest option needs, and who may use a volume (facts proxmox 2.2, 4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pvelab.access import Identity
from pvelab.cluster import Cluster
from pvelab.errors import denied, die
from pvelab.guestfile import NEW_DISK, is_mount, mount_type, parse_mount
from pvelab.schema import FEATURES, NETWORK, parse_property_string

_CPU = frozenset(("cores", "cpulimit", "cpuunits"))
_MEMORY = frozenset(("memory", "swap"))
_NETWORK = frozenset(("hostname", "nameserver", "searchdomain"))
CONFIG_PRIVILEGES = ("VM.Config.Disk", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options")


def check_volume_access(cluster: Cluster, who: Identity, vmid: int | None, volid: str) -> None:
    """Facts proxmox 4: Datastore.Allocate, or the own volume, or Audit plus VM.Config.Disk on the owner."""
    volume = cluster.volumes.parse(volid)
    path = f"/storage/{volume.storage.name}"
    if cluster.access.allows(who, path, ["Datastore.Allocate"]):
        return
    if volume.content in ("vztmpl", "iso"):
        cluster.access.check(who, path, ["Datastore.AllocateSpace", "Datastore.Audit"], any_of=True)
    elif volume.owner is not None and volume.owner == vmid:
        return
    elif volume.owner is not None and volume.content == "images":
        cluster.access.check(who, path, ["Datastore.Audit"])
        cluster.access.check(who, f"/vms/{volume.owner}", ["VM.Config.Disk"])
    elif volume.owner is not None and volume.content == "backup":
        cluster.access.check(who, path, ["Datastore.AllocateSpace"])
        cluster.access.check(who, f"/vms/{volume.owner}", ["VM.Backup"])
    else:
        raise denied()


def check_options(
    cluster: Cluster,
    who: Identity,
    vmid: int,
    options: Mapping[str, str],
    *,
    current: Mapping[str, str],
    unprivileged: bool,
    pool: str | None = None,
) -> None:
    """403 for the first option that may not be set (facts proxmox 2.2). Options are looked at by name."""
    if who.is_root:
        return
    for key in sorted(options):
        if is_mount(key):
            cluster.access.check_guest(who, vmid, ["VM.Config.Disk"], pool=pool)
            _check_mount_value(cluster, who, vmid, parse_mount(key, options[key])["volume"])
        elif key == "features":
            _check_features(
                cluster, who, vmid, options[key], current.get(key, ""), unprivileged=unprivileged, pool=pool
            )
        else:
            _check_option(cluster, who, vmid, key, options[key], pool=pool)


def check_deletions(
    cluster: Cluster, who: Identity, vmid: int, keys: Iterable[str], *, current: Mapping[str, str], unprivileged: bool
) -> None:
    """403 for the first option that may not be removed."""
    if who.is_root:
        return
    for key in keys:
        if is_mount(key):
            cluster.access.check_guest(who, vmid, ["VM.Config.Disk"])
        elif key == "features":
            _check_features(cluster, who, vmid, "", current.get(key, ""), unprivileged=unprivileged, pool=None)
        else:
            _check_option(cluster, who, vmid, key, None, pool=None)


def _check_option(cluster: Cluster, who: Identity, vmid: int, key: str, value: str | None, *, pool: str | None) -> None:
    access = cluster.access
    if key in _CPU:
        access.check_guest(who, vmid, ["VM.Config.CPU"], pool=pool)
    elif key in _MEMORY:
        access.check_guest(who, vmid, ["VM.Config.Memory"], pool=pool)
    elif key in _NETWORK:
        access.check_guest(who, vmid, ["VM.Config.Network"], pool=pool)
    elif key.startswith("net") and key[3:].isdigit():
        access.check_guest(who, vmid, ["VM.Config.Network"], pool=pool)
        if value is not None:
            check_bridge(cluster, who, value)
    elif key.startswith("dev") and key[3:].isdigit():
        raise denied("configuring device passthrough is only allowed for root@pam")
    elif key == "hookscript":
        raise denied("changing the hookscript is only allowed for root@pam")
    elif key == "tags":
        access.check(who, f"/vms/{vmid}", ["VM.Config.Options"])  # the pool does not count here
    else:
        access.check_guest(who, vmid, ["VM.Config.Options"], pool=pool)


def check_bridge(cluster: Cluster, who: Identity, value: str) -> None:
    net = parse_property_string(NETWORK, value)
    bridge = net.get("bridge")
    if bridge is not None:
        tag = f"/{net['tag']}" if "tag" in net else ""
        zone = cluster.config.zones.get(str(bridge), "localnetwork")
        cluster.access.check(who, f"/sdn/zones/{zone}/{bridge}{tag}", ["SDN.Use"])


def _check_mount_value(cluster: Cluster, who: Identity, vmid: int, volume: str) -> None:
    kind = mount_type(volume)
    if kind != "volume":
        raise denied(f"mount point type {kind} is only allowed for root@pam")
    if match := NEW_DISK.fullmatch(volume):
        cluster.access.check(who, f"/storage/{match.group(1)}", ["Datastore.AllocateSpace"])
    else:
        check_volume_access(cluster, who, vmid, volume)


def _check_features(
    cluster: Cluster, who: Identity, vmid: int, new: str, old: str, *, unprivileged: bool, pool: str | None
) -> None:
    if not unprivileged:
        raise denied("changing feature flags for privileged container is only allowed for root@pam")
    wanted, present = parse_property_string(FEATURES, new), parse_property_string(FEATURES, old)
    # A flag that is written out counts as changed when it was not written before, whatever its value (facts 15).
    changed = {key for key in {*wanted, *present} if wanted.get(key, "") != present.get(key, "")}
    if changed - {"nesting"}:
        raise denied("changing feature flags (except nesting) is only allowed for root@pam")
    if "nesting" in changed:
        cluster.access.check_guest(who, vmid, ["VM.Allocate"], pool=pool)


def check_content(cluster: Cluster, volid: str, content: str) -> None:
    volume = cluster.volumes.parse(volid)
    if volume.content != content:
        raise die(f"unable to use volume {volid} - content type needs to be '{content}'")
