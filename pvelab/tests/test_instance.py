"""A lab's folder: what it may take over, who is its daemon, and what it tells a shell."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from pvelab.config import LabConfig
from pvelab.daemon import offer_templates
from pvelab.environment import export_lines
from pvelab.instance import Lab, LabError, write_secret
from pvelab.simulated import SimulatedRuntime
from pvelab.template import Recipe, Template, apt_options_from_dump, mirrors_from_sources, sources_file, volid_of


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "a lab")
    lab.prepare()
    return lab


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("irreplaceable")
    with pytest.raises(LabError, match="no lab's"):
        Lab(tmp_path).prepare()


def test_a_secret_replaces_an_older_one_without_being_readable(tmp_path: Path) -> None:
    write_secret(tmp_path / "s", "first, and longer")
    write_secret(tmp_path / "s", "second")
    assert (tmp_path / "s").read_text() == "second"


def test_a_lab_has_one_daemon_and_a_dead_one_is_none(lab: Lab) -> None:
    assert lab.daemon_pid() is None
    with lab.being_the_daemon():
        assert lab.daemon_pid() == os.getpid()
        with pytest.raises(LabError, match="already"), lab.being_the_daemon():
            pass
    # The file still names a living process; the lock says that it is no daemon.
    assert (lab.state_dir / "daemon.pid").read_text().strip() == str(os.getpid())
    assert lab.daemon_pid() is None


def test_export_lines_survive_a_real_shell() -> None:
    values = {"A_DIR": "/with blank/and 'quote'", "B": '$(reboot) `x` "y"', "C": ""}
    script = export_lines(values) + "exec env -0"
    out = subprocess.run(
        ["sh", "-c", script], capture_output=True, check=True, timeout=10, env={"PATH": "/usr/bin:/bin"}
    )
    seen = dict(entry.split("=", 1) for entry in out.stdout.decode().split("\0") if "=" in entry)
    assert {name: seen[name] for name in values} == values


def test_facts_of_another_version_ask_for_a_restart(lab: Lab) -> None:
    (lab.state_dir / "ready.json").write_text(json.dumps({"containers": True}))
    with pytest.raises(LabError, match="another version"):
        lab.ready()


DEB822 = (
    "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\n\n"
    "Types: deb\nURIs: https://sec.example/debian-security/\n"
)
ONE_LINE = (
    "deb [signed-by=/k.gpg] http://mirror.example/debian bookworm main\n"
    "deb https://sec.example/debian-security bookworm-security main\n"
)


@pytest.mark.parametrize("sources", [DEB822, ONE_LINE])
def test_mirrors_are_the_hosts(sources: str) -> None:
    found = mirrors_from_sources(sources, 'PRETTY_NAME="Debian"\nID=debian\n')
    assert found == ("http://mirror.example/debian", "https://sec.example/debian-security")


def test_mirrors_of_another_distribution_are_of_no_use() -> None:
    ubuntu = "deb http://archive.ubuntu.com/ubuntu noble main\n"
    assert mirrors_from_sources(ubuntu, "ID=ubuntu\nID_LIKE=debian\n") == (None, None)


def test_only_options_that_concern_the_way_are_taken_over() -> None:
    dump = 'APT "";\nAcquire::http::Proxy "http://proxy:3128";\nAcquire::Check-Date "false";\nAPT::Get::X "0";\n'
    assert apt_options_from_dump(dump) == (
        'Acquire::http::Proxy "http://proxy:3128";',
        'Acquire::Check-Date "false";',
    )


def test_another_recipe_is_another_template() -> None:
    base = Recipe("http://m/debian", "http://m/debian-security", ("systemd",), (), "", ())
    other = Recipe("http://m/debian", "http://m/debian-security", ("systemd",), (("ca.crt", "x"),), "", ())
    assert base.digest() != other.digest()
    assert base.digest() == Recipe("http://m/debian", "http://m/debian-security", ("systemd",), (), "", ()).digest()


def test_a_newer_debian_is_another_template_from_its_own_suites() -> None:
    parts = ("http://m/debian", "http://m/debian-security", ("systemd",), (), "", ())
    older, newer = Recipe(*parts), Recipe(*parts, debian=13)
    assert older.digest() != newer.digest()
    assert Recipe.from_json(json.loads(json.dumps(newer.__dict__))) == newer
    assert re.findall(r"^Suites: (.*)$", sources_file(newer) or "", re.MULTILINE) == [
        "trixie trixie-updates",
        "trixie-security",
    ]


def test_the_storage_lists_what_was_built_and_what_people_put_there(lab: Lab, tmp_path: Path) -> None:
    def built(name: str) -> Template:
        archive = tmp_path / name
        archive.write_text(name)
        return Template(archive, tmp_path / "rootfs.img")

    config = LabConfig(lab.state_dir, SimulatedRuntime(tmp_path / "simulated.json"))
    older, newer = built("debian-12-standard_12.12-1_amd64.tar.zst"), built("debian-13-standard_13.1-1_amd64.tar.zst")
    folder = config.template_dir("pve")
    offer_templates(config, [built("debian-12-standard_12.11-1_amd64.tar.zst")])
    (folder / "debian-11-standard_11.7-1_amd64.tar.zst").write_text("of somebody's own")
    offer_templates(config, [older, newer])
    offer_templates(config, [older, newer])  # harmless
    assert sorted(file.name for file in folder.iterdir()) == [
        "debian-11-standard_11.7-1_amd64.tar.zst",
        older.archive.name,
        newer.archive.name,
    ]
    assert (folder / newer.archive.name).read_text() == newer.archive.name
    assert volid_of(newer) == "local:vztmpl/debian-13-standard_13.1-1_amd64.tar.zst"
