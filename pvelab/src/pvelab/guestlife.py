"""A guest's life: create, start, stop, destroy (facts proxmox 2, 5, 7)."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pvelab import guestconfig
from pvelab.access import Identity
from pvelab.cluster import DEFAULT_MEMORY, Cluster, check_config_lock, check_digest, check_protection
from pvelab.errors import ApiError, denied, die
from pvelab.guestfile import NEW_DISK, GuestConfig, Section, is_mount, is_unused, mount_points, mount_type, parse_mount
from pvelab.rights import check_content, check_options, check_volume_access
from pvelab.runtime import RuntimeFault, Setup, device_of, failed_start
from pvelab.schema import FEATURES, NETWORK, OS_TYPES, Params, format_size, parse_property_string, parse_size
from pvelab.tasks import Task

# Options of the create call that are no options of the guest (facts proxmox 2.2, last row).
_CREATE_ONLY = frozenset(
    (
        *("bwlimit", "force", "ha-managed", "ignore-unpack-errors", "ostemplate", "password", "pool", "restore"),
        *("ssh-public-keys", "start", "storage", "unique", "vmid"),
    )
)
_DEFAULT_ROOT_GIB = 4
_SYSTEMD = {"debian": 252, "ubuntu": 255, "fedora": 255, "archlinux": 257, "centos": 252, "opensuse": 254}
_POLL = 1.0


@dataclass(frozen=True)
class _Creation:
    node: str
    vmid: int
    who: Identity
    options: Params
    template: str
    setup: Setup
    pool: str | None
    start: bool


def create(cluster: Cluster, who: Identity, node: str, params: Mapping[str, str]) -> str:
    """POST /nodes/{node}/lxc with a template: checks in the order of facts proxmox 2.1, then task ``vzcreate``."""
    cluster.check_quorum()
    vmid = int(params["vmid"])
    options = guestconfig.normal_options({k: v for k, v in params.items() if k not in _CREATE_ONLY})
    release = cluster.config.release
    unprivileged = options.setdefault("unprivileged", str(int(release.unprivileged))) == "1"
    if not unprivileged and release.unprivileged:
        cluster.access.check(who, "/", ["Sys.Modify"])
    if "ha-managed" in params and params["ha-managed"] == "1":
        cluster.access.check(who, "/", ["Sys.Console"])
    cluster.check_free(vmid)
    keys = _ssh_keys(params.get("ssh-public-keys", ""))
    pool = params.get("pool")
    if pool is not None and pool not in cluster.access.pools:
        raise denied(f"pool '{pool}' does not exist")
    if not (
        cluster.access.allows(who, f"/vms/{vmid}", ["VM.Allocate"])
        or (pool is not None and cluster.access.allows(who, f"/pool/{pool}", ["VM.Allocate"]))
    ):
        raise denied()
    checked = {key: value for key, value in options.items() if key != "unprivileged"}
    check_options(cluster, who, vmid, checked, current={}, unprivileged=unprivileged, pool=pool)
    template = params["ostemplate"]
    check_volume_access(cluster, who, vmid, template)
    check_content(cluster, template, "vztmpl")
    _root_filesystem(options, params.get("storage", "local"))
    _check_storages(cluster, who, node, options)
    for key in [k for k in options if k.startswith("net") and k[3:].isdigit()]:
        guestconfig.check_network(cluster, key, options[key])
        options[key] = guestconfig.normal_network(options[key], key)

    creation = _Creation(
        node=node,
        vmid=vmid,
        who=who,
        options=options,
        template=template,
        setup=Setup(params.get("password"), keys, options.get("timezone")),
        pool=pool,
        start=params.get("start") == "1",
    )
    try:
        reserve(cluster, node, vmid, "create")
    except ApiError as error:
        raise die(f"unable to create CT {vmid} - {error.message}") from None
    return cluster.start_task(node, "vzcreate", vmid, who, lambda task: _create_worker(cluster, creation, task))


def reserve(cluster: Cluster, node: str, vmid: int, lock: str) -> None:
    """Write the file that holds the number (facts proxmox 2.1, step 13)."""
    with cluster.locked(vmid, cluster.config.create_lock_timeout), cluster.creation:
        cluster.check_free(vmid)
        cluster.store(node, vmid, GuestConfig(Section({"lock": lock})))


def _ssh_keys(text: str) -> tuple[str, ...]:
    """The lines of the parameter, each judged by ssh-keygen, as on a node (PVE::Tools, validate_ssh_public_keys)."""
    keys = tuple(line.strip() for line in text.splitlines() if line.strip())
    for key in keys:
        judge = ["ssh-keygen", "-l", "-f", "-"]
        if subprocess.run(judge, input=key + "\n", text=True, capture_output=True, timeout=30, check=False).returncode:
            raise die("SSH public key validation error")
    return keys


def _root_filesystem(options: Params, storage: str) -> None:
    mounts = [key for key in options if is_mount(key)]
    if mounts and "rootfs" not in options:
        raise die("mount points configured, but 'rootfs' not set - aborting")
    options.setdefault("rootfs", f"{storage}:{_DEFAULT_ROOT_GIB}")


def _check_storages(cluster: Cluster, who: Identity, node: str, options: Params) -> None:
    for _, mount in mount_points(options):
        volume = mount["volume"]
        if mount_type(volume) != "volume":
            if not who.is_root:
                raise die("Only root can pass arbitrary filesystem paths.")
            continue
        match = NEW_DISK.fullmatch(volume)
        name = match.group(1) if match else cluster.volumes.parse(volume).storage.name
        cluster.volumes.for_containers(name, node)
        cluster.access.check(who, f"/storage/{name}", ["Datastore.AllocateSpace"])


def _create_worker(cluster: Cluster, creation: _Creation, task: Task) -> None:
    node, vmid = creation.node, creation.vmid
    made: list[str] = []
    try:
        with cluster.locked(vmid):
            config = GuestConfig(Section(dict(creation.options)))
            config.options["lock"] = "create"
            if config.options.get("unprivileged") == "0":
                del config.options["unprivileged"]  # the absence is what says privileged
            create_volumes(cluster, node, vmid, config, made=made, task=task)
            _unpack(cluster, creation, config, task)
            config.options.setdefault("hostname", f"CT{vmid}")
            config.options.setdefault("memory", str(DEFAULT_MEMORY))
            config.options.setdefault("swap", str(DEFAULT_MEMORY))
            del config.options["lock"]
            cluster.store(node, vmid, config)
    except (ApiError, RuntimeFault) as error:
        undo_creation(cluster, node, vmid, made, task)
        fault = RuntimeFault(f"unable to create CT {vmid} - {error}", getattr(error, "log", ()))
        raise fault from error
    except BaseException:
        undo_creation(cluster, node, vmid, made, task)
        raise
    if creation.pool is not None:
        cluster.access.add_to_pool(creation.pool, vmid)
    if creation.start:
        task.after(lambda: start_after_create(cluster, creation.who, node, vmid))


def create_volumes(cluster: Cluster, node: str, vmid: int, config: GuestConfig, *, made: list[str], task: Task) -> None:
    """rootfs, mp0, mp1 ...: new ones are allocated and formatted, existing ones only normalised (facts 2.3)."""
    for key, mount in list(mount_points(config.options)):
        if mount_type(mount["volume"]) == "volume" and (match := NEW_DISK.fullmatch(mount["volume"])):
            new_mount, volid = guestconfig.allocate_mount(
                cluster, node, vmid, config, mount, storage=match.group(1), gigabytes=match.group(2), log=task.line
            )
            mount = new_mount  # noqa: PLW2901 - the entry as it will be stored
            made.append(volid)
        config.options[key] = guestconfig.print_mount(key, mount)


def undo_creation(cluster: Cluster, node: str, vmid: int, made: list[str], task: Task) -> None:
    """Free what this call allocated and nothing else; the number is free again (facts proxmox 2.3)."""
    for volid in made:
        with contextlib.suppress(ApiError, RuntimeFault):
            cluster.volumes.free(node, volid, task._write)
    cluster.conf_path(node, vmid).unlink(missing_ok=True)
    cluster.forget_running(node, vmid)


def _unpack(cluster: Cluster, creation: _Creation, config: GuestConfig, task: Task) -> None:
    node = creation.node
    archive = cluster.volumes.find(node, creation.template)
    cluster.activate(node, config)  # every volume is mounted for this, foreign ones included
    config.options.setdefault("ostype", _detect_os(archive.name))
    config.options.setdefault("arch", _detect_architecture(archive.name))
    task.line(f"extracting archive '/var/lib/vz/template/cache/{archive.name}'")
    spec = cluster.spec(node, creation.vmid, config)
    cluster.runtime.unpack(spec, archive, creation.setup, task.line)
    warn_of_nesting(cluster, config, task)
    task.line(f"Detected container architecture: {config.options['arch']}")


def _detect_os(template: str) -> str:
    name = template.partition("-")[0].lower()
    found = {"arch": "archlinux", "rockylinux": "centos", "almalinux": "centos"}.get(name, name)
    if found not in OS_TYPES:
        raise die("unable to detect OS distribution")
    return found


def _detect_architecture(template: str) -> str:
    return next((arch for arch in ("arm64", "armhf", "i386") if arch in template), "amd64")


# --- power ------------------------------------------------------------------------------------------------------------


def start_after_create(cluster: Cluster, who: Identity, node: str, vmid: int) -> None:
    cluster.start_task(node, "vzstart", vmid, who, lambda task: _start_worker(cluster, node, vmid, task))


def start(cluster: Cluster, who: Identity, node: str, vmid: int) -> str:
    if cluster.is_running(node, vmid):
        raise die(f"CT {vmid} already running")
    cluster.check_quorum()
    return cluster.start_task(node, "vzstart", vmid, who, lambda task: _start_worker(cluster, node, vmid, task))


def _start_worker(cluster: Cluster, node: str, vmid: int, task: Task) -> None:
    with cluster.locked(vmid):
        boot(cluster, node, vmid, task)


def boot(cluster: Cluster, node: str, vmid: int, task: Task) -> None:
    """Start a guest whose lock the caller holds (facts proxmox 7)."""
    config = cluster.load(node, vmid)
    check_config_lock(config, tolerate=("mounted",))
    if cluster.is_running(node, vmid):
        raise die(f"CT {vmid} already running")
    if config.flag("template"):
        raise die("you can't start a CT if it's a template")
    guestconfig.apply_all_pending(cluster, node, vmid, task.line)
    config = cluster.load(node, vmid)
    cluster.activate(node, config)
    unprivileged = config.flag("unprivileged")
    for _, mount in mount_points(config.options):
        if unprivileged and mount.get("quota") == "1":
            raise die("Quotas are not supported by unprivileged containers.")
    _check_bridges(cluster, config)
    _check_modes(cluster, node, vmid, config)
    cluster.runtime.start(cluster.spec(node, vmid, config), task.line)
    cluster.running(node)  # note that it runs, so that its end is noticed
    warn_of_nesting(cluster, config, task)


def warn_of_nesting(cluster: Cluster, config: GuestConfig, task: Task) -> None:
    """At create, clone and start (pve-container, PVE::LXC::Setup, check_systemd_nesting)."""
    nesting = parse_property_string(FEATURES, config.get("features") or "").get("nesting") == "1"
    systemd = _SYSTEMD.get(config.get("ostype") or "", 0)
    if not nesting and systemd > 241 and cluster.config.release.warns_of_nesting:
        task.warn(f"Systemd {systemd} detected. You may need to enable nesting.")


def _check_bridges(cluster: Cluster, config: GuestConfig) -> None:
    """Before LXC is asked: Proxmox reads each bridge's MTU (facts proxmox-9.2, row 4)."""
    for key, value in config.options.items():
        if key.startswith("net") and key[3:].isdigit():
            bridge = parse_property_string(NETWORK, value, key).get("bridge")
            if bridge is not None and bridge not in cluster.config.zones:
                raise die(f"bridge '{bridge}' does not exist")


def _check_modes(cluster: Cluster, node: str, vmid: int, config: GuestConfig) -> None:
    """One device, one mode: what another guest mounts ro nobody mounts rw, and the other way round."""
    for _, mount in mount_points(config.options):
        if cluster.mode_is_taken(node, vmid, mount):
            device = device_of(cluster.volumes.find(node, mount["volume"]))
            raise failed_start(vmid, 32, f"mount: {device} already mounted or mount point busy.")


def stop(cluster: Cluster, who: Identity, node: str, vmid: int, *, overrule_shutdown: bool) -> str:
    if not cluster.is_running(node, vmid):
        raise die(f"CT {vmid} not running")

    def worker(task: Task) -> None:
        if overrule_shutdown:
            _abort_shutdowns(cluster, vmid)
        with cluster.locked(vmid):
            config = cluster.load(node, vmid)
            check_config_lock(config, tolerate=("mounted",))
            if not cluster.is_running(node, vmid):
                raise die(f"CT {vmid} not running")
            kill(cluster, node, vmid, config, task)

    return cluster.start_task(node, "vzstop", vmid, who, worker)


def _abort_shutdowns(cluster: Cluster, vmid: int) -> None:
    for task in cluster.tasks.active():
        if task.upid.type == "vzshutdown" and task.upid.id == str(vmid):
            task.aborted.set()
            task.done.wait(_POLL + cluster.config.lock_timeout)


def kill(cluster: Cluster, node: str, vmid: int, config: GuestConfig, task: Task) -> None:
    """End a guest at once; the caller holds the lock."""

    cluster.runtime.kill(cluster.spec(node, vmid, config))
    _stopped(cluster, node, vmid, task)


def _stopped(cluster: Cluster, node: str, vmid: int, task: Task) -> None:
    """The post-stop hook: what was pending becomes effective (facts proxmox 3.2)."""
    guestconfig.apply_all_pending(cluster, node, vmid, task._write)
    cluster.forget_running(node, vmid)


def shutdown(cluster: Cluster, who: Identity, node: str, vmid: int, *, timeout: int, force_stop: bool) -> str:
    if not cluster.is_running(node, vmid):
        raise die(f"CT {vmid} not running")

    def worker(task: Task) -> None:
        with cluster.locked(vmid):
            config = cluster.load(node, vmid)
            check_config_lock(config, tolerate=("mounted",))
            if not cluster.is_running(node, vmid):
                raise die(f"CT {vmid} not running")
            power_down(cluster, node, vmid, config, task, timeout=timeout, force_stop=force_stop)

    return cluster.start_task(node, "vzshutdown", vmid, who, worker)


def power_down(
    cluster: Cluster, node: str, vmid: int, config: GuestConfig, task: Task, *, timeout: float, force_stop: bool
) -> None:
    """Ask init, wait at most ``timeout`` seconds, then kill or give up; the caller holds the lock."""
    spec = cluster.spec(node, vmid, config)
    deadline = time.monotonic() + timeout
    while True:
        task.checkpoint()
        left = deadline - time.monotonic()
        if cluster.runtime.shutdown(spec, max(0.0, min(_POLL, left))):
            break
        if left <= _POLL:
            if not force_stop:
                raise die("container did not stop")
            cluster.runtime.kill(spec)
            break
    _stopped(cluster, node, vmid, task)


def reboot(cluster: Cluster, who: Identity, node: str, vmid: int, *, timeout: int) -> str:
    if not cluster.is_running(node, vmid):
        raise die(f"VM {vmid} not running")

    def worker(task: Task) -> None:
        with cluster.locked(vmid):
            config = cluster.load(node, vmid)
            check_config_lock(config, tolerate=("mounted",))
            power_down(cluster, node, vmid, config, task, timeout=timeout, force_stop=True)
            boot(cluster, node, vmid, task)

    return cluster.start_task(node, "vzreboot", vmid, who, worker)


# --- destroy ----------------------------------------------------------------------------------------------------------


def destroy(cluster: Cluster, who: Identity, node: str, vmid: int, *, force: bool, unreferenced: bool) -> str:
    """DELETE: refusals in the order of facts proxmox 5, then task ``vzdestroy`` which checks again."""

    def check() -> GuestConfig:
        config = cluster.load(node, vmid)
        check_protection(config, f"can't remove CT {vmid}")
        check_config_lock(config)
        if not force and cluster.is_running(node, vmid):
            raise die(f"unable to destroy CT {vmid} - container is running")
        return config

    check()

    def worker(task: Task) -> None:
        with cluster.locked(vmid):
            config = check()
            if cluster.is_running(node, vmid):
                task.line(f"forced to stop CT {vmid} before destroying!")
                kill(cluster, node, vmid, config, task)
                config = cluster.load(node, vmid)
            destroy_guest(cluster, node, vmid, config, task)
            if unreferenced:
                _free_unreferenced(cluster, node, vmid, task)
            cluster.access.forget_guest(vmid)
            cluster.conf_path(node, vmid).unlink(missing_ok=True)

    return cluster.start_task(node, "vzdestroy", vmid, who, worker)


def destroy_guest(cluster: Cluster, node: str, vmid: int, config: GuestConfig, task: Task) -> None:
    """Free the own volumes and leave a file that holds only ``lock: destroyed``."""
    free_volumes(cluster, node, vmid, config, task)
    cluster.store(node, vmid, GuestConfig(Section({"lock": "destroyed"})))


def free_volumes(cluster: Cluster, node: str, vmid: int, config: GuestConfig, task: Task) -> None:
    """rootfs, mount points, unused entries, then the same of the pending section: the own ones go (facts 5)."""
    for section in (config.main.options, config.pending.options):
        volumes = [mount["volume"] for _, mount in mount_points(section)]
        volumes += [section[key] for key in guestconfig.volume_slots(section) if is_unused(key)]
        for volid in volumes:
            if mount_type(volid) == "volume" and not NEW_DISK.fullmatch(volid):
                guestconfig.free_if_own(cluster, node, vmid, volid, task.line)


def _free_unreferenced(cluster: Cluster, node: str, vmid: int, task: Task) -> None:
    for entry in list(cluster.volumes.owned(node, vmid)):
        try:
            cluster.volumes.free(node, entry.volume.volid, task.line)
        except (ApiError, RuntimeFault) as error:
            task.line(f"failed to remove volume '{entry.volume.volid}': {error}")


# --- resize -----------------------------------------------------------------------------------------------------------


def resize(cluster: Cluster, who: Identity, node: str, vmid: int, params: Mapping[str, str]) -> str:
    """PUT resize: checks now, grows in task ``resize`` (facts proxmox 9)."""
    key, wanted = params["disk"], params["size"]

    def check() -> tuple[GuestConfig, str, int, Params]:
        config = cluster.load(node, vmid)
        check_config_lock(config)
        # The parameter "disk" counts as an option of the guest (facts proxmox-9.2, row 3).
        check_options(cluster, who, vmid, {"disk": key}, current=config.options, unprivileged=True)
        check_digest(config, params.get("digest"))
        value = config.get(key)
        if value is None:
            raise guestconfig.no_such_mount(key)
        mount = parse_mount(key, value)
        volid = mount["volume"]
        if mount_type(volid) != "volume":
            raise die(f"unable to resize '{key}': not a volume")
        volume = cluster.volumes.parse(volid)
        if volume.owner != vmid:
            # The text of a Perl die without a line end.
            place = f"/usr/share/perl5/PVE/API2/LXC.pm line {cluster.config.release.resize_line}"
            raise die(f"can't resize mount point owned by another container ({volume.owner}) at {place}.")
        cluster.access.check(who, f"/storage/{volume.storage.name}", ["Datastore.AllocateSpace"])
        cluster.volumes.find(node, volid)
        size = cluster.volumes.size(node, volid)
        target = parse_size(wanted.removeprefix("+")) + (size if wanted.startswith("+") else 0)
        if target < size:
            raise die("unable to shrink disk size")
        if target == size:
            raise die("disk is already at specified size")
        return config, volid, target, mount

    with cluster.locked(vmid):
        check()

    def worker(task: Task) -> None:
        with cluster.locked(vmid):
            config, volid, target, mount = check()
            elsewhere = any(True for _ in cluster.mounts_elsewhere(node, vmid, volid))
            cluster.volumes.grow(node, volid, target, mounted=elsewhere, log=task.line)
            mount["size"] = format_size(target)
            config.options[key] = guestconfig.print_mount(key, mount)
            cluster.store(node, vmid, config)

    return cluster.start_task(node, "resize", vmid, who, worker)
