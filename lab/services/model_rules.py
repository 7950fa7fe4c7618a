"""How the lab's model answers: a few fixed rules in one place, so that every answer can be foretold.

The model plays its part in the real protocol. It never acts itself: to have
something remembered or written it calls the agent's own tools, and what it
"remembers" is what the agent put into the system prompt. So an answer proves
that the whole way from the prompt to the agent's home and back has worked.

The rules look at the last user message, first match wins:

==========================  =====================================================
``remember: TEXT``          calls the tool ``memory`` to add TEXT
``write file NAME: TEXT``   calls the tool ``write_file``
``read file NAME``          calls the tool ``read_file``
``run: COMMAND``            calls the tool ``terminal``
``call TOOL: JSON``         calls that tool with these arguments, an MCP server's for one
``what do you remember?``   lists the memory entries of the system prompt
``reply with the word X``   X
anything else               ``You said: `` and the prompt
==========================  =====================================================

A tool that the request does not offer is reached through the agent's tool search where that is offered, in three calls:
``tool_search``, ``tool_describe``, ``tool_call`` (Hermes 0.20 and newer keeps the tools of MCP servers there).
After the last call the answer repeats what the tool said.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]

LONGEST_ECHO = 500
"""Characters of a prompt or tool result that an answer repeats at most."""
SEARCH, DESCRIBE, CALL = "tool_search", "tool_describe", "tool_call"
"""Hermes's own three, by which a model finds and calls the tools that are not offered to it (tools/tool_search.py)."""


@dataclass(frozen=True)
class ToolCall:
    """A call of one of the agent's tools; ``arguments`` as its schema wants them."""

    name: str
    arguments: Mapping[str, Any]

    @property
    def identity(self) -> str:
        """The same call has the same id each time."""
        text = json.dumps([self.name, self.arguments], sort_keys=True)
        return "call_" + hashlib.sha256(text.encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Reply:
    """One turn of the model: a text or a tool call, and the name of the rule that made it."""

    rule: str
    text: str = ""
    call: ToolCall | None = None


def reply_to(messages: Sequence[Message], tools: Sequence[str]) -> Reply:
    """The model's turn. ``tools`` are the names of the tools that the request offers."""
    last_user = max((n for n, m in enumerate(messages) if m.get("role") == "user"), default=None)
    if last_user is None:
        return Reply("empty", "There is no user message.")
    results = [text_of(m) for m in messages[last_user + 1 :] if m.get("role") == "tool"]
    reply = _ruled(text_of(messages[last_user]).strip(), messages)
    steps = _steps(reply.call, tools) if reply.call is not None else ()
    if results:
        if len(results) < len(steps) and not _failed(results[-1]):
            return Reply(reply.rule, call=steps[len(results)])
        start = "That failed. The tool said: " if _failed(results[-1]) else "Done. The tool said: "
        return Reply("tool-result", start + results[-1][:LONGEST_ECHO])
    if reply.call is not None and not steps:
        return Reply(reply.rule, f"I can't do that: the tool {reply.call.name} was not offered to me.")
    return Reply(reply.rule, reply.text, steps[0] if steps else None)


def _ruled(prompt: str, messages: Sequence[Message]) -> Reply:
    """What the first rule that matches makes of the prompt, whatever tools are offered."""
    for name, pattern, answer in _RULES:
        if match := pattern.search(prompt):
            reply = answer(match, messages)
            return Reply(name, reply.text, reply.call)
    return Reply("echo", f"You said: {prompt[:LONGEST_ECHO]}")


def _steps(call: ToolCall, tools: Sequence[str]) -> tuple[ToolCall, ...]:
    """The calls that carry this one out, in their order; none where it can't be."""
    if call.name in tools:
        return (call,)
    if not {SEARCH, DESCRIBE, CALL} <= set(tools):
        return ()
    return (
        ToolCall(SEARCH, {"query": call.name.replace("_", " ")}),
        ToolCall(DESCRIBE, {"name": call.name}),
        ToolCall(CALL, {"name": call.name, "arguments": call.arguments}),
    )


def _failed(result: str) -> bool:
    """Whether a tool says that it has failed; a search that found nothing has."""
    return bool(re.search(r'"success":\s*false|"error":\s*"|"matches":\s*\[\]', result))


def text_of(message: Message) -> str:
    """The text of a message, whose content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = (part.get("text", "") for part in content if isinstance(part, Mapping))
        return "\n".join(part for part in parts if isinstance(part, str) and part)
    return ""


def memories_in(messages: Sequence[Message]) -> list[str]:
    """The memory entries that the agent put into its system prompt, in its order."""
    entries: list[str] = []
    for message in messages:
        if message.get("role") in {"system", "developer"}:
            for block in _MEMORY_BLOCK.finditer(text_of(message)):
                entries += [entry.strip() for entry in block.group(1).split("\n§\n") if entry.strip()]
    return entries


# Hermes 0.19.0 frames each memory store with two lines of U+2550 and a title; a blank line ends the block.
_MEMORY_BLOCK = re.compile(r"═{8,}\n(?:MEMORY|USER PROFILE)\b[^\n]*\n═{8,}\n(.*?)(?=\n\n|\n═{8,}|\Z)", re.DOTALL)


def _remember(match: re.Match[str], _: Sequence[Message]) -> Reply:
    return Reply("", call=ToolCall("memory", {"action": "add", "target": "memory", "content": match["text"].strip()}))


def _write(match: re.Match[str], _: Sequence[Message]) -> Reply:
    return Reply("", call=ToolCall("write_file", {"path": match["name"], "content": match["text"].strip() + "\n"}))


def _read(match: re.Match[str], _: Sequence[Message]) -> Reply:
    return Reply("", call=ToolCall("read_file", {"path": match["name"]}))


def _run(match: re.Match[str], _: Sequence[Message]) -> Reply:
    return Reply("", call=ToolCall("terminal", {"command": match["text"].strip()}))


def _call(match: re.Match[str], _: Sequence[Message]) -> Reply:
    try:
        arguments = json.loads(match["arguments"])
    except ValueError:
        return Reply("", "I can't do that: the arguments are no JSON.")
    return Reply("", call=ToolCall(match["name"], arguments))


def _recall(_: re.Match[str], messages: Sequence[Message]) -> Reply:
    entries = memories_in(messages)
    return Reply("", "I remember: " + "; ".join(entries) if entries else "I remember nothing yet.")


def _word(match: re.Match[str], _: Sequence[Message]) -> Reply:
    return Reply("", match["word"])


_RULES: tuple[tuple[str, re.Pattern[str], Callable[[re.Match[str], Sequence[Message]], Reply]], ...] = (
    ("remember", re.compile(r"^remember:\s*(?P<text>.+)$", re.IGNORECASE | re.MULTILINE), _remember),
    ("write-file", re.compile(r"^write file (?P<name>\S+?):\s*(?P<text>.+)$", re.IGNORECASE | re.MULTILINE), _write),
    ("read-file", re.compile(r"^read file (?P<name>\S+)$", re.IGNORECASE | re.MULTILINE), _read),
    ("run", re.compile(r"^run:\s*(?P<text>.+)$", re.IGNORECASE | re.MULTILINE), _run),
    ("call", re.compile(r"^call (?P<name>[\w.-]+):\s*(?P<arguments>\{.*\})$", re.IGNORECASE | re.MULTILINE), _call),
    ("recall", re.compile(r"what do you remember", re.IGNORECASE), _recall),
    ("word", re.compile(r"reply with (?:only |exactly )?the word:?\s+[\"'`]?(?P<word>[\w-]+)", re.IGNORECASE), _word),
)
