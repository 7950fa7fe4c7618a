"""Sets up a checkout. scripts/setup runs it with any Python 3.11 or newer.

It uses the standard library only, because it installs everything else: uv by pip, the Python packages by uv, the Pulumi
CLI from an archive, the plugins by the CLI. It writes below ``.cache`` only.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
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
import urllib.request
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
UV = CACHE / "uv" / "bin" / "uv"
STACK_VENV = CACHE / "stack-venv"
"""What a stack needs, and no more: Pulumi's language host asks pip for all packages of it before each run."""
VENV = CACHE / "venv"
"""What the lab and the tests need beside it, and the packages of STACK_VENV on its path."""
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
    ROOT / "requirements-lab.lock",
    ROOT / "requirements-tests.lock",
    ROOT / "toolchain.toml",
    LOCK,
    ROOT / "provisioning" / "scripts" / "uv.lock",
    ROOT / "pvelab" / "src" / "pvelab" / "debian-packages.txt",
    ROOT / "tests" / "debian-packages.txt",
)
SCOPES = ("no-lab", "lab", "tests")
"""What a set-up is for. Each scope includes those before it."""


class SetupError(Exception):
    """The user has to act; the text says how."""


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
            "A certificate is not trusted. If a proxy has its own authority, add it to the system's certificates "
            "(update-ca-certificates), then run this again."
        ),
    ),
    (
        "NewConnectionError|ConnectTimeout|error sending request|[Nn]ame or service not known|resolve|resolution",
        (
            "The packages can't be reached: check the network. Behind a proxy set https_proxy; with a mirror of your "
            "own set PIP_INDEX_URL and UV_DEFAULT_INDEX. Then run this again: it continues where it stopped."
        ),
    ),
)
"""Patterns in a failed command's output, each with its advice. The first match counts."""


def remedy(output: str) -> str:
    """Advice for a command's output, with a line break before it; empty where none is known."""
    return next((f"\n{advice}" for pattern, advice in REMEDIES if re.search(pattern, output)), "")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- one stamp for everything ------------------------------------------------------------------


def fingerprint() -> str:
    """Digest of all that a set-up depends on, the checkout's place included: a venv can't be moved."""
    digest = hashlib.sha256(f"{ROOT}\n{sys.version_info[:2]}\n".encode())
    for path in INPUTS:
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()


def finished(mark: str, scope: str) -> bool:
    """Whether an earlier run has done this scope or a wider one."""
    done = [f"{mark} {wider}" for wider in SCOPES[SCOPES.index(scope) :]]
    environments = (STACK_VENV,) if scope == "no-lab" else (STACK_VENV, VENV)
    return (
        STAMP.exists()
        and STAMP.read_text() in done
        and all((environment / "bin" / "python").exists() for environment in environments)
        and programs_folder().exists()
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
    """The missing packages, in the order of the list; none where there is no package database of Debian's kind."""
    if shutil.which("dpkg-query") is None:
        if scope != "no-lab":
            say("the local Proxmox (scripts/lab, scripts/demo, scripts/test) needs Debian or Ubuntu, and is left out")
        return []
    wanted = ["git", "ca-certificates"]
    if scope != "no-lab":
        # shellcheck is for scripts/check.
        wanted += ["shellcheck", *(words[0] for words in listed_packages("pvelab/src/pvelab"))]
    if scope == "tests":
        browser = [words[0] for words in listed_packages("tests") if UNPACKED not in words]
        if is_debian():
            wanted += browser
        else:
            say(f"{' and '.join(browser)} are packages of Debian only: without them the browser's tests are skipped")
    query = subprocess.run(
        ["dpkg-query", "-W", "-f=${Package} ${db:Status-Status}\n"], capture_output=True, text=True, check=False
    )
    installed = {line.split()[0] for line in query.stdout.splitlines() if line.endswith(" installed")}
    return [name for name in wanted if name not in installed]


UNPACKED = "unpacked"


def unpack_debian_packages() -> None:
    """Unpack the programs that the tests start. Installed packages would run as services."""
    wanted = [words[0] for words in listed_packages("tests") if UNPACKED in words]
    stamp = TOOLS / "unpacked"
    if stamp.exists() and stamp.read_text().split() == wanted:
        return
    if shutil.which("apt-get") is None:
        return
    lists = Path("/var/lib/apt/lists")
    if os.geteuid() == 0 and not any(lists.glob("*_Packages*")):
        update_package_lists()
    if not any(lists.glob("*_Packages*")):
        say(f"the tests need {' and '.join(wanted)}, and apt has no package lists yet. As root:")
        say("  apt-get update")
        return
    say(f"unpacking {' '.join(wanted)} below {TOOLS.relative_to(ROOT)}")
    shutil.rmtree(TOOLS, ignore_errors=True)
    TOOLS.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        # Not as the user _apt, who can't enter a checkout. apt checks the sums of its lists either way.
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
        say("packages are missing, for the local Proxmox or the tests. As root:")
        say(f"  {command}")
        return
    say(f"installing Debian packages: {' '.join(missing)}")
    update_package_lists()
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], "installing packages", env=env)


def update_package_lists() -> None:
    run(["apt-get", "update", "-qq"], "reading the package lists")


# --- Python packages ---------------------------------------------------------------------------


def install_uv() -> None:
    lock = ROOT / "provisioning" / "scripts" / "uv.lock"
    wanted = lock.read_text().split()[0].removeprefix("uv==")
    if UV.exists():
        have = subprocess.run([str(UV), "--version"], capture_output=True, text=True, check=False).stdout.split()
        if have[1:2] == [wanted]:
            return
    if importlib.util.find_spec("pip") is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise SetupError(
                f"{sys.executable} has no pip, and uv is installed by pip.\n"
                "  On Debian or Ubuntu:  sudo apt-get install python3-pip"
            )
        install_debian_packages(["python3-pip"])
    say(f"installing uv {wanted}")
    target = CACHE / "uv"
    shutil.rmtree(target, ignore_errors=True)
    # --target leaves the system's own packages alone, and is allowed where they are "externally managed".
    options = ("--quiet", "--no-cache-dir", "--no-deps", "--require-hashes", "--target", target)
    env = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    run([sys.executable, "-m", "pip", "install", *options, "-r", lock], "installing uv", env=env)


def install_python_packages(scope: str) -> None:
    install_environment(STACK_VENV, ["requirements.lock"])
    if scope == "no-lab":
        return
    install_environment(VENV, [f"requirements-{part}.lock" for part in SCOPES[1 : SCOPES.index(scope) + 1]])
    [below] = STACK_VENV.glob("lib/python*/site-packages")
    [packages] = VENV.glob("lib/python*/site-packages")
    (packages / "stack.pth").write_text(f"{below}\n")
    # As an editable installation does. The distribution in pvelab/ then needs no build and no build backend.
    (packages / "pvelab.pth").write_text(f"{ROOT / 'pvelab' / 'src'}\n")


def install_environment(environment: Path, locks: Sequence[str]) -> None:
    """Make a virtual environment that has exactly the packages of these locks."""
    if not (environment / "bin" / "python").exists():
        make = (UV, "venv", "--quiet", "--no-config", "--no-cache", "--python", sys.executable)
        run([*make, environment], "making the virtual environment")
    say(f"installing Python packages from {' and '.join(locks)}")
    # uv warns and copies where a shared cache lies on another file system.
    env = {
        **os.environ,
        "UV_CACHE_DIR": str(CACHE / "uv-cache"),
        "UV_LINK_MODE": os.environ.get("UV_LINK_MODE", "hardlink"),
        # As pip does: a network may have its own certificate authority.
        "UV_SYSTEM_CERTS": os.environ.get("UV_SYSTEM_CERTS", "1"),
    }
    # Compiled here: where PYTHONDONTWRITEBYTECODE is set, each run would compile all that it imports.
    sync = (UV, "pip", "sync", "--quiet", "--require-hashes", "--compile-bytecode")
    python = environment / "bin" / "python"
    run([*sync, "--python", python, *(ROOT / lock for lock in locks)], "installing Python packages", env=env)


# --- the Pulumi CLI and its plugins ------------------------------------------------------------


class Tool(NamedTuple):
    """The Pulumi CLI or one of its plugins: an archive of a release, and where that is published."""

    title: str
    version: str
    url: str

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


def tool(title: str, pin: dict[str, Any], names: dict[str, str]) -> Tool:
    """The tool of a pin. ``names``: what upstream calls the platform, of ``[platforms]`` in toolchain.toml."""
    version = pin["version"]
    return Tool(f"{title} {version}", version, pin["url"].format(version=version, **names))


def names_of_platform(pins: dict[str, Any]) -> dict[str, str]:
    kernel = f"{platform.system()}-{platform.machine()}"
    if kernel not in pins["platforms"]:
        raise SetupError(f"Pulumi publishes no build for {kernel}. Known are {', '.join(pins['platforms'])}.")
    names: dict[str, str] = pins["platforms"][kernel]
    return names


def programs_folder() -> Path:
    """The folder for PATH: ``pulumi`` and its language host, as links to where they are."""
    return CLI / "bin"


def archive_folder() -> Path:
    return Path(os.environ.get(ARCHIVES_VARIABLE) or DEFAULT_ARCHIVES)


def pulumi_environment() -> dict[str, str]:
    return {**os.environ, "PULUMI_HOME": str(PULUMI_HOME), "PULUMI_SKIP_UPDATE_CHECK": "true"}


def cli_version(executable: Path) -> str:
    argv = [str(executable), "version"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=pulumi_environment())
    return done.stdout.strip().removeprefix("v")


def programs_in(folder: Path) -> list[Path]:
    def is_program(file: Path) -> bool:
        return file.name.startswith("pulumi") and file.is_file() and os.access(file, os.X_OK)

    return sorted(filter(is_program, folder.iterdir()))


# --- their sums ---


def recorded_sums() -> dict[str, str]:
    """toolchain.lock: SHA-256 by FILE of an official archive, or by FILE/PROGRAM in it."""
    return parse_sums(LOCK.read_text()) if LOCK.exists() else {}


def local_sums(pins: dict[str, Any]) -> frozenset[str]:
    """The sums allowed for what is on this machine already. Stand-ins are never taken from the network."""
    return frozenset([*pins["stand-ins"].values(), *recorded_sums().values()])


def parse_sums(text: str) -> dict[str, str]:
    """Read a published list, a line ``SUM  FILE`` each. Returns the sum by file."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[1].lstrip("*"): pair[0] for pair in pairs if len(pair) == 2 and re.fullmatch(r"[0-9a-f]+", pair[0])}


def record(found: dict[str, str]) -> None:
    """Add lines to toolchain.lock. Raises SetupError, and writes nothing, if a line has another sum."""
    have = recorded_sums()
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
        part = LOCK.with_name(f".{LOCK.name}.part")
        part.write_text(text + "".join(f"{digest}  {name}\n" for name, digest in new.items()))
        part.replace(LOCK)


def accept_sums(pins: dict[str, Any]) -> None:
    """Record what the releases publish now, for all platforms. Later downloads must have these sums."""
    found: dict[str, str] = {}
    for pin in (pins["pulumi"], *pins["plugins"].values()):
        url = pin["sums"].format(version=pin["version"])
        try:
            published = parse_sums(download(url).decode())
        except SetupError as error:
            raise SetupError(
                f"{error}. Nothing was written.\n"
                "  --accept-sums reads what the releases publish: run it again when they can be reached. Without\n"
                f"  them, put the archives into {archive_folder()} ({ARCHIVES_VARIABLE} names another folder);\n"
                "  then run scripts/setup"
            ) from None
        wanted = [tool("", pin, names).file for names in pins["platforms"].values()]
        missing = [file for file in wanted if not re.fullmatch(r"[0-9a-f]{64}", published.get(file, ""))]
        if missing:
            raise SetupError(f"{url} has no SHA-256 of {', '.join(missing)}. Nothing was written.")
        found |= {file: published[file] for file in wanted}
    record(found)


def archive_refusal(archive: Path, sums: Collection[str]) -> str | None:
    """Why an archive of the folder can't be used, or None."""
    if not archive.exists():
        return f"no {archive.name} there"
    have = sha256(archive)
    if have not in sums:
        return f"{archive.name} has the sum {have}, which neither toolchain.lock nor toolchain.toml lists"
    return None


def programs_refusal(folder: Path, sums: Collection[str]) -> str | None:
    """Why the programs in a folder of this user's can't be used, or None."""
    programs = programs_in(folder)
    unknown = [program.name for program in programs if sha256(program) not in sums]
    if not programs or unknown:
        what = f"the sums of {', '.join(unknown)}" if unknown else "programs"
        return f"{folder}: {what} are in no list of this checkout"
    return None


# --- where they come from ---


def download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT) as answer:  # noqa: S310 - https, from toolchain.toml
            body: bytes = answer.read()
            return body
    except (OSError, http.client.HTTPException) as error:
        raise SetupError(f"{url}: {getattr(error, 'reason', error)}") from None


def download_checked(wanted: Tool, target: Path) -> str | None:
    """Download an archive into ``target`` if it has its sum of toolchain.lock. Returns why not, or None."""
    sum_of_lock = recorded_sums().get(wanted.file)
    if sum_of_lock is None:
        return (
            f"toolchain.lock has no sum of {wanted.file}, so nothing would check the download. To record what the "
            "releases publish: scripts/setup --accept-sums"
        )
    say(f"downloading {wanted.url}")
    body = download(wanted.url)
    have = hashlib.sha256(body).hexdigest()
    if have != sum_of_lock:
        return (
            f"{wanted.url} has the sum {have}, and not the one in toolchain.lock, {sum_of_lock}. Nothing was installed"
        )
    target.write_bytes(body)
    return None


Place = tuple[str, Callable[[], str | None]]
"""A place to look in: its name, and an attempt that returns why it failed, or None."""


def first_that_works(what: str, places: Iterable[Place], advice: str) -> None:
    """Try each place until one works. Raises SetupError with the reasons of all."""
    tried = []
    for place, attempt in places:
        try:
            refusal = attempt()
        except (OSError, tarfile.TarError, SetupError) as error:
            refusal = str(error)
        if refusal is None:
            return
        tried.append(f"  - {place}: {refusal}")
    raise SetupError(f"{what} was not found. Tried:\n" + "\n".join(tried) + f"\n{advice}")


def obtain(wanted: Tool, pins: dict[str, Any], own: Place, install: Callable[[Path], Path], *, accept: bool) -> None:
    """Take a tool from ``own``, from the folder of archives or from the official download: the first with a known sum.

    ``install`` installs an archive and returns the folder of its programs.
    """

    def from_archive() -> str | None:
        archive = archive_folder() / wanted.file
        if refusal := archive_refusal(archive, local_sums(pins)):
            return refusal
        say(f"installing {archive.name} from {archive.parent}")
        install(archive)
        return None

    def from_download() -> str | None:
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            archive = Path(scratch) / wanted.file
            if refusal := download_checked(wanted, archive):
                return refusal
            folder = install(archive)
        if accept:
            # So that a user who has these programs already may use them.
            record({f"{wanted.file}/{program.name}": sha256(program) for program in programs_in(folder)})
        return None

    places = (own, (f"{archive_folder()} ({ARCHIVES_VARIABLE})", from_archive), ("official download", from_download))
    advice = f"Put {wanted.file} into a folder and name it:  {ARCHIVES_VARIABLE}=/that/folder scripts/setup"
    first_that_works(wanted.title, places, advice)


# --- the installation of each ---


def link_cli(folder: Path) -> None:
    shutil.rmtree(programs_folder(), ignore_errors=True)
    programs_folder().mkdir(parents=True)
    for program in programs_in(folder):
        (programs_folder() / program.name).symlink_to(program.resolve())


def install_cli(pins: dict[str, Any], *, accept: bool) -> None:
    wanted = tool("The Pulumi CLI", pins["pulumi"], names_of_platform(pins))
    if (programs_folder() / "pulumi").exists() and cli_version(programs_folder() / "pulumi") == wanted.version:
        return

    def from_path() -> str | None:
        found = shutil.which("pulumi")
        if found is None:
            return "no pulumi there"
        folder = Path(found).resolve().parent
        # The sums come first: asking for the version runs the program.
        if refusal := programs_refusal(folder, local_sums(pins)):
            return refusal
        have = cli_version(Path(found))
        if have != wanted.version:
            return f"{found} is version {have or 'unknown'}, not {wanted.version}"
        link_cli(folder)
        return None

    def unpack(archive: Path) -> Path:
        target = CLI / wanted.version
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        with tarfile.open(archive) as tar:
            # Debian 12's Python 3.11.2 has no filters yet. The archive's sum is checked already.
            safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(target, **safely)  # noqa: S202 - see above
        link_cli(target / "pulumi")
        return target / "pulumi"

    obtain(wanted, pins, ("PATH", from_path), unpack, accept=accept)


def install_plugins(pins: dict[str, Any], *, accept: bool) -> None:
    names = names_of_platform(pins)
    for name, pin in pins["plugins"].items():
        wanted = tool(f"The Pulumi plugin {name}", pin, names)
        installed = PULUMI_HOME / "plugins" / f"resource-{name}-v{wanted.version}"
        if not installed.is_dir():
            install_plugin(name, wanted, installed, pins, accept=accept)


def install_plugin(name: str, wanted: Tool, installed: Path, pins: dict[str, Any], *, accept: bool) -> None:
    def from_own_home() -> str | None:
        home = Path(os.environ.get("PULUMI_HOME") or Path.home() / ".pulumi") / "plugins" / installed.name
        if home.resolve().is_relative_to(PULUMI_HOME.resolve()) or not home.is_dir():
            return f"no {home}"
        # Copy the programs and nothing else; check the copy, which nobody else can change.
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            copy = Path(scratch) / installed.name
            copy.mkdir()
            for program in programs_in(home):
                shutil.copy2(program, copy / program.name)
            if refusal := programs_refusal(copy, local_sums(pins)):
                return refusal.replace(str(copy), str(home))
            say(f"copying the plugin {name} from {home}")
            shutil.copytree(copy, installed)
        return None

    def install(archive: Path) -> Path:
        install = (programs_folder() / "pulumi", "plugin", "install", "resource", name, wanted.version)
        run([*install, "--file", archive], f"installing {wanted.file}", env=pulumi_environment())
        return installed

    obtain(wanted, pins, ("the Pulumi home of this user", from_own_home), install, accept=accept)


# --- the whole ---------------------------------------------------------------------------------


def close_cache() -> None:
    """Close ``.cache`` to other users, whatever the umask is: programs run from it.

    uv makes its lock files writable by all. They are closed as well, though nobody can reach them.
    """
    CACHE.mkdir(mode=0o700, exist_ok=True)
    locks = [folder / ".lock" for folder in (CACHE / "uv-cache", STACK_VENV, VENV)]
    for path, mode in ((CACHE, 0o700), *((lock, 0o600) for lock in locks)):
        if path.exists() and path.stat().st_uid == os.geteuid() and path.stat().st_mode & 0o777 != mode:
            path.chmod(mode)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/setup", description="Install all that this checkout needs below .cache."
    )
    scopes = parser.add_mutually_exclusive_group()
    for name, words in (
        ("no-lab", "leave out the packages of the local Proxmox, Python's and Debian's"),
        ("tests", "add the packages of the tests, Python's and Debian's"),
    ):
        scopes.add_argument(f"--{name}", dest="scope", action="store_const", const=name, default="lab", help=words)
    parser.add_argument(
        "--accept-sums",
        action="store_true",
        help="record the sums that the releases publish now in toolchain.lock; downloads must have them",
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
        install_python_packages(scope)
        install_cli(pins, accept=accept)
        install_plugins(pins, accept=accept)
    except (SetupError, OSError) as error:
        advice = remedy(str(error)) if isinstance(error, OSError) else ""
        print(f"setup: {error}{advice}", file=sys.stderr)
        return 1
    # A missing package: the next run has to look again.
    if not (missing and os.geteuid() != 0):
        STAMP.write_text(f"{fingerprint() if accept else mark} {scope}")
    close_cache()
    say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
