"""Reading the connection: environment first, configuration second, all faults at once, no secret told."""

from __future__ import annotations

import shlex
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest
import requests
import trustme

from proxmox import connection as connection_module
from proxmox.client import Proxmox
from proxmox.connection import Connection, check_plugin_trust, plugin_certificates
from proxmox.errors import Faults
from proxmox.rights import grant_commands, manage_guest

UUID = "12345678-aaaa-bbbb-cccc-1234567890ab"
PRINT = ":".join(["AB"] * 32)
ENV = {
    "PROXMOX_VE_ENDPOINT": "https://192.0.2.10:8006/",
    "PROXMOX_VE_API_TOKEN": f"pulumi@pve!ci={UUID}",
    "PROXMOX_VE_NODE": "pve",
}


@pytest.fixture(name="ca")
def make_ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(name="ca_file")
def write_ca(ca: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "trusted" / "ca.pem"
    path.parent.mkdir()
    ca.cert_pem.write_to_path(path)
    return path


def faults(env: dict[str, str], config: dict[str, str | None] | None = None) -> Faults:
    with pytest.raises(Faults) as told:
        Connection.from_sources(env, config or {})
    assert UUID not in str(told.value)
    return told.value


def test_all_from_the_environment() -> None:
    connection = Connection.from_sources(ENV, {})
    assert connection.endpoint == "https://192.0.2.10:8006"
    assert (connection.host, connection.port, connection.node) == ("192.0.2.10", 8006, "pve")
    assert connection.token_id == "pulumi@pve!ci"
    assert connection.api_token.get_secret_value() == f"pulumi@pve!ci={UUID}"
    assert UUID not in repr(connection)
    assert (connection.ca_file, connection.fingerprint, connection.insecure) == (None, None, False)


def test_all_from_the_configuration_when_the_environment_is_silent() -> None:
    config: dict[str, str | None] = {
        "endpoint": "https://pve.example",
        "apiToken": f"root@pam!tok={UUID}",
        "node": "n1",
        "insecure": "true",
        "caFile": None,
        "fingerprint": "",
    }
    connection = Connection.from_sources({"PROXMOX_VE_ENDPOINT": " "}, config)
    assert connection.endpoint == "https://pve.example:8006"
    assert connection.insecure


def test_the_environment_wins() -> None:
    config: dict[str, str | None] = {"endpoint": "https://old:8006", "node": "old", "apiToken": "broken"}
    connection = Connection.from_sources(ENV, config)
    assert (connection.host, connection.node) == ("192.0.2.10", "pve")


@pytest.mark.parametrize(
    ("value", "endpoint", "host"),
    [
        ("https://pve.example:443", "https://pve.example:443", "pve.example"),
        ("https://pve.example:8006/api2/json", "https://pve.example:8006", "pve.example"),
        ("https://[2001:db8::1]:8006/", "https://[2001:db8::1]:8006", "2001:db8::1"),
        ("https://PVE.example", "https://pve.example:8006", "pve.example"),
    ],
)
def test_endpoints_that_are_taken(value: str, endpoint: str, host: str) -> None:
    connection = Connection.from_sources(ENV | {"PROXMOX_VE_ENDPOINT": value}, {})
    assert (connection.endpoint, connection.host) == (endpoint, host)


@pytest.mark.parametrize(
    "value",
    ["192.0.2.10:8006", "http://pve:8006", "https://", "https://pve:99999", "https://pve/x", "https://pve/?a=b"],
)
def test_endpoints_that_are_not(value: str) -> None:
    told = faults(ENV | {"PROXMOX_VE_ENDPOINT": value})
    assert [(fault.key, fault.value) for fault in told.faults] == [("PROXMOX_VE_ENDPOINT", value)]


def test_a_password_in_the_endpoint_is_refused_and_not_shown() -> None:
    told = faults(ENV | {"PROXMOX_VE_ENDPOINT": "https://root:hunter2@pve:8006"})
    assert "hunter2" not in str(told)
    assert "must not carry a user" in str(told)


@pytest.mark.parametrize("separator", ["=", ":"])
@pytest.mark.parametrize(
    "form", ["{u}", "pulumi@pve!ci{s}x{u}", "pulumi!ci{s}{u}", "pulumi@pve{s}{u}", "PVEAPIToken=a@b!c{s}{u}"]
)
def test_a_token_of_another_shape_is_refused_and_not_shown(form: str, separator: str) -> None:
    # field-reports C4
    value = form.format(u=UUID, s=separator)
    told = faults(ENV | {"PROXMOX_VE_API_TOKEN": value})
    assert "USER@REALM!NAME=UUID" in str(told)
    assert value not in str(told)


def test_all_faults_are_told_at_once_with_the_names_that_were_used() -> None:
    told = faults({"PROXMOX_VE_INSECURE": "maybe"}, {"node": "a b", "fingerprint": "12:34"})
    assert [fault.key for fault in told.faults] == [
        "endpoint",
        "apiToken",
        "node",
        "PROXMOX_VE_INSECURE",
        "fingerprint",
    ]
    assert all(fault.rule and fault.remedy for fault in told.faults)


@pytest.mark.parametrize(("text", "insecure"), [("1", True), ("TRUE", True), ("no", False), ("0", False), ("", False)])
def test_insecure_is_asked_for_by_name(text: str, insecure: bool) -> None:
    assert Connection.from_sources(ENV | {"PROXMOX_VE_INSECURE": text}, {}).insecure is insecure


def test_a_fingerprint_is_taken_with_and_without_colons() -> None:
    for text in (PRINT, PRINT.replace(":", "")):
        assert Connection.from_sources(ENV | {"PROXMOX_VE_FINGERPRINT": text}, {}).fingerprint == "ab" * 32


def test_a_ca_file_has_to_be_one(ca_file: Path, tmp_path: Path) -> None:
    assert Connection.from_sources(ENV | {"PROXMOX_VE_CA_FILE": str(ca_file)}, {}).ca_file == str(ca_file)
    (tmp_path / "empty.pem").touch()
    for name in ("missing.pem", "empty.pem"):
        told = faults(ENV | {"PROXMOX_VE_CA_FILE": str(tmp_path / name)})
        assert "PEM" in str(told)


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({"PROXMOX_VE_FINGERPRINT": PRINT, "PROXMOX_VE_INSECURE": "true"}, "contradicts insecure"),
        ({"PROXMOX_VE_FINGERPRINT": PRINT, "PROXMOX_VE_CA_FILE": "CA"}, "only one way"),
    ],
)
def test_ways_to_verify_must_not_contradict_each_other(more: dict[str, str], rule: str, ca_file: Path) -> None:
    env = {key: str(ca_file) if value == "CA" else value for key, value in more.items()}
    assert rule in str(faults(ENV | env))


# What the provider plugin trusts.


class Handshake:
    """A TLS server with one certificate, met in memory by whoever wants to check it."""

    def __init__(self, ca: trustme.CA, name: str) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert(name).configure_cert(self.context)

    def __call__(self, host: str, port: int, context: ssl.SSLContext) -> None:
        del port
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(to_client, to_server, server_hostname=host)
        server = self.context.wrap_bio(to_server, to_client, server_side=True)
        for _ in range(4):
            for side in (client, server):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue


def trust(connection: Connection, env: dict[str, str], handshake: Handshake) -> list[str]:
    return [fault.remedy for fault in check_plugin_trust(connection, env, handshake)]


def test_the_plugin_trusts_what_its_environment_names(ca: trustme.CA, ca_file: Path, tmp_path: Path) -> None:
    connection = Connection.from_sources(ENV | {"PROXMOX_VE_CA_FILE": str(ca_file)}, {})
    met = Handshake(ca, "192.0.2.10")
    assert trust(connection, {"SSL_CERT_FILE": str(ca_file)}, met) == []
    assert trust(connection, {"SSL_CERT_DIR": f"{tmp_path}/none:{ca_file.parent}"}, met) == []
    assert trust(connection, {}, met) == [f"export SSL_CERT_FILE='{ca_file}'   (the system's directories stay in use)"]
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    assert trust(connection, {"SSL_CERT_FILE": str(other)}, met) == [
        f"export SSL_CERT_DIR='/etc/ssl/certs:{ca_file.parent}'"
    ]


def test_the_directories_are_read_where_the_bundle_does_not_do(
    ca: trustme.CA, ca_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have hundreds of files; and a bundle may hold more than certificates."""
    connection = Connection.from_sources(ENV | {"PROXMOX_VE_CA_FILE": str(ca_file)}, {})
    bundle = ca_file.with_name("bundle.pem")
    bundle.write_text(f"# ours\n-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n{ca_file.read_text()}")
    env = {"SSL_CERT_FILE": str(bundle), "SSL_CERT_DIR": "/nowhere"}
    read: list[Mapping[str, str]] = []

    def all_certificates(asked: Mapping[str, str]) -> str:
        read.append(asked)
        return plugin_certificates(asked)

    monkeypatch.setattr(connection_module, "plugin_certificates", all_certificates)
    assert trust(connection, env, Handshake(ca, "192.0.2.10")) == []
    assert read == []
    stranger = Handshake(trustme.CA(), "192.0.2.10")
    assert trust(connection, env, stranger) != []
    assert read == [env]


def test_a_name_that_the_certificate_does_not_have_is_told(ca: trustme.CA, ca_file: Path) -> None:
    connection = Connection.from_sources(ENV | {"PROXMOX_VE_CA_FILE": str(ca_file)}, {})
    remedies = trust(connection, {"SSL_CERT_FILE": str(ca_file)}, Handshake(ca, "pve.example"))
    assert remedies == ["use an address that the server's certificate names (pvenode cert info shows them)"]


def test_a_fingerprint_is_of_no_use_to_the_plugin(ca: trustme.CA) -> None:
    connection = Connection.from_sources(ENV | {"PROXMOX_VE_FINGERPRINT": PRINT}, {})
    assert "scripts/trust https://192.0.2.10:8006 FINGERPRINT" in trust(connection, {}, Handshake(ca, "192.0.2.10"))[0]


def test_an_insecure_plugin_and_a_silent_server_are_no_faults(ca: trustme.CA) -> None:
    insecure = Connection.from_sources(ENV | {"PROXMOX_VE_INSECURE": "true"}, {})
    assert trust(insecure, {}, Handshake(ca, "192.0.2.10")) == []
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        silent = Connection.from_sources(ENV | {"PROXMOX_VE_ENDPOINT": f"https://127.0.0.1:{port}"}, {})
        assert check_plugin_trust(silent, {}) == ()


def test_the_plugin_reads_every_file_of_a_directory_and_only_certificates(ca_file: Path, tmp_path: Path) -> None:
    (ca_file.parent / "key.txt").write_text("-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n")
    (ca_file.parent / "folder").mkdir()
    (ca_file.parent / "again.crt").write_bytes(ca_file.read_bytes())
    found = plugin_certificates({"SSL_CERT_FILE": str(tmp_path / "none"), "SSL_CERT_DIR": str(ca_file.parent)})
    assert found.count("BEGIN CERTIFICATE") == 1
    assert "PRIVATE" not in found


@pytest.mark.parametrize("user", ["me@example.org@ldap", "o'brien@ad", "a!b@pve", "x=y@openid", "$(reboot)@pve"])
def test_a_user_has_every_name_that_proxmox_gives(user: str) -> None:
    """PVE::Auth::Plugin: anything but a blank, a colon and a slash, then @REALM."""
    connection = Connection.from_sources(ENV | {"PROXMOX_VE_API_TOKEN": f"{user}!ci={UUID}"}, {})
    assert (connection.token_id, connection.token_secret.get_secret_value()) == (f"{user}!ci", UUID)
    sent = Proxmox(connection)._session.prepare_request(requests.Request("GET", connection.endpoint))
    assert sent.headers["Authorization"] == f"PVEAPIToken={user}!ci={UUID}"


def test_the_commands_for_a_user_can_be_pasted_whatever_its_name() -> None:
    _, *commands = map(shlex.split, grant_commands([manage_guest(105)], "$(reboot)o'brien@ad!ci"))
    assert all({"$(reboot)o'brien@ad", "$(reboot)o'brien@ad!ci"} & set(words) for words in commands)


def test_a_home_folder_that_nobody_has_is_a_fault() -> None:
    told = faults(ENV | {"PROXMOX_VE_CA_FILE": "~nobody-of-that-name/ca.pem"})
    assert [(fault.key, fault.rule) for fault in told.faults] == [
        ("PROXMOX_VE_CA_FILE", "this machine knows no home folder for ~nobody-of-that-name")
    ]
