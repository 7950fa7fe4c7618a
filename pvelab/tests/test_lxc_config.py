"""What is written for LXC and into a guest."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pvelab.lxc import parse_addresses
from pvelab.lxc_config import (
    HostTraits,
    fstab_escape,
    hosts_file,
    interfaces_file,
    limits,
    lxc_config,
    mount_script,
    resolver_file,
    start_files,
    write_script,
)
from pvelab.runtime import Address, GuestSpec, Interface, Mount

ROOT = Mount("rootfs", "/", Path("/state/vm-105-disk-0.raw"))
GUEST_DIR = Path("/run/pvelab/abc123/guests/pve/abc123-105")
V1 = HostTraits(unified_cgroups=False, apparmor=False, cpus=4, mtu=1400)
V2 = HostTraits(unified_cgroups=True, apparmor=True, cpus=4, mtu=1500)
FIXED = Interface("eth0", "vmbr0", "BC:24:11:00:00:01", "10.64.5.105/24", "10.64.5.1")
DHCP = Interface("eth0", "vmbr0", "BC:24:11:00:00:01", "dhcp")


def spec(**changes: object) -> GuestSpec:
    base = GuestSpec("pve", 105, "guest1", 1024, 512, (ROOT,), (FIXED,), cores=2)
    return replace(base, **changes)  # type: ignore[arg-type]


def settings(text: str) -> list[tuple[str, str]]:
    return [(key.strip(), value.strip()) for key, _, value in (line.partition("=") for line in text.splitlines())]


def test_the_guests_root_is_the_hosts_100000() -> None:
    found = settings(lxc_config(spec(), GUEST_DIR, "hlab1", V1))
    assert ("lxc.idmap", "u 0 100000 65536") in found
    assert ("lxc.idmap", "g 0 100000 65536") in found


def test_groups_are_relative_only_where_that_can_be_limited() -> None:
    assert ("lxc.cgroup.relative", "1") in settings(lxc_config(spec(), GUEST_DIR, "hlab1", V1))
    assert "lxc.cgroup.relative" not in lxc_config(spec(), GUEST_DIR, "hlab1", V2)


def test_nesting_adds_proc_and_sys_and_is_off_by_default() -> None:
    off = lxc_config(spec(), GUEST_DIR, "hlab1", V1)
    on = lxc_config(spec(nesting=True), GUEST_DIR, "hlab1", V1)
    assert "dev/.lxc" not in off
    assert "lxc.mount.entry = proc dev/.lxc/proc proc create=dir,optional 0 0" in on
    assert "lxc.mount.entry = sys dev/.lxc/sys sysfs create=dir,optional 0 0" in on


def test_a_volume_is_bound_where_the_config_says() -> None:
    mounts = (ROOT, Mount("mp0", "/home/her mes", Path("/v.raw")), Mount("mp1", "/ro", Path("/w.raw"), read_only=True))
    text = lxc_config(spec(mounts=mounts), GUEST_DIR, "hlab1", V1)
    assert f"lxc.mount.entry = {GUEST_DIR}/mp0 home/her\\040mes none bind,create=dir 0 0" in text
    assert f"lxc.mount.entry = {GUEST_DIR}/mp1 ro none bind,create=dir,ro 0 0" in text


def test_a_folder_of_the_node_is_bound_as_a_volume_is() -> None:
    """The state folder that it lies in is closed to the guest's root."""
    mounts = (ROOT, Mount("mp0", "/da ta", host_folder=Path("/state/host/srv/my data"), host_path="/srv/my data"))
    text = lxc_config(spec(mounts=mounts), GUEST_DIR, "hlab1", V1)
    assert f"lxc.mount.entry = {GUEST_DIR}/mp0 da\\040ta none bind,create=dir 0 0" in text
    script = mount_script(spec(mounts=mounts), GUEST_DIR)
    assert f"mount -o bind '/state/host/srv/my data' {GUEST_DIR}/mp0\n" in script


def test_a_subvol_is_bound_with_the_options_of_a_mount() -> None:
    tree = Path("/state/tank/subvol-105-disk-1/tree")
    subvol = Mount(
        "mp0", "/d", host_folder=tree, host_path="/rpool/data/subvol-105-disk-1", options=("nodev", "nosuid")
    )
    script = mount_script(spec(mounts=(ROOT, subvol)), GUEST_DIR)
    assert f"mount -o bind,nodev,nosuid {tree} {GUEST_DIR}/mp0\n" in script
    assert "/rpool/data/subvol-105-disk-1" in script, "what a start without it names"


def test_the_interface_hangs_on_the_labs_bridge_with_the_mtu_of_the_way_out() -> None:
    found = settings(lxc_config(spec(), GUEST_DIR, "hlab1", V1))
    assert ("lxc.net.0.link", "hlab1") in found
    assert ("lxc.net.0.hwaddr", "BC:24:11:00:00:01") in found
    assert ("lxc.net.0.mtu", "1400") in found
    smaller = replace(FIXED, mtu=1300)
    assert ("lxc.net.0.mtu", "1300") in settings(lxc_config(spec(interfaces=(smaller,)), GUEST_DIR, "hlab1", V1))


def test_a_guest_without_interfaces_does_not_get_the_hosts() -> None:
    assert ("lxc.net.0.type", "empty") in settings(lxc_config(spec(interfaces=()), GUEST_DIR, "hlab1", V1))


def test_raw_settings_come_last_and_win() -> None:
    text = lxc_config(spec(raw_lxc=(("lxc.apparmor.profile", "mine"),)), GUEST_DIR, "hlab1", V1)
    assert text.splitlines()[-1] == "lxc.apparmor.profile = mine"


@pytest.mark.parametrize(
    ("traits", "expected"),
    [
        (V1, ["lxc.cgroup.memory.limit_in_bytes = 1073741824", "lxc.cgroup.memory.memsw.limit_in_bytes = 1610612736"]),
        (V2, ["lxc.cgroup2.memory.max = 1073741824", "lxc.cgroup2.memory.swap.max = 536870912"]),
        (replace(V1, swap_accounting=False), ["lxc.cgroup.memory.limit_in_bytes = 1073741824"]),
    ],
)
def test_memory_limits_in_bytes(traits: HostTraits, expected: list[str]) -> None:
    assert limits(spec(cores=None), traits) == expected


@pytest.mark.parametrize(
    ("vmid", "cores", "chosen"), [(104, 1, "0"), (105, 1, "1"), (105, 2, "1,2"), (107, 2, "0,3"), (105, 4, None)]
)
def test_cores_are_spread_and_left_alone_when_all_are_wanted(vmid: int, cores: int, chosen: str | None) -> None:
    found = [line for line in limits(spec(vmid=vmid, cores=cores), V1) if "cpuset" in line]
    assert found == ([f"lxc.cgroup.cpuset.cpus = {chosen}"] if chosen else [])


@pytest.mark.parametrize(
    ("text", "escaped"), [("/a", "/a"), ("/a b", "/a\\040b"), ("/a\tb", "/a\\011b"), ("/a\\b", "/a\\134b")]
)
def test_fstab_fields(text: str, escaped: str) -> None:
    assert fstab_escape(text) == escaped


def test_the_mount_script_is_valid_shell_whatever_the_path() -> None:
    mounts = (
        Mount("rootfs", "/", Path("/it's a $(state)/`disk`.raw")),
        Mount("mp0", "/d", host_folder=Path("/no such")),
    )
    script = mount_script(spec(mounts=mounts), GUEST_DIR)
    subprocess.run(["sh", "-n"], input=script, text=True, check=True, timeout=10)


def test_a_volume_is_mounted_with_its_options() -> None:
    """pct.conf(5), mountoptions; the guest's bind mount has its flags from this one (mount(2))."""
    mounts = (
        Mount("rootfs", "/", Path("/disk.raw")),
        Mount("mp0", "/d", Path("/data.raw"), options=("nodev", "nosuid")),
        Mount("mp1", "/e", Path("/more.raw")),
    )
    found = [line.split()[-1] for line in mount_script(spec(mounts=mounts), GUEST_DIR).splitlines() if ".raw" in line]
    assert found == ["loop,nobarrier", "loop,nodev,nosuid", "loop"]


@pytest.mark.parametrize("folder", ["not there", "link"])
def test_a_host_folder_that_is_missing_or_a_link_fails_with_its_name(tmp_path: Path, folder: str) -> None:
    mounts = (Mount("rootfs", "/"), Mount("mp0", "/d", host_folder=tmp_path / folder, host_path="/srv/a folder"))
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    done = subprocess.run(
        ["sh"],
        input=mount_script(spec(mounts=mounts), tmp_path),
        text=True,
        capture_output=True,
        check=False,
        timeout=10,
    )
    assert done.returncode == 2
    assert done.stderr.strip() == "directory '/srv/a folder' does not exist"


def test_interfaces_static_dhcp_and_none() -> None:
    manual = Interface("eth1", "vmbr0", "BC:24:11:00:00:02")
    assert interfaces_file([FIXED, manual]) == (
        "auto lo\niface lo inet loopback\n\n"
        "auto eth0\niface eth0 inet static\n\taddress 10.64.5.105/24\n\tgateway 10.64.5.1\n\n"
        "auto eth1\niface eth1 inet manual\n"
    )
    assert "iface eth0 inet dhcp\n" in interfaces_file([DHCP])


def test_a_gateway_outside_of_the_network_gets_a_route_of_its_own() -> None:
    """As make_gateway_scripts of PVE/LXC/Setup/Debian.pm writes it."""
    alone = replace(FIXED, ip="203.0.113.5/32", gateway="198.51.100.1", ip6="2001:db8::5/64", gateway6="fe80::1")
    assert interfaces_file([alone]).partition("auto eth0\n")[2] == (
        "iface eth0 inet static\n\taddress 203.0.113.5/32\n"
        "\tpost-up ip route add 198.51.100.1 dev eth0\n"
        "\tpost-up ip route add default via 198.51.100.1 dev eth0\n"
        "\tpre-down ip route del default via 198.51.100.1 dev eth0\n"
        "\tpre-down ip route del 198.51.100.1 dev eth0\n"
        "iface eth0 inet6 static\n\taddress 2001:db8::5/64\n\tgateway fe80::1\n"
    )


def test_a_name_resolves_to_the_fixed_address_or_to_loopback() -> None:
    assert "10.64.5.105 guest1\n" in hosts_file(spec())
    assert "127.0.1.1 guest1\n" in hosts_file(spec(interfaces=(DHCP,)))
    assert "10.64.5.105 guest1.lan guest1\n" in hosts_file(spec(searchdomain="lan"))
    assert "10.64.5.105 guest1.home.arpa guest1\n" in hosts_file(spec(hostname="guest1.home.arpa"))


def test_resolvers_are_the_configs_else_the_nodes() -> None:
    assert resolver_file(spec(), "10.64.5.1") == "nameserver 10.64.5.1\n"
    chosen = spec(nameserver="1.1.1.1 9.9.9.9", searchdomain="lan")
    assert resolver_file(chosen, "10.64.5.1") == "search lan\nnameserver 1.1.1.1\nnameserver 9.9.9.9\n"


def test_files_are_written_as_given_and_respect_the_guests_wish(tmp_path: Path) -> None:
    files = {f"{tmp_path}/etc/one": "it's $HOME `x` \\n\n", f"{tmp_path}/etc/two": "new\n"}
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "two").write_text("old\n")
    (tmp_path / "etc" / ".pve-ignore.two").touch()
    script = write_script(files, {f"{tmp_path}/etc/one": "600"})
    subprocess.run(["sh"], input=script, text=True, check=True, timeout=10)
    assert (tmp_path / "etc" / "one").read_text() == "it's $HOME `x` \\n\n"
    assert (tmp_path / "etc" / "one").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "etc" / "two").read_text() == "old\n"


def test_start_files_are_those_that_proxmox_writes() -> None:
    assert set(start_files(spec(), "10.64.5.1")) == {
        "/etc/hostname",
        "/etc/hosts",
        "/etc/network/interfaces",
        "/etc/resolv.conf",
    }


def test_addresses_of_a_guest() -> None:
    text = (
        '[{"ifname":"lo","address":"00:00:00:00:00:00","addr_info":[{"family":"inet","local":"127.0.0.1","prefixlen":8}]},'
        '{"ifname":"eth0","address":"bc:24:11:00:00:01","addr_info":['
        '{"family":"inet","local":"10.64.5.7","prefixlen":24},{"family":"inet6","local":"fe80::1","prefixlen":64}]}]'
    )
    lo, eth0 = parse_addresses(text)
    assert lo.addresses == (Address("127.0.0.1", 8, "inet"),)
    assert (eth0.name, eth0.hwaddr) == ("eth0", "bc:24:11:00:00:01")
    assert eth0.addresses == (Address("10.64.5.7", 24, "inet"), Address("fe80::1", 64, "inet6"))
