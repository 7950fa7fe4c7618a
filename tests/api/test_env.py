"""scripts/env: from an address and a token to a shell that is pointed at one's own Proxmox, and what it refuses."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lab.instance import ACCOUNT
from pvelab.config import LabConfig
from pvelab.server import LabServer
from pvelab.simulated import SimulatedRuntime
from scripts.lib.env import Home, faults_of
from scripts.lib.trust import TrustError, certificate_of, endpoint_of, fingerprint_of
from tests.bucket import Bucket, running

ROOT = Path(__file__).parents[2]
Env = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module", name="node")
def run_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    config = LabConfig(
        state_dir=tmp_path_factory.mktemp("node"), runtime=SimulatedRuntime(), auth_delay=0, account=ACCOUNT
    )
    with LabServer(config) as server:
        yield server


def fingerprint(node: LabServer) -> str:
    place = urlsplit(node.endpoint)
    return fingerprint_of(certificate_of(place.hostname or "", place.port or 0))


@pytest.fixture(name="env")
def make_env(tmp_path: Path) -> Env:
    """scripts/env of a user with an empty home, in a shell that knows nothing."""
    return lambda *words, **more: shell('scripts/env "$@"', tmp_path, *words, **more)


def shell(script: str, home: Path, *words: str, given: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    own = ("PROXMOX_", "PULUMI_", "HERMES_", "PVELAB_", "XDG_", "SSL_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return subprocess.run(
        ["sh", "-c", script, "sh", *words],
        cwd=ROOT,
        env={**environment, "HOME": str(home), "HERMES_TOOLCHAIN": os.environ.get("HERMES_TOOLCHAIN", ""), **more},
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("pve", "https://pve:8006"),
        ("192.0.2.1:443", "https://192.0.2.1:443"),
        ("https://[2001:db8::1]/", "https://[2001:db8::1]:8006"),
        ("[2001:db8::1]:443", "https://[2001:db8::1]:443"),
    ],
)
def test_an_address_is_written_in_many_ways(text: str, endpoint: str) -> None:
    assert endpoint_of(text) == endpoint


@pytest.mark.parametrize("text", ["", "2001:db8::1", "pve:x", "http://pve", "root@pve"])
def test_what_is_no_address_is_told(text: str) -> None:
    with pytest.raises(TrustError, match="is no address of a Proxmox API"):
        endpoint_of(text)


def begun(env: Env, node: LabServer, *words: str) -> subprocess.CompletedProcess[str]:
    token = f"{node.seed_access().api_token}\n"
    return env(*words, "init", node.endpoint, "--fingerprint", fingerprint(node), given=token)


def variables(home: Path, **more: str) -> dict[str, str]:
    """A shell's environment after `eval`."""
    done = shell('eval "$(scripts/env)" && env', home, **more)
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


@pytest.fixture(scope="module", name="seed")
def make_seed(node: LabServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a user who has run `init`."""
    home = tmp_path_factory.mktemp("seed")
    done = begun(lambda *words, **more: shell('scripts/env "$@"', home, *words, **more), node)
    assert done.returncode == 0, done.stderr
    return home


@pytest.fixture(name="user")
def make_user(seed: Path, tmp_path: Path) -> Path:
    """A copy of that home."""
    return shutil.copytree(seed, tmp_path, dirs_exist_ok=True)


def test_a_shell_gets_all_that_pulumi_needs_and_no_other_user_a_secret(
    env: Env, node: LabServer, tmp_path: Path
) -> None:
    token = node.seed_access().api_token
    made = begun(env, node)
    assert made.returncode == 0, made.stderr
    home = tmp_path / ".config" / "hermes-homelab"

    lines = env()
    secret = token.partition("=")[2]
    assert secret not in made.stdout + made.stderr + lines.stdout + lines.stderr
    found = variables(tmp_path)
    assert found["PROXMOX_VE_API_TOKEN"] == token
    assert found["PROXMOX_VE_ENDPOINT"] == node.endpoint.rstrip("/")
    assert found["PULUMI_BACKEND_URL"] == f"file://{tmp_path}/.local/state/hermes-homelab"
    assert found["PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION"] == "true"
    assert found["PATH"].split(":")[0] == str(ROOT / ".cache" / "pulumi-cli" / "bin")
    assert len(Path(found["PULUMI_CONFIG_PASSPHRASE_FILE"]).read_text().strip()) >= 32
    assert env("check").returncode == 0

    closed = [home, tmp_path / ".local" / "state" / "hermes-homelab"]
    closed += [home / name for name in ("env", "token", "passphrase")]
    assert {file.stat().st_mode & 0o077 for file in closed} == {0}


@pytest.mark.usefixtures("user")
def test_a_second_init_keeps_the_passphrase_and_asks_for_nothing(env: Env, tmp_path: Path) -> None:
    file = tmp_path / ".config" / "hermes-homelab" / "env"
    file.write_text(f"{file.read_text()}HERMES_SSH_KEY_FILE='~/.ssh/a key'\n")
    before = variables(tmp_path)
    assert before["HERMES_SSH_KEY_FILE"] == f"{tmp_path}/.ssh/a key"
    again = env("init")
    assert again.returncode == 0, again.stderr
    assert variables(tmp_path) == before


def test_a_shell_that_was_pointed_at_the_lab_leaves_it_wholly(user: Path) -> None:
    lab = {
        "HERMES_LAB_DIR": "/lab",
        "HERMES_SSH_KEY_FILE": "/lab/key",
        "PULUMI_OPTION_CONFIG_FILE": "/lab/stacks.yaml",
        "PULUMI_CONFIG_PASSPHRASE": "another",
        "PROXMOX_VE_NODE": "pve2",
        "PVELAB_SUBNET": "10.0.0.0/24",
    }
    found = variables(user, **lab)
    assert not lab.keys() & found.keys()


def test_what_cannot_be_evaluated_leaves_the_shell_as_it_was(tmp_path: Path) -> None:
    done = shell('eval "$(scripts/env)"; echo "$? ${PROXMOX_VE_ENDPOINT-unset}"', tmp_path)
    assert done.stdout == "1 unset\n"
    assert "do:   scripts/env init https://NODE:8006" in done.stderr


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda home: (home / "env").unlink(), "scripts/env init https://NODE:8006"),
        (lambda home: (home / "token").unlink(), "the API token is not there"),
        (lambda home: (home / "token").chmod(0o640), "chmod go= "),
        (lambda home: home.chmod(0o755), "chmod go= "),
        (lambda home: (home / "token").write_text("pulumi@pve!hermes\n"), "must have the form USER@REALM!NAME=UUID"),
        (lambda home: (home / "passphrase").write_text(""), "no state can be read"),
        (lambda home: (home / "ca.pem").unlink(), "must be a readable file of PEM certificates"),
        (lambda home: without(home, "PULUMI_BACKEND_URL"), "login at Pulumi Cloud"),
        (lambda home: without(home, "PROXMOX_VE_ENDPOINT"), "the address of the Proxmox API is needed"),
        (lambda home: added(home, "PROXMOX_VE_API_TOKEN=x@pve!y=z"), "does not belong in"),
        (lambda home: added(home, "AWS_SECRET_ACCESS_KEY=x@pve!y=z"), "does not belong in"),
        (lambda home: added(home, "PULUMI_BACKEND_URL=s3:/a-bucket"), "must begin with one of file:// s3://"),
        (lambda home: (home.parents[1] / ".local/state/hermes-homelab").rmdir(), "the folder is not there"),
    ],
)
def test_what_is_missing_is_told_with_its_remedy(
    user: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], object], told: str
) -> None:
    monkeypatch.setenv("HOME", str(user))
    home = Home.of("", {})
    assert list(faults_of(home, home.values())) == []
    spoil(home.folder)
    [fault] = faults_of(home, home.values())
    assert told in str(fault)
    assert fault.remedy
    assert "x@pve!y=z" not in str(fault)


def test_the_remedies_for_a_new_state_work(user: Path, env: Env, node: LabServer) -> None:
    state = user / ".local/state/hermes-homelab"
    state.rmdir()
    remedy = env().stderr.partition("for a new state: ")[2].strip()
    assert shell(remedy, user).returncode == 0
    assert env().returncode == 0
    passphrase = user / ".config/hermes-homelab/passphrase"
    for gone in (True, False):
        passphrase.write_text("")
        if gone:
            passphrase.unlink()
        assert "for a new state: scripts/env init" in env().stderr
        assert begun(env, node).returncode == 0
        assert env().returncode == 0
    # What a state was made with is not replaced.
    (state / ".pulumi/stacks").mkdir(parents=True)
    passphrase.write_text("")
    done = begun(env, node)
    assert done.returncode == 1
    assert "A new passphrase could not read it" in done.stderr
    assert not passphrase.read_text()


def without(home: Path, name: str) -> None:
    file = home / "env"
    file.write_text(re.sub(rf"^{name}=.*\n", "", file.read_text(), flags=re.MULTILINE))


def added(home: Path, line: str) -> None:
    file = home / "env"
    file.write_text(f"{file.read_text()}{line}\n")


def test_nothing_is_written_before_the_node_has_taken_the_token(env: Env, node: LabServer, tmp_path: Path) -> None:
    token = node.seed_access().api_token
    wrong = f"{token[:-1]}{'1' if token[-1] == '0' else '0'}\n"
    right = fingerprint(node)
    other = right[:-2] + ("00" if right[-2:] != "00" else "11")
    refused = [
        env("init", node.endpoint, "--fingerprint", right, given=wrong),
        env("init", node.endpoint, "--fingerprint", other, given=wrong),
        env("init", "http://192.0.2.1", given=wrong),
        env("init", node.endpoint, given=wrong),
        env("init"),
    ]
    told = ["401", "another fingerprint", "write it like https://", "Use --fingerprint, or --ca-file", "scripts/env"]
    for done, text in zip(refused, told, strict=True):
        assert done.returncode == 1
        assert text in done.stderr
        assert wrong.strip() not in done.stderr
    assert not (tmp_path / ".config" / "hermes-homelab" / "token").exists()
    assert not (tmp_path / ".config" / "hermes-homelab" / "env").exists()


def test_a_state_without_its_passphrase_gets_no_new_one(env: Env, node: LabServer, tmp_path: Path) -> None:
    (tmp_path / ".local/state/hermes-homelab/.pulumi/stacks").mkdir(parents=True)
    done = begun(env, node)
    assert done.returncode == 1
    assert "A new passphrase could not read it" in done.stderr
    # Where earlier versions of the README had it made.
    (tmp_path / ".local/state/hermes-homelab.passphrase").write_text("of old\n")
    (tmp_path / ".local/state/hermes-homelab.passphrase").chmod(0o600)
    assert begun(env, node).returncode == 0
    assert variables(tmp_path)["PULUMI_CONFIG_PASSPHRASE_FILE"].endswith(".local/state/hermes-homelab.passphrase")


@pytest.mark.usefixtures("user")
def test_a_node_that_does_not_answer_is_told_after_one_attempt(env: Env, node: LabServer, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    file = tmp_path / ".config" / "hermes-homelab" / "env"
    file.write_text(file.read_text().replace(str(urlsplit(node.endpoint).port), str(port)))
    done = env("check")
    assert done.returncode == 1
    assert f"https://127.0.0.1:{port} did not answer GET /version" in done.stderr
    beginning = env("init", f"https://127.0.0.1:{port}", "--fingerprint", fingerprint(node))
    for done in (beginning, shell(f"scripts/trust 127.0.0.1:{port}", tmp_path)):
        assert done.returncode == 1
        assert f"127.0.0.1:{port} sends no certificate" in done.stderr
        assert "do:   see whether the node is up" in done.stderr


def test_two_nodes_are_kept_apart_by_a_name(env: Env, node: LabServer, tmp_path: Path) -> None:
    assert begun(env, node, "--name", "work").returncode == 0
    assert (tmp_path / ".config" / "hermes-homelab-work" / "token").exists()
    assert env().returncode == 1
    lines = env("--name", "work").stdout
    assert f"PULUMI_BACKEND_URL=file://{tmp_path}/.local/state/hermes-homelab-work" in lines
    assert env("--name", "../x").returncode == 2


def test_a_stack_that_is_removed_leaves_its_settings(user: Path, tmp_path: Path) -> None:
    """`pulumi stack rm` deletes the file by default, with its encrypted secrets; git may not know it."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "Pulumi.yaml").write_text("name: x\nruntime: python\n")
    commands = "pulumi stack init s && pulumi config set --secret k v && pulumi stack rm --yes s"
    done = shell(f'eval "$(scripts/env)" && cd "$1" && {commands}', user, str(project))
    assert done.returncode == 0, done.stderr
    assert "secure:" in (project / "Pulumi.s.yaml").read_text()


# --- the state in a bucket ------------------------------------------------------------------------


@pytest.fixture(scope="module", name="bucket")
def run_bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with running(tmp_path_factory.mktemp("bucket") / "server") as made:
        yield made


def test_a_bucket_holds_the_state_and_no_other_user_reads_its_keys(
    env: Env, node: LabServer, bucket: Bucket, tmp_path: Path
) -> None:
    token = node.seed_access().api_token
    folder = tmp_path / ".config" / "hermes-homelab"

    def begin(url: str, secret: str, *more: str) -> subprocess.CompletedProcess[str]:
        how = ("--fingerprint", fingerprint(node), "--new-token", "--backend", url, *more)
        return env("init", node.endpoint, *how, given=f"{token}\n{bucket.key}\n{secret}\n", AWS_ACCESS_KEY_ID="stale")

    refused = [
        (begin(bucket.url, bucket.secret), "the server's certificate can't be verified"),
        (begin(bucket.url, "wrong", "--backend-ca", str(bucket.ca)), "the server does not take the keys"),
        (begin(bucket.url.replace("pulumi-state", "other"), bucket.secret, "--backend-ca", str(bucket.ca)), "no such"),
        (begin("pulumi-state", bucket.secret), "must begin with one of file:// s3://"),
    ]
    for done, told in refused:
        assert done.returncode == 1
        assert told in done.stderr
        assert "  do:   " in done.stderr
        assert bucket.secret not in done.stderr
        assert sorted(file.name for file in folder.iterdir()) == ["ca.pem", "token"]
    made = begin(bucket.url, bucket.secret, "--backend-ca", str(bucket.ca))
    assert made.returncode == 0, made.stderr
    secret = ("env", "passphrase", "s3-credentials", "token")
    assert {(folder / name).stat().st_mode & 0o077 for name in secret} == {0}
    assert not (tmp_path / ".local").exists()

    found = variables(tmp_path, AWS_SECRET_ACCESS_KEY="stale", AWS_PROFILE="stale")
    assert found["PULUMI_BACKEND_URL"] == bucket.url
    assert found["AWS_SHARED_CREDENTIALS_FILE"] == str(folder / "s3-credentials")
    assert not any(bucket.secret in value for value in found.values())
    assert not found.keys() & {"AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"}
    assert f"{bucket.url} has no stack yet." in env("check").stdout

    # A state that is there keeps its passphrase, on another machine as well.
    project = tmp_path / "project"
    project.mkdir()
    (project / "Pulumi.yaml").write_text("name: x\nruntime: python\n")
    init = shell('eval "$(scripts/env)" && cd "$1" && pulumi stack init s', tmp_path, str(project))
    assert init.returncode == 0, init.stderr
    assert f"{bucket.url} has organization/x/s." in env("check").stdout
    passphrase = (folder / "passphrase").read_text()
    for file in folder.iterdir():
        file.unlink()
    again = begin(bucket.url, bucket.secret, "--backend-ca", str(bucket.ca))
    assert again.returncode == 1
    assert "A new passphrase could not read it" in again.stderr
    (folder / "passphrase").write_text(passphrase)
    (folder / "passphrase").chmod(0o600)
    assert begin(bucket.url, bucket.secret, "--backend-ca", str(bucket.ca)).returncode == 0
    (folder / "s3-credentials").write_text("[default]\naws_access_key_id = x\n")
    assert "with aws_secret_access_key below [default]" in env().stderr
