"""What may be declared about the agent (components/declaration.py), and what becomes of it."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import SecretStr

from applications.hermes.application import warnings_of
from applications.hermes.guest.names import STOP_S
from applications.hermes.phases import managed_config, render_configure
from applications.hermes.settings.declaration import LONGEST_DRAIN, DeclarationSettings
from applications.hermes.settings.passed_on import ConfigKey, Variable, config_of, variables_of
from components.program import parts_in_clear
from provisioning.guest import common
from provisioning.plans import PhasePlan
from settings.section import Section, setting
from tests.settings import cattle, faults

CANARY = "canary-4e1b"
TELEGRAM = "123456789:" + "A" * 35
DISCORD = "M" * 26 + ".Gabcde." + "x" * 38


def declared(**given: Any) -> DeclarationSettings:
    return cattle(**given).agent.declared


def warned(**given: Any) -> list[str]:
    return warnings_of(cattle(**given))


def only(found: dict[str, tuple[str, str, str]]) -> tuple[str, str]:
    """The key and the rule of the one fault that there is."""
    assert len(found) == 1, found
    ((key, (_, rule, remedy)),) = found.items()
    assert remedy
    return key, rule


# --- settings ---


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("skills.disabled", {"skills": {"disabled": ["x"]}}),
        ("skills.external_dirs", {"skills": {"external_dirs": []}}),
        ("security.website_blocklist", {"security": {"website_blocklist": {"enabled": True}}}),
        ("secrets", {"secrets": {"bitwarden": {"enabled": True}}}),
    ],
)
def test_what_no_release_lets_be_pinned_is_told_with_the_way_that_works(key: str, settings: dict[str, Any]) -> None:
    (text,) = warned(agentSettings=settings)
    assert text.startswith(f"agentSettings.{key} has no effect")
    assert f"hermes config set {key}" in text


@pytest.mark.parametrize("name", ["restart_drain_timeout", "cron_drain_timeout"])
def test_a_drain_as_long_as_a_stop_has_room_for_is_taken(name: str) -> None:
    assert warned(agentSettings={"agent": {name: 60}}) == []


def test_a_stop_has_room_for_the_longest_drain_and_a_deadline() -> None:
    # facts hermes 0.20, 3: a stop drains restart_drain_timeout (0) and cron_drain_timeout (30), and upstream's own unit
    # adds 30 s. The 1800 s of restart_after_turn_timeout count for SIGUSR1 alone, which nothing here sends.
    unit = next(file for file in render_configure(cattle()).files if file.path == "units/hermes-gateway.service")
    text = unit.content.decode()
    (stop,) = [int(line.partition("=")[2]) for line in text.splitlines() if line.startswith("TimeoutStopSec=")]
    assert LONGEST_DRAIN + 30 <= stop == STOP_S
    assert inspect.signature(common.execute).parameters["timeout_s"].default > stop
    assert [line for line in text.splitlines() if "USR1" in line] == ["ExecReload=/bin/kill -USR1 $MAINPID"]
    sources = [path.read_text() for path in Path("applications/hermes").rglob("*.py")]
    assert not [text for text in sources if re.search('USR1|"reload"|try-reload', text)]


def test_a_schemas_number_and_a_mode_that_is_not_taken_are_told() -> None:
    (version,) = warned(agentSettings={"_config_version": 37})
    assert "left out" in version
    (mode,) = warned(agentSettings={"database": {"journal_mode": "wal"}})
    assert "3.51.3" in mode
    assert warned(agentSettings={"database": {"journal_mode": "delete"}, "skills": {"other": 1}}) == []


def test_settings_of_any_depth_are_pinned_and_ours_win() -> None:
    inputs = cattle(
        agentSettings={
            "display": {"skin": "mono", "deep": {"er": [1, None, 1.5]}},
            "security": {"tirith_enabled": True},
        }
    )
    config = managed_config(inputs)
    assert config["display"] == {"skin": "mono", "deep": {"er": [1, None, 1.5]}}
    # No download behind the operator's back.
    assert config["security"]["tirith_enabled"] is False


def test_a_setting_that_has_no_effect_is_told() -> None:
    found = warned(agentSettings={"model": {"default": "other", "max_tokens": 9}, "timezone": "UTC"})
    assert found == ["agentSettings.model.default has no effect: an option of its own sets it"]


def test_settings_come_from_a_file_instead(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("timezone: UTC\n_config_version: 12\nagent:\n  max_turns: 7\n")
    config = managed_config(cattle(agentConfigFile=str(file)))
    assert (config["timezone"], config["agent"]) == ("UTC", {"max_turns": 7})
    # The installed agent says which version its form has, not a file that came from another.
    assert "_config_version" not in config


def test_settings_and_a_file_do_not_go_together(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("timezone: UTC\n")
    key, rule = only(faults("cattle", agentConfigFile=str(file), agentSettings={"a": 1}))
    assert key == "agentConfigFile"
    assert "both are given" in rule


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("- a list\n", "keys and values"),
        ("a: [1\n", "is no YAML, line"),
        ("a: 2026-01-01\n", "a is a date"),
        ("a:\n  1: x\n", "is no text"),
    ],
)
def test_a_config_file_that_is_none_is_refused(tmp_path: Path, text: str, part: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    key, rule = only(faults("cattle", agentConfigFile=str(file)))
    assert key == "agentConfigFile"
    assert part in rule


@pytest.mark.parametrize(
    "key", ["agentSettings", "agentEnvironment", "agentDocuments", "agentMcpServers", "agentProviders"]
)
def test_a_secret_where_all_is_shown_is_refused(key: str) -> None:
    found = faults("cattle", **{key: {"a": CANARY}}, with_secrets=frozenset({key}))
    assert "can't hold a secret" in found[key][1]
    assert CANARY not in json.dumps(found[key])


# --- environment ---


def test_numbers_and_truth_values_are_meant_as_texts() -> None:
    found = declared(agentEnvironment={"PORT": 1, "ON": True, "RATE": 0.5, "T": "x"})
    assert found.environment == {"PORT": "1", "ON": "true", "RATE": "0.5", "T": "x"}


FILE = """\
# a comment
export TOKEN="two words"
PLAIN=x=y # not of it
LITERAL='${HOME} stays'

EMPTY=
"""


def test_files_are_read_as_the_agent_reads_its_own_and_the_later_wins(tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text("TOKEN=old\nOTHER=1\n")
    (tmp_path / "b.env").write_text(FILE.replace("LITERAL='${HOME} stays'\n", ""))
    found = declared(agentEnvironmentFiles=[str(tmp_path / "a.env"), str(tmp_path / "b.env")]).all_secrets
    assert {name: value.get_secret_value() for name, value in found.items()} == {
        "TOKEN": "two words",
        "OTHER": "1",
        "PLAIN": "x=y",
        "EMPTY": "",
    }


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (f"A=1\n{CANARY} is no variable\n", "line 2: is no KEY=value"),
        (f"A=1\n{CANARY}\n", "line 2: is no KEY=value"),
        (FILE, "LITERAL: a value can't hold ${"),
        ("HERMES_MANAGED=1\n", "HERMES_MANAGED is set by this program"),
    ],
)
def test_a_file_with_a_fault_is_refused_without_what_it_holds(tmp_path: Path, text: str, part: str) -> None:
    file = tmp_path / "x.env"
    file.write_text(text)
    found = faults("cattle", agentEnvironmentFiles=[str(file)])
    assert part in only(found)[1]
    assert CANARY not in json.dumps(found)


def test_a_part_of_the_secret_environment_in_clear_is_a_fault_that_names_it() -> None:
    found = faults(
        "cattle",
        agentSecretEnvironment={"A": "x", "B": CANARY},
        in_clear=frozenset({"agentSecretEnvironment.B"}),
    )
    assert only(found)[0] == "agentSecretEnvironment.B"
    assert "--secret --path agentSecretEnvironment.B" in found["agentSecretEnvironment.B"][2]
    assert CANARY not in json.dumps(found)


def test_an_empty_secret_environment_may_stand_in_clear() -> None:
    """The default of Pulumi.yaml reaches the program like any value (tried with 3.276)."""
    assert declared(agentSecretEnvironment={}, in_clear=frozenset({"agentSecretEnvironment"})).secret_environment == {}


def test_what_a_stack_file_holds_in_clear_is_found() -> None:
    """The file as the CLI writes it; the engine tells only that there is a secret in the object (tried with 3.276)."""
    text = yaml.safe_dump(
        {
            "config": {
                "p:agentSecretEnvironment": {"A": {"secure": "v1:x"}, "B": "clear", "C": {"deep": 1}},
                "p:agentTelegramToken": {"secure": "v1:y"},
                "p:agentSettings": {"x": 1},
            }
        }
    )
    assert parts_in_clear(text, "p") == {"agentSecretEnvironment.B", "agentSecretEnvironment.C"}
    assert parts_in_clear("config:\n  p:agentSecretEnvironment:\n    secure: v1:z\n", "p") == frozenset()
    assert parts_in_clear("", "p") == frozenset()
    # The CLI takes a key without a namespace as the project's.
    assert parts_in_clear("config:\n  agentSecretEnvironment:\n    A: clear\n", "p") == {"agentSecretEnvironment.A"}


# --- auth.json and documents ---


def test_an_auth_file_travels_as_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "auth.json"
    file.write_text(json.dumps({"version": 1, "providers": {"x": {"token": CANARY}}}))
    plan = render_configure(cattle(agentAuthFile=str(file)))
    assert CANARY in plan.secrets["auth.json"]
    assert not [part.path for part in plan.files if CANARY.encode() in part.content]
    assert CANARY not in json.dumps(plan.declared)
    assert plan.declared["auth_file"].startswith("[secret ")


@pytest.mark.parametrize("text", ["", "[]", "{}", f'{{"token": "{CANARY}"}}'])
def test_an_auth_file_that_the_agent_would_drop_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "auth.json"
    file.write_text(text)
    found = faults("cattle", agentAuthFile=str(file))
    assert "no auth.json of Hermes" in only(found)[1]
    assert CANARY not in json.dumps(found)


def test_a_mark_that_an_editor_puts_before_a_text_is_no_part_of_it(tmp_path: Path) -> None:
    auth, env, soul = tmp_path / "auth.json", tmp_path / "some.env", tmp_path / "SOUL.md"
    mark = b"\xef\xbb\xbf"
    auth.write_bytes(mark + b'{"version": 1, "providers": {}}')
    env.write_bytes(mark + b"A_NAME=value\n")
    soul.write_bytes(mark + b"Be kind.")
    agent = cattle(
        agentAuthFile=str(auth), agentEnvironmentFiles=[str(env)], agentDocuments={"SOUL.md": {"file": str(soul)}}
    ).agent
    assert agent.declared.auth_file.get_secret_value() == '{"version": 1, "providers": {}}'
    assert agent.secret_environment["A_NAME"].get_secret_value() == "value"
    assert agent.declared.documents["SOUL.md"] == "Be kind."


def test_documents_are_texts_or_files_and_lie_where_they_are_read(tmp_path: Path) -> None:
    """SOUL.md and the memories in HERMES_HOME, all else in the working directory (0.19.0, see document_place)."""
    (tmp_path / "soul").write_text("I am")
    inputs = cattle(
        agentDocuments={
            "SOUL.md": {"file": str(tmp_path / "soul")},
            "USER.md": "likes tea",
            "AGENTS.md": "a",
            "n/p.md": "b",
        }
    )
    plan = render_configure(inputs)
    (parameters,) = (json.loads(part.content) for part in plan.files if part.path == "inputs.json")
    places = {(entry["place"], entry["path"]): (entry["text"], entry["ours"]) for entry in parameters["documents"]}
    assert places == {
        ("hermes", "SOUL.md"): ("I am", True),
        ("hermes", "memories/USER.md"): ("likes tea", False),
        ("working", "AGENTS.md"): ("a", True),
        ("working", "n/p.md"): ("b", True),
    }


# --- MCP servers ---


def test_mcp_servers_are_pinned_as_they_are_written() -> None:
    servers = {
        "files": {"command": "npx", "args": ["-y", "x"], "env": {"KEY": "${FILES_KEY}", "N": 1}, "timeout": 30},
        "web": {"url": "https://example.org/mcp", "headers": {"Authorization": "Bearer ${T}"}, "enabled": False},
    }
    config = managed_config(cattle(agentMcpServers=servers, agentSecretEnvironment={"FILES_KEY": "x", "T": "y"}))
    assert config["mcp_servers"] == {**servers, "files": {**servers["files"], "env": {"KEY": "${FILES_KEY}", "N": "1"}}}


def test_a_reference_that_leads_nowhere_is_told() -> None:
    servers = {"x": {"command": "a", "env": {"K": "${THERE}", "L": "${NOT_THERE}"}}}
    (text,) = warned(agentMcpServers=servers, agentEnvironment={"THERE": "1"}, agentSettings={"a": ["${THERE}"]})
    assert "agentMcpServers.x.env.L refers to ${NOT_THERE}" in text


# --- models ---

LITELLM = {"litellm": {"base_url": "http://192.0.2.20:4000/v1", "key_env": "LITELLM_KEY"}}
KEY: dict[str, Any] = {"agentSecretEnvironment": {"LITELLM_KEY": CANARY}}


def test_a_named_provider_is_form_b_of_the_facts() -> None:
    config = managed_config(cattle(agentModelUrl="", agentModelProvider="litellm", agentProviders=LITELLM, **KEY))
    assert config["model"] == {"provider": "litellm", "default": "m"}
    assert config["providers"] == LITELLM


def test_fallbacks_and_auxiliary_models_in_the_agents_own_words() -> None:
    config = managed_config(
        cattle(
            agentProviders=LITELLM,
            agentFallbackModels=[{"provider": "litellm", "model": "spare"}, {"provider": "openrouter", "model": "x/y"}],
            agentAuxiliaryModels={"vision": {"provider": "litellm", "model": "eyes", "key_env": "LITELLM_KEY"}},
            **KEY,
        )
    )
    assert config["fallback_providers"] == [
        {"provider": "litellm", "model": "spare"},
        {"provider": "openrouter", "model": "x/y"},
    ]
    assert config["auxiliary"] == {"vision": {"provider": "litellm", "model": "eyes", "api_key": "${LITELLM_KEY}"}}


# --- settings that reach the agent as they are ---


class Marked(Section):
    """A section as the next setting would be added to it."""

    turns: Annotated[int, ConfigKey("agent.max_turns")] = setting("agentTurns", 0, "A number.")
    quiet: Annotated[bool, ConfigKey("agent.quiet")] = setting("agentQuiet", False, "A switch.")
    shell: Annotated[str, ConfigKey("terminal.shell")] = setting("agentShell", "", "A text.")
    names: Annotated[list[str], Variable("NAMES")] = setting("agentNames", [], "A list.")
    token: Annotated[SecretStr, Variable("TOKEN")] = setting("agentToken", "", "A secret.")
    rest: str = setting("agentRest", "x", "Without a mark.")


class Around(Section):
    """One with another in it."""

    inner: Marked


def test_a_marked_setting_needs_no_other_place() -> None:
    given = {"agentTurns": 7, "agentShell": "bash", "agentNames": ["a", "b"], "agentToken": "t"}
    section = Around(inner=Marked.model_validate(given))
    assert config_of(section) == {"agent": {"max_turns": 7, "quiet": False}, "terminal": {"shell": "bash"}}
    found = {each.name: (each.field, each.value) for each in variables_of(section)}
    assert found == {"NAMES": ("names", "a,b"), "TOKEN": ("token", SecretStr("t"))}


def test_a_marked_setting_that_is_empty_is_left_to_the_user() -> None:
    assert "terminal" not in config_of(Marked())
    assert not list(variables_of(Marked()))


def test_the_time_zone_is_pinned_beside_what_else_is() -> None:
    stack = cattle(agentTimezone="Europe/Berlin", agentMcpServers={"files": {"command": "npx"}})
    config = managed_config(stack)
    assert (config["timezone"], set(config["mcp_servers"])) == ("Europe/Berlin", {"files"})
    assert "timezone" not in managed_config(cattle())


# --- messengers ---


def test_messengers_are_variables_and_their_tokens_secret() -> None:
    agent = cattle(
        agentTelegramToken=TELEGRAM,
        agentTelegramAllowedUsers=[1, "22"],
        agentDiscordToken=DISCORD,
        agentDiscordAllowedUsers=["3"],
        agentSlackBotToken="xoxb-1",
        agentSlackAppToken="xapp-1",
        agentSlackAllowedUsers=["U0123ABC"],
    ).agent
    assert agent.environment == {
        "TELEGRAM_ALLOWED_USERS": "1,22",
        "DISCORD_ALLOWED_USERS": "3",
        "SLACK_ALLOWED_USERS": "U0123ABC",
    }
    assert {name: value.get_secret_value() for name, value in agent.secret_environment.items()} == {
        "TELEGRAM_BOT_TOKEN": TELEGRAM,
        "DISCORD_BOT_TOKEN": DISCORD,
        "SLACK_BOT_TOKEN": "xoxb-1",
        "SLACK_APP_TOKEN": "xapp-1",
    }


def test_a_token_without_a_list_of_users_is_told_and_a_list_without_a_token() -> None:
    assert "answers nobody" in warned(agentTelegramToken=TELEGRAM)[0]
    assert "no token for Discord" in warned(agentDiscordAllowedUsers=["1"])[0]
    assert warned(agentTelegramToken=TELEGRAM, agentTelegramAllowedUsers=["1"]) == []
    assert warned() == []


def test_what_looks_like_a_secret_in_clear_is_told_without_its_value() -> None:
    servers = {
        "x": {"command": "a", "env": {"API_TOKEN": CANARY, "MODE": "fast"}},
        "y": {"url": "https://b", "headers": {"Authorization": "Bearer ${T}"}},
    }
    found = warned(agentMcpServers=servers, agentEnvironment={"MY_KEY": CANARY, "T": "x"})
    assert [text.partition(" ")[0] for text in found] == ["agentEnvironment.MY_KEY", "agentMcpServers.x.env.API_TOKEN"]
    assert CANARY not in "".join(found)


def test_a_key_that_would_not_be_sent_is_told() -> None:
    """hermes_cli/runtime_provider.py of 0.19.0 sends model.api_key with provider custom only."""
    given = {"agentModelKey": "k", "agentModelUrl": ""}
    (text,) = warned(**given, agentModelProvider="openrouter")
    assert "agentModelKey is not sent to openrouter" in text
    assert warned(agentModelKey="k") == []


# --- what the preview shows ---


def flat(value: object, path: str = "") -> dict[str, object]:
    if isinstance(value, dict) and value:
        return {key: item for name, below in value.items() for key, item in flat(below, f"{path}.{name}").items()}
    return {path.removeprefix("."): value}


CHANGES: list[tuple[dict[str, Any], dict[str, Any], set[str]]] = [
    ({}, {"agentSettings": {"timezone": "UTC"}}, {"settings", "settings.timezone"}),
    (
        {"agentDocuments": {"SOUL.md": "a", "AGENTS.md": "b"}},
        {"agentDocuments": {"SOUL.md": "a", "AGENTS.md": "c"}},
        {"documents.AGENTS.md"},
    ),
    (
        {"agentSecretEnvironment": {"A": "x", "B": "y"}},
        {"agentSecretEnvironment": {"A": "x", "B": CANARY}},
        {"secret_environment.B"},
    ),
    ({"agentModelKey": "x"}, {"agentModelKey": CANARY}, {"model.api_key"}),
    ({"agentModel": "a"}, {"agentModel": "b"}, {"model.name"}),
]


@pytest.mark.parametrize(("before", "after", "keys"), CHANGES, ids=[min(keys) for _, _, keys in CHANGES])
def test_the_preview_shows_just_what_changed_and_no_secret(
    before: dict[str, Any], after: dict[str, Any], keys: set[str]
) -> None:
    one, two = (flat(render_configure(cattle(**given)).declared) for given in (before, after))
    found = {key for key in one.keys() | two.keys() if one.get(key, "-") != two.get(key, "-")}
    # What restarts is told besides: test_explanation.py.
    assert {key for key in found if not key.startswith("read_at_start")} == keys
    assert CANARY not in json.dumps(two)


def test_a_plan_survives_the_way_through_the_engine(tmp_path: Path) -> None:
    """As JSON, with its secrets: what the phase gets is what was declared."""
    (tmp_path / "auth").write_text('{"providers": {}}')
    plan = render_configure(
        cattle(
            agentSettings={"a": {"b": [1]}},
            agentDocuments={"SOUL.md": "x"},
            agentAuthFile=str(tmp_path / "auth"),
            agentProviders=LITELLM,
            agentMcpServers={"x": {"command": "a"}},
            agentFallbackModels=[{"provider": "litellm", "model": "spare"}],
            **KEY,
        )
    )
    assert PhasePlan.from_json(plan.as_json()).job == plan.job


def test_the_example_of_the_documents_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the secrets that it names, and with its file."""
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    example = text.partition("```yaml\nhermes-homelab:agentProviders")[2].partition("```")[0]
    given = {
        key.partition(":")[2]: value for key, value in yaml.safe_load("hermes-homelab:agentProviders" + example).items()
    }
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "SOUL.md").write_text("I am")
    monkeypatch.chdir(tmp_path)
    secrets: dict[str, Any] = {
        "agentSecretEnvironment": {"LITELLM_KEY": "a", "TICKETS_TOKEN": "b"},
        "agentTelegramToken": TELEGRAM,
    }
    stack = cattle(**{"agentModelUrl": "", **given}, **secrets)
    assert warnings_of(stack) == []
    assert set(managed_config(stack)) >= {"providers", "fallback_providers", "auxiliary", "mcp_servers", "timezone"}
