"""Changing a guest's options: at once, hot, or pending (facts proxmox 3)."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Mapping, Sequence

from pvelab.cluster import Cluster, check_protection, root_owner
from pvelab.errors import ApiError, die
from pvelab.guestfile import (
    NEW_DISK,
    GuestConfig,
    Section,
    is_mount,
    is_unused,
    mount_points,
    mount_type,
    parse_mount,
    slot_key,
)
from pvelab.runtime import Log, RuntimeFault, failed_hot_mount
from pvelab.schema import (
    MAX_MOUNT_POINTS,
    MISSING,
    MOUNT_POINT,
    NETWORK,
    ROOTFS,
    FormatError,
    Params,
    format_size,
    parse_property_string,
    parse_size,
    print_property_string,
    split_list,
)

_IMMEDIATE = frozenset(
    ("description", "onboot", "startup", "protection", "hostname", "hookscript", "cores", "tags", "lock")
)
_CGROUP = frozenset(("memory", "swap", "cpulimit", "cpuunits"))
_REQUIRED = ("memory", "rootfs", "ostype")


class _SkipError(Exception):
    """The change waits for the guest to stop."""


def _ignore(text: str) -> None:
    """Chatter of synchronous calls goes to the daemon's log on a node; nobody reads it here."""


# --- normal forms -----------------------------------------------------------------------------------------------------


def normal_tags(value: str) -> str:
    """Lower case, each once, by name (facts proxmox 2.3)."""
    return ";".join(sorted({tag.lower() for tag in split_list(value)}))


def normal_network(value: str, key: str) -> str:
    net = parse_property_string(NETWORK, value, key)
    net["type"] = "veth"
    net.setdefault("hwaddr", "BC:24:11:" + ":".join(f"{byte:02X}" for byte in secrets.token_bytes(3)))
    return print_property_string(NETWORK, net)


def print_mount(key: str, mount: Mapping[str, str]) -> str:
    if key == "rootfs":
        return print_property_string(ROOTFS, {k: v for k, v in mount.items() if k != "mp"})
    return print_property_string(MOUNT_POINT, mount)


def normal_options(options: Mapping[str, str]) -> Params:
    """What Proxmox changes in the values before it looks at them."""
    found = dict(options)
    if "tags" in found:
        found["tags"] = normal_tags(found["tags"])
    if "nameserver" in found:
        found["nameserver"] = " ".join(split_list(found["nameserver"]))
    if "searchdomain" in found:
        found["searchdomain"] = " ".join(split_list(found["searchdomain"]))
    if "description" in found and not found["description"].endswith("\n"):
        found["description"] += "\n"
    return found


def check_network(cluster: Cluster, key: str, value: str) -> None:
    """The MTU must fit the bridge (facts proxmox 2.1, step 12)."""
    net = parse_property_string(NETWORK, value, key)
    if int(net.get("mtu", 0)) > cluster.config.bridge_mtu:
        raise die(f"{key}: MTU size '{net['mtu']}' is bigger than bridge MTU '{cluster.config.bridge_mtu}'")


def no_such_mount(key: str) -> ApiError:
    """What comes of an empty value where a mount is to be read (PVE::LXC::Config, parse_volume)."""
    missing = ("volume",) if key == "rootfs" else ("mp", "volume")
    return die("format error\n" + "".join(f"{name}: {MISSING}\n" for name in missing))


def add_unused(config: GuestConfig, volid: str) -> None:
    """List a volume as ``unusedK``, K the lowest free one; owner irrelevant (facts proxmox 3.1)."""
    unused = {key: value for key, value in config.options.items() if is_unused(key)}
    if volid in unused.values():
        return
    key = next((f"unused{n}" for n in range(MAX_MOUNT_POINTS) if f"unused{n}" not in unused), None)
    if key is None:
        raise die("Too many unused volumes - please delete them first.")
    config.options[key] = volid


def volume_in_use(config: GuestConfig, volid: str) -> bool:
    """Looks at this guest only: its mounts, its pending section, its snapshots (facts proxmox 3.1)."""
    sections = [config.main.options, config.pending.options, *(s.options for s in config.snapshots.values())]
    return any(mount["volume"] == volid for options in sections for _, mount in mount_points(options))


# --- the two ways to apply --------------------------------------------------------------------------------------------


def update(
    cluster: Cluster,
    node: str,
    vmid: int,
    config: GuestConfig,
    *,
    options: Mapping[str, str],
    delete: Sequence[str],
    revert: Sequence[str],
) -> None:
    """Put changes into the pending section and apply what can be applied now; the caller holds the lock.

    Raises 500 for what Proxmox refuses outright and 400 with one entry per key that could not be applied; then
    nothing is written.
    """
    for key in revert:
        config.drop_pending(key)
    modified: set[str] = set()
    for key in delete:
        if key not in config.options and key not in config.pending.options:
            continue  # a warning in the daemon's log, nothing more
        modified.add(key)
        if key in _REQUIRED:
            raise die(f"unable to delete required option '{key}'")
        if is_unused(key) or is_mount(key):
            check_protection(config, f"can't remove CT {vmid} drive '{key}'")
        elif key == "unprivileged":
            raise die("unable to delete read-only option: 'unprivileged'")
        if key not in config.delete:
            config.delete.append(key)
        config.pending.options.pop(key, None)
    for key in sorted(options):
        modified.add(key)
        if is_mount(key):
            check_protection(config, f"can't update CT {vmid} drive '{key}'")
            _check_rootdir(cluster, parse_mount(key, options[key])["volume"])
        elif key == "unprivileged":
            raise die("unable to modify read-only option: 'unprivileged'")
        elif key.startswith("net") and key[3:].isdigit():
            check_network(cluster, key, options[key])
        config.drop_pending(key)
        config.pending.options[key] = options[key]
    _drop_no_ops(config)
    apply = _apply_hot if cluster.is_running(node, vmid) else _apply_stopped
    errors = apply(cluster, node, vmid, config, modified)
    if errors:
        raise ApiError(400, "Parameter verification failed.", errors)
    cluster.store(node, vmid, config)


def apply_all_pending(cluster: Cluster, node: str, vmid: int, log: Log) -> None:
    """What a start and the post-stop hook do: errors only warn (facts proxmox 3.2). The caller holds the lock."""
    config = cluster.load(node, vmid)
    if not config.pending.options and not config.delete:
        return
    for text in _apply_stopped(cluster, node, vmid, config, None).values():
        log(text)
    cluster.store(node, vmid, config)


def install_post_stop(cluster: Cluster) -> None:
    cluster.apply_pending = lambda node, vmid: apply_all_pending(cluster, node, vmid, _ignore)


def _check_rootdir(cluster: Cluster, volume: str) -> None:
    if mount_type(volume) != "volume":
        return
    match = NEW_DISK.fullmatch(volume)
    name = match.group(1) if match else volume.partition(":")[0]
    if "rootdir" not in cluster.volumes.storage(name).content:
        raise die(f"storage '{name}' does not allow content type 'rootdir' (Container)")


def _drop_no_ops(config: GuestConfig) -> None:
    for key in [k for k, v in config.pending.options.items() if config.options.get(k) == v]:
        del config.pending.options[key]
    config.delete = [key for key in config.delete if key in config.options]


def _collect(errors: dict[str, str], key: str, prefix: str, action: Callable[[], None]) -> bool:
    """Run one change; True when it was done, False when it was skipped or failed (then it is in ``errors``)."""
    try:
        action()
    except _SkipError:
        return False
    except ApiError as error:
        errors[key] = f"{prefix}{error.message}\n"
        return False
    except RuntimeFault as fault:
        errors[key] = f"{prefix}{fault}\n"
        return False
    return True


def _apply_stopped(
    cluster: Cluster, node: str, vmid: int, config: GuestConfig, only: set[str] | None
) -> dict[str, str]:
    errors: dict[str, str] = {}

    for key in sorted(config.delete):
        if only is not None and key not in only:
            continue

        def remove(key: str = key) -> None:
            value = config.options.get(key)
            if value is None:
                return
            if is_mount(key):
                volume = parse_mount(key, value)["volume"]
                if mount_type(volume) == "volume":
                    add_unused(config, volume)
            elif is_unused(key):
                free_unused(cluster, node, vmid, config, volid=value, log=_ignore)

        if _collect(errors, key, f"unable to apply pending change {key} : ", remove):
            config.options.pop(key, None)
            config.drop_pending(key)
    _drop_no_ops(config)

    for key in sorted(config.pending.options):
        if only is not None and key not in only:
            continue

        def change(key: str = key) -> None:
            if is_mount(key):
                _apply_mount(cluster, node, vmid, config, key, running=False)
            elif key.startswith("net") and key[3:].isdigit():
                config.pending.options[key] = normal_network(config.pending.options[key], key)

        if _collect(errors, key, f"unable to apply pending change {key} : ", change):
            config.options[key] = config.pending.options.pop(key)
    return errors


def _apply_hot(cluster: Cluster, node: str, vmid: int, config: GuestConfig, only: set[str]) -> dict[str, str]:
    errors: dict[str, str] = {}
    for key in sorted(config.pending.options):
        if key in only and key in _IMMEDIATE:
            config.options[key] = config.pending.options.pop(key)

    for key in sorted(config.delete):
        if key not in only:
            continue

        def remove(key: str = key) -> None:
            if is_unused(key):
                free_unused(cluster, node, vmid, config, volid=config.options[key], log=_ignore)
            elif not (key in _IMMEDIATE or key in ("swap", "cpulimit", "cpuunits") or re.fullmatch(r"net\d", key)):
                raise _SkipError

        if _collect(errors, key, f"unable to hotplug {key}: ", remove):
            config.options.pop(key, None)
            config.drop_pending(key)

    for key in sorted(config.pending.options):
        if key not in only:
            continue

        def change(key: str = key) -> None:
            if key.startswith("net") and key[3:].isdigit():
                config.pending.options[key] = normal_network(config.pending.options[key], key)
            elif key.startswith("mp"):
                _apply_mount(cluster, node, vmid, config, key, running=True)
            elif not (key in _CGROUP or is_unused(key) or _is_new_device(cluster, config, key)):
                raise _SkipError

        if _collect(errors, key, f"unable to hotplug {key}: ", change):
            config.options[key] = config.pending.options.pop(key)
    return errors


def _is_new_device(cluster: Cluster, config: GuestConfig, key: str) -> bool:
    """Whether a devN can be plugged in now."""
    return cluster.config.release.hotplugs_devices and key.startswith("dev") and key not in config.options


def _apply_mount(cluster: Cluster, node: str, vmid: int, config: GuestConfig, key: str, *, running: bool) -> None:
    """Allocate or rescan the volume, hot-mount it when the guest runs, and park the volume that it replaces."""
    raw = config.pending.options[key]
    mount = parse_mount(key, raw)
    old = config.options.get(key)
    if running and old is not None:
        raise _SkipError
    new_volume: str | None = None
    if mount_type(mount["volume"]) == "volume":
        if match := NEW_DISK.fullmatch(mount["volume"]):
            mount, new_volume = allocate_mount(
                cluster, node, vmid, config, mount, storage=match.group(1), gigabytes=match.group(2)
            )
        else:
            # A volume that is not there is no error here: Proxmox only logs that it could not be measured.
            with contextlib.suppress(ApiError):
                mount["size"] = format_size(cluster.volumes.size(node, mount["volume"]))
    if running:
        try:
            if mount_type(mount["volume"]) == "volume":
                cluster.volumes.find(node, mount["volume"])
            then = GuestConfig(Section({**config.options, key: print_mount(key, mount)}, config.main.raw))
            if cluster.mode_is_taken(node, vmid, mount):
                raise failed_hot_mount(cluster.mount(node, key, mount))
            cluster.runtime.hot_mount(cluster.spec(node, vmid, then), cluster.mount(node, key, mount), _ignore)
        except (ApiError, RuntimeFault):
            if new_volume is not None:
                cluster.volumes.free(node, new_volume, _ignore)
            raise
    if old is not None:
        with contextlib.suppress(FormatError):
            volume = parse_mount(key, old)["volume"]
            if mount_type(volume) == "volume":
                add_unused(config, volume)
    config.pending.options[key] = print_mount(key, mount)


def allocate_mount(
    cluster: Cluster,
    node: str,
    vmid: int,
    config: GuestConfig,
    mount: Params,
    *,
    storage: str,
    gigabytes: str,
    log: Log = _ignore,
) -> tuple[Params, str]:
    """Turn ``STORE:N`` into a formatted volume of N GiB; the mount with its volid and size, and the volid."""
    size = int(float(gigabytes) * 1024) << 20
    volid = cluster.volumes.allocate(node, storage, vmid, size, log, root_owner=root_owner(config))
    return {**mount, "volume": volid, "size": format_size(size)}, volid


def free_unused(cluster: Cluster, node: str, vmid: int, config: GuestConfig, *, volid: str, log: Log) -> None:
    """``delete=unusedN``: the own volume goes for good, a foreign one stays (facts proxmox 3.1)."""
    if not volume_in_use(config, volid):
        free_if_own(cluster, node, vmid, volid, log)


def free_if_own(cluster: Cluster, node: str, vmid: int, volid: str, log: Log) -> bool:
    """Free a volume whose name carries the guest's number; True when it did (facts proxmox 5)."""
    volume = cluster.volumes.parse(volid)
    if volume.owner != vmid:
        log(f"ignore deletion of '{volid}', CT {vmid} isn't the owner!")
        return False
    cluster.volumes.free(node, volid, log)
    return True


# --- showing ----------------------------------------------------------------------------------------------------------


def shown_options(config: GuestConfig, *, current: bool) -> Params:
    """GET config: pending merged in, unless only what is effective now is asked for (facts proxmox 3.2)."""
    options = dict(config.options)
    if not current:
        for key in config.delete:
            options.pop(key, None)
        options.update({key: value for key, value in config.pending.options.items() if value})
    return options


def max_disk(config: GuestConfig) -> int:
    """Bytes of the root file system as configured; 0 when unknown."""
    for key, mount in mount_points(config.options):
        if key == "rootfs" and "size" in mount:
            return parse_size(mount["size"])
    return 0


def volume_slots(options: Mapping[str, str]) -> list[str]:
    return sorted((key for key in options if is_mount(key) or is_unused(key)), key=slot_key)
