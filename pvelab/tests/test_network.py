"""The lab's network: which addresses it takes, and what its rules let through."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from pvelab.network import (
    NEEDED,
    NetworkError,
    Plan,
    choose_subnet,
    dnsmasq_configuration,
    forward_ruleset,
    forwards_for_labs_alone,
    guarded_interfaces,
    networks_in_use,
    raise_settings,
    restore_settings,
    ruleset,
    stop_recorded,
)
from pvelab.place import Place, leave, machine_lock

POOL = IPv4Network("10.64.0.0/10")


def test_the_same_lab_wants_the_same_subnet() -> None:
    assert choose_subnet("0a1b2c", []) == choose_subnet("0a1b2c", [])


@pytest.mark.parametrize("identity", ["000000", "ffffff", "0a1b2c", "003fff", "004000"])
def test_a_subnet_is_a_24_of_the_pool(identity: str) -> None:
    subnet = choose_subnet(identity, [])
    assert subnet.prefixlen == 24
    assert subnet.subnet_of(POOL)


def test_a_subnet_in_use_is_passed_over() -> None:
    wanted = choose_subnet("0a1b2c", [])
    other = choose_subnet("0a1b2c", [wanted])
    assert other != wanted
    # A single address in it is enough to leave it alone, and so is a larger network around it.
    assert choose_subnet("0a1b2c", [IPv4Network(f"{wanted[7]}/32")]) == other
    around = wanted.supernet(new_prefix=16)
    assert not choose_subnet("0a1b2c", [around]).overlaps(around)


def test_the_search_wraps_around_the_pool() -> None:
    last = choose_subnet("003fff", [])
    assert last == IPv4Network("10.127.255.0/24")
    assert choose_subnet("003fff", [last]) == IPv4Network("10.64.0.0/24")


def test_a_full_pool_is_an_error_that_says_so() -> None:
    with pytest.raises(NetworkError, match="in use"):
        choose_subnet("0a1b2c", [POOL])


def test_networks_in_use_come_from_routes_addresses_and_resolvers() -> None:
    routes = [
        {"dst": "default", "gateway": "192.0.2.1", "dev": "eth0"},
        {"dst": "10.70.0.0/16", "dev": "wg0"},
        {"dst": "172.17.0.9", "dev": "docker0"},
    ]
    addresses = [
        {"ifname": "eth0", "addr_info": [{"family": "inet", "local": "192.0.2.2", "prefixlen": 24}]},
        {"ifname": "lo", "addr_info": [{"family": "inet6", "local": "::1", "prefixlen": 128}]},
    ]
    resolvers = "# local\nnameserver 10.99.1.53\nnameserver fd00::53\n"
    found = networks_in_use(json.dumps(routes), json.dumps(addresses), resolvers)
    expected = ["192.0.2.1/32", "10.70.0.0/16", "172.17.0.9/32", "192.0.2.0/24", "10.99.1.53/32"]
    assert set(found) == {IPv4Network(text) for text in expected}


def test_fixed_addresses_and_dhcp_do_not_meet() -> None:
    plan = Plan(IPv4Network("10.64.5.0/24"))
    first, last = plan.dhcp_range
    fixed = [plan.fixed(number).ip for number in range(10, 150)]
    assert not any(first <= address <= last for address in [*fixed, plan.gateway])
    assert plan.gateway not in fixed
    assert str(plan.fixed(105)) == "10.64.5.105/24"


@pytest.mark.parametrize("number", [1, 9, 150, 255])
def test_an_address_outside_the_fixed_range_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="10 to 149"):
        Plan(IPv4Network("10.64.5.0/24")).fixed(number)


def test_rules_replace_the_table_in_one_transaction() -> None:
    lines = ruleset("t1", "hlab1", Plan(IPv4Network("10.64.5.0/24")), (8100, 9418)).splitlines()
    # Declaring it first makes the delete succeed where there was none.
    assert lines[:3] == ["table inet t1", "delete table inet t1", "table inet t1 {"]


def test_rules_end_by_refusing_what_comes_from_guests() -> None:
    text = ruleset("t1", "hlab1", Plan(IPv4Network("10.64.5.0/24")), (8100, 9418))
    host = text.split("chain host {")[1].split("}\n  chain")[0]
    statements = [line.strip() for line in host.splitlines() if line.strip()]
    assert statements[1] == 'iifname != "hlab1" return'
    assert statements[-2:] == ["meta l4proto tcp reject with tcp reset", "drop"]
    assert "ip daddr 10.64.5.1 tcp dport { 8100, 9418 } accept" in statements


def test_a_closed_network_leads_to_the_labs_services_alone() -> None:
    plan = Plan(IPv4Network("10.64.5.0/24"))
    text = ruleset("t1", "hlab1", plan, (8100, 9418), closed=True)
    host, between = (text.split(f"chain {name} {{")[1].split("}\n")[0] for name in ("host", "between"))
    assert "ip daddr 10.64.5.1 tcp dport { 8100, 9418 } accept" in text
    assert "th dport 53 reject" in text
    assert "th dport 53 accept" not in text
    # Nothing is let through because it was begun before.
    assert [line.strip() for line in between.splitlines()[2:] if line.strip()] == [
        'iifname "hlab1" oifname != "hlab1" reject',
        # Nobody begins anything from elsewhere, closed or not.
        'oifname "hlab1" iifname != "hlab1" ct state != { established, related } drop',
    ]
    assert "chain" not in host
    assert 'oifname "hlab*" drop' in ruleset("t1", "hlab1", plan)


def test_a_machine_that_forwards_for_labs_alone_is_known_by_what_it_did_before(tmp_path: Path) -> None:
    machine, saved = tmp_path / "sys", tmp_path / "run"
    saved.mkdir()
    switch = machine / "net/ipv4/ip_forward"
    switch.parent.mkdir(parents=True)
    switch.write_text("1\n")
    assert not forwards_for_labs_alone(saved, machine)
    switch.write_text("0\n")
    assert forwards_for_labs_alone(saved, machine)
    # The first lab has switched it on and noted what was.
    (saved / "ip_forward").write_text("0\n")
    switch.write_text("1\n")
    assert forwards_for_labs_alone(saved, machine)


def test_the_bridges_of_others_keep_their_own_rules(tmp_path: Path) -> None:
    for name, parts in {
        "lo": [],
        "eth0": ["brport"],
        "wlan0": [],
        "br0": ["bridge"],
        "docker0": ["bridge"],
        "veth1": ["brport"],
        "hlabab12": ["bridge"],
    }.items():
        (tmp_path / name).mkdir()
        for part in parts:
            (tmp_path / name / part).mkdir()
    routes = '[{"dst": "default", "dev": "br0"}, {"dst": "default", "dev": "wlan0"}]'
    interfaces, bridges = guarded_interfaces(routes, tmp_path)
    assert interfaces == ["br0", "wlan0"]
    text = forward_ruleset(interfaces, bridges)
    # Frames between a bridge's own ports come by here where br_netfilter is on.
    assert 'iifname "br0" oifname != "br0" drop' in text
    assert 'iifname "wlan0" drop' in text
    assert "docker0" not in text


def test_name_service_listens_on_the_bridge_alone() -> None:
    text = dnsmasq_configuration("hlab1", Plan(IPv4Network("10.64.5.0/24")), 1400, Path("/run/x")).splitlines()
    assert "interface=hlab1" in text
    assert "bind-interfaces" in text
    assert "except-interface=lo" in text
    assert "dhcp-option=option:mtu,1400" in text


def test_names_of_a_lab_follow_from_its_folder_alone(tmp_path: Path) -> None:
    one, again, other = Place.of(tmp_path / "a"), Place.of(tmp_path / "b" / ".." / "a"), Place.of(tmp_path / "b")
    assert one.bridge == again.bridge
    assert {one.bridge, one.table, one.run_dir}.isdisjoint({other.bridge, other.table, other.run_dir})
    # IFNAMSIZ, less the terminating zero.
    assert len(one.bridge) <= 15


def test_the_lock_of_the_machine_excludes_even_while_it_is_removed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    inside = 0
    most = 0
    rounds = 40

    def change() -> None:
        nonlocal inside, most
        for _ in range(rounds):
            with machine_lock(run):
                inside += 1
                most = max(most, inside)
                inside -= 1
                leave(run)

    threads = [threading.Thread(target=change) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert most == 1
    assert not run.exists()


def test_the_folder_of_all_labs_stays_while_one_is_in_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    place = Place.of(tmp_path / "lab", run=run)
    place.make_run_dir()
    with machine_lock(run):
        leave(run)
    assert place.run_dir.exists()
    place.remove_run_dir()
    with machine_lock(run):
        leave(run)
    assert not run.exists()


def test_the_machine_s_settings_are_raised_once_and_given_back(tmp_path: Path) -> None:
    """A second lab, or the same one after a crash, does not take what the first has raised for the machine's own."""
    machine, saved = tmp_path / "sys", tmp_path / "run"
    saved.mkdir()
    given = {"net/ipv4/ip_forward": "0\n", "kernel/keys/maxkeys": "200\n", "kernel/keys/maxbytes": "40000000\n"}
    for name, text in given.items():
        (machine / name).parent.mkdir(parents=True, exist_ok=True)
        (machine / name).write_text(text)
    for _ in range(2):
        raise_settings(saved, machine)
        values = {name: int((machine / name).read_text()) for name in given}
        assert values == {**NEEDED, "kernel/keys/maxbytes": 40_000_000}  # what is enough stays
    restore_settings(saved, machine)
    assert {name: (machine / name).read_text() for name in given} == given
    assert list(saved.iterdir()) == []


WAITING = "import sys; print('up', flush=True); sys.stdin.read()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITING}"


@pytest.mark.parametrize("program", [WAITING, STUBBORN])
def test_a_recorded_process_has_let_go_of_everything_once_it_is_stopped(tmp_path: Path, program: str) -> None:
    """A zombie has no open files any more; before that it has no command line, and its sockets still."""
    pid_file = tmp_path / "pid"
    argv = [sys.executable, "-c", program, "our mark"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        pid_file.write_text(f"{process.pid}\n")
        stop_recorded(pid_file, "another's", timeout=0.1)
        assert process.poll() is None
        assert not pid_file.exists()
        pid_file.write_text(f"{process.pid}\n")
        stop_recorded(pid_file, "our mark", timeout=0.5)
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()[0]
        assert state == "Z"
        pid_file.write_text(f"{process.pid}\n")
        stop_recorded(pid_file, "our mark", timeout=5.0)
        assert not pid_file.exists()
