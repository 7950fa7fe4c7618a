"""The lab's model endpoint as a client meets it: OpenAI's protocol over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from lab.services.model import MODEL, ModelEndpoint

KEY = "sk-canary-0123456789"
PROMPT = {"model": MODEL, "messages": [{"role": "user", "content": "reply with the word TEAL"}]}


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ModelEndpoint]:
    endpoint = ModelEndpoint("127.0.0.1", 0, KEY, tmp_path / "requests.jsonl")
    endpoint.start()
    yield endpoint
    endpoint.stop()


def send(model: ModelEndpoint, body: Any, key: str | None = KEY) -> requests.Response:
    headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
    with requests.Session() as session:
        session.trust_env = False
        return session.post(f"{model.base_url}/chat/completions", json=body, headers=headers, timeout=10)


def test_an_answer_has_what_clients_read(model: ModelEndpoint) -> None:
    answer = send(model, PROMPT)
    assert answer.status_code == 200
    body = answer.json()
    assert body["object"] == "chat.completion"
    assert body["model"] == MODEL
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "TEAL"}
    assert body["choices"][0]["finish_reason"] == "stop"
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0


def test_a_stream_is_server_sent_events_and_ends_with_done(model: ModelEndpoint) -> None:
    answer = send(model, {**PROMPT, "stream": True, "stream_options": {"include_usage": True}})
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content", "") for delta in deltas) == "TEAL"
    assert chunks[-1]["usage"]["total_tokens"] > 0


@pytest.mark.parametrize("key", [None, "", "no-key-required", KEY + "x", KEY[:-1]])
def test_a_wrong_key_is_refused(model: ModelEndpoint, key: str | None) -> None:
    answer = send(model, PROMPT, key)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


def test_another_model_does_not_exist(model: ModelEndpoint) -> None:
    answer = send(model, {**PROMPT, "model": "gpt-nonesuch"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("body", [{"model": MODEL}, [], "text", {"model": MODEL, "messages": 3}])
def test_nonsense_is_a_400(model: ModelEndpoint, body: object) -> None:
    assert send(model, body).status_code == 400


def test_models_are_listed_with_a_context_that_agents_accept(model: ModelEndpoint) -> None:
    with requests.Session() as session:
        session.trust_env = False
        listed = session.get(f"{model.base_url}/models", headers={"Authorization": f"Bearer {KEY}"}, timeout=10).json()
        assert session.get(f"{model.base_url}/models", timeout=10).status_code == 401
    assert [entry["id"] for entry in listed["data"]] == [MODEL]
    # Hermes Agent wants 64,000 tokens of its model.
    assert listed["data"][0]["context_length"] >= 64_000


def test_the_log_tells_each_request_and_never_a_key(model: ModelEndpoint, tmp_path: Path) -> None:
    send(model, PROMPT)
    send(model, PROMPT, "sk-wrong-canary")
    text = (tmp_path / "requests.jsonl").read_text()
    first, second = (json.loads(line) for line in text.splitlines())
    assert (first["status"], first["rule"], first["answer"]) == (200, "word", "TEAL")
    assert first["prompt"] == "reply with the word TEAL"
    assert second["status"] == 401
    assert "canary" not in text
