"""Set-up of a checkout, run by scripts/setup with whatever Python 3.11+ there is.

Only the standard library is at hand here: this is what brings everything else.
All that it makes lies below ``.cache``; the caller's site-packages, Pulumi home
and git configuration are never touched.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
UV = CACHE / "uv" / "bin" / "uv"
VENV = CACHE / "venv"
CLI = CACHE / "pulumi-cli"
PULUMI_HOME = CACHE / "pulumi-home"
TOOLS = CACHE / "tools"
STAMP = CACHE / "setup.stamp"
ARCHIVES_VARIABLE = "HERMES_TOOLCHAIN"
DEFAULT_ARCHIVES = ROOT.parent / "shared" / "toolchain"
DOWNLOAD_TIMEOUT = 60  # seconds without a byte

INPUTS = (
    Path(__file__),
    ROOT / "requirements.lock",
    ROOT / "toolchain.toml",
    ROOT / "provisioning" / "scripts" / "uv.lock",
    ROOT / "lab" / "debian-packages.txt",
    ROOT / "tests" / "debian-packages.txt",
)
SCOPES = ("no-lab", "lab", "tests")
"""What a set-up is for; each does all that those before it do."""


class SetupError(Exception):
    """Something that the person in front of the terminal has to do; the text says what."""


def say(line: str) -> None:
    print(f"setup: {line}", file=sys.stderr, flush=True)


def run(argv: Sequence[str | Path], what: str, **options: Any) -> None:
    """Run a command quietly; show its output only when it fails."""
    done = subprocess.run(
        [str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options
    )
    if done.returncode:
        lines = [line for line in done.stdout.strip().splitlines() if "Retrying (Retry(" not in line]
        tail = "\n".join(f"    {line}" for line in lines[-15:])
        advice = remedy(done.stdout)
        raise SetupError(f"{what} failed ({argv[0]} ended with {done.returncode}):\n{tail}{advice}")


REMEDIES = (
    ("No space left on device", f"The disk is full: make 1 GB of room (the lab: 3) for {CACHE}, then run this again."),
    (
        "UnknownIssuer|CERTIFICATE_VERIFY_FAILED|certificate verify failed",
        (
            "A certificate is not trusted: where a proxy has its own authority, add that to the system's certificates "
            "(update-ca-certificates), then run this again."
        ),
    ),
    (
        "NewConnectionError|ConnectTimeout|error sending request|[Nn]ame or service not known|resolve|resolution",
        (
            "There is no way to the packages: check the network; behind a proxy set https_proxy, with a mirror of "
            "your own PIP_INDEX_URL and UV_DEFAULT_INDEX. Then run this again: it goes on where it was."
        ),
    ),
)
"""What a failed download says, and what to do about it; the first that fits."""


def remedy(output: str) -> str:
    """Advice for a command's output, as a line to add to it; empty where nothing is known."""
    return next((f"\n{advice}" for pattern, advice in REMEDIES if re.search(pattern, output)), "")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- one stamp for everything ------------------------------------------------------------------


def fingerprint() -> str:
    """What a finished set-up depends on. Another place of the checkout counts: a venv can't be moved."""
    digest = hashlib.sha256(f"{ROOT}\n{sys.version_info[:2]}\n".encode())
    for path in INPUTS:
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()


def finished(mark: str, scope: str) -> bool:
    """Whether an earlier run did all of this, or more."""
    done = [f"{mark} {wider}" for wider in SCOPES[SCOPES.index(scope) :]]
    return (
        STAMP.exists()
        and STAMP.read_text() in done
        and (VENV / "bin" / "python").exists()
        and pulumi_link().exists()
        and UV.exists()
    )


# --- Debian packages ---------------------------------------------------------------------------


def listed_packages(folder: str) -> list[list[str]]:
    """The lines of a folder's debian-packages.txt, as words."""
    file = ROOT / folder / "debian-packages.txt"
    lines = (line.split("#")[0].split() for line in file.read_text().splitlines()) if file.exists() else ()
    return [words for words in lines if words]


def is_debian(release: Path = Path("/etc/os-release")) -> bool:
    """Debian itself: Ubuntu's Chromium is a snap, which needs a running snapd."""
    lines = release.read_text().splitlines() if release.exists() else []
    return any(line.replace('"', "") == "ID=debian" for line in lines)


def debian_packages(scope: str) -> list[str]:
    """The packages that are wanted and not installed, in the order of the list."""
    wanted = ["git", "ca-certificates"]
    if scope != "no-lab":
        # shellcheck is for scripts/check.
        wanted += ["shellcheck", *(words[0] for words in listed_packages("lab"))]
    if scope == "tests":
        browser = [words[0] for words in listed_packages("tests") if UNPACKED not in words]
        if is_debian():
            wanted += browser
        else:
            say(f"not Debian, where {' and '.join(browser)} are packages: without them the browser's tests are skipped")
    query = subprocess.run(
        ["dpkg-query", "-W", "-f=${Package} ${db:Status-Status}\n"], capture_output=True, text=True, check=False
    )
    installed = {line.split()[0] for line in query.stdout.splitlines() if line.endswith(" installed")}
    return [name for name in wanted if name not in installed]


UNPACKED = "unpacked"


def unpack_debian_packages() -> None:
    """Bring the programs that tests start themselves: installed, each would run as a service from now on."""
    wanted = [words[0] for words in listed_packages("tests") if UNPACKED in words]
    stamp = TOOLS / "unpacked"
    if stamp.exists() and stamp.read_text().split() == wanted:
        return
    lists = Path("/var/lib/apt/lists")
    if os.geteuid() == 0 and shutil.which("apt-get") and not any(lists.glob("*_Packages*")):
        run(["apt-get", "update", "-qq"], "reading the package lists")
    if not any(lists.glob("*_Packages*")):
        say(f"tests want {' and '.join(wanted)}, and there are no package lists to fetch them by. As root:")
        say("  apt-get update")
        return
    say(f"unpacking {' '.join(wanted)} below {TOOLS.relative_to(ROOT)}")
    shutil.rmtree(TOOLS, ignore_errors=True)
    TOOLS.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        # Not as _apt, who has no way into a checkout; the lists' sums are checked either way.
        run(
            ["apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", *wanted],
            f"downloading {' '.join(wanted)}",
            cwd=folder,
        )
        for archive in sorted(Path(folder).glob("*.deb")):
            run(["dpkg-deb", "--extract", archive, TOOLS], f"unpacking {archive.name}")
    stamp.write_text(" ".join(wanted))


def install_debian_packages(missing: Sequence[str]) -> None:
    if not missing:
        return
    command = f"apt-get update && apt-get install -y --no-install-recommends {' '.join(missing)}"
    if os.geteuid() != 0:
        say("the local Proxmox (scripts/lab, scripts/demo, scripts/test) needs packages that are not here. As root:")
        say(f"  {command}")
        return
    say(f"installing Debian packages: {' '.join(missing)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-qq"], "reading the package lists", env=env)
    run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], "installing packages", env=env)


# --- Python packages ---------------------------------------------------------------------------


def install_uv() -> None:
    lock = ROOT / "provisioning" / "scripts" / "uv.lock"
    wanted = lock.read_text().split()[0].removeprefix("uv==")
    if UV.exists():
        have = subprocess.run([str(UV), "--version"], capture_output=True, text=True, check=False).stdout.split()
        if have[1:2] == [wanted]:
            return
    if importlib.util.find_spec("pip") is None:
        install_pip()
    say(f"installing uv {wanted}")
    target = CACHE / "uv"
    shutil.rmtree(target, ignore_errors=True)
    # --target leaves the system's own packages alone, and is allowed where they are "externally managed".
    run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-deps", "--require-hashes"),
            "--target",
            target,
            "-r",
            lock,
        ],
        "installing uv",
        env={**os.environ, "PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )


def install_pip() -> None:
    if os.geteuid() == 0 and shutil.which("apt-get"):
        say("installing python3-pip")
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "update", "-qq"], "reading the package lists", env=env)
        run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "python3-pip"],
            "installing python3-pip",
            env=env,
        )
        return
    raise SetupError(
        f"{sys.executable} has no pip, which brings uv, which brings the rest.\n"
        "  On Debian or Ubuntu:  sudo apt-get install python3-pip"
    )


def install_python_packages() -> None:
    if not (VENV / "bin" / "python").exists():
        command: list[str | Path] = [
            UV,
            "venv",
            "--quiet",
            "--no-config",
            "--no-cache",
            "--python",
            sys.executable,
            VENV,
        ]
        run(command, "making the virtual environment")
    say("installing Python packages from requirements.lock")
    # A link into a shared cache on another file system is not always to be had: uv then warns and copies.
    env = {
        **os.environ,
        "UV_CACHE_DIR": str(CACHE / "uv-cache"),
        "UV_LINK_MODE": os.environ.get("UV_LINK_MODE", "hardlink"),
        # As pip and the downloads do: a network may have a certificate authority of its own.
        "UV_SYSTEM_CERTS": os.environ.get("UV_SYSTEM_CERTS", "1"),
    }
    run(
        [
            UV,
            "pip",
            "sync",
            "--quiet",
            "--require-hashes",
            "--python",
            VENV / "bin" / "python",
            ROOT / "requirements.lock",
        ],
        "installing Python packages",
        env=env,
    )


# --- the Pulumi CLI and its plugins ------------------------------------------------------------


def pulumi_link() -> Path:
    """The folder on PATH: holds ``pulumi`` and its language host, whatever place they came from."""
    return CLI / "bin"


def archive_folder() -> Path:
    return Path(os.environ.get(ARCHIVES_VARIABLE) or DEFAULT_ARCHIVES)


def cli_version(executable: Path) -> str:
    done = subprocess.run(
        [str(executable), "version"], capture_output=True, text=True, check=False, env=pulumi_environment()
    )
    return done.stdout.strip().removeprefix("v")


def pulumi_environment() -> dict[str, str]:
    return {**os.environ, "PULUMI_HOME": str(PULUMI_HOME), "PULUMI_SKIP_UPDATE_CHECK": "true"}


def link_cli(folder: Path) -> None:
    shutil.rmtree(pulumi_link(), ignore_errors=True)
    pulumi_link().mkdir(parents=True)
    for tool in sorted(folder.iterdir()):
        if tool.name.startswith("pulumi") and os.access(tool, os.X_OK):
            (pulumi_link() / tool.name).symlink_to(tool.resolve())


def first_that_works(what: str, places: Iterable[tuple[str, Callable[[], str | None]]], remedy: str) -> None:
    """Try each place; a place answers None when it served, else why it did not."""
    tried = []
    for place, attempt in places:
        try:
            refusal = attempt()
        except (OSError, tarfile.TarError, SetupError) as error:
            refusal = str(error)
        if refusal is None:
            return
        tried.append(f"  - {place}: {refusal}")
    raise SetupError(f"{what} was not found. Tried:\n" + "\n".join(tried) + f"\n{remedy}")


def install_cli(pin: dict[str, Any]) -> None:
    version = pin["version"]
    if (pulumi_link() / "pulumi").exists() and cli_version(pulumi_link() / "pulumi") == version:
        return
    kernel = f"{platform.system()}-{platform.machine()}"
    name = pin["platforms"].get(kernel)
    if name is None:
        raise SetupError(f"Pulumi publishes no build for {kernel}; known are {', '.join(pin['platforms'])}.")
    file = f"pulumi-v{version}-{name}.tar.gz"

    def from_path() -> str | None:
        found = shutil.which("pulumi")
        if found is None:
            return "no pulumi there"
        have = cli_version(Path(found))
        if have != version:
            return f"{found} is version {have or 'unknown'}, not {version}"
        link_cli(Path(found).resolve().parent)
        return None

    def unpack(archive: Path) -> None:
        target = CLI / version
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        with tarfile.open(archive) as tar:
            # Debian 12's Python 3.11.2 knows no filters yet; what is unpacked has been checked by its sum.
            safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(target, **safely)  # noqa: S202 - see above
        link_cli(target / "pulumi")

    def from_archive() -> str | None:
        archive = archive_folder() / file
        if refusal := archive_refusal(archive, pin.get("sha256", {}).get(name, [])):
            return refusal
        say(f"installing Pulumi {version} from {archive.parent}")
        unpack(archive)
        return None

    def from_download() -> str | None:
        url = pin["url"].format(version=version, platform=name)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            sums = parse_sums(download(pin["sums"].format(version=version)).decode())
            if file not in sums:
                return f"the list of sums of the release does not name {file}"
            say(f"downloading {url}")
            archive = Path(scratch) / file
            archive.write_bytes(download(url))
            if sha256(archive) != sums[file]:
                return f"{url}: the sum is not the one that the release publishes; nothing was installed"
            unpack(archive)
        return None

    first_that_works(
        f"The Pulumi CLI {version}",
        [
            ("PATH", from_path),
            (f"{archive_folder()} ({ARCHIVES_VARIABLE})", from_archive),
            ("official download", from_download),
        ],
        f"Put {file} into a folder and name it:  {ARCHIVES_VARIABLE}=/that/folder scripts/setup",
    )


def archive_refusal(archive: Path, sums: Sequence[str]) -> str | None:
    """Why an archive of the folder can't be used, or None."""
    if not archive.exists():
        return f"no {archive.name} there"
    have = sha256(archive)
    if have not in sums:
        return f"{archive.name} has the sum {have}, which toolchain.toml does not list"
    return None


def parse_sums(text: str) -> dict[str, str]:
    """A list of sums as releases publish it, ``SUM  FILE`` a line: sum by file."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[1].lstrip("*"): pair[0] for pair in pairs if len(pair) == 2 and re.fullmatch(r"[0-9a-f]+", pair[0])}


def download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT) as answer:  # noqa: S310 - https, from toolchain.toml
            body: bytes = answer.read()
            return body
    except (urllib.error.URLError, TimeoutError) as error:
        raise SetupError(f"{url}: {getattr(error, 'reason', error)}") from None


def install_plugins(pins: dict[str, Any]) -> None:
    pulumi = pulumi_link() / "pulumi"
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    name = f"{platform.system().lower()}-{machine}"
    for plugin, pin in pins.items():
        version = pin["version"]
        if (PULUMI_HOME / "plugins" / f"resource-{plugin}-v{version}").is_dir():
            continue
        file = f"pulumi-resource-{plugin}-v{version}-{name}.tar.gz"
        install = [pulumi, "plugin", "install", "resource", plugin, version]

        def from_archive(pin: dict[str, Any] = pin, file: str = file, install: list[Any] = install) -> str | None:
            archive = archive_folder() / file
            if refusal := archive_refusal(archive, pin.get("sha256", {}).get(name, [])):
                return refusal
            say(f"installing {file} from {archive.parent}")
            run([*install, "--file", archive], f"installing {file}", env=pulumi_environment())
            return None

        def from_download(pin: dict[str, Any] = pin, file: str = file, install: list[Any] = install) -> str | None:
            say(f"downloading {file}")
            run([*install, "--server", pin["server"]], "the download", env=pulumi_environment())
            return None

        def from_own_home(plugin: str = plugin, version: str = version) -> str | None:
            home = (
                Path(os.environ.get("PULUMI_HOME") or Path.home() / ".pulumi")
                / "plugins"
                / f"resource-{plugin}-v{version}"
            )
            if home.resolve().is_relative_to(PULUMI_HOME.resolve()) or not home.is_dir():
                return f"no {home}"
            say(f"copying the plugin {plugin} {version} from {home}")
            shutil.copytree(home, PULUMI_HOME / "plugins" / home.name)
            return None

        def from_path(plugin: str = plugin) -> str | None:
            # A plugin on PATH does not tell its version, so it can't be trusted to be the right one.
            found = shutil.which(f"pulumi-resource-{plugin}")
            return f"{found} does not tell its version" if found else f"no pulumi-resource-{plugin} there"

        first_that_works(
            f"The Pulumi plugin {plugin} {version}",
            [
                ("PATH", from_path),
                ("the Pulumi home of this user", from_own_home),
                (f"{archive_folder()} ({ARCHIVES_VARIABLE})", from_archive),
                (f"official download ({pin['server']})", from_download),
            ],
            f"Put {file} into a folder and name it:  {ARCHIVES_VARIABLE}=/that/folder scripts/setup",
        )


# --- the whole ---------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/setup", description="Make all that this checkout needs, below .cache."
    )
    scopes = parser.add_mutually_exclusive_group()
    for name, words in (
        ("no-lab", "leave out the Debian packages of the local Proxmox"),
        ("tests", "bring the Debian packages of the tests, too"),
    ):
        scopes.add_argument(f"--{name}", dest="scope", action="store_const", const=name, default="lab", help=words)
    scope = parser.parse_args().scope
    mark = fingerprint()
    if finished(mark, scope):
        return 0
    CACHE.mkdir(exist_ok=True)
    pins = tomllib.loads((ROOT / "toolchain.toml").read_text())
    try:
        missing = debian_packages(scope)
        install_debian_packages(missing)
        if scope == "tests":
            unpack_debian_packages()
        install_uv()
        install_python_packages()
        install_cli(pins["pulumi"])
        install_plugins(pins["plugins"])
    except (SetupError, OSError) as error:
        advice = remedy(str(error)) if isinstance(error, OSError) else ""
        print(f"setup: {error}{advice}", file=sys.stderr)
        return 1
    # Without its packages the lab can't run, and the next call has to look again.
    if not (missing and os.geteuid() != 0):
        STAMP.write_text(f"{mark} {scope}")
    say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
