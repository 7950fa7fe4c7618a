"""The question to the model endpoint before anything is changed: what is asked, and what each answer means."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from applications.hermes.asking import asking_first, question_of
from applications.hermes.guest import model
from applications.hermes.guest.inputs import Question
from applications.hermes.phases import phases_of, render_baseline, render_configure
from provisioning.guest.common import Refusal
from provisioning.guest.typed import read
from provisioning.plans import PhasePlan
from tests.endpoint import WORKS, Endpoint, an_endpoint
from tests.listening import free_port
from tests.settings import DOCKER, cattle

KEY = "sk-canary-0123456789"
CHAT = "/v1/chat/completions"
LIST = {"/v1/models": (200, {"data": [{"id": "small"}, {"id": "large"}]})}


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with an_endpoint() as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "CONNECT_S", 0.0)
    monkeypatch.setattr(model, "ENVIRONMENT", Path("/nonexistent"))


def question(url: str, **given: Any) -> Question:
    return Question(**{"stack": "cattle", "url": url, "model": "small", "key_variable": "K", **given})


def ask(asked: Question, capsys: pytest.CaptureFixture[str], **secrets: str) -> str:
    """What is said; a refusal as it is."""
    try:
        model.ask_model(asked, {"K": KEY, **secrets}, model.NOTHING_DONE)
    except Refusal as refusal:
        return str(refusal)
    return capsys.readouterr().out


# --- what is asked ------------------------------------------------------------------------------


def test_one_short_prompt_as_the_agent_would_send_it(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    headers = {"X-Team": "${TEAM}", "X-Plain": "$5"}
    said = ask(question(endpoint.url, headers=headers), capsys, TEAM="blue-canary")
    assert said.startswith("model: 'small' answers after ")
    [(path, sent, body)] = endpoint.asked
    assert path == CHAT
    assert (sent["Authorization"], sent["X-Team"], sent["X-Plain"]) == (f"Bearer {KEY}", "blue-canary", "$5")
    assert body["model"] == "small"
    assert len(json.dumps(body)) < 200
    assert body["max_tokens"] < 50


def test_without_a_key_it_is_asked_with_the_agents_word_for_none(endpoint: Endpoint) -> None:
    """facts hermes 1."""
    model.ask_model(question(endpoint.url, key_variable=""), {}, model.NOTHING_DONE)
    assert endpoint.asked[0][1]["Authorization"] == "Bearer no-key-required"


# --- what the answers mean ----------------------------------------------------------------------


class Row(NamedTuple):
    """`refused`: the setting's kind, empty for a warning; `others`: what the endpoint answers at other paths."""

    name: str
    status: int
    body: Any
    others: dict[str, Any]
    refused: str
    words: str


# As the projects word it.
ANSWERS = [
    Row(
        "openai key", 401, error("Incorrect API key provided: sk-cana***89.", code="invalid_api_key"), {}, "key", "401"
    ),
    Row("no credit for it", 403, error("Key limit exceeded"), {}, "key", "Key limit exceeded"),
    Row("no words", 403, "", {}, "way", "a firewall before it"),
    Row("a firewall's page", 403, "<html>Forbidden</html>", {}, "way", "the endpoint, or a proxy or a firewall"),
    Row("openai name", 404, error("The model `small` does not exist", code="model_not_found"), LIST, "name", "'large'"),
    Row("ollama", 404, error('model "small" not found, try pulling it first'), {}, "name", "try pulling it first"),
    Row("litellm", 400, error("Invalid model name passed in model=small. Call `/v1/models`"), {}, "name", "400"),
    Row("litellm team", 401, error("team not allowed to access small"), {}, "name", "not allowed"),
    Row("openrouter", 400, error("small is not a valid model ID", code=400), {}, "name", "valid model ID"),
    Row("with v1", 404, "404 page not found", {"/models": (401, {})}, "address", "there are models at http://"),
    Row("a web page", 200, "<html>Chat with me</html>", {}, "address", "no endpoint of OpenAI's protocol"),
    Row("another server", 405, "", {}, "address", "405"),
    Row(
        "nothing of the name", 404, "404 page not found", {"/v1/models": (200, {"data": [{"id": "x"}]})}, "name", "'x'"
    ),
    Row("listed", 404, "404 page not found", LIST, "", "it lists the model"),
    Row("rate limit", 429, error("slow down, small"), {}, "", "429"),
    Row("overloaded", 503, "loading", {}, "", "503"),
    Row("no credits", 402, error("Insufficient credits"), {}, "", "402"),
    Row("a parameter", 400, error("max_tokens is not supported with this model: small"), {}, "", "400"),
    Row("moved", 308, "", {}, "", "308"),
    Row("the provider behind it", 200, error("upstream error", code=502), {}, "", "upstream error"),
]
SETTINGS = {
    "key": "agentModelKey = (hidden)",
    "name": "agentModel = small",
    "address": "agentModelUrl = http://",
    "way": "agentModelUrl = http://",
}


@pytest.mark.parametrize("row", ANSWERS, ids=[row.name for row in ANSWERS])
@pytest.mark.parametrize("falls_back", [False, True])
def test_each_answer_is_a_fault_of_a_setting_or_a_warning(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str], row: Row, falls_back: bool
) -> None:
    endpoint.answers = {CHAT: (row.status, row.body), **row.others}
    said = ask(question(endpoint.url, falls_back=falls_back), capsys)
    assert row.words in said
    if row.refused and not falls_back:
        first, rule, remedy = said.splitlines()
        assert first.startswith(SETTINGS[row.refused])
        assert rule.startswith("  rule: ")
        assert remedy.startswith("  do:   ")
        assert "nothing was changed, and what ran still runs" in remedy
    else:
        assert said.startswith("warning: ")


def test_an_address_without_v1_is_told_with_the_right_one(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.answers |= LIST
    said = ask(question(endpoint.url.removesuffix("/v1")), capsys)
    assert said.startswith("agentModelUrl = ")
    assert f"there are models at {endpoint.url}" in said


def test_a_secret_that_the_endpoint_repeats_is_not_shown(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.answers = {CHAT: (401, error(f"no such key: {KEY}\n\x1b[31mred"))}
    said = ask(question(endpoint.url), capsys)
    assert "no such key: ********" in said
    assert KEY not in said
    assert "\x1b" not in said


def test_the_remedy_names_the_setting_that_holds_the_key(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.answers = {CHAT: (401, {})}
    usual = "pulumi config set --stack cattle --secret agentModelKey, then pulumi up"
    assert usual in ask(question(endpoint.url), capsys)
    named = question(endpoint.url, key_setting="agentSecretEnvironment.FIRST")
    assert "--secret --path agentSecretEnvironment.FIRST, then" in ask(named, capsys)
    none = question(endpoint.url, key_variable="", key_setting="agentProviders.lan.key_env")
    said = ask(none, capsys)
    assert said.startswith("agentProviders.lan.key_env = (empty)")
    assert "correct agentProviders.lan.key_env in Pulumi.cattle.yaml" in said


def test_what_nobody_serves_is_told_with_its_address(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    said = ask(question(url), capsys)
    assert said.startswith(f"agentModelUrl = {url}\n  rule: must be a model endpoint that the cattle reaches")
    assert "Connection refused" in said


def test_a_connection_is_tried_again_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model's machine that has just been started."""
    monkeypatch.setattr(model, "CONNECT_S", 30.0)
    port, made = free_port(), []

    def start(_seconds: float) -> None:
        made.append(an_endpoint_at(port))

    monkeypatch.setattr(time, "sleep", start)
    try:
        assert ask(question(f"http://127.0.0.1:{port}/v1"), capsys).startswith("model: 'small' answers")
    finally:
        for server in made:
            server.close()


class an_endpoint_at:  # noqa: N801 - reads as the other one
    """One answer on a port that is chosen."""

    def __init__(self, port: int) -> None:
        self._server = socket.create_server(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        near, _ = self._server.accept()
        with near:
            near.recv(65536)
            data = json.dumps(WORKS[1]).encode()
            near.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(data), data))

    def close(self) -> None:
        self._thread.join(5)
        self._server.close()


def test_an_endpoint_that_takes_long_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A local model is loaded first; verify waits longer."""
    monkeypatch.setattr(model, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said = ask(question(f"http://127.0.0.1:{silent.getsockname()[1]}/v1"), capsys)
    assert said.startswith("warning: ")
    assert "no answer within 0.2 s" in said


def test_a_proxy_of_the_settings_is_asked(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    """And of two the one that the agent takes (facts: agent/process_bootstrap.py of 0.20.3)."""
    endpoint.answers = {"http://model.lan/v1/chat/completions": WORKS}
    proxies = {"HTTPS_PROXY": f"http://127.0.0.1:{endpoint.port}", "HTTP_PROXY": "http://127.0.0.1:1"}
    asked = question("http://model.lan/v1", environment=proxies)
    assert ask(asked, capsys).startswith("model: 'small' answers")
    beside = question(endpoint.url, environment={"HTTPS_PROXY": "http://127.0.0.1:1", "NO_PROXY": "127.0.0.1"})
    endpoint.answers = {CHAT: WORKS}
    assert ask(beside, capsys).startswith("model: 'small' answers")
    socks = question(endpoint.url, environment={"ALL_PROXY": "socks5://127.0.0.1:1"})
    assert "another protocol than HTTP" in ask(socks, capsys)


@pytest.mark.parametrize("body", ["<html>Access denied by policy</html>", error("denied by policy")])
def test_a_403_that_came_through_a_proxy_is_not_taken_for_a_bad_key(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str], body: Any
) -> None:
    endpoint.answers = {"http://model.lan/v1/chat/completions": (403, body)}
    proxy = {"HTTP_PROXY": f"http://127.0.0.1:{endpoint.port}"}
    said = ask(question("http://model.lan/v1", environment=proxy), capsys)
    assert said.startswith("agentModelUrl = http://model.lan/v1\n  rule: must be a model endpoint that lets the cattle")
    assert "denied by policy" in said
    assert "that may be of the proxy 127.0.0.1, or the endpoint" in said
    assert "if it is, correct agentModelKey, then pulumi up again" in said


# --- what the settings make of it ---------------------------------------------------------------

PROVIDER = {"base_url": "https://models.lan/v1/", "key_env": "LAN_KEY", "extra_headers": {"X-Team": "${TEAM}"}}


def test_the_question_is_that_of_the_settings() -> None:
    asked = question_of(cattle(agentModelKey=KEY, agentEnvironment={"https_proxy": "http://p:1", "OTHER": "x"}))
    assert (asked.url, asked.model) == ("http://192.0.2.20:4000/v1", "m")
    assert asked.key_variable
    assert asked.environment == {"https_proxy": "http://p:1"}
    assert not asked.skipped
    assert KEY not in repr(asked)
    assert question_of(cattle()).key_variable == ""
    named = question_of(
        cattle(
            agentModelProvider="lan",
            agentModelUrl="",
            agentProviders={"lan": PROVIDER},
            agentSecretEnvironment={"LAN_KEY": KEY, "TEAM": "blue"},
            agentFallbackModels=[{"provider": "lan", "model": "other"}],
        )
    )
    assert (named.url, named.key_variable, named.falls_back) == ("https://models.lan/v1", "LAN_KEY", True)
    assert named.url_setting == "agentProviders.lan.base_url"
    assert named.key_setting == "agentSecretEnvironment.LAN_KEY"
    assert not named.skipped


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"agentModelProvider": "openrouter", "agentModelUrl": ""}, "openrouter is known to the agent alone"),
        ({"agentModelProvider": "openrouter"}, "openrouter is known to the agent alone"),
        ({"agentModelUrl": "https://api.openai.com/v1"}, "api.openai.com is asked in a protocol of its own"),
        ({"agentModelUrl": "https://eu.api.openai.com/v1"}, "a protocol of its own"),
        ({"agentModelUrl": "https://gate.lan/anthropic"}, "a protocol of its own"),
        ({"agentSettings": {"model": {"api_mode": "anthropic_messages"}}}, "another protocol"),
        (
            {
                **DOCKER,
                "agentModelProvider": "lan",
                "agentModelUrl": "",
                "agentProviders": {"lan": {"base_url": "http://127.0.0.1:8080/v1"}},
            },
            "the agent's own container",
        ),
    ],
)
def test_what_can_not_be_asked_so_is_skipped_with_a_word(
    given: dict[str, Any], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = question_of(cattle(**given))
    assert why in asked.skipped
    assert why in ask(asked, capsys)


# --- when it is asked ---------------------------------------------------------------------------


def test_another_model_runs_configure_and_not_the_baseline() -> None:
    one, other = (cattle(agentModel=name) for name in ("one", "other"))
    assert asking_first(render_baseline(one), one).digest == asking_first(render_baseline(other), other).digest
    assert render_configure(one).digest != render_configure(other).digest


def test_the_baseline_carries_the_key_as_a_secret_and_nothing_else_of_the_agents() -> None:
    stack = cattle(agentModelKey=KEY, agentSecretEnvironment={"OTHER": "other-canary"})
    baseline = phases_of(stack)[0]
    plan = baseline.in_cattle(baseline.render(None))
    assert list(plan.secrets.values()) == [KEY]
    assert not [file.path for file in plan.files if KEY.encode() in file.content]
    assert KEY not in json.dumps(plan.declared)


def test_a_golden_template_asks_no_model_and_gets_no_secret() -> None:
    baked = [spec.render(None) for spec in phases_of(cattle(agentModelKey=KEY)) if spec.baked]
    assert [plan.name for plan in baked] == ["baseline", "agent"]
    assert [dict(plan.secrets) for plan in baked] == [{}, {}]
    assert not [file.path for plan in baked for file in plan.files if KEY.encode() in file.content]
    assert "model.json" not in {file.path for plan in baked for file in plan.files}


@pytest.mark.parametrize("given", [{}, DOCKER])
def test_what_a_cattle_runs_is_the_same_after_its_way_through_the_engine(given: dict[str, Any]) -> None:
    """The plan travels as JSON; a file that lost its mode there can't be started."""
    for spec in phases_of(cattle(agentModelKey=KEY, **given))[:2]:
        plan = spec.in_cattle(spec.render(None))
        files = {file.path: (file.content, file.mode) for file in plan.files}
        assert {file.path: (file.content, file.mode) for file in PhasePlan.from_json(plan.as_json()).files} == files


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="the guest's own Python")
@pytest.mark.parametrize("python", [True, False])
@pytest.mark.parametrize("works", [True, False])
def test_it_is_asked_before_the_baseline_or_right_after_it(
    works: bool, python: bool, endpoint: Endpoint, tmp_path: Path
) -> None:
    url = endpoint.url if works else f"http://127.0.0.1:{free_port()}/v1"
    stack = cattle(agentModelUrl=url, agentModelKey=KEY)
    plan = asking_first(render_baseline(stack), stack)
    job, there = tmp_path / "job", tmp_path / "there"
    for file in plan.files:
        place = job / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        text = file.content.decode().replace("CONNECT_S = 10.0", "CONNECT_S = 0.0")
        if file.path == "main" and not python:
            # As where only the packages bring it.
            text = re.sub("/usr/bin/python3 -I -c '.*'", f'test -f "{there}"', text)
        place.write_text(text)
        place.chmod(0o755)
    (job / "baseline").write_text(f'#!/bin/sh\necho baseline\ntouch "{there}"\n')
    secrets = tmp_path / "secrets"
    secrets.write_text(json.dumps(dict(plan.secrets)))
    done = subprocess.run(
        [job / "main"],
        env={"HP_JOB": str(job), "HP_SECRETS": str(secrets), "PATH": os.defpath},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    )
    asked = "model: " if works else "error: agentModelUrl"
    # Without an answer nothing is begun; where it can't be asked first, nothing comes after the packages.
    order = [asked, *(["baseline"] if works else [])] if python else ["baseline", asked]
    if not works:
        packages = "the packages and the account are there, nothing else was changed"
        assert f"again; {'nothing was changed' if python else packages}, and what ran still runs" in done.stdout
    told = [line for line in done.stdout.splitlines() if not line.startswith("  ")]
    assert [line[: len(begin)] for line, begin in zip(told, order, strict=True)] == order
    assert (done.returncode == 0) is works
    assert KEY not in done.stdout


def test_without_certificates_an_https_endpoint_is_asked_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(model, "STORE", tmp_path / "none")
    assert not model.can_ask(question("https://models.lan/v1"))
    assert model.can_ask(question("http://models.lan/v1"))
    assert model.can_ask(question("", skipped="a reason"))
    (tmp_path / "none").touch()
    assert model.can_ask(question("https://models.lan/v1"))


def test_what_travels_is_read_back() -> None:
    secret = {"LAN_KEY": KEY, "TEAM": "t"}
    lan: dict[str, Any] = {"agentProviders": {"lan": PROVIDER}, "agentModelProvider": "lan", "agentModelUrl": ""}
    stack = cattle(**lan, agentSecretEnvironment=secret)
    plan = asking_first(render_baseline(stack), stack)
    [text] = [file.content.decode() for file in plan.files if file.path == "model.json"]
    assert read(Question, text) == question_of(stack)
    assert plan.secrets == secret
