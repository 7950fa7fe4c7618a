"""What is written for LXC and into a guest, as pure functions: configuration, mount script, set-up script.

Facts containers, "LXC, unprivileged", is the source of the settings.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface
from pathlib import Path

from pvelab.idmap import COUNT, HOST_BASE
from pvelab.runtime import GuestSpec, Interface, Mount

INCLUDES = ("/usr/share/lxc/config/common.conf", "/usr/share/lxc/config/userns.conf")


@dataclass(frozen=True)
class HostTraits:
    """What differs between Linux machines. ``cpus`` counts the processors, ``mtu`` is the way out's."""

    unified_cgroups: bool
    apparmor: bool
    cpus: int
    mtu: int
    swap_accounting: bool = True
    architecture: str = "amd64"


def mount_point(guest_dir: Path, mount: Mount) -> Path:
    """Where the host mounts a guest's volume; the root file system is ``rootfs``."""
    return guest_dir / mount.key


def fstab_escape(text: str) -> str:
    """A path as the fields of an fstab line need it."""
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\#" else c for c in text)


def lxc_config(spec: GuestSpec, guest_dir: Path, bridge: str, traits: HostTraits) -> str:
    """The guest's LXC configuration. Its mounts are made beforehand, or by the pre-start hook after a reboot."""
    lines = [f"lxc.include = {path}" for path in INCLUDES]
    lines += [
        f"lxc.uts.name = {spec.hostname}",
        f"lxc.arch = {traits.architecture}",
        f"lxc.idmap = u 0 {HOST_BASE} {COUNT}",
        f"lxc.idmap = g 0 {HOST_BASE} {COUNT}",
        f"lxc.rootfs.path = dir:{guest_dir}/rootfs",
        "lxc.hook.version = 1",
        f"lxc.hook.pre-start = sh {guest_dir}/mount.sh",
        f"lxc.hook.post-stop = sh {guest_dir}/umount.sh",
        "lxc.signal.halt = SIGRTMIN+3",
        "lxc.tty.max = 0",
        "lxc.mount.auto =",
        "lxc.mount.auto = proc:mixed sys:rw cgroup:mixed:force",
    ]
    if not traits.unified_cgroups:
        # Below the lab's own groups. In the unified tree a group that holds processes can't limit groups below it.
        lines.append("lxc.cgroup.relative = 1")
    if traits.apparmor:
        lines += ["lxc.apparmor.profile = generated", f"lxc.apparmor.allow_nesting = {int(spec.nesting)}"]
    else:
        lines.append("lxc.apparmor.profile = unconfined")
    if spec.nesting:
        lines += [
            "lxc.mount.entry = proc dev/.lxc/proc proc create=dir,optional 0 0",
            "lxc.mount.entry = sys dev/.lxc/sys sysfs create=dir,optional 0 0",
        ]
    lines += limits(spec, traits)
    for mount in spec.mounts[1:]:
        source = mount_point(guest_dir, mount)
        options = "bind,create=dir" + (",ro" if mount.read_only else "")
        target = fstab_escape(mount.path.lstrip("/"))
        lines.append(f"lxc.mount.entry = {fstab_escape(str(source))} {target} none {options} 0 0")
    for number, interface in enumerate(spec.interfaces):
        prefix = f"lxc.net.{number}"
        lines += [
            f"{prefix}.type = veth",
            f"{prefix}.link = {bridge}",
            f"{prefix}.name = {interface.name}",
            f"{prefix}.hwaddr = {interface.hwaddr}",
            f"{prefix}.mtu = {interface.mtu or traits.mtu}",
            f"{prefix}.flags = up",
        ]
    if not spec.interfaces:
        lines.append("lxc.net.0.type = empty")
    lines += [f"{key} = {value}" for key, value in spec.raw_lxc]
    return "\n".join(lines) + "\n"


def limits(spec: GuestSpec, traits: HostTraits) -> list[str]:
    """Memory and processors; as Proxmox does, ``swap`` comes on top of ``memory``."""
    memory, swap = spec.memory << 20, spec.swap << 20
    if traits.unified_cgroups:
        lines = [f"lxc.cgroup2.memory.max = {memory}", f"lxc.cgroup2.memory.swap.max = {swap}"]
    else:
        lines = [f"lxc.cgroup.memory.limit_in_bytes = {memory}"]
        if traits.swap_accounting:
            lines.append(f"lxc.cgroup.memory.memsw.limit_in_bytes = {memory + swap}")
    if spec.cores is not None and spec.cores < traits.cpus:
        # Spread guests over the processors instead of crowding them on the first ones.
        chosen = sorted((spec.vmid + k) % traits.cpus for k in range(spec.cores))
        name = "cgroup2" if traits.unified_cgroups else "cgroup"
        lines.append(f"lxc.{name}.cpuset.cpus = {','.join(map(str, chosen))}")
    return lines


def mount_script(spec: GuestSpec, guest_dir: Path) -> str:
    """A script that mounts the guest's volumes below ``guest_dir``; exits with mount's code when one fails.

    Volumes are mounted read-write here and read-only only inside the guest: the kernel refuses a second
    mount of one device with another mode, and two guests may name the same volume. A folder of the node is bound
    here first: the state folder, where it lies, is closed to the guest's root.
    """
    lines = ["set -e", "attach() {", '  mkdir -p "$2"', '  mountpoint -q "$2" || mount -t ext4 -o "$3" "$1" "$2"', "}"]
    for mount in spec.mounts:
        if mount.image is not None:
            # A root file system is thrown away with its guest: it need not survive a power failure of the machine,
            # and without barriers a package installation does not wait for the disk. Volumes keep theirs.
            # A bind mount in the guest takes nosuid and the like over from this one.
            options = ",".join(("loop", *(("nobarrier",) if mount.key == "rootfs" else ()), *mount.options))
            place = shlex.quote(str(mount_point(guest_dir, mount)))
            lines.append(f"attach {shlex.quote(str(mount.image))} {place} {options}")
        elif mount.host_folder is not None:
            folder = shlex.quote(str(mount.host_folder))
            place = shlex.quote(str(mount_point(guest_dir, mount)))
            absent = shlex.quote(f"directory '{mount.host_path}' does not exist")
            # Also when a link is on the way: guests rule over what is mounted in them.
            lines.append(
                f'[ -d {folder} ] && [ "$(realpath {folder})" = {folder} ] || {{ echo {absent} >&2; exit 2; }}'
            )
            options = ",".join(("bind", *mount.options))
            lines.append(f"mkdir -p {place}; mountpoint -q {place} || mount -o {options} {folder} {place}")
    return "\n".join(lines) + "\n"


def umount_script(guest_dir: Path) -> str:
    """A script that unmounts all below ``guest_dir``, deepest first, lazily where something still holds on."""
    return (
        "awk '{print $5}' /proc/self/mountinfo | grep -F "
        f"{shlex.quote(str(guest_dir) + '/')} | sort -r | while read -r at; do\n"
        '  umount "$at" 2>/dev/null || umount -l "$at" || true\n'
        "done\n"
    )


def interfaces_file(interfaces: Sequence[Interface]) -> str:
    """``/etc/network/interfaces`` as ifupdown reads it."""
    blocks = ["auto lo\niface lo inet loopback\n"]
    for one in interfaces:
        parts = [f"auto {one.name}"]
        if one.ip == "dhcp":
            parts.append(f"iface {one.name} inet dhcp")
        elif one.ip and one.ip != "manual":
            parts.append(f"iface {one.name} inet static\n\taddress {one.ip}")
            parts += _way_out(one.name, one.ip, one.gateway)
        else:
            parts.append(f"iface {one.name} inet manual")
        if one.ip6 in {"auto", "dhcp"}:
            parts.append(f"iface {one.name} inet6 {one.ip6}")
        elif one.ip6 and one.ip6 != "manual":
            parts.append(f"iface {one.name} inet6 static\n\taddress {one.ip6}")
            parts += _way_out(one.name, one.ip6, one.gateway6)
        blocks.append("\n".join(parts) + "\n")
    return "\n".join(blocks)


def _way_out(name: str, address: str, gateway: str | None) -> list[str]:
    """The lines for a gateway: one outside of the network gets a route of its own (PVE::LXC::Setup::Debian)."""
    if gateway is None:
        return []
    way = ip_address(gateway)
    if way in ip_interface(address).network or way.is_link_local:
        return [f"\tgateway {gateway}"]
    return [
        f"\tpost-up ip route add {gateway} dev {name}",
        f"\tpost-up ip route add default via {gateway} dev {name}",
        f"\tpre-down ip route del default via {gateway} dev {name}",
        f"\tpre-down ip route del {gateway} dev {name}",
    ]


def hosts_file(spec: GuestSpec) -> str:
    """``/etc/hosts``: the guest's name on its own fixed address, or on 127.0.1.1 when that is not known."""
    fixed = next((i.ip.split("/")[0] for i in spec.interfaces if i.ip and "/" in i.ip), "127.0.1.1")
    short = spec.hostname.split(".")[0]
    domain = f".{spec.searchdomain.split()[0]}" if spec.searchdomain and "." not in spec.hostname else ""
    names = " ".join(dict.fromkeys([f"{spec.hostname}{domain}", short]))
    return (
        "127.0.0.1 localhost\n"
        "::1 localhost ip6-localhost ip6-loopback\n"
        "ff02::1 ip6-allnodes\n"
        "ff02::2 ip6-allrouters\n"
        f"{fixed} {names}\n"
    )


def resolver_file(spec: GuestSpec, default_server: str) -> str:
    """``/etc/resolv.conf``: what the guest's config says, else the node's own, which here is the bridge."""
    servers = (spec.nameserver or default_server).replace(",", " ").split()
    search = f"search {spec.searchdomain}\n" if spec.searchdomain else ""
    return search + "".join(f"nameserver {server}\n" for server in servers)


def start_files(spec: GuestSpec, default_server: str) -> dict[str, str]:
    """The files that Proxmox writes anew at every start."""
    return {
        "/etc/hostname": spec.hostname.split(".")[0] + "\n",
        "/etc/hosts": hosts_file(spec),
        "/etc/network/interfaces": interfaces_file(spec.interfaces),
        "/etc/resolv.conf": resolver_file(spec, default_server),
    }


def write_script(files: Mapping[str, str], modes: Mapping[str, str] | None = None) -> str:
    """A shell script, to be run inside the guest's tree, that writes ``files``.

    Each is written beside and renamed. A file is left alone where the guest has ``.pve-ignore.<name>`` next to it.
    """
    lines = ["set -e"]
    for path, text in files.items():
        folder, name = path.rsplit("/", 1)
        target, new = shlex.quote(path), shlex.quote(f"{path}.new")
        mode = (modes or {}).get(path, "644")
        lines.append(
            f"if [ ! -e {shlex.quote(f'{folder}/.pve-ignore.{name}')} ]; then mkdir -p {shlex.quote(folder)}; "
            f"printf %s {shlex.quote(text)} > {new}; chmod {mode} {new}; mv -fT {new} {target}; fi"
        )
    return "\n".join(lines) + "\n"
