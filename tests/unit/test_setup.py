"""Set-up: where it looks for tools, what it refuses, and what its errors say."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def test_a_download_that_is_cut_is_told(setup: ModuleType) -> None:
    def answer() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(65536)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/pulumi.tar.gz"
        with pytest.raises(setup.SetupError, match=r"pulumi\.tar\.gz: .*3 bytes read, 97 more expected"):
            setup.download(url)
        thread.join(10)


PINS: dict[str, Any] = {
    "platforms": {
        "Linux-x86_64": {"cli": "linux-x64", "plugin": "linux-amd64"},
        "Darwin-arm64": {"cli": "darwin-arm64", "plugin": "darwin-arm64"},
    },
    "pulumi": {
        "version": "1.2.3",
        "url": "https://releases.test/pulumi-v{version}-{cli}.tar.gz",
        "sums": "https://releases.test/pulumi-{version}-checksums.txt",
    },
    "plugins": {
        "x": {
            "version": "4.5.6",
            "url": "https://releases.test/pulumi-resource-x-v{version}-{plugin}.tar.gz",
            "sums": "https://releases.test/x_{version}_checksums.txt",
        }
    },
    "stand-ins": {},
}
CLI_FILES = ["pulumi-v1.2.3-darwin-arm64.tar.gz", "pulumi-v1.2.3-linux-x64.tar.gz"]
PLUGIN_FILES = ["pulumi-resource-x-v4.5.6-darwin-arm64.tar.gz", "pulumi-resource-x-v4.5.6-linux-amd64.tar.gz"]


def archive_of(folder: str, *programs: str) -> bytes:
    """A release archive whose programs tell version 1.2.3, and leave a mark where they are run."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for program in programs:
            text = b'#!/bin/sh\ntouch "$MARK"\necho v1.2.3\n'
            member = tarfile.TarInfo(f"{folder}{program}")
            member.size, member.mode = len(text), 0o755
            tar.addfile(member, io.BytesIO(text))
    return buffer.getvalue()


def sum_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Releases:
    """The download sites, and a checkout beside them."""

    def __init__(self, module: ModuleType, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.module = module
        self.cache = folder / "cache"
        self.cache.mkdir()
        self.mark = folder / "was-run"
        self.cli = archive_of("pulumi/", "pulumi", "pulumi-language-python")
        self.plugin = archive_of("", "pulumi-resource-x")
        self.pages: dict[str, bytes] = {}
        self.asked: list[str] = []
        for file in CLI_FILES:
            self.pages[f"https://releases.test/{file}"] = self.cli
        for file in PLUGIN_FILES:
            self.pages[f"https://releases.test/{file}"] = self.plugin
        self.publish()
        for name, value in {
            "CACHE": self.cache,
            "CLI": self.cache / "cli",
            "PULUMI_HOME": self.cache / "home",
            "LOCK": folder / "toolchain.lock",
            "download": self.download,
            "say": lambda _line: None,
        }.items():
            patch.setattr(module, name, value)
        patch.setattr(module.platform, "system", lambda: "Linux")
        patch.setattr(module.platform, "machine", lambda: "x86_64")
        patch.setenv("HERMES_TOOLCHAIN", str(folder / "archives"))
        patch.setenv("PULUMI_HOME", str(folder / "own"))
        patch.setenv("MARK", str(self.mark))
        self.path = folder / "bin"
        self.path.mkdir()
        patch.setenv("PATH", f"{self.path}:/usr/bin:/bin")
        self.lock: Path = module.LOCK
        self.folder = folder

    def publish(self) -> None:
        """The lists of sums, of what the sites have now."""
        for url, files in (("pulumi-1.2.3-checksums.txt", CLI_FILES), ("x_4.5.6_checksums.txt", PLUGIN_FILES)):
            lines = (f"{sum_of(self.pages[f'https://releases.test/{file}'])}  {file}\n" for file in files)
            self.pages[f"https://releases.test/{url}"] = "".join(lines).encode()

    def download(self, url: str) -> bytes:
        self.asked.append(url)
        if url not in self.pages:
            raise self.module.SetupError(f"{url}: Not Found")
        return self.pages[url]

    def install(self, *, accept: bool = False) -> None:
        if accept:
            self.module.accept_sums(PINS)
        self.module.install_cli(PINS, accept=accept)


@pytest.fixture
def releases(setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Releases:
    return Releases(setup, tmp_path, monkeypatch)


def test_a_download_without_a_sum_of_ours_is_refused_before_it_is_made(releases: Releases) -> None:
    with pytest.raises(releases.module.SetupError, match=r"no sum of pulumi-v1\.2\.3-linux-x64") as caught:
        releases.install()
    assert "scripts/setup --accept-sums" in str(caught.value)
    assert releases.asked == []
    assert not (releases.cache / "cli").exists()


def test_what_the_releases_publish_is_written_down_once_for_every_platform(releases: Releases) -> None:
    releases.lock.write_text("# kept\n")
    releases.install(accept=True)
    lines = releases.lock.read_text().splitlines()
    assert lines[0] == "# kept"
    assert {line.split()[1] for line in lines[1:]} == {
        *CLI_FILES,
        *PLUGIN_FILES,
        "pulumi-v1.2.3-linux-x64.tar.gz/pulumi",
        "pulumi-v1.2.3-linux-x64.tar.gz/pulumi-language-python",
    }
    assert os.access(releases.cache / "cli" / "bin" / "pulumi", os.X_OK)


def test_an_archive_that_was_replaced_is_refused_with_its_list(releases: Releases) -> None:
    """A release that somebody took over: archive and list change together, and the lock does not."""
    releases.install(accept=True)
    shutil.rmtree(releases.cache / "cli")
    before = releases.lock.read_text()
    url = f"https://releases.test/{CLI_FILES[1]}"
    releases.pages[url] = archive_of("pulumi/", "pulumi", "evil")
    releases.publish()
    with pytest.raises(releases.module.SetupError, match=r"not the one in toolchain\.lock"):
        releases.install()
    with pytest.raises(releases.module.SetupError, match=r"another sum than toolchain\.lock"):
        releases.install(accept=True)
    assert releases.lock.read_text() == before
    assert not (releases.cache / "cli").exists()
    assert not releases.mark.exists()


def test_sums_that_cannot_be_read_are_told_with_the_way_without_them(releases: Releases) -> None:
    del releases.pages["https://releases.test/x_4.5.6_checksums.txt"]
    with pytest.raises(releases.module.SetupError) as caught:
        releases.install(accept=True)
    text = str(caught.value)
    assert text.startswith("https://releases.test/x_4.5.6_checksums.txt: Not Found. Nothing was written.\n")
    assert f"put the archives into {releases.folder / 'archives'} (HERMES_TOOLCHAIN names another folder)" in text
    assert text.endswith("scripts/setup")
    assert not releases.lock.exists()


def test_a_list_that_leaves_an_archive_out_is_not_accepted(releases: Releases) -> None:
    releases.pages["https://releases.test/x_4.5.6_checksums.txt"] = (
        b"aa11  pulumi-resource-x-v4.5.6-linux-amd64.tar.gz\n"
    )
    with pytest.raises(releases.module.SetupError, match="has no SHA-256 of"):
        releases.install(accept=True)
    assert not releases.lock.exists()


def test_a_stand_in_is_taken_from_a_folder_and_never_from_the_network(releases: Releases) -> None:
    pins = {**PINS, "stand-ins": {CLI_FILES[1]: sum_of(releases.cli)}}
    with pytest.raises(releases.module.SetupError, match="no sum of"):
        releases.module.install_cli(pins, accept=False)
    (releases.folder / "archives").mkdir()
    (releases.folder / "archives" / CLI_FILES[1]).write_bytes(releases.cli)
    releases.module.install_cli(pins, accept=False)
    assert releases.asked == []
    assert (releases.cache / "cli" / "bin" / "pulumi").exists()


def test_a_pulumi_on_path_is_not_even_run_while_its_programs_are_in_no_list(releases: Releases) -> None:
    program = releases.path / "pulumi"
    program.write_bytes(b'#!/bin/sh\ntouch "$MARK"\necho v1.2.3\n')
    program.chmod(0o755)
    with pytest.raises(releases.module.SetupError, match="the sums of pulumi are in no list"):
        releases.install()
    assert not releases.mark.exists()
    pins = {**PINS, "stand-ins": {"a.tar.gz/pulumi": sum_of(program.read_bytes())}}
    releases.module.install_cli(pins, accept=False)
    assert (releases.cache / "cli" / "bin" / "pulumi").resolve() == program


def test_a_plugin_of_ones_own_home_is_copied_only_with_a_listed_sum(releases: Releases) -> None:
    own = releases.folder / "own" / "plugins" / "resource-x-v4.5.6"
    own.mkdir(parents=True)
    program = own / "pulumi-resource-x"
    program.write_bytes(b"#!/bin/sh\n")
    program.chmod(0o755)
    (own / "beside").write_text("not checked, not copied")
    with pytest.raises(releases.module.SetupError, match="the sums of pulumi-resource-x are in no list"):
        releases.module.install_plugins(PINS, accept=False)
    pins = {**PINS, "stand-ins": {"x.tar.gz/pulumi-resource-x": sum_of(program.read_bytes())}}
    releases.module.install_plugins(pins, accept=False)
    installed = releases.cache / "home" / "plugins" / own.name
    assert [file.name for file in installed.iterdir()] == ["pulumi-resource-x"]


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022])
def test_what_is_set_up_is_its_owners_alone(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, umask: int
) -> None:
    """Programs are run from there: a neighbour that may write it runs his own in this user's name."""
    monkeypatch.setattr(setup, "CACHE", tmp_path / "cache")
    for name in ("VENV", "STACK_VENV"):
        monkeypatch.setattr(setup, name, tmp_path / "cache" / name)
    before = os.umask(umask)
    try:
        setup.close_cache()
        assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
        (tmp_path / "cache").chmod(0o777)
        (tmp_path / "cache" / "uv-cache").mkdir()
        (tmp_path / "cache" / "uv-cache" / ".lock").touch(mode=0o666)
        setup.close_cache()
    finally:
        os.umask(before)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "cache" / "uv-cache" / ".lock").stat().st_mode & 0o777 == 0o600


def test_every_platform_has_its_archives_by_the_names_that_upstream_gives_them(setup: ModuleType) -> None:
    """`pulumi-v3.276.0-darwin-x64`, `pulumi-resource-command-v1.2.1-darwin-amd64`: facts of the releases."""
    pins = tomllib.loads((ROOT / "toolchain.toml").read_text())
    assert sorted(pins["platforms"]) == ["Darwin-arm64", "Darwin-x86_64", "Linux-aarch64", "Linux-x86_64"]

    names = {
        plugin: {setup.tool("", pin, names).file for names in pins["platforms"].values()}
        for plugin, pin in [("", pins["pulumi"]), *pins["plugins"].items()]
    }
    assert names[""] == {
        f"pulumi-v3.276.0-{name}.tar.gz" for name in ("linux-x64", "linux-arm64", "darwin-x64", "darwin-arm64")
    }
    for plugin in ("proxmoxve", "command"):
        assert all(name.startswith(f"pulumi-resource-{plugin}-v") for name in names[plugin])
        assert {name.rpartition("-v")[2].partition("-")[2] for name in names[plugin]} == {
            "linux-amd64.tar.gz",
            "linux-arm64.tar.gz",
            "darwin-amd64.tar.gz",
            "darwin-arm64.tar.gz",
        }
    # A stand-in is one of them, or a program in one.
    every = set().union(*names.values())
    assert {name.partition("/")[0] for name in pins["stand-ins"]} <= every
    # What the lock holds is an official archive, so none of the stand-ins.
    assert not set(setup.recorded_sums().values()) & set(pins["stand-ins"].values())


def test_the_pins_agree_with_the_python_packages() -> None:
    """A plugin and its SDK are released together; another version of one would not fit the other."""
    pins = tomllib.loads((ROOT / "toolchain.toml").read_text())["plugins"]
    lock = (ROOT / "requirements-tests.lock").read_text()
    assert f"pulumi-proxmoxve=={pins['proxmoxve']['version']} " in lock
    assert f"pulumi-command=={pins['command']['version']} " in lock


LOCKS = ("requirements.lock", "requirements-lab.lock", "requirements-tests.lock")


def locked(name: str) -> list[str]:
    """The packages of a lock, each of which has a sum."""
    lines = (ROOT / name).read_text().splitlines()
    numbers = [number for number, line in enumerate(lines) if "==" in line and not line.startswith((" ", "#"))]
    for number in numbers:
        assert "--hash=sha256:" in lines[number + 1], lines[number]
    return [lines[number].partition("==")[0] for number in numbers]


def declared(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def test_each_package_is_locked_with_a_sum_where_it_is_needed_first() -> None:
    """Each set-up installs what it needs and no more: a stack's run asks pip for all of a stack's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    stack, lab, tests = (locked(name) for name in LOCKS)
    assert declared(project["project"]["dependencies"]) <= set(stack)
    assert declared(groups["lab"]) <= {*stack, *lab}
    assert declared(groups["lab"]) & set(stack) == set()
    assert declared(groups["dev"]) <= set(tests)
    every = [*stack, *lab, *tests]
    assert len(every) == len(set(every))


PROGRAMS = """
import importlib, pathlib, runpy, sys
sys.path[:0] = [str(pathlib.Path.cwd())]
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_a_stack_s_environment_is_enough_for_what_runs_in_it() -> None:
    """The program, the server of its resources, what is imported where it is used, and the scripts that need no lab."""
    scripts = [
        file.name
        for file in (ROOT / "scripts").iterdir()
        if file.is_file() and 'stack-venv/bin/python" "$root/scripts/lib' in file.read_text()
    ]
    assert set(scripts) >= {"env", "agent", "preview", "adopt", "permissions", "trust"}
    modules = [f"scripts.lib.{name}" for name in scripts]
    for folder in ("settings", "components", "applications", "provisioning", "proxmox"):
        modules += [
            ".".join(file.relative_to(ROOT).with_suffix("").parts)
            for file in (ROOT / folder).rglob("*.py")
            if not {"guest", "scripts", "templates"} & set(file.relative_to(ROOT).parts) and file.name[:2] != "__"
        ]
    python = ROOT / ".cache" / "stack-venv" / "bin" / "python"
    late = ["paramiko", "jinja2", "dotenv", "requests", "proxmoxer", "pip"]
    done = subprocess.run(
        [python, "-c", PROGRAMS, *modules, *late], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    missing = [str(python), "-c", "import pytest"]
    assert subprocess.run(missing, cwd=ROOT, capture_output=True, check=False, timeout=60).returncode == 1


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs the system's own Python beside the venv's")
def test_the_set_up_needs_nothing_but_the_standard_library() -> None:
    """It runs before anything is installed."""
    code = f"import runpy; runpy.run_path({str(ROOT / 'scripts/lib/setup.py')!r})"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_a_wider_set_up_is_enough_for_a_narrower_one(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "STAMP", tmp_path / "stamp")
    monkeypatch.setattr(setup, "programs_folder", lambda: tmp_path)
    for name in ("VENV", "STACK_VENV", "UV"):
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
def test_a_failed_command_is_shown_with_advice_and_without_its_retries(
    setup: ModuleType, says: str, advice: str
) -> None:
    retry = f"WARNING: Retrying (Retry(total=4)) after {says}"
    program = f"import sys; print({retry!r}); print({says!r}); sys.exit(3)"
    with pytest.raises(setup.SetupError) as caught:
        setup.run([sys.executable, "-c", program], "installing uv")
    assert "installing uv failed" in str(caught.value)
    assert says in str(caught.value)
    assert advice in str(caught.value)
    assert "Retrying" not in str(caught.value)


def test_an_unknown_failure_gets_no_advice(setup: ModuleType) -> None:
    assert setup.remedy("segmentation fault") == ""


def test_a_machine_without_debian_s_package_database_is_set_up_all_the_same(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fedora, macOS: a stack needs nothing of Debian; the local Proxmox does, and the text says so."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert setup.debian_packages("no-lab") == []
    assert capsys.readouterr().err == ""
    assert setup.debian_packages("lab") == setup.debian_packages("tests") == []
    assert "needs Debian or Ubuntu" in capsys.readouterr().err
    setup.unpack_debian_packages()


def test_a_platform_that_upstream_does_not_build_for_is_named(
    releases: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases.module.platform, "machine", lambda: "riscv64")
    with pytest.raises(
        releases.module.SetupError, match=r"no build for Linux-riscv64\. Known are Linux-x86_64, Darwin"
    ):
        releases.install()
