"""The dashboard of a real agent behind real proxies, in a real browser: who gets in, how, and who does not.

The tests share one container, whose dashboard takes a password by its hash and an identity provider's word.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import platform
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tenacity
import trustme
import websocket
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support import expected_conditions as shown
from selenium.webdriver.support.wait import WebDriverWait

from applications.hermes.settings.dashboard import DashboardSettings
from tests.e2e import proxies
from tests.e2e.identity import Provider, serving
from tests.e2e.phase_guest import CHECKOUT, Guest, needs_root
from tests.e2e.proxies import NAME, PATIENCE, Answer, Proxy, Visitor
from tests.listening import free_port
from tests.settings import unchecked

pytestmark = needs_root

USER = "admin"
PASSWORD = "canary horse battery staple"
SALT = b"sixteen bytes ok"
KEY = hashlib.scrypt(PASSWORD.encode(), salt=SALT, n=2**14, r=8, p=1, dklen=32)
# facts hermes 1, "Dashboard": the form of the hash
HASH = f"scrypt$16384$8$1${base64.b64encode(SALT).decode()}${base64.b64encode(KEY).decode()}"
LOGIN = "login.home.arpa"
CLIENT_SECRET = "oidc-canary-8d1c"


@pytest.fixture(scope="module")
def caddy_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """A homelab's own, which nobody trusts yet."""
    return trustme.CA()


@pytest.fixture(scope="module")
def provider(guest: Guest, authority: trustme.CA, caddy_port: int) -> Iterator[Provider]:
    """On the bridge, where browser and container reach it."""
    gateway, port = str(guest.plan.gateway), free_port()
    place = guest.runtime.place
    rule = ["insert", "rule", "inet", place.table, "host", "iifname", place.bridge, "tcp", "dport", str(port), "accept"]
    subprocess.run(["nft", *rule], check=True, timeout=30)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(LOGIN).configure_cert(tls)
    back = f"https://{NAME}:{caddy_port}/auth/callback"
    made = Provider(f"https://{LOGIN}:{port}", "hermes-dashboard", CLIENT_SECRET, back)
    with serving(made, gateway, port, tls):
        yield made


@pytest.fixture(scope="module")
def dashboard(guest: Guest, provider: Provider, authority: trustme.CA, caddy_port: int) -> DashboardSettings:
    """The running agent, opened as the settings would open it for these proxies and this provider."""
    guest.run(guest.baseline())
    guest.run(guest.agent(agentWebUi="build"))
    guest.shell(f"echo '{guest.plan.gateway} {LOGIN}' >>/etc/hosts")
    stack = guest.stack(
        agentApi=False,
        agentDashboard=True,
        agentDashboardHost="0.0.0.0",  # noqa: S104 - of a container in a lab
        agentDashboardUser=USER,
        agentDashboardPasswordHash=HASH,
        agentDashboardOidcIssuer=provider.issuer,
        agentDashboardOidcClientId=provider.client_id,
        agentDashboardOidcClientSecret=CLIENT_SECRET,
        agentDashboardPublicUrl=f"https://{NAME}:{caddy_port}",
        agentDashboardTrustedProxies=[str(guest.plan.gateway)],
    )
    certificates = authority.cert_pem.bytes().decode()
    guest.run(guest.configured(unchecked(stack, agent__model__authorities=certificates)))
    return stack.agent.dashboard


@pytest.fixture(scope="module")
def caddy(
    guest: Guest, dashboard: DashboardSettings, caddy_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxy]:
    with proxies.caddy(tmp_path_factory.mktemp("caddy"), f"{guest.address}:{dashboard.port}", caddy_port) as made:
        yield made


@pytest.fixture(scope="module")
def nginx(guest: Guest, dashboard: DashboardSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with proxies.nginx(tmp_path_factory.mktemp("nginx"), f"{guest.address}:{dashboard.port}", free_port()) as made:
        yield made


@pytest.fixture(scope="module")
def manager(guest: Guest, dashboard: DashboardSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp("manager")
    with proxies.nginx_proxy_manager(folder, f"{guest.address}:{dashboard.port}", free_port()) as made:
        yield made


@pytest.fixture(params=["caddy", "nginx", "manager"])
def proxy(request: pytest.FixtureRequest) -> Proxy:
    made: Proxy = request.getfixturevalue(request.param)
    return made


def verify(guest: Guest) -> tuple[int, str, str]:
    return guest.verify(
        services_timeout_s=PATIENCE,
        prompt_timeout_s=PATIENCE,
    )


@pytest.mark.usefixtures("dashboard")
def test_verify_finds_both_ways_in_and_reaches_the_provider(guest: Guest) -> None:
    status, _, err = verify(guest)
    assert status == 0, err


# -- behind a proxy ----------------------------------------------------------------------------------------------------


def log_in(visitor: Visitor) -> Answer:
    return visitor.ask("/auth/password-login", {"provider": "basic", "username": USER, "password": PASSWORD})


def test_its_name_leads_to_the_login_and_the_password_to_the_dashboard(proxy: Proxy) -> None:
    visitor = Visitor(proxy)
    first = visitor.ask("/")
    assert first.status == 302
    assert first.headers["Location"].startswith("/login")
    assert 'data-provider="basic"' in visitor.ask("/login").text
    assert visitor.ask("/api/config").status == 401

    logged_in = log_in(visitor)
    assert logged_in.status == 200
    cookies = [line for line in logged_in.headers.get_all("Set-Cookie", []) if "_session_" in line]
    # The dashboard knows by the proxy's word that the browser speaks TLS, though it does not itself.
    assert [line for line in cookies if line.startswith("__Host-hermes_session_at=")]
    assert all("Secure" in line and "HttpOnly" in line for line in cookies)
    assert visitor.ask("/api/config").status == 200


def test_a_websocket_passes_with_a_ticket_and_from_its_own_page_only(proxy: Proxy) -> None:
    visitor = Visitor(proxy)
    assert log_in(visitor).status == 200
    ticket = json.loads(visitor.ask("/api/auth/ws-ticket", {}).text)["ticket"]
    address = f"{proxy.url}/api/ws".replace("https:", "wss:")

    def upgrade(address: str) -> websocket.WebSocket:
        plain = visitor.connect()
        try:
            return websocket.create_connection(address, socket=plain, origin=proxy.url, timeout=PATIENCE)
        except websocket.WebSocketException:
            plain.close()
            raise

    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        upgrade(address)
    assert refused.value.status_code == 403
    with contextlib.closing(upgrade(f"{address}?ticket={ticket}")) as connection:
        assert json.loads(connection.recv())["jsonrpc"] == "2.0"


def installation(guest: Guest) -> str:
    """What runs, from what, and what it is told: by process, build, unit and managed file."""
    return guest.shell(
        "systemctl show -p MainPID -p NRestarts hermes-gateway.service hermes-dashboard.service; "
        "pgrep -afc hermes_cli.main; readlink /opt/hermes/current; find /opt/hermes /etc/hermes /etc/systemd/system "
        "-printf '%p %i %T@ %s\\n' | sort | sha256sum"
    )


# hermes_cli/web_server.py: the dashboard's buttons that would change the installation, and what they are told.
UPDATE = {
    # It does try; whether there is anything newer is the index's business, and then it ends at a read-only file system.
    "0.19.0": "uv pip install --upgrade hermes-agent",
    "0.20.3": "Not a git repository",
}
BUTTONS = {
    "/api/gateway/restart": ("gateway-restart", "System gateway restart requires root"),
    "/api/gateway/stop": ("gateway-stop", "System gateway stop requires root"),
    "/api/gateway/start": ("gateway-start", "System gateway start requires root"),
}


def test_its_buttons_leave_the_installation_as_it_is(guest: Guest, caddy: Proxy) -> None:
    # As where the agent reaches the internet: it has fetched the uv that it updates itself with.
    home = "/home/hermes/.hermes"
    guest.shell(
        f"runuser -u hermes -- mkdir -p {home}/bin; "
        f"cp /var/lib/hermes-provision/store/* {home}/bin/uv; chmod 755 {home}/bin/uv; chown -R hermes: {home}/bin"
    )
    visitor, before = Visitor(caddy), installation(guest)
    assert log_in(visitor).status == 200
    update = {"/api/hermes/update": ("hermes-update", UPDATE[guest.release.version])}
    for path, (action, words) in (update | BUTTONS).items():
        assert visitor.ask(path, {}).status == 200

        @tenacity.retry(
            retry=tenacity.retry_if_result(lambda told: told["running"]),
            stop=tenacity.stop_after_delay(PATIENCE),
            wait=tenacity.wait_fixed(0.2),
        )
        def outcome(action: str = action) -> dict[str, Any]:
            found: dict[str, Any] = json.loads(visitor.ask(f"/api/actions/{action}/status").text)
            return found

        told = outcome()
        assert told["exit_code"] == 1 or action == "hermes-update", told
        assert words in "\n".join(told["lines"]), told
    assert installation(guest) == before


def test_another_name_finds_nothing(proxy: Proxy) -> None:
    visitor = Visitor(proxy)
    # The name is asked for in the TLS handshake already: there is no certificate for it.
    with pytest.raises(ssl.SSLError):
        visitor.connect("other.home.arpa")
    # With the right name in the handshake and another one afterwards: nginx hangs up, Caddy answers with nothing.
    with contextlib.suppress(http.client.RemoteDisconnected):
        answer = visitor.ask("/login", host="other.home.arpa")
        assert (answer.status, answer.text) == (200, "")


# -- in a browser ------------------------------------------------------------------------------------------------------


@pytest.fixture
def browser(guest: Guest, tmp_path: Path) -> Iterator[webdriver.Chrome]:
    """Debian's Chromium, headless. It takes any certificate: that they are right, the tests above have seen."""
    options = webdriver.ChromeOptions()
    options.accept_insecure_certs = True
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        # Elsewhere it is no package (scripts/lib/setup.py, is_debian); on Debian it is never skipped.
        assert platform.freedesktop_os_release()["ID"] != "debian", "Chromium is not here: scripts/setup --tests"
        pytest.skip("needs Chromium and chromedriver on PATH")
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",  # it refuses to run as root otherwise
        "--disable-dev-shm-usage",
        "--window-size=1280,800",
        "--lang=en",
        f"--user-data-dir={tmp_path / 'profile'}",
        f"--host-resolver-rules=MAP {NAME} 127.0.0.1, MAP {LOGIN} {guest.plan.gateway}",
    ):
        options.add_argument(argument)
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    made.set_page_load_timeout(PATIENCE)
    yield made
    made.quit()


def wait_for(browser: webdriver.Chrome, selector: str) -> WebElement:
    element: WebElement = WebDriverWait(browser, PATIENCE).until(
        shown.visibility_of_element_located((By.CSS_SELECTOR, selector))
    )
    return element


def fill_in(browser: webdriver.Chrome, **fields: str) -> None:
    for name, value in fields.items():
        field = wait_for(browser, f"input[name={name}]")
        field.clear()
        field.send_keys(value)
    browser.find_element(By.CSS_SELECTOR, "button").click()


def session_cookies(browser: webdriver.Chrome) -> list[str]:
    return [cookie["name"] for cookie in browser.get_cookies() if "hermes_session_at" in cookie["name"]]


def sees_dashboard(browser: webdriver.Chrome, version: str) -> None:
    """The page that comes after the login, with all that it fetches: the version, and the gateway that runs."""

    def complete(found: webdriver.Chrome) -> bool:
        text = found.find_element(By.TAG_NAME, "body").text
        return f"v{version}" in text and "Gateway Status: Running" in text

    waiting = WebDriverWait(browser, PATIENCE, ignored_exceptions=[StaleElementReferenceException])
    waiting.until(complete)
    assert session_cookies(browser) == ["__Host-hermes_session_at"]


def take_picture(browser: webdriver.Chrome) -> None:
    """Where $DASHBOARD_PICTURE says: docs/dashboard.png is made so."""
    if path := os.environ.get("DASHBOARD_PICTURE"):
        listed = shown.text_to_be_present_in_element((By.TAG_NAME, "body"), "Reply with the word")
        WebDriverWait(browser, PATIENCE).until(listed)
        browser.save_screenshot(path)


def test_a_password_opens_the_dashboard_and_a_wrong_one_does_not(
    browser: webdriver.Chrome, caddy: Proxy, guest: Guest
) -> None:
    browser.get(caddy.url)
    assert "/login" in browser.current_url
    fill_in(browser, username=USER, password="not the password")
    assert "Invalid username or password" in wait_for(browser, ".form-error").text
    assert session_cookies(browser) == []

    fill_in(browser, username=USER, password=PASSWORD)
    WebDriverWait(browser, PATIENCE).until(lambda found: "/login" not in found.current_url)
    sees_dashboard(browser, guest.release.version)
    take_picture(browser)


def test_a_provider_s_word_opens_the_dashboard(
    browser: webdriver.Chrome, caddy: Proxy, provider: Provider, guest: Guest
) -> None:
    browser.get(caddy.url)
    wait_for(browser, "a.provider-btn").click()
    fill_in(browser, user="ada")
    WebDriverWait(browser, PATIENCE).until(lambda found: found.current_url.startswith(f"{caddy.url}/"))
    sees_dashboard(browser, guest.release.version)
    who = browser.execute_async_script(
        "const done = arguments[0]; fetch('/api/auth/me').then(a => a.json()).then(done, e => done(String(e)))"
    )
    assert (who["provider"], who["user_id"]) == ("self-hosted", "ada")
    assert provider.refused == []


def test_a_tunnel_leads_to_the_dashboard(guest: Guest, dashboard: DashboardSettings) -> None:
    """`scripts/agent dashboard`, without the stack that it would ask for the address."""
    target, port = guest.target(), free_port()
    program = (
        "import signal, sys; from applications.hermes.commands import see_dashboard\n"
        "from provisioning.ssh import HostKey, SshTarget\n"
        # A shell without a terminal has what it starts in the background ignore the signal; ssh would inherit that.
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "target = SshTarget(sys.argv[1], HostKey.parse(sys.argv[2]), private_key_file=sys.argv[3])\n"
        "see_dashboard(target, 'http://127.0.0.1:' + sys.argv[4], int(sys.argv[5]))\n"
    )
    arguments = [target.host, target.host_key.line, str(target.private_key_file), str(dashboard.port), str(port)]
    command = [sys.executable, "-c", program, *arguments]
    child = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert child.stdout is not None
    try:
        assert child.stdout.readline().startswith(f"http://127.0.0.1:{port} ")

        @tenacity.retry(
            retry=tenacity.retry_if_exception_type(OSError),
            stop=tenacity.stop_after_delay(PATIENCE),
            wait=tenacity.wait_fixed(0.1),
            reraise=True,
        )
        def status() -> dict[str, object]:
            assert child.poll() is None
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/status", timeout=PATIENCE) as answer:
                found: dict[str, object] = json.load(answer)
                return found

        assert status()["version"] == guest.release.version
        os.killpg(child.pid, signal.SIGINT)  # as a terminal's Ctrl-C
        assert child.wait(timeout=PATIENCE) in (255, -signal.SIGINT)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(timeout=PATIENCE)
        child.stdout.close()


@pytest.mark.usefixtures("dashboard")
def test_a_provider_that_is_not_reached_is_told(guest: Guest) -> None:
    guest.shell(f"sed -i '/{LOGIN}/d' /etc/hosts && systemctl restart hermes-dashboard.service")
    status, _, err = verify(guest)
    assert status == 1
    assert "can't begin a login at the OpenID Connect provider" in err
    assert CLIENT_SECRET not in err


def test_no_secret_of_the_dashboard_is_where_others_read_it(guest: Guest, dashboard: DashboardSettings) -> None:
    assert dashboard.providers
    places = "/var/lib/hermes-provision /run /var/log /tmp /var/tmp /etc/systemd /home/hermes/.hermes/logs"
    for secret in (PASSWORD, CLIENT_SECRET, HASH):
        assert guest.shell(f"grep -rlF '{secret}' {places} 2>/dev/null || true") == ""
        assert guest.shell(f"journalctl --no-pager | grep -cF '{secret}' || true").strip() == "0"
    assert guest.shell("stat -c %U:%G:%a /etc/hermes/.env").strip() == "root:hermes:640"
