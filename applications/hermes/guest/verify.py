"""Verify: prove that the installed agent works, with one real prompt, or say what does not.

The prompt goes through the agent's API where that is on, else through its command line, as its own account. As a job
(HP_JOB is its folder) this reads inputs.json and writes result.json; by hand and for `scripts/agent` it takes the same
JSON on the standard input and prints one JSON object. Signs of life go to the standard error; the exit status is 1 when
anything is not as declared. The API key is read from the managed .env and is never shown.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

from applications.hermes.guest.backend import ENGINE, health_of
from applications.hermes.guest.cli import COMMAND
from applications.hermes.guest.inputs import Facts, Folder, Installed, Probe
from applications.hermes.guest.journal import journal, without_secrets
from applications.hermes.guest.names import (
    CONTAINER,
    CONTAINER_UNIT,
    CURRENT,
    DASHBOARD,
    FACTS,
    GATEWAY,
    IMAGE_CURRENT,
    MANAGED_ENV,
)
from applications.hermes.guest.records import ON_VOLUME
from applications.hermes.guest.schedule import FAILED, Standing, standing_now
from applications.hermes.guest.services import refuse_user_units
from provisioning.guest.common import (
    NO_JSON,
    OUTPUT_LIMIT,
    REPEAT,
    CommandFailed,
    Refusal,
    account_of,
    answer_in,
    bracket,
    captured,
    execute,
    how_it_failed,
    read_home,
    run,
)
from provisioning.guest.typed import of, record
from provisioning.guest.words import command, lines_of, name, said, told

RUNUSER = "/usr/sbin/runuser"
SSHD = "/usr/sbin/sshd"
ETC = Path("/etc")
POLL_S = 0.2
SIGN_S = 4.0
ANSWER_LIMIT = 16 << 20
"""Bytes that are read of an answer; what is cut there is no JSON any more, and told as that."""
OPTED_OUT = ".no-bundled-skills"
MODEL_ADVICE = "Check agentModelUrl, agentModel and agentModelKey, and that the container reaches the endpoint."


LOOK = "Its last lines are above; `scripts/agent logs` shows more."
ELSE_THERE = "Something else may listen there: `ss -ltnp` in the container names it."


def start_remedy(service: str) -> str:
    """The remedy for a service that runs with something older."""
    return f"Start it again: {command('systemctl', 'restart', CONTAINER_UNIT if service == CONTAINER else service)}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirection is an answer here, not a way to go."""

    def redirect_request(self, *_: Any) -> None:
        return None


OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)  # loopback needs no proxy


class Unproven(Refusal):
    """Something is not as declared. What others say of it is shown without secrets."""

    def __init__(self, text: str) -> None:
        super().__init__(without_secrets(text))


def say(text: str) -> None:
    print(f"verify: {text}", file=sys.stderr, flush=True)


def show(unit: str) -> dict[str, str]:
    """What systemd knows about a unit."""
    names = "ActiveState,SubState,NRestarts,MainPID,Result,ExecMainStatus"
    text = run("systemctl", "show", f"--property={names}", unit, timeout_s=20)
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def request(url: str, *, key: str | None = None, body: Any = None, timeout_s: float) -> tuple[int, dict[str, Any]]:
    """Status and JSON object; Unproven for any other answer. OSError when nobody answers."""
    headers = {"Accept": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    data = None
    if body is not None:
        data = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    try:
        asked = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310 - http to ourselves, always
        with OPENER.open(asked, timeout=timeout_s) as answer:
            status, raw = answer.status, answer.read(ANSWER_LIMIT)
    except urllib.error.HTTPError as error:
        status, raw = error.code, error.read(ANSWER_LIMIT)
    except http.client.HTTPException as error:
        if isinstance(error, OSError):  # it hung up
            raise
        raise Unproven(f"{url} answered with something that is no HTTP: {error!r}\n{ELSE_THERE}") from None
    with contextlib.suppress(*NO_JSON):
        found = json.loads(raw)
        if isinstance(found, dict):
            return status, found
    raise Unproven(f"{url} answered {status} with something that is no JSON object: {raw[:120]!r}\n{ELSE_THERE}")


def container() -> dict[str, Any] | None:
    """The agent's container as the engine knows it; None where there is none."""
    try:
        done = execute(ENGINE, "container", "inspect", CONTAINER, timeout_s=20)
    except FileNotFoundError:
        return None
    # "No such container", as Docker has it, is an answer.
    if done.returncode != 0 and "no such container" not in done.stderr.lower():
        raise how_it_failed("asking the engine for the container", done)
    found: list[dict[str, Any]] = answer_in(done.stdout or "[]", "the engine")
    return found[0] if found else None


def check_container() -> str:
    """The state of its health check; Unproven unless it runs, well, and never had to be started again."""
    unit = show(CONTAINER_UNIT)
    if (unit.get("ActiveState"), unit.get("SubState")) == ("activating", "start"):
        # As after a reboot: the engine has to come up first.
        return "starting"
    check_unit(CONTAINER_UNIT)
    found = container()
    if found is None:
        raise Unproven(f"there is no container {CONTAINER}: the configure phase has to run")
    state = found["State"]
    if not state.get("Running"):
        raise Unproven(
            f"the container {CONTAINER} is {state.get('Status')} (exit status {state.get('ExitCode')}).\n{LOOK}"
        )
    health = health_of(found)
    if health.get("Status") == "unhealthy":
        last = (health.get("Log") or [{}])[-1].get("Output", "")
        raise Unproven(f"the container {CONTAINER} is unhealthy: {told(last, 300)}\n{LOOK}")
    return str(health.get("Status"))


def check_unit(unit: str) -> None:
    """Unproven unless it runs and never had to be restarted."""
    if unit == CONTAINER:
        check_container()
        return
    state = show(unit)
    if state.get("ExecMainStatus") == "226":
        raise Unproven(
            f"systemd can't set up the sandbox of {unit} in this container.\n"
            "The container needs the feature nesting=1 (pct set VMID --features nesting=1, then restart it)."
        )
    if state.get("NRestarts") != "0":
        raise Unproven(
            f"{unit} was restarted by systemd {state.get('NRestarts')} times (last result: {state.get('Result')}, "
            f"exit status {state.get('ExecMainStatus')}).\n{LOOK}"
        )
    if state.get("ActiveState") != "active":
        raise Unproven(
            f"{unit} is {state.get('ActiveState')} ({state.get('SubState')}, result {state.get('Result')}).\n"
            f"If it was stopped by hand, start it: systemctl start {unit}. Else its last lines tell why."
        )


class Signs:
    """Says now and then what is waited for, and for how long at most: a person sees that it goes on."""

    def __init__(self, what: str, deadline: float) -> None:
        self.what = what
        self.deadline = deadline
        self._next = time.monotonic() + SIGN_S

    def of(self, last: str) -> None:
        """`last`: how it stood when it was last asked. Nothing is said where the last sign is not long ago."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + SIGN_S
            say(f"waiting for the {self.what}, at most {max(0, round(self.deadline - now))} s more: {last}")


def wait_for(url: str, unit: str, deadline: float, what: str) -> Any:
    """Poll until `url` answers 200; a service that dies meanwhile is told at once."""
    last, signs = "no answer yet", Signs(what, deadline)
    while True:
        try:
            status, body = request(url, timeout_s=5)
            if status == 200:
                return body
            last = f"status {status}"
        except OSError as error:
            last = str(getattr(error, "reason", error))
        check_unit(unit)
        if time.monotonic() >= deadline:
            raise Unproven(f"the {what} does not answer at {url}: {last}\n{LOOK}")
        signs.of(last)
        time.sleep(POLL_S)


def api_key() -> str:
    try:
        text = MANAGED_ENV.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Unproven(f"{MANAGED_ENV} is missing: the configure phase has not run") from None
    found = re.search(r"^API_SERVER_KEY='([^'\n]+)'$", text, re.MULTILINE)
    if found is None:
        raise Unproven(f"{MANAGED_ENV} holds no API_SERVER_KEY: the configure phase has to run again")
    return found[1]


def installed_version(expected: str | None, *, in_container: bool) -> str:
    noted = IMAGE_CURRENT if in_container else CURRENT / "install.json"
    found = record(Installed, noted)
    if found is None:
        raise Unproven(f"{noted} tells of no complete installation: the agent and configure phases have to run")
    if expected is not None and found.version != expected:
        raise Unproven(f"the installed version is {found.version}, declared is {expected}: run the agent phase again")
    return found.version


def check_health(base: str, key: str, version: str, deadline: float, service: str) -> None:
    health = wait_for(f"{base}/health", service, deadline, "API server")
    if health.get("status") != "ok":
        raise Unproven(f"/health says {health.get('status')!r}.\n{LOOK}")
    if health.get("version") != version:
        raise Unproven(
            f"the running gateway is version {health.get('version')!r}, installed is {version}: "
            f"it was not restarted.\n{start_remedy(service)}"
        )
    while True:
        status, detailed = request(f"{base}/health/detailed", key=key, timeout_s=20)
        # Agents before 0.19 do not tell their readiness; the prompt is what proves them.
        readiness = detailed.get("readiness", {"status": "ok"})
        if status == 200 and isinstance(readiness, dict) and readiness.get("status") == "ok":
            return
        if time.monotonic() >= deadline:
            shown = detailed.get("readiness", detailed)
            raise Unproven(f"/health/detailed answered {status}: {json.dumps(shown)[:600]}\n{LOOK}")
        time.sleep(POLL_S)


def wait_until_healthy(deadline: float) -> None:
    """The container's own health check runs every few seconds; what it says has to agree with what was seen here."""
    while check_container() != "healthy":
        if time.monotonic() >= deadline:
            raise Unproven(f"the container {CONTAINER} does not become healthy.\n{LOOK}")
        time.sleep(POLL_S)


def check_running(probe: Probe, deadline: float) -> None:
    """Without the API the gateway tells by a file that it runs; whose file it is, the process number says."""
    last, signs = "it has not told its state yet", Signs("gateway", deadline)
    while True:
        check_unit(GATEWAY)
        pid = show(GATEWAY).get("MainPID", "0")
        with contextlib.suppress(*NO_JSON, AttributeError):
            state = json.loads(read_home(probe.user, f"{probe.hermes_home}/gateway_state.json") or "")
            last = f"it says {state.get('gateway_state')!r} as process {state.get('pid')!r}, its process is {pid}"
            if state.get("gateway_state") == "running" and str(state.get("pid")) == pid != "0":
                break
        if time.monotonic() >= deadline:
            raise Unproven(f"the gateway does not get ready: {last}.\n{LOOK}")
        signs.of(last)
        time.sleep(POLL_S)
    running, installed = started_from(pid), os.path.realpath(CURRENT)
    if not running.startswith(f"{installed}/"):
        raise Unproven(
            f"the gateway runs {name(running)}, installed is {installed}: it was not restarted.\n"
            f"{start_remedy(GATEWAY)}"
        )


def started_from(pid: str) -> str:
    """The program of a process, as it was started."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()


def prompt_by_command(probe: Probe) -> str:
    """One real turn by `hermes -z`. It ends with 0 after a failure, too; its usage report tells (facts hermes 1)."""
    user = probe.user
    account = account_of(user)
    with tempfile.TemporaryDirectory(prefix="hermes-prompt.", dir="/tmp") as folder:
        os.chown(folder, account.pw_uid, account.pw_gid)
        command = [RUNUSER, "--user", user, "--", COMMAND]
        command += ["-z", probe.prompt, "--usage-file", f"{folder}/usage.json"]
        status, text, words = run_for(command, probe.prompt_timeout_s)
        with contextlib.suppress(*NO_JSON, AttributeError):
            usage = json.loads(read_home(user, f"{folder}/usage.json") or "")
            if status == 0 and usage.get("completed") is True and not usage.get("failed"):
                if probe.expect not in text:
                    raise Unproven(unexpected(probe, text))
                return text
    raise Unproven(f"the model endpoint did not answer the prompt: {told(text or words, 600)}\n{MODEL_ADVICE}")


def unexpected(probe: Probe, text: str) -> str:
    """The model answers, and is not the one that is meant, or not up to it."""
    return f"the model answered, but without {probe.expect!r}: {text[:300]!r}\n{MODEL_ADVICE}"


def run_for(command: list[str], timeout_s: float) -> tuple[int, str, str]:
    """Status and stripped texts of a command, which is ended with all that it started when it takes too long."""
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:  # a prompt can be too long for a command line
        raise Unproven(f"the prompt can't be sent: {error.strerror}\nShorten it, or set agentApi.") from None
    try:
        out, err = (stream.decode("utf-8", "replace").strip() for stream in captured(child, None, timeout_s))
    except subprocess.TimeoutExpired:
        raise Unproven(f"the prompt got no answer within {timeout_s:g} s.\n{MODEL_ADVICE}") from None
    except OverflowError:
        raise Unproven(f"the answer to the prompt is longer than {OUTPUT_LIMIT >> 20} MB.\n{MODEL_ADVICE}") from None
    return child.returncode, out, err


def check_dashboard(probe: Probe, version: str, deadline: float) -> None:
    host = probe.dashboard_host
    url = f"http://{bracket(reachable(host))}:{probe.dashboard_port}/api/status"
    while True:
        status = wait_for(url, services_of(probe)[-1], deadline, "dashboard")
        wrong = [
            f"{name} is {status.get(name)!r}, expected {value!r}"
            for name, value in (
                ("version", version),
                ("gateway_running", True),
                ("auth_required", probe.auth_required),
            )
            if status.get(name) != value
        ]
        missing = sorted(set(probe.auth_providers) - set(status.get("auth_providers") or []))
        if missing:
            wrong.append(f"auth_providers lacks {', '.join(missing)}: that way to log in was not taken up")
        if not wrong:
            if "self-hosted" in probe.auth_providers:
                check_oidc(url.removesuffix("/api/status"), probe.public_url)
            current, latest = status.get("config_version"), status.get("latest_config_version")
            if current != latest:
                # The configure phase migrates it, with what the user has written; where it could not, it has said why.
                say(f"note: config.yaml in the home is of schema {current!r}, the agent knows {latest!r}")
            return
        # It learns of the gateway by a file, a little later than the gateway answers; all else never heals.
        if time.monotonic() >= deadline or not wrong[0].startswith("gateway_running"):
            raise Unproven(f"{url} disagrees: {'; '.join(wrong)}.\n{start_remedy(services_of(probe)[-1])}")
        time.sleep(POLL_S)


def check_oidc(base: str, public_url: str) -> None:
    """Begin a login: it makes the dashboard ask the provider for its addresses, as the first user would."""
    url = f"{base}/auth/login?provider=self-hosted"
    try:
        with OPENER.open(urllib.request.Request(url), timeout=30) as answer:  # noqa: S310 - http to ourselves
            status, place, text = answer.status, "", ""
    except urllib.error.HTTPError as error:
        status, place, text = error.code, error.headers.get("Location", ""), error.read(600).decode(errors="replace")
    asked = urllib.parse.parse_qs(urllib.parse.urlsplit(place).query)
    if status != 302 or "redirect_uri" not in asked:
        raise Unproven(
            f"the dashboard can't begin a login at the OpenID Connect provider ({url} answered {status}): "
            f"{told(text)}\n"
            "The container has to reach the issuer, and to trust its certificate (agentCaFile)."
        )
    if asked["redirect_uri"] != [f"{public_url}/auth/callback"]:
        back = said(asked["redirect_uri"][0])
        raise Unproven(
            f"a login would lead back to {back}, declared is {public_url}/auth/callback.\n{start_remedy(DASHBOARD)}"
        )


def check_prompt(base: str, key: str, probe: Probe) -> str:
    """One real turn. A model that is down shows as HTTP 200 with finish_reason error (facts hermes 1, "Gateway")."""
    body = {"model": "hermes-agent", "messages": [{"role": "user", "content": probe.prompt}]}
    try:
        status, answer = request(f"{base}/v1/chat/completions", key=key, body=body, timeout_s=probe.prompt_timeout_s)
    except OSError as error:
        limit = f"{probe.prompt_timeout_s:g} s"
        raise Unproven(f"the prompt got no answer within {limit}: {error}\n{MODEL_ADVICE}") from None
    if status != 200:
        raise Unproven(f"the prompt was answered with status {status}: {json.dumps(answer)[:600]}\n{LOOK}")
    try:
        choice = (answer.get("choices") or [{}])[0]
        text = str((choice.get("message") or {}).get("content") or "")
    except (AttributeError, LookupError):
        form = "a form that is not OpenAI's"
        raise Unproven(f"the prompt was answered in {form}: {json.dumps(answer)[:600]}\n{LOOK}") from None
    if choice.get("finish_reason") != "stop" or (answer.get("hermes") or {}).get("failed"):
        raise Unproven(
            "the model endpoint did not answer the prompt "
            f"(finish_reason {choice.get('finish_reason')!r}): {told(text, 600)}\n{MODEL_ADVICE}"
        )
    if probe.expect not in text:
        raise Unproven(unexpected(probe, text))
    return text.strip()


def check_skills(probe: Probe, shipped: int | None, deadline: float) -> int:
    """How many skills the running agent offers; Unproven when it has taken none over although its build brings some.

    What a user has deleted or switched off since stays in the list that it keeps, and by the mark that it knows they
    may have opted out of all of them (upstream's tools/skills_sync.py).
    """
    user, home = probe.user, probe.hermes_home
    taken = f"{home}/skills/.bundled_manifest"
    while shipped and not read_home(user, taken) and read_home(user, f"{home}/{OPTED_OUT}") is None:
        if time.monotonic() >= deadline:
            raise Unproven(
                f"the agent has taken over none of the {shipped} skills that its build brings: no {taken}.\n{LOOK}"
            )
        time.sleep(POLL_S)
    if not probe.by_api:
        return len((read_home(user, taken) or "").splitlines())
    status, answer = request(f"{api_base(probe)}/v1/skills", key=api_key(), timeout_s=20)
    found = answer.get("data")
    # Agents before 0.19 have no such route.
    return len(found) if status == 200 and isinstance(found, list) else 0


def check_owners(home: str, uid: int) -> None:
    """Everything in the home is the agent's; lost+found is the kernel's, and the record of the backups is root's."""
    beside = ("-path", f"{home}/lost+found", "-prune", "-o", "-path", f"{home}/{ON_VOLUME}", "-prune", "-o")
    others = ("!", "-uid", str(uid), "-printf", "%U %p\\n")
    done = execute("find", home, "-xdev", *beside, *others, timeout_s=300)
    # The agent is at work: a file may be gone before it was looked at.
    if [line for line in done.stderr.splitlines() if not line.endswith("No such file or directory")]:
        raise how_it_failed(f"looking through {home}", done)
    if found := done.stdout.splitlines():
        shown = "\n".join(lines_of("\n".join(f"uid {line}" for line in found[:5])))
        # By -execdir: a folder on the way may be replaced by a link between find and chown.
        but = ("!", "-path", f"{home}/lost+found", "!", "-path", f"{home}/{ON_VOLUME}")
        give = command("find", home, "-xdev", "!", "-uid", uid, *but)
        raise Unproven(
            f"{len(found)} files in {home} belong to others than uid {uid}:\n{shown}\n"
            f"Give them back: {give} -execdir chown -h {uid}:{uid} {{}} \\;"
        )


def ways_in(account: str, *, shell: str, sshd: str, cron_allow: str | None, cron_deny: str, manager: str) -> list[str]:
    """How somebody, the agent itself for one, gets a process as its account that is in no sandbox.

    `shell`: the account's. `sshd`: what `sshd -T` says of it. `cron_allow`: None without that file. `manager`: what
    `systemctl is-enabled` says of the account's systemd.
    """
    denied = [line.split()[1:] for line in sshd.splitlines() if line.startswith("denyusers ")]
    may_cron = account in cron_allow.split() if cron_allow is not None else account not in cron_deny.split()
    found = {
        f"its shell is {shell}": Path(shell).name not in ("nologin", "false"),
        "sshd lets it in with a key that it keeps itself": not any(account in names for names in denied),
        "cron takes jobs of it": may_cron,
        f"its own systemd may be started ({manager})": manager != "masked",
    }
    return [text for text, is_so in found.items() if is_so]


def check_account(user: str, uid: int) -> None:
    """Nobody logs in as the agent's account: its home, with keys, jobs and units, is written by the agent."""

    def text(path: str) -> str | None:
        try:
            return (ETC / path).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None

    what = "asking sshd for its configuration"
    sshd = run(SSHD, "-T", "-C", f"user={user},host=localhost,addr=127.0.0.1", timeout_s=20, told_as=what)
    enabled = execute("systemctl", "is-enabled", f"user@{uid}.service", timeout_s=20)
    # "masked" it says with 1.
    if enabled.returncode != 0 and not enabled.stdout.strip():
        raise how_it_failed(f"systemctl is-enabled user@{uid}.service", enabled)
    found = ways_in(
        user,
        shell=account_of(user).pw_shell,
        sshd=sshd,
        cron_allow=text("cron.allow"),
        cron_deny=text("cron.deny") or "",
        manager=enabled.stdout.strip(),
    )
    if found:
        raise Unproven(
            f"the account {user} can be used without the sandbox of the services: {'; '.join(found)}.\n"
            "Take back what was changed by hand, in /etc/ssh, /etc/cron.allow or the account; a new container "
            "(pulumi destroy, pulumi up) has none of it."
        )


def check_folder(folder: Folder) -> None:
    """A folder of the node is mounted, and its owner can write to it, or read one that is mounted read-only."""
    path, owner = folder.path, str(folder.owner)
    as_owner = ("setpriv", "--reuid", owner, "--regid", owner, "--clear-groups", "--")
    if execute("findmnt", "--mountpoint", path).returncode != 0:
        raise Unproven(
            f"no folder of the node is mounted at {path}: what is written there would go with this container.\n"
            "Stop and start the container; if that does not help, `pct config` on the node has to name the folder."
        )
    act = ("ls", "-A", "--", path) if folder.read_only else ("mktemp", "-p", path, ".write-test-XXXXXXXX")
    done = execute(*as_owner, *act)
    if done.returncode != 0:
        may = "read" if folder.read_only else "write to"
        raise Unproven(f"user {owner} can't {may} {path}: {told(done.stderr)}\nThe folder's owner on the node decides.")
    if not folder.read_only:
        execute(*as_owner, "rm", "--", done.stdout.strip())


def services_of(probe: Probe) -> list[str]:
    """What has to run: the container, or the units."""
    if probe.container:
        return [CONTAINER]
    return [GATEWAY, *([DASHBOARD] if probe.dashboard else [])]


def api_base(probe: Probe) -> str:
    return f"http://{bracket(reachable(probe.api_server_host))}:{probe.api_server_port}"


def reachable(host: str) -> str:
    """Where to knock for what listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - no address to listen on


def check_gateway(probe: Probe, version: str, deadline: float) -> None:
    """It runs, and it is the installed version."""
    if probe.by_api:
        check_health(api_base(probe), api_key(), version, deadline, services_of(probe)[0])
    else:
        check_running(probe, deadline)


def prompt(probe: Probe) -> str:
    """The agent's answer to probe.prompt."""
    answer = check_prompt(api_base(probe), api_key(), probe) if probe.by_api else prompt_by_command(probe)
    return without_secrets(answer)


def verify(probe: Probe) -> dict[str, Any]:
    began = time.monotonic()
    deadline = began + probe.services_timeout_s
    services, in_container = services_of(probe), probe.container
    for folder in probe.folders:
        check_folder(folder)
        say(f"{folder.path} is {'readable' if folder.read_only else 'writable'}")
    version = installed_version(probe.version, in_container=in_container)
    check_gateway(probe, version, deadline)
    say(f"gateway {version} is healthy after {time.monotonic() - began:.1f} s")
    answer = prompt(probe)
    say(f"the model answered through the agent after {time.monotonic() - began:.1f} s")
    build = record(Installed, IMAGE_CURRENT if in_container else CURRENT / "install.json")
    shipped = build.shipped.get("skills") if build and not in_container else None
    skills = check_skills(probe, shipped, time.monotonic() + probe.services_timeout_s)
    say(f"the agent has {skills} skills")
    if probe.dashboard:
        # Its own time: on a slow machine the prompt alone may have taken what there was.
        check_dashboard(probe, version, time.monotonic() + probe.services_timeout_s)
        say("dashboard agrees")
    check_owners(probe.home, probe.uid)
    refuse_user_units(probe.home, probe.user)
    check_account(probe.user, probe.uid)
    for service in services:
        check_unit(service)
    if in_container:
        wait_until_healthy(deadline)
    standings = standing_of_backups()
    for what, each in standings.items():
        say(f"{'warning: ' if each.is_bad else ''}{what}: {each}")
    return {
        "version": version,
        "answer": answer[:200],
        "services": services,
        "directory": (build.directory if build else None) if in_container else os.path.realpath(CURRENT),
        "seconds": round(time.monotonic() - began, 1),
        "auth_required": probe.auth_required,
        "skills": skills,
        **{what: each.word for what, each in standings.items()},
    }


def standing_of_backups() -> dict[str, Standing]:
    """How it stands with the backups, and with their copy. One that was not made does not fail a run: the agent works.

    By the names of the results.
    """
    # Which ask this module in their turn.
    from applications.hermes.guest import copies  # noqa: PLC0415
    from applications.hermes.guest.update import Subject, newest_of  # noqa: PLC0415

    facts = record(Facts, FACTS)
    if facts is None:
        raise Unproven(f"{FACTS} is missing: the configure phase has not run")
    try:
        found = Subject(facts).backups()
    except Refusal as refusal:
        unknown = Standing(FAILED, f"those that are there can't be listed: {refusal}")
        return {"backup": unknown, "copy": unknown}
    return {
        "backup": standing_now(facts.backup_times, newest_of(found)),
        "copy": copies.standing_now(found),
    }


def ask(probe: Probe) -> dict[str, Any]:
    """One prompt and its answer, once the gateway is there (it may have been started a moment ago)."""
    version = installed_version(None, in_container=probe.container)
    check_gateway(probe, version, time.monotonic() + probe.services_timeout_s)
    return {"answer": prompt(probe)}


def probe_here(given: dict[str, Any]) -> Probe:
    """How the agent is asked for a prompt. How it runs, the guest knows better than who asks."""
    facts = record(Facts, FACTS)
    if facts is None:
        raise Unproven(f"{FACTS} is missing: the configure phase has not run")
    api = facts.api_server
    return replace(
        of(Probe, given, "the question", strict=False),
        api_server=api.enabled,
        api_server_host=api.host,
        api_server_port=api.port,
        user=facts.user,
        hermes_home=facts.hermes_home,
        container=container() is not None,
    )


def main() -> int:
    job = os.environ.get("HP_JOB")
    text = Path(job, "inputs.json").read_text() if job else sys.stdin.read()
    probe = Probe()
    try:
        given = json.loads(text)
        asked = given.pop("only", None) == "prompt"
        probe = probe_here(given) if asked else of(Probe, given, "inputs.json")
        result = ask(probe) if asked else verify(probe)
    except (Refusal, OSError) as fault:
        for unit in services_of(probe):
            print("\n".join([f"Last lines of {unit}:", *journal(unit)]), file=sys.stderr)
        # Last, for it is the last lines of a job that its error shows.
        remedy = f"\n{REPEAT}" if isinstance(fault, CommandFailed | OSError) else ""
        print(f"verify failed: {fault}{remedy}", file=sys.stderr)
        return 1
    text = json.dumps(result, sort_keys=True)
    if job:
        Path(job, "result.json").write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
