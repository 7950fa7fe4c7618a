"""Set-up: where tools are looked for, what is refused, and what a person is told."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("checkout_setup", ROOT / "scripts" / "lib" / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_published_list_of_sums_is_read_in_both_common_forms(setup: ModuleType) -> None:
    text = "aa11  pulumi-v1-linux-x64.tar.gz\nbb22 *pulumi-v1-darwin-x64.tar.gz\n\n# nothing\nbroken\n"
    assert setup.parse_sums(text) == {"pulumi-v1-linux-x64.tar.gz": "aa11", "pulumi-v1-darwin-x64.tar.gz": "bb22"}


def test_an_archive_is_taken_only_with_a_listed_sum(setup: ModuleType, tmp_path: Path) -> None:
    archive = tmp_path / "tool.tar.gz"
    assert setup.archive_refusal(archive, []) == "no tool.tar.gz there"
    archive.write_bytes(b"content")
    right = hashlib.sha256(b"content").hexdigest()
    assert setup.archive_refusal(archive, [right]) is None
    assert right in setup.archive_refusal(archive, ["0" * 64])


def test_places_are_tried_in_order_until_one_serves(setup: ModuleType) -> None:
    asked: list[str] = []

    def place(name: str, answer: str | None) -> tuple[str, object]:
        def attempt() -> str | None:
            asked.append(name)
            return answer

        return name, attempt

    setup.first_that_works(
        "The tool", [place("PATH", "not there"), place("folder", None), place("web", None)], "do this"
    )
    assert asked == ["PATH", "folder"]


def test_when_no_place_serves_the_error_names_each_and_what_to_do(setup: ModuleType) -> None:
    def offline() -> str | None:
        raise setup.SetupError("https://example.invalid: Name or service not known")

    def broken() -> str | None:
        raise OSError("disk full")

    places = [("PATH", lambda: "no pulumi there"), ("/srv/archives", broken), ("official download", offline)]
    with pytest.raises(setup.SetupError) as caught:
        setup.first_that_works("The Pulumi CLI 3.276.0", places, "Put pulumi.tar.gz into a folder and name it")
    text = str(caught.value)
    for part in ("PATH: no pulumi there", "/srv/archives: disk full", "Name or service not known", "Put pulumi.tar.gz"):
        assert part in text


def test_the_pins_agree_with_the_python_packages() -> None:
    """A plugin and its SDK are released together; another version of one would not fit the other."""
    pins = tomllib.loads((ROOT / "toolchain.toml").read_text())["plugins"]
    lock = (ROOT / "requirements.lock").read_text()
    assert f"pulumi-proxmoxve=={pins['proxmoxve']['version']} " in lock
    assert f"pulumi-command=={pins['command']['version']} " in lock


def test_every_locked_package_has_a_sum() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    packages = [number for number, line in enumerate(lines) if "==" in line and not line.startswith((" ", "#"))]
    assert packages
    for number in packages:
        assert "--hash=sha256:" in lines[number + 1], lines[number]


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs the system's own Python beside the venv's")
def test_the_set_up_needs_nothing_but_the_standard_library() -> None:
    """It runs before anything is installed."""
    code = f"import runpy; runpy.run_path({str(ROOT / 'scripts/lib/setup.py')!r})"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_what_is_set_up_for_more_is_enough_for_less(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "STAMP", tmp_path / "stamp")
    monkeypatch.setattr(setup, "pulumi_link", lambda: tmp_path)
    for name in ("VENV", "UV"):
        monkeypatch.setattr(setup, name, tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    (tmp_path / "pulumi").touch()
    for done, enough in (("no-lab", 1), ("lab", 2), ("tests", 3)):
        setup.STAMP.write_text(f"mark {done}")
        assert [setup.finished("mark", scope) for scope in ("no-lab", "lab", "tests")] == [
            number < enough for number in range(3)
        ]
        assert not setup.finished("another", "no-lab")


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ('NAME="Debian GNU/Linux"\nID=debian\n', True),
        ('ID="debian"\n', True),
        ("ID=ubuntu\nID_LIKE=debian\n", False),
        (None, False),
    ],
)
def test_where_the_browser_is_a_package(setup: ModuleType, tmp_path: Path, release: str | None, expected: bool) -> None:
    if release is not None:
        (tmp_path / "os-release").write_text(release)
    assert setup.is_debian(tmp_path / "os-release") is expected


def test_a_service_is_unpacked_and_never_installed(setup: ModuleType) -> None:
    listed = {words[0]: words[1:] for words in setup.listed_packages("tests")}
    assert listed["caddy"] == listed["nginx"] == ["unpacked"]
    assert not {"caddy", "nginx"} & set(setup.debian_packages("tests"))


@pytest.mark.parametrize(
    ("says", "advice"),
    [
        ("OSError: [Errno 28] No space left on device", "make 1 GB of room"),
        ("invalid peer certificate: UnknownIssuer", "update-ca-certificates"),
        ("NewConnectionError(...): [Errno -3] Temporary failure in name resolution", "check the network"),
        ("error sending request for url (https://index.example/simple/)", "check the network"),
    ],
)
def test_a_failed_command_is_told_with_what_to_do_and_without_its_retries(
    setup: ModuleType, says: str, advice: str
) -> None:
    retry = f"WARNING: Retrying (Retry(total=4)) after {says}"
    program = f"import sys; print({retry!r}); print({says!r}); sys.exit(3)"
    with pytest.raises(setup.SetupError) as told:
        setup.run([sys.executable, "-c", program], "installing uv")
    assert "installing uv failed" in str(told.value)
    assert says in str(told.value)
    assert advice in str(told.value)
    assert "Retrying" not in str(told.value)


def test_an_unknown_failure_gets_no_advice(setup: ModuleType) -> None:
    assert setup.remedy("segmentation fault") == ""
