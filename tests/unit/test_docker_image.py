"""The image for people who build their own: what compose.yaml promises, what entrypoint and build do."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from applications.hermes.phases import render_agent
from tests.settings import bare_metal

ROOT = Path(__file__).resolve().parent.parent.parent
DOCKER = ROOT / "docker"
BAKED = "/opt/hermes-agent/venv/bin/hermes"
USER = 10000


# ---- compose.yaml ----------------------------------------------------------------------------------------------------


def rendered(**environment: str) -> dict[str, Any]:
    """compose.yaml with its variables replaced by the rule for ${A:-B}; the end-to-end test asks compose itself."""

    def value(match: re.Match[str]) -> str:
        return environment.get(match[1]) or match[2]

    text = re.sub(r"\$\{(\w+):-([^}]*)\}", value, (DOCKER / "compose.yaml").read_text())
    assert "$" not in text
    parsed: dict[str, Any] = yaml.safe_load(text)
    return parsed


def mounts(service: Mapping[str, Any]) -> dict[str, str]:
    """Source by target."""
    return {target: source for source, target in (volume.split(":") for volume in service["volumes"])}


def published(service: Mapping[str, Any]) -> set[tuple[str, str, int]]:
    """Address and port outside, port inside."""
    return {(*port.rsplit(":", 2)[:2], int(port.rsplit(":", 1)[1])) for port in service["ports"]}


HOMES = {
    "HERMES_HOME_HOST": "/home/hermes/.hermes",
    "CODEX_HOME_HOST": "/home/hermes/.codex",
    "CLAUDE_HOME_HOST": "/home/hermes/.claude",
    "GEMINI_HOME_HOST": "/home/hermes/.gemini",
}


def test_each_home_is_the_hosts_folder_when_named() -> None:
    named = {variable: f"/srv/{variable.lower()}" for variable in HOMES}
    found = mounts(rendered(**named)["services"]["gateway"])
    assert found == {target: named[variable] for variable, target in HOMES.items()}


@pytest.mark.parametrize("missing", [{}, dict.fromkeys(HOMES, "")], ids=["unset", "empty"])
def test_a_home_that_is_not_named_is_a_volume(missing: dict[str, str]) -> None:
    project = rendered(**missing)
    found = mounts(project["services"]["gateway"])
    assert set(found) == set(HOMES.values())
    assert set(found.values()) == set(project["volumes"])


def test_ports_are_on_loopback_unless_an_address_is_named() -> None:
    assert published(rendered()["services"]["gateway"]) == {("127.0.0.1", "8642", 8642), ("127.0.0.1", "9119", 9119)}
    named = rendered(HERMES_PUBLISHED_BIND_IP="192.168.1.5", HERMES_API_PORT="80")["services"]["gateway"]
    assert published(named) == {("192.168.1.5", "80", 8642), ("192.168.1.5", "9119", 9119)}


def test_there_is_one_gateway_and_the_dashboard_is_on_wish() -> None:
    [(name, service)] = rendered()["services"].items()
    assert (name, service["command"]) == ("gateway", ["hermes", "gateway", "run"])
    assert service["environment"]["HERMES_DASHBOARD"] == 0
    assert rendered(HERMES_DASHBOARD="1")["services"]["gateway"]["environment"]["HERMES_DASHBOARD"] == 1


def test_the_agent_runs_as_the_user_that_is_named() -> None:
    environment = rendered(HERMES_UID="1000", HERMES_GID="")["services"]["gateway"]["environment"]
    assert (environment["HERMES_UID"], environment["HERMES_GID"]) == (1000, USER)


def test_the_service_goes_through_the_entrypoint_with_the_least_rights_that_it_needs() -> None:
    service = rendered()["services"]["gateway"]
    assert not {"entrypoint", "user", "privileged", "network_mode", "pid"} & set(service)
    assert (service["cap_drop"], service["cap_add"]) == (["ALL"], ["CHOWN", "SETGID", "SETUID"])
    assert service["security_opt"] == ["no-new-privileges:true"]


# ---- Dockerfile and build --------------------------------------------------------------------------------------------


def dockerfile_arguments() -> dict[str, str]:
    return dict(re.findall(r"^ARG (\w+)=(.*)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE))


def test_the_image_bakes_what_the_stacks_install() -> None:
    config = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]
    arguments = dockerfile_arguments()
    for argument, key in {
        "AGENT_SOURCE": "agentSource",
        "AGENT_VERSION": "agentVersion",
        "AGENT_REPOSITORY": "agentRepository",
        "AGENT_TAG": "agentTag",
        "AGENT_COMMIT": "agentCommit",
    }.items():
        assert arguments[argument] == config[key]["default"], argument
    assert rendered()["services"]["gateway"]["build"]["args"] == arguments


def test_the_context_holds_what_is_copied_and_no_more() -> None:
    first, *allowed = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")
    ]
    assert first == "*"
    held = {path.relative_to(ROOT) for line in allowed for path in ROOT.glob(line.removeprefix("!"))}
    lines = re.findall(r"^COPY (.+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    copied = {path.relative_to(ROOT) for line in lines for source in line.split()[:-1] for path in ROOT.glob(source)}
    assert held == copied
    built = {Path(file.origin) for file in render_agent(bare_metal()).files if file.path.endswith((".lock", ".sh"))}
    assert {path.name for path in built} == {"apt.sh", "run.sh", "uv.lock", "node.lock"}
    assert built <= held


ARGUMENTS = {
    "AGENT_SOURCE": "git",
    "AGENT_VERSION": "0.20.3",
    "AGENT_REPOSITORY": "https://example.org/a.git",
    "AGENT_TAG": "v1",
    "AGENT_COMMIT": "f" * 40,
    "AGENT_EXTRAS": "all",
    "AGENT_WEB_UI": "prebuilt",
}


def build_with(**arguments: str) -> str:
    environment = {"PATH": os.environ["PATH"], **ARGUMENTS, **arguments}
    command = [sys.executable, "-IB", str(DOCKER / "build.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    return done.stderr


def test_wrong_build_arguments_are_told_all_at_once_before_anything_is_done() -> None:
    text = build_with(AGENT_SOURCE="git", AGENT_COMMIT="abc", AGENT_TAG="", AGENT_VERSION="", AGENT_WEB_UI="no")
    for name in ("AGENT_COMMIT is 'abc'", "AGENT_TAG is empty", "AGENT_VERSION is ''", "AGENT_WEB_UI is 'no'"):
        assert name in text
    assert text.count("error:") == 4
    assert "AGENT_SOURCE is 'brew': it is git or pypi" in build_with(AGENT_SOURCE="brew")


# ---- the lab's image -------------------------------------------------------------------------------------------------


def test_nothing_of_the_product_knows_how_the_labs_image_differs() -> None:
    """docs/lab.md, "Images", says how; what holds for both images is asked for by the end-to-end tests."""
    only_here = re.compile(
        r"s6-(?!overlay)|svscan|svstat|rc\.init|/run/service|with-contenv|cont-init|stage2|agentimage"
    )
    sources = [
        path
        for part in ("settings", "components", "applications", "provisioning", "proxmox", "scripts")
        for path in (ROOT / part).rglob("*")
        if path.suffix in {".py", ".sh", ".j2"}
    ]
    assert len(sources) > 50
    assert [path.name for path in sources if only_here.search(path.read_text())] == []


# ---- the entrypoint --------------------------------------------------------------------------------------------------


@pytest.fixture
def passable() -> Iterator[Path]:
    """A folder that the image's user may pass through: pytest's own are closed, again with each run that begins."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o711)
        yield folder


@dataclass
class Site:
    """A home and an application folder, as a container would have them."""

    app: Path
    home: Path
    agent: Path

    @property
    def data(self) -> Path:
        return self.home / ".hermes"

    def run(
        self, *command: str, user: int | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """The entrypoint, as the image's user unless said otherwise; a test that isn't root runs it as itself."""
        whom = USER if user is None else user
        drop = [] if os.geteuid() or not whom else ["setpriv", f"--reuid={whom}", f"--regid={whom}", "--clear-groups"]
        variables = {"PATH": os.environ["PATH"], "HOME": str(self.home), "HERMES_EXECUTABLE": str(self.agent)}
        return subprocess.run(
            [*drop, str(self.app / "docker-entrypoint.sh"), *command],
            env={**variables, **(env or {})}, cwd="/", capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip

    def give(self, *paths: Path) -> None:
        """To the image's user, where that can be done."""
        for path in paths:
            if os.geteuid() == 0:
                os.chown(path, USER, USER)


@pytest.fixture
def site(passable: Path) -> Site:
    app, home = passable / "app", passable / "home of hermes"
    app.mkdir()
    home.mkdir()
    shutil.copy(DOCKER / "entrypoint.sh", app / "docker-entrypoint.sh")
    for name in ("as-hermes.sh", "with-dashboard.sh", "config.default.yaml"):
        shutil.copy(DOCKER / name, app)
    agent = app / "hermes"
    agent.write_text("#!/bin/sh\n")
    agent.chmod(0o755)
    found = Site(app, home, agent)
    found.give(home)
    return found


def test_an_empty_home_gets_folders_and_a_first_configuration(site: Site) -> None:
    done = site.run("echo", "it ran")
    assert (done.returncode, done.stdout, done.stderr) == (0, "it ran\n", "")
    for name in (".hermes", ".codex", ".claude", ".gemini"):
        assert stat.S_IMODE((site.home / name).stat().st_mode) == 0o700
    for name in ("memories", "sessions", "skills", "cron", "logs", "hooks"):
        assert (site.data / name).is_dir()
    seeded = site.data / "config.yaml"
    assert seeded.read_text() == (DOCKER / "config.default.yaml").read_text()
    assert stat.S_IMODE(seeded.stat().st_mode) == 0o600
    assert isinstance(yaml.safe_load(seeded.read_text()), dict)
    assert [p.name for p in site.data.iterdir() if p.is_file()] == ["config.yaml"]


def test_nothing_that_is_there_is_touched(site: Site) -> None:
    kept = {
        site.data / "config.yaml": "mine: true\n",
        site.data / "auth.json": "{}",
        site.home / ".codex" / "auth.json": "codex",
        site.home / ".claude" / ".credentials.json": "claude",
        site.home / ".gemini" / "oauth_creds.json": "gemini",
    }
    for path, text in kept.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        site.give(path, path.parent)
    before = {path: path.stat() for path in kept}
    assert site.run("true").returncode == 0
    for path, text in kept.items():
        after = path.stat()
        assert path.read_text() == text
        assert (after.st_mtime_ns, after.st_mode, after.st_ino) == (
            before[path].st_mtime_ns, before[path].st_mode, before[path].st_ino,
        )  # fmt: skip


def test_an_empty_configuration_and_a_link_to_nowhere_are_there_too(site: Site) -> None:
    site.data.mkdir()
    (site.data / "config.yaml").touch()
    site.give(site.data, site.data / "config.yaml")
    assert site.run("true").returncode == 0
    assert (site.data / "config.yaml").read_text() == ""
    (site.data / "config.yaml").unlink()
    (site.data / "config.yaml").symlink_to("/nonexistent/config.yaml")
    assert site.run("true").returncode == 0
    assert (site.data / "config.yaml").is_symlink()


@pytest.mark.parametrize("why", ["missing", "no program"])
def test_without_the_baked_agent_nothing_is_started_or_made(site: Site, why: str) -> None:
    if why == "missing":
        site.agent.unlink()
    else:
        site.agent.chmod(0o644)
    done = site.run("echo", "it ran")
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"the baked agent {site.agent} is missing or not executable" in done.stderr
    assert list(site.home.iterdir()) == []


def test_the_baked_agent_is_where_no_data_can_hide_it() -> None:
    assert f"HERMES_EXECUTABLE:={BAKED}" in (DOCKER / "entrypoint.sh").read_text()
    assert not any(BAKED.startswith(target) for target in HOMES.values())


def test_the_command_is_the_one_asked_for_and_its_end_is_the_end(site: Site) -> None:
    assert site.run("sh", "-c", "exit 7").returncode == 7
    words = site.run("printf", "%s|", "two words", "$HOME", "")
    assert words.stdout == "two words|$HOME||"
    assert site.run("sh", "-c", 'echo "$HERMES_HOME"').stdout == f"{site.data}\n"
    # exec, so that signals reach the command itself.
    assert site.run("sh", "-c", "ps -o ppid= -p $$ >/dev/null; echo $PPID").stdout.strip() == str(os.getpid())
    # What is no command is none of the shell's options either.
    unknown = site.run("-c", "echo it ran")
    assert (unknown.returncode, unknown.stdout) == (127, "")


def test_blank_values_are_the_images_and_odd_ones_are_told_all_at_once_before_anything_is_made(site: Site) -> None:
    blank = dict.fromkeys(("HERMES_HOME", "CODEX_HOME", "HERMES_UID", "HERMES_GID", "HERMES_DASHBOARD"), "")
    assert site.run("sh", "-c", 'echo "$HERMES_HOME"', env=blank).stdout == f"{site.data}\n"

    shutil.rmtree(site.data)
    odd = {
        "HERMES_DASHBOARD": "on",
        "HERMES_UID": "0",
        "HERMES_GID": "me; id",
        "HERMES_HOME": "data",
        "GEMINI_HOME": "~/.gemini",
    }
    done = site.run(env=odd)
    assert (done.returncode, done.stdout) == (1, "")
    for name, value in odd.items():
        assert f"'{value}'" in done.stderr, name
    assert "no command was given. The image's own is: hermes gateway run" in done.stderr
    assert done.stderr.count("error: ") == 6
    assert not site.data.exists()
    for uid in ("65535", "-1", "08", "1e3", "99999999999999999999"):
        assert f"HERMES_UID is '{uid}'" in site.run("true", env={"HERMES_UID": uid}).stderr


def test_the_homes_may_be_anywhere(site: Site, passable: Path) -> None:
    elsewhere = passable / "else where"
    elsewhere.mkdir()
    site.give(elsewhere)
    wanted = {f"{name}_HOME": str(elsewhere / name / "deeper") for name in ("HERMES", "CODEX", "CLAUDE", "GEMINI")}
    assert site.run("true", env=wanted).returncode == 0
    assert all(Path(folder).is_dir() for folder in wanted.values())
    assert (elsewhere / "HERMES" / "deeper" / "config.yaml").is_file()
    assert not site.data.exists()


def test_a_home_that_is_a_file_is_refused(site: Site) -> None:
    (site.home / ".claude").touch()
    done = site.run("echo", "it ran")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"there is no folder {site.home / '.claude'}, and user " in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders of others")
@pytest.mark.parametrize("user", [USER, 1234], ids=["the image's", "another from the start"])
def test_a_home_of_another_user_is_refused_with_the_command_that_helps(site: Site, user: int) -> None:
    for name in (".hermes", ".codex", ".claude", ".gemini"):
        (site.home / name).mkdir()
    (site.data / "old").touch()
    done = site.run("echo", "it ran", user=user)
    assert done.returncode == 1
    assert f"{site.data} belongs to user 0, and user {user} can't write there" in done.stderr
    assert f"chown -R {user}:{user} FOLDER" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of others")
def test_a_file_of_the_data_that_the_agent_cannot_read_is_refused(site: Site) -> None:
    site.data.mkdir()
    site.give(site.data)
    (site.data / ".env").touch(mode=0o600)
    done = site.run("echo", "it ran")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{site.data / '.env'} belongs to user 0, and user {USER} can't read it" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders of others")
def test_a_sign_in_of_another_user_is_told_and_the_agent_runs(site: Site) -> None:
    (site.home / ".codex").mkdir(mode=0o700)
    os.chown(site.home / ".codex", 1234, 1234)
    (site.home / ".claude").mkdir()
    (site.home / ".claude" / ".credentials.json").touch(mode=0o600)
    site.give(site.home / ".claude")
    done = site.run("echo", "it ran")
    assert (done.returncode, done.stdout) == (0, "it ran\n")
    said = done.stderr.splitlines()
    assert [line.split(" belongs")[0] for line in said] == [
        f"warning: {site.home / '.codex'}",
        f"warning: {site.home / '.claude' / '.credentials.json'}",
    ]
    assert f"belongs to user 1234, and user {USER} can't read it" in said[0]


DROPPED = "id -u; id -g; id -G; grep -E '^(NoNewPrivs|CapEff|CapPrm)' /proc/self/status"


@pytest.mark.skipif(os.geteuid() != 0, reason="starts as root")
@pytest.mark.parametrize("named", [{}, {"HERMES_UID": "1234", "HERMES_GID": "1235"}], ids=["the image's", "named"])
def test_as_root_it_hands_over_new_empty_folders_only_and_drops(site: Site, named: dict[str, str]) -> None:
    uid, gid = int(named.get("HERMES_UID", USER)), int(named.get("HERMES_GID", USER))
    # As Docker makes a folder of the host that was not there, and as a new volume comes from the image.
    for name, owner in ((".hermes", 0), (".gemini", USER)):
        (site.home / name).mkdir(mode=0o700)
        os.chown(site.home / name, owner, owner)
    (site.home / ".codex").mkdir()
    (site.home / ".codex" / "auth.json").touch()
    done = site.run("sh", "-c", DROPPED, user=0, env=named)
    none = "0000000000000000"
    expected = [str(uid), str(gid), str(gid), "CapPrm:", none, "CapEff:", none, "NoNewPrivs:", "1"]
    assert done.stdout.split() == expected, done.stderr
    assert [(site.home / name).stat().st_uid for name in (".hermes", ".gemini", ".claude", ".")] == [uid] * 4
    # Somebody's data: not ours to give away.
    assert (site.home / ".codex").stat().st_uid == 0
    assert (site.data / "config.yaml").stat().st_uid == uid


@pytest.mark.skipif(os.geteuid() != 0, reason="starts as root")
def test_a_link_never_makes_root_give_away_what_it_leads_to(site: Site, passable: Path) -> None:
    (passable / "roots").mkdir()
    (site.home / ".codex").symlink_to(passable / "roots")
    assert site.run("true", user=0).returncode == 0
    assert (passable / "roots").stat().st_uid == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="starts as root")
def test_process_1_is_an_init_of_the_agents_user_that_hands_on_signals_and_the_exit_code(site: Site) -> None:
    """So that they arrive without the right to send signals to others. In tini's place is what tells its words."""
    init = site.app / "bin" / "tini"
    init.parent.mkdir()
    init.write_text('#!/bin/sh\necho "$$ $(id -u) $*"\nexit 7\n')
    init.chmod(0o755)
    environment = {
        "PATH": f"{init.parent}:{os.environ['PATH']}",
        "HOME": str(site.home),
        "HERMES_EXECUTABLE": str(site.agent),
    }
    command = ["unshare", "--pid", "--fork", str(site.app / "docker-entrypoint.sh"), "hermes", "gateway"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (7, f"1 {USER} -- hermes gateway\n"), done.stderr


# ---- the dashboard beside the gateway --------------------------------------------------------------------------------

STAND_IN = """#!/bin/sh
# The gateway runs until the dashboard was started the third time, or until it is told to end.
trap 'echo "$1 ended" >>"$HOME/calls"; exit 5' TERM
echo "$*" >>"$HOME/calls"
if [ "$1" = dashboard ] && [ ! -e "$HOME/steady" ]; then exit 3; fi
while :; do
  if [ "$1" != dashboard ] && [ "$(grep -c '^dashboard' "$HOME/calls")" -ge 3 ]; then exit 7; fi
  command -p sleep 0.05
done
"""


@pytest.fixture
def beside(site: Site) -> dict[str, str]:
    """The environment of a site with a stand-in for the agent on PATH, and no pause before a new try."""
    programs = site.app / "bin"
    programs.mkdir()
    for name, text in (("hermes", STAND_IN), ("sleep", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}", "HERMES_DASHBOARD": "1"}


def test_the_dashboard_is_started_again_and_the_gateways_end_is_the_end(site: Site, beside: dict[str, str]) -> None:
    done = site.run("hermes", "gateway", "run", env=beside)
    assert done.returncode == 7, done.stderr
    assert "dashboard: ended with 3; again in 30 s" in done.stderr
    calls = (site.home / "calls").read_text().splitlines()
    assert calls.count("gateway run") == 1
    assert set(calls) == {"gateway run", "dashboard --no-open --skip-build --host 0.0.0.0 --port 9119"}


def test_a_stop_ends_gateway_and_dashboard(site: Site, beside: dict[str, str]) -> None:
    (site.home / "steady").touch()
    command = [str(site.app / "with-dashboard.sh"), "hermes", "gateway", "run"]
    calls = site.home / "calls"
    with subprocess.Popen(command, env={**beside, "HOME": str(site.home)}) as process:
        deadline = time.monotonic() + 60
        while not calls.exists() or len(calls.read_text().splitlines()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.terminate()
        assert process.wait(timeout=60) == 5
    assert {"gateway ended", "dashboard ended"} < set(calls.read_text().splitlines())


@pytest.mark.parametrize("wish", ["1", "0"])
def test_other_commands_and_without_the_wish_there_is_no_dashboard(
    site: Site, beside: dict[str, str], wish: str
) -> None:
    command = ["hermes", "gateway", "run"] if wish == "0" else ["true"]
    (site.app / "bin" / "hermes").write_text('#!/bin/sh\necho "$*"\n')
    done = site.run(*command, env={**beside, "HERMES_DASHBOARD": wish})
    assert done.stdout == ("gateway run\n" if wish == "0" else "")


# ---- the health check ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age", "code"), [(10, 0), (600, 1), (None, 1)], ids=["fresh", "stale", "none"])
def test_health_is_the_age_of_the_gateways_sign_of_life(passable: Path, age: int | None, code: int) -> None:
    beat = passable / "state" / "gateway.heartbeat"
    beat.parent.mkdir()
    if age is not None:
        beat.touch()
        past = time.time() - age
        os.utime(beat, (past, past))
    for name in ("as-hermes.sh", "healthcheck.sh"):
        shutil.copy(DOCKER / name, passable)
    check = passable / "healthcheck.sh"
    environment = {"PATH": os.environ["PATH"], "HERMES_HOME": str(passable)}
    done = subprocess.run([str(check)], env=environment, capture_output=True, timeout=30, check=False)
    assert done.returncode == code, done.stderr
