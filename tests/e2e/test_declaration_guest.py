"""What is declared about the agent and what the running agent makes of it, in a real container.

The settings take the way of a stack's: through their rules into the configure phase. The model endpoints write down
what the agent sends them. The tests tell one story, in this order: each finds the container as the one before has
left it.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tenacity
import yaml
from aiohttp import web

from applications.hermes.phases import render_configure
from components.explanation import explain
from lab.ports import MODEL_PORT
from lab.services.model import ModelEndpoint as LabModel
from provisioning.errors import PhaseFailed
from provisioning.plans import PhasePlan
from settings.kinds import unfit_for_env
from tests.e2e.phase_guest import Guest, needs_root
from tests.settings import cattle

pytestmark = needs_root

GATEWAY = "hermes-gateway.service"
FIRST_KEY, SPARE_KEY = "sk-first-canary-7d1e", "sk-spare-canary-94ab"
WORD = "canary-word-of-the-tool"
TELEGRAM = "123456789:" + "A" * 35
TOKENS = {
    "agentTelegramToken": TELEGRAM,
    "agentTelegramAllowedUsers": ["1"],
    "agentSlackBotToken": "xoxb-canary-1",
    "agentSlackAppToken": "xapp-canary-1",
    "agentSlackAllowedUsers": ["U0123ABC"],
    "agentDiscordToken": "M" * 26 + ".Gabcde." + "x" * 38,
}
# A tool of its own; what its environment was like is left where it can be seen.
TOOL = """\
import os
import tabulate  # one of agentExtraPythonPackages
from pathlib import Path
try:
    from mcp.server.mcpserver import MCPServer  # of the library's 2.0, which the agent has from 0.20 on
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer
Path(__file__).parents[1].joinpath("tool-word").write_text(os.environ.get("WORD", "nothing"))
server = MCPServer("lab")
@server.tool()
def lantern(text: str) -> str:
    "Say it backwards."
    return text[::-1]
server.run()
"""
USERS_CONFIG = "# mine\nagent:\n  max_turns: 3   # few\n  verbose: true\ndisplay:\n  compact: true\n"


class Listening(LabModel):
    """The lab's model endpoint, which keeps every request that bears the right key.

    Guests reach one port only, so a second endpoint may be served below a path of the first one.
    """

    def __init__(self, host: str, port: int, key: str, log_file: Path, spare: Listening | None = None) -> None:
        super().__init__(host, port, key, log_file)
        self.heard: list[dict[str, Any]] = []
        self.spare = spare
        self.updates: list[dict[str, Any]] = []
        self.sent: list[dict[str, Any]] = []

    def add_routes(self, router: web.UrlDispatcher, prefix: str = "") -> None:
        super().add_routes(router, prefix)
        if self.spare is not None:
            self.spare.add_routes(router, "/spare")
            router.add_post("/mcp", self._mcp)
            router.add_route("*", "/bot{token}/{method}", self._telegram)

    async def _mcp(self, request: web.Request) -> web.StreamResponse:
        """An MCP server over HTTP with one tool, for who bears the word."""
        if request.headers.get("X-Word") != WORD:
            return web.Response(status=401)
        asked = await request.json()
        if "id" not in asked:
            return web.Response(status=202)
        results = {
            "initialize": {
                "protocolVersion": (asked.get("params") or {}).get("protocolVersion"),
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "remote", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "beacon", "description": "Shine.", "inputSchema": {"type": "object"}}]},
        }
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], "result": results.get(asked["method"], {})})

    async def _telegram(self, request: web.Request) -> web.StreamResponse:
        """Telegram's bot API as far as the agent needs it for a conversation."""
        if request.match_info["token"] != TELEGRAM:
            return web.json_response({"ok": False, "error_code": 401, "description": "Unauthorized"}, status=401)
        fields: dict[str, Any] = dict(await request.post()) or (await request.json() if request.can_read_body else {})
        method = request.match_info["method"].lower()
        result: Any = True
        if method == "getme":
            result = {"id": 123456789, "is_bot": True, "first_name": "lab", "username": "lab_bot"}
        elif method == "getupdates":
            offset = int(fields.get("offset") or 0)
            result = [update for update in self.updates if update["update_id"] >= offset]
            if not result:
                await asyncio.sleep(0.2)  # as the real one waits, but never longer than the agent does
        elif method == "sendmessage":
            self.sent.append(fields)
            chat = {"id": int(fields["chat_id"]), "type": "private"}
            result = {"message_id": 1000 + len(self.sent), "date": 1, "chat": chat, "text": fields["text"]}
        elif method == "getmycommands":
            result = []
        return web.json_response({"ok": True, "result": result})

    def write(self, sender: int, text: str) -> None:
        """Somebody writes to the bot."""
        number = 1 + len(self.updates)
        person = {"id": sender, "is_bot": False, "first_name": f"user{sender}"}
        message = {
            "message_id": number,
            "date": int(time.time()),
            "chat": {"id": sender, "type": "private", "first_name": person["first_name"]},
            "from": person,
            "text": text,
        }
        self.updates.append({"update_id": number, "message": message})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        answer = await super()._chat(request)
        if answer.status == 200:
            self.heard.append(await request.json())
        return answer

    def turn(self) -> dict[str, Any]:
        """The last request of a turn. From 0.20 on one without tools follows, which has the model name the session."""
        return next(body for body in reversed(self.heard) if body.get("tools"))

    def last(self) -> tuple[str, set[str]]:
        """System prompt and names of the tools, of the last turn; those that are to be searched for, too.

        From 0.20 on the agent names an MCP server's tools in the description of its `tool_search`, a line each.
        """
        body = self.turn()
        system = "\n".join(str(m["content"]) for m in body["messages"] if m["role"] in ("system", "developer"))
        tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or ()}
        listed = re.findall(r"^- ([\w-]+)", tools.get("tool_search", {}).get("description", ""), re.MULTILINE)
        return system, {*tools, *listed}


@dataclass
class Story:
    """The guest, two endpoints, and what is declared at the moment."""

    guest: Guest
    first: Listening
    spare: Listening
    declared: dict[str, Any]
    configured: bool = False

    def plan(self, **changed: Any) -> PhasePlan:
        self.declared |= changed
        return render_configure(cattle(**self.declared))

    def configure(self, **changed: Any) -> dict[str, Any]:
        """What a preview would tell of it is what has to happen."""
        before, after = self.plan(), self.plan(**changed)
        told = explain(
            "configure", {"declared": before.declared, "digest": before.digest}, after.declared, after.digest
        )
        outputs = self.guest.run(after)
        if self.configured:
            assert outputs["restarted"] == ([GATEWAY] if GATEWAY in (told or "") else []), told
        self.configured = True
        return outputs

    def as_agent(self, command: str) -> str:
        environment = "env HERMES_HOME=/home/hermes/.hermes HERMES_MANAGED=pulumi PATH=/usr/bin:/bin"
        return self.guest.shell(f"cd /home/hermes && runuser -u hermes -- {environment} HOME=/home/hermes {command}")

    def works(self) -> None:
        status, _, err = self.guest.verify()
        assert status == 0, err


@pytest.fixture(scope="module")
def story(guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("declared")
    (folder / "secret.env").write_text(f'SPARE_KEY="{SPARE_KEY}"\n')
    (folder / "auth.json").write_text(json.dumps({"version": 1, "providers": {"lab": {}}, "credential_pool": {}}))
    (folder / "AGENTS.md").write_text("The rule of the LAB-WORKSHOP.\n")
    host = str(guest.plan.gateway)
    spare = Listening("127.0.0.1", 0, SPARE_KEY, folder / "spare.log")
    first = Listening(host, MODEL_PORT, FIRST_KEY, folder / "first.log", spare)
    guest.model.stop()
    spare.start()
    first.start()
    guest.run(guest.baseline())
    guest.run(guest.agent(agentExtraPythonPackages=["tabulate==0.9.0"]))
    guest.shell(
        f"runuser -u hermes -- sh -c 'umask 077; cat >/home/hermes/.hermes/config.yaml' <<'END'\n{USERS_CONFIG}END\n"
        "echo 'I was here before.' >/home/hermes/.hermes/SOUL.md; chown hermes: /home/hermes/.hermes/SOUL.md"
    )
    yield Story(
        guest,
        first,
        spare,
        {
            "agentDashboard": False,
            # So that the gateway itself is asked.
            "agentApi": True,
            "agentModel": "lab-model",
            "agentModelUrl": "",
            "agentModelProvider": "first",
            "agentProviders": {
                "first": {"base_url": first.base_url, "key_env": "FIRST_KEY"},
                "spare": {"base_url": f"http://{host}:{MODEL_PORT}/spare/v1", "key_env": "SPARE_KEY"},
            },
            "agentFallbackModels": [{"provider": "spare", "model": "lab-model"}],
            "agentAuxiliaryModels": {"compression": {"provider": "spare", "model": "lab-model"}},
            "agentSettings": {"agent": {"max_turns": 7}, "timezone": "Europe/Berlin", "tymezone": {"a": 1}},
            "agentEnvironment": {"LAB_PLAIN": "plain"},
            "agentSecretEnvironment": {"FIRST_KEY": FIRST_KEY, "LAB_WORD": WORD},
            "agentEnvironmentFiles": [str(folder / "secret.env")],
            "agentAuthFile": str(folder / "auth.json"),
            "agentDocuments": {
                "SOUL.md": "You are LAB-SOUL-ONE.\n",
                "AGENTS.md": {"file": str(folder / "AGENTS.md")},
                "USER.md": "The user is LAB-USER.",
                "tools/lantern.py": TOOL,
            },
            "agentMcpServers": {
                "lab": {
                    "command": "/opt/hermes/current/venv/bin/python",
                    "args": ["/home/hermes/workspace/tools/lantern.py"],
                    "env": {"WORD": "${LAB_WORD} ${LAB_PLAIN}"},
                    "timeout": 30,
                },
                "remote": {
                    "url": f"http://{host}:{MODEL_PORT}/mcp",
                    "headers": {"X-Word": "${LAB_WORD}"},
                    "connect_timeout": 20,
                },
                "off": {
                    "command": "/opt/hermes/current/venv/bin/python",
                    "args": ["/home/hermes/workspace/tools/lantern.py"],
                    "enabled": False,
                },
            },
        },
    )
    first.stop()
    spare.stop()


def test_all_that_is_declared_reaches_the_running_agent(story: Story) -> None:
    outputs = story.configure()
    # Told, not refused: another version may know it.
    assert outputs["unknown_settings"] == ["tymezone"]
    story.works()
    # The key of the named provider was sent: the endpoint answers no other.
    system, tools = story.first.last()
    assert story.spare.heard == []
    for text in ("LAB-SOUL-ONE", "LAB-WORKSHOP", "LAB-USER"):
        assert text in system
    # Hermes names an MCP server's tool mcp__SERVER__TOOL.
    assert {name for name in tools if "lantern" in name or "beacon" in name} == {
        "mcp__lab__lantern",
        "mcp__remote__beacon",
    }
    called = 'call mcp__lab__lantern: {"text": "it burns"}'
    status, _, err = story.guest.verify(prompt=called, expect="snrub ti")
    assert status == 0, err
    calls = [call["function"]["name"] for m in story.first.turn()["messages"] for call in m.get("tool_calls") or ()]
    searched = ["tool_search", "tool_describe", "tool_call"]
    assert calls == (searched if "tool_search" in tools else ["mcp__lab__lantern"])
    assert story.guest.shell("cat /home/hermes/workspace/tool-word") == f"{WORD} plain"


def test_ours_win_and_the_users_other_keys_stay(story: Story) -> None:
    python = "/opt/hermes/current/venv/bin/python"
    program = (
        "import json; from hermes_cli.config import load_config; c = load_config(); a = c['agent']; "
        "from hermes_cli.auth import _load_auth_store as auth; p = sorted(auth()['providers']); "
        "print(json.dumps([a['max_turns'], a['verbose'], c['display']['compact'], c['timezone'], p]))"
    )
    answer = story.as_agent(f'{python} -c "{program}"')
    assert json.loads(answer.splitlines()[-1]) == [7, True, True, "Europe/Berlin", ["lab"]]
    assert story.guest.shell("cat /home/hermes/.hermes/config.yaml").startswith(USERS_CONFIG)


def test_files_lie_where_they_belong_and_what_was_there_is_kept(story: Story) -> None:
    assert story.guest.shell("cd /home/hermes/.hermes && stat -c '%U %a %n' SOUL.md auth.json memories/USER.md").split(
        "\n"
    )[:3] == ["hermes 600 SOUL.md", "hermes 600 auth.json", "hermes 600 memories/USER.md"]
    assert "I was here before." in story.guest.shell("cat /home/hermes/.hermes-stack/replaced/SOUL.md.*")


def test_a_document_needs_no_restart(story: Story) -> None:
    documents = {**story.declared["agentDocuments"], "SOUL.md": "You are LAB-SOUL-TWO.\n"}
    assert story.configure(agentDocuments=documents)["restarted"] == []
    story.works()
    assert "LAB-SOUL-TWO" in story.first.last()[0]


def test_tools_of_mcp_servers_are_offered_at_once_where_that_is_declared(story: Story) -> None:
    settings = {**story.declared["agentSettings"], "tools": {"tool_search": {"enabled": "off"}}}
    assert story.configure(agentSettings=settings)["restarted"] == [GATEWAY]
    story.works()
    offered = {tool["function"]["name"] for tool in story.first.turn()["tools"]}
    assert {"mcp__lab__lantern", "mcp__remote__beacon"} <= offered
    assert "tool_search" not in offered


def test_a_side_task_goes_to_its_own_model(story: Story) -> None:
    before = len(story.first.heard)
    program = (
        "from hermes_cli.env_loader import load_hermes_dotenv as l; l(); from agent.auxiliary_client import call_llm; "
        "call_llm('compression', messages=[{'role': 'user', 'content': 'reply with the word LAB-SIDE'}])"
    )
    story.as_agent(f'/opt/hermes/current/venv/bin/python -c "{program}"')
    assert len(story.first.heard) == before
    assert "LAB-SIDE" in story.spare.heard[-1]["messages"][-1]["content"]


def test_a_name_of_the_agents_own_is_refused_before_anything_is_written(story: Story) -> None:
    written = story.guest.shell("sha256sum /etc/hermes/config.yaml")
    before = story.declared["agentProviders"]
    with pytest.raises(PhaseFailed, match="takes openrouter for a provider of its own"):
        story.configure(agentProviders={**before, "openrouter": before["spare"]})
    story.declared["agentProviders"] = before
    assert story.guest.shell("sha256sum /etc/hermes/config.yaml") == written


def test_when_the_first_model_fails_the_fallback_answers(story: Story) -> None:
    secrets = {**story.declared["agentSecretEnvironment"], "FIRST_KEY": "sk-wrong"}
    assert story.configure(agentSecretEnvironment=secrets)["restarted"] == [GATEWAY]
    first, spare = len(story.first.heard), len(story.spare.heard)
    story.works()
    assert len(story.first.heard) == first
    assert len(story.spare.heard) > spare


def test_what_is_declared_no_more_goes_and_what_is_the_agents_stays(story: Story) -> None:
    story.guest.shell("cd /home/hermes/.hermes; echo more >>memories/USER.md; echo '{\"mine\": 1}' >auth.json")
    story.configure(
        agentDocuments={},
        agentFallbackModels=[],
        agentAuxiliaryModels={},
        agentMcpServers={},
        agentSettings={},
        agentAuthFile="",
        agentSecretEnvironment={"FIRST_KEY": FIRST_KEY},
    )
    assert story.guest.shell("cat /home/hermes/.hermes/config.yaml") == USERS_CONFIG
    assert "more" in story.guest.shell("cat /home/hermes/.hermes/memories/USER.md")
    assert "mine" in story.guest.shell("cat /home/hermes/.hermes/auth.json")
    assert story.guest.shell("cd /home/hermes/workspace; ls AGENTS.md tools/lantern.py 2>/dev/null || true") == ""
    story.works()
    system, tools = story.first.last()
    assert "LAB-SOUL" not in system
    assert not [name for name in tools if "lantern" in name]


def platforms(text: str) -> set[str]:
    try:
        return set(json.loads(text or "{}").get("platforms") or ())
    except ValueError:
        return set()


def test_the_messengers_are_taken_up_and_no_port_is_opened(story: Story, tmp_path: Path) -> None:
    """There is no internet: the agent tries one after the other, as long as it is told to, and goes on trying.

    Telegram leads to this test, by the address that a server of one's own would have. With it a file in place of
    agentSettings, and an auth.json that is put over the agent's on purpose.
    """
    telegram = {"extra": {"base_url": f"http://{story.first.host}:{MODEL_PORT}/bot"}}
    settings = {"gateway": {"platform_connect_timeout": 20}, "platforms": {"telegram": telegram}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "auth.json").write_text(json.dumps({"version": 1, "providers": {"forced": {}}}))
    files = {"agentConfigFile": str(tmp_path / "config.yaml"), "agentAuthFile": str(tmp_path / "auth.json")}
    assert story.configure(**TOKENS, **files, agentAuthFileOverwrite=True)["restarted"] == [GATEWAY]
    assert "forced" in story.guest.shell("cat /home/hermes/.hermes/auth.json")
    assert "mine" in story.guest.shell("cat /home/hermes/.hermes-stack/replaced/auth.json.*")
    # Who is not on the list is not answered, and what he says does not reach the model.
    story.first.write(2, "reply with the word STRANGERWORD")
    story.first.write(1, "reply with the word FRIENDWORD")
    waiting = tenacity.Retrying(stop=tenacity.stop_after_delay(180), wait=tenacity.wait_fixed(0.5))
    waiting(lambda: next(True for sent in story.first.sent if "FRIENDWORD" in sent["text"]))
    assert {str(sent["chat_id"]) for sent in story.first.sent if "WORD" in sent["text"]} == {"1"}
    assert "STRANGERWORD" not in json.dumps(story.first.heard)
    tried = tenacity.Retrying(
        stop=tenacity.stop_after_delay(180),
        wait=tenacity.wait_fixed(0.5),
        retry=tenacity.retry_if_result(lambda found: not found >= {"telegram", "slack", "discord"}),
        retry_error_callback=lambda state: state.outcome and state.outcome.result(),
    )(lambda: platforms(story.guest.shell("cat /home/hermes/.hermes/gateway_state.json")))
    assert tried >= {"telegram", "slack", "discord"}
    listening = story.guest.shell("ss -Hltn | awk '{print $4}'").split()
    assert {int(address.rpartition(":")[2]) for address in listening} <= {22, 53, 5355, 8642}


def test_no_secret_is_where_others_can_read_it(story: Story) -> None:
    for secret in (FIRST_KEY, SPARE_KEY, WORD, TELEGRAM, "xapp-canary-1"):
        assert unfit_for_env(secret) is None
        found = story.guest.shell(f"grep -rlF '{secret}' /var/log /var/lib/hermes-provision /tmp /etc/systemd || true")
        assert found == ""
        assert story.guest.shell(f"journalctl --no-pager | grep -cF '{secret}' || true").strip() == "0"
    assert re.fullmatch(r"[0-7]?640", story.guest.shell("stat -c %a /etc/hermes/.env").strip())
