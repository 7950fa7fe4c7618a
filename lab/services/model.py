"""An OpenAI-compatible model endpoint on the bridge, with fixed answers and a log of requests.

What it answers is decided by :mod:`lab.services.model_rules`; this module speaks
the protocol: models, chat completions streamed and not, token counts, errors in
OpenAI's form. Its log has one JSON object per request and holds no key.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from lab.services.model_rules import Reply, reply_to, text_of
from lab.services.serving import Service

MODEL = "lab-model"
CONTEXT_LENGTH = 131072
"""Tokens; large enough that an agent does not refuse the model."""


class ModelEndpoint(Service):
    """The endpoint."""

    def __init__(self, host: str, port: int, key: str, log_file: Path) -> None:
        super().__init__("model-endpoint", host, port)
        self._key, self._log_file = key, log_file

    @property
    def base_url(self) -> str:
        """What a client calls the base URL, ``/v1`` included."""
        return f"http://{self.host}:{self.port}/v1"

    def application(self) -> web.Application:
        application = web.Application(client_max_size=64 << 20)
        self.add_routes(application.router)
        return application

    def add_routes(self, router: web.UrlDispatcher, prefix: str = "") -> None:
        """Serve the protocol below ``prefix``."""
        router.add_get(f"{prefix}/v1/models", self._models)
        router.add_post(f"{prefix}/v1/chat/completions", self._chat)

    def _refusal(self, request: web.Request) -> web.Response | None:
        offered = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if hmac.compare_digest(offered.encode(), self._key.encode()):
            return None
        self._note(request, 401)
        return _error(401, "Incorrect API key provided.", "invalid_request_error", "invalid_api_key")

    async def _models(self, request: web.Request) -> web.StreamResponse:
        if refusal := self._refusal(request):
            return refusal
        self._note(request, 200)
        one = {"id": MODEL, "object": "model", "created": 0, "owned_by": "lab", "context_length": CONTEXT_LENGTH}
        return web.json_response({"object": "list", "data": [one]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if refusal := self._refusal(request):
            return refusal
        try:
            body = await request.json()
            messages, tools = list(body["messages"]), [t["function"]["name"] for t in body.get("tools") or ()]
        except (ValueError, KeyError, TypeError):
            self._note(request, 400)
            return _error(400, "The request is no chat completion: 'messages' is missing or malformed.")
        if body.get("model") != MODEL:
            self._note(request, 404, model=body.get("model"))
            return _error(404, f"The model '{body.get('model')}' does not exist.", code="model_not_found")
        reply = reply_to(messages, tools)
        usage = usage_of(messages, reply)
        stream = bool(body.get("stream"))
        prompts = [text_of(m) for m in messages if m.get("role") == "user"]
        self._note(
            request, 200, stream=stream, messages=len(messages), tools=len(tools), rule=reply.rule,
            prompt=(prompts or [""])[-1][:1000], answer=reply.text[:1000],
            call=reply.call.name if reply.call else None, **usage,
        )  # fmt: skip
        if not stream:
            return web.json_response(completion(reply, usage))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        for chunk in chunks(reply, usage, with_usage=with_usage):
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _note(self, request: web.Request, status: int, **more: object) -> None:
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": request.remote,
            "method": request.method,
            "path": request.path,
            "status": status,
            **more,
        }
        with self._log_file.open("a") as handle:
            handle.write(json.dumps(entry, ensure_ascii=False) + "\n")


def usage_of(messages: list[Mapping[str, Any]], reply: Reply) -> dict[str, int]:
    """Token counts at four characters a token: the same for the same conversation."""
    prompt = -(-len(json.dumps(messages, ensure_ascii=False)) // 4)
    answer = -(-len(reply.text + (json.dumps(reply.call.arguments) if reply.call else "")) // 4)
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def completion(reply: Reply, usage: Mapping[str, int]) -> dict[str, Any]:
    """A ``chat.completion`` object."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.call:
        message["tool_calls"] = [_call(reply)]
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply), "logprobs": None}
    return {**_head("chat.completion"), "choices": [choice], "usage": dict(usage)}


def chunks(reply: Reply, usage: Mapping[str, int], *, with_usage: bool) -> Iterator[dict[str, Any]]:
    """The ``chat.completion.chunk`` objects of a streamed answer."""
    yield _chunk({"role": "assistant", "content": ""})
    if reply.call:
        whole = _call(reply)
        arguments = whole["function"]["arguments"]
        first = {**whole, "index": 0, "function": {"name": reply.call.name, "arguments": ""}}
        yield _chunk({"tool_calls": [first]})
        half = len(arguments) // 2
        for part in (arguments[:half], arguments[half:]):
            yield _chunk({"tool_calls": [{"index": 0, "function": {"arguments": part}}]})
    for start in range(0, len(reply.text), 40):
        yield _chunk({"content": reply.text[start : start + 40]})
    yield _chunk({}, _finish(reply))
    if with_usage:
        yield {**_head("chat.completion.chunk"), "choices": [], "usage": dict(usage)}


def _call(reply: Reply) -> dict[str, Any]:
    assert reply.call is not None  # noqa: S101 - callers have looked
    function = {"name": reply.call.name, "arguments": json.dumps(reply.call.arguments, ensure_ascii=False)}
    return {"id": reply.call.identity, "type": "function", "function": function}


def _finish(reply: Reply) -> str:
    return "tool_calls" if reply.call else "stop"


def _head(kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{time.time_ns():x}", "object": kind, "created": int(time.time()), "model": MODEL}


def _chunk(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": dict(delta), "finish_reason": finish}
    return {**_head("chat.completion.chunk"), "choices": [choice]}


def _error(status: int, message: str, kind: str = "invalid_request_error", code: str | None = None) -> web.Response:
    return web.json_response({"error": {"message": message, "type": kind, "param": None, "code": code}}, status=status)
