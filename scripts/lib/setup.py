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
from collections.abc import Callable, Collection, Iterable, Sequence
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
LOCK = ROOT / "toolchain.lock"
ARCHIVES_VARIABLE = "HERMES_TOOLCHAIN"
DEFAULT_ARCHIVES = ROOT.parent / "shared" / "toolchain"
DOWNLOAD_TIMEOUT = 60  # seconds without a byte

INPUTS = (
    Path(__file__),
    ROOT / "requirements.lock",
    ROOT / "toolchain.toml",
    LOCK,
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
    # What an editable installation leaves; the distribution beside us needs no build here, and no build backend.
    for packages in VENV.glob("lib/python*/site-packages"):
        (packages / "pvelab.pth").write_text(f"{ROOT / 'pvelab' / 'src'}\n")


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
        if is_tool(tool):
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


def official_sums() -> dict[str, str]:
    """toolchain.lock: the sums of official archives, and of programs in them, that this checkout holds downloads to."""
    return parse_sums(LOCK.read_text()) if LOCK.exists() else {}


def known_sums(pins: dict[str, Any]) -> frozenset[str]:
    """Every sum that something which is here already may have."""
    return frozenset([*pins["stand-ins"].values(), *official_sums().values()])


def parse_sums(text: str) -> dict[str, str]:
    """A list of sums as releases publish it, ``SUM  FILE`` a line: sum by file."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[1].lstrip("*"): pair[0] for pair in pairs if len(pair) == 2 and re.fullmatch(r"[0-9a-f]+", pair[0])}


def record(found: dict[str, str]) -> None:
    """Add lines to toolchain.lock. SetupError where one is there with another sum: nothing is overwritten."""
    have = official_sums()
    changed = [name for name, digest in found.items() if have.get(name, digest) != digest]
    if changed:
        raise SetupError(
            f"{', '.join(changed)}: what is published now has another sum than toolchain.lock. Nothing was written.\n"
            "  A release does not change: find out why before you go on (compare with another machine, ask upstream)."
        )
    new = {name: digest for name, digest in sorted(found.items()) if name not in have}
    if new:
        for name, digest in new.items():
            say(f"accepted: {digest}  {name}")
        text = LOCK.read_text() if LOCK.exists() else ""
        write_whole(LOCK, text + "".join(f"{digest}  {name}\n" for name, digest in new.items()))


def write_whole(path: Path, text: str) -> None:
    """Replace a file by a rename: never half of it."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)


def accept_sums(pins: dict[str, Any]) -> None:
    """Write down what the releases publish now, for all platforms: from then on every machine is held to it."""
    found: dict[str, str] = {}
    for plugin, pin in [("", pins["pulumi"]), *pins["plugins"].items()]:
        url = pin["sums"].format(version=pin["version"])
        published = parse_sums(download(url).decode())
        wanted = [archive_name(plugin, pin, platform_of(plugin, name)) for name in pins["pulumi"]["platforms"]]
        missing = [file for file in wanted if not re.fullmatch(r"[0-9a-f]{64}", published.get(file, ""))]
        if missing:
            raise SetupError(f"{url} has no SHA-256 of {', '.join(missing)}. Nothing was written.")
        found |= {file: published[file] for file in wanted}
    record(found)


def platform_of(plugin: str, kernel: str) -> str:
    """What upstream calls ``uname -s``-``uname -m`` in a plugin's archive; the CLI's names are in toolchain.toml."""
    if not plugin:
        return kernel
    system, _, machine = kernel.partition("-")
    return f"{system.lower()}-{ {'x86_64': 'amd64', 'aarch64': 'arm64'}.get(machine, machine) }"


def archive_name(plugin: str, pin: dict[str, Any], platform_name: str) -> str:
    """The archive's file name; ``plugin`` empty: the CLI's, by whose own table the platform's name goes."""
    if plugin:
        return f"pulumi-resource-{plugin}-v{pin['version']}-{platform_name}.tar.gz"
    return f"pulumi-v{pin['version']}-{pin['platforms'][platform_name]}.tar.gz"


def archive_refusal(archive: Path, sums: Collection[str]) -> str | None:
    """Why an archive of the folder can't be used, or None."""
    if not archive.exists():
        return f"no {archive.name} there"
    have = sha256(archive)
    if have not in sums:
        return f"{archive.name} has the sum {have}, which neither toolchain.lock nor toolchain.toml lists"
    return None


def programs_refusal(folder: Path, sums: Collection[str]) -> str | None:
    """Why programs that this user has already can't be used, or None."""
    programs = [tool for tool in sorted(folder.iterdir()) if is_tool(tool)]
    unknown = [tool.name for tool in programs if sha256(tool) not in sums]
    if not programs or unknown:
        what = f"the sums of {', '.join(unknown)}" if unknown else "programs"
        return f"{folder}: {what} are in no list of this checkout"
    return None


def is_tool(file: Path) -> bool:
    return file.name.startswith("pulumi") and file.is_file() and os.access(file, os.X_OK)


def download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT) as answer:  # noqa: S310 - https, from toolchain.toml
            body: bytes = answer.read()
            return body
    except (urllib.error.URLError, TimeoutError) as error:
        raise SetupError(f"{url}: {getattr(error, 'reason', error)}") from None


def download_checked(url: str, file: str, target: Path) -> str | None:
    """Download an archive into ``target``, held to its line in toolchain.lock; why not, or None."""
    wanted = official_sums().get(file)
    if wanted is None:
        return (
            f"toolchain.lock has no sum of {file}, so it would be compared with nothing. To write down what the "
            "releases publish: scripts/setup --accept-sums"
        )
    say(f"downloading {url}")
    body = download(url)
    have = hashlib.sha256(body).hexdigest()
    if have != wanted:
        return f"{url} has the sum {have}, and not the one in toolchain.lock, {wanted}; nothing was installed"
    target.write_bytes(body)
    return None


def install_cli(pins: dict[str, Any], *, accept: bool) -> None:
    pin = pins["pulumi"]
    version = pin["version"]
    if (pulumi_link() / "pulumi").exists() and cli_version(pulumi_link() / "pulumi") == version:
        return
    kernel = f"{platform.system()}-{platform.machine()}"
    name = pin["platforms"].get(kernel)
    if name is None:
        raise SetupError(f"Pulumi publishes no build for {kernel}; known are {', '.join(pin['platforms'])}.")
    file = archive_name("", pin, kernel)

    def from_path() -> str | None:
        found = shutil.which("pulumi")
        if found is None:
            return "no pulumi there"
        # Before it is run, even for its version.
        folder = Path(found).resolve().parent
        if refusal := programs_refusal(folder, known_sums(pins)):
            return refusal
        have = cli_version(Path(found))
        if have != version:
            return f"{found} is version {have or 'unknown'}, not {version}"
        link_cli(folder)
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
        if refusal := archive_refusal(archive, known_sums(pins)):
            return refusal
        say(f"installing Pulumi {version} from {archive.parent}")
        unpack(archive)
        return None

    def from_download() -> str | None:
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            archive = Path(scratch) / file
            if refusal := download_checked(pin["url"].format(version=version, platform=name), file, archive):
                return refusal
            unpack(archive)
        if accept:
            record_programs(file, CLI / version / "pulumi")
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


def record_programs(file: str, folder: Path) -> None:
    """Write down the programs of an archive that was checked, so that whoever has them already may use them."""
    record({f"{file}/{tool.name}": sha256(tool) for tool in folder.iterdir() if is_tool(tool)})


def install_plugins(pins: dict[str, Any], *, accept: bool) -> None:
    pulumi = pulumi_link() / "pulumi"
    kernel = f"{platform.system()}-{platform.machine()}"
    for plugin, pin in pins["plugins"].items():
        version = pin["version"]
        installed = PULUMI_HOME / "plugins" / f"resource-{plugin}-v{version}"
        if installed.is_dir():
            continue
        name = platform_of(plugin, kernel)
        file = archive_name(plugin, pin, name)
        install = [pulumi, "plugin", "install", "resource", plugin, version, "--file"]

        def from_archive(file: str = file, install: list[Any] = install) -> str | None:
            archive = archive_folder() / file
            if refusal := archive_refusal(archive, known_sums(pins)):
                return refusal
            say(f"installing {file} from {archive.parent}")
            run([*install, archive], f"installing {file}", env=pulumi_environment())
            return None

        def from_download(
            pin: dict[str, Any] = pin,
            file: str = file,
            name: str = name,
            install: list[Any] = install,
            installed: Path = installed,
        ) -> str | None:
            url = pin["url"].format(version=pin["version"], platform=name)
            with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                archive = Path(scratch) / file
                if refusal := download_checked(url, file, archive):
                    return refusal
                run([*install, archive], f"installing {file}", env=pulumi_environment())
            if accept:
                record_programs(file, installed)
            return None

        def from_own_home(plugin: str = plugin, installed: Path = installed) -> str | None:
            home = Path(os.environ.get("PULUMI_HOME") or Path.home() / ".pulumi") / "plugins" / installed.name
            if home.resolve().is_relative_to(PULUMI_HOME.resolve()) or not home.is_dir():
                return f"no {home}"
            if refusal := programs_refusal(home, known_sums(pins)):
                return refusal
            say(f"copying the plugin {plugin} from {home}")
            # The programs that were checked and nothing else; and what was copied is what was checked.
            with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                copy = Path(scratch) / installed.name
                copy.mkdir()
                for tool in filter(is_tool, home.iterdir()):
                    shutil.copy2(tool, copy / tool.name)
                if refusal := programs_refusal(copy, known_sums(pins)):
                    return refusal
                shutil.copytree(copy, installed)
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
                ("official download", from_download),
            ],
            f"Put {file} into a folder and name it:  {ARCHIVES_VARIABLE}=/that/folder scripts/setup",
        )


# --- the whole ---------------------------------------------------------------------------------


def close_cache() -> None:
    """Leave ``.cache`` to its owner, whatever the umask and whoever made it: programs are run from it.

    uv makes its lock file writable by all; behind the folder it could not be reached, and is closed all the same.
    """
    CACHE.mkdir(mode=0o700, exist_ok=True)
    for path, mode in ((CACHE, 0o700), (CACHE / "uv-cache" / ".lock", 0o600), (VENV / ".lock", 0o600)):
        if path.exists() and path.stat().st_uid == os.geteuid() and path.stat().st_mode & 0o777 != mode:
            path.chmod(mode)


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
    parser.add_argument(
        "--accept-sums",
        action="store_true",
        help="write the sums that the releases publish now into toolchain.lock, to which downloads are held",
    )
    chosen = parser.parse_args()
    scope, accept = chosen.scope, chosen.accept_sums
    close_cache()
    mark = fingerprint()
    if finished(mark, scope) and not accept:
        return 0
    pins = tomllib.loads((ROOT / "toolchain.toml").read_text())
    try:
        if accept:
            accept_sums(pins)
        missing = debian_packages(scope)
        install_debian_packages(missing)
        if scope == "tests":
            unpack_debian_packages()
        install_uv()
        install_python_packages()
        install_cli(pins, accept=accept)
        install_plugins(pins, accept=accept)
    except (SetupError, OSError) as error:
        advice = remedy(str(error)) if isinstance(error, OSError) else ""
        print(f"setup: {error}{advice}", file=sys.stderr)
        return 1
    # Without its packages the lab can't run, and the next call has to look again.
    if not (missing and os.geteuid() != 0):
        STAMP.write_text(f"{fingerprint() if accept else mark} {scope}")
    close_cache()
    say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
