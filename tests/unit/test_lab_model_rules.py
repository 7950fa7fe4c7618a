"""The lab's model: every answer can be foretold, and proves what it is meant to prove."""

from __future__ import annotations

import json

import pytest

from lab.services.model import chunks, completion, usage_of
from lab.services.model_rules import Message, Reply, ToolCall, memories_in, reply_to

TOOLS = ("mcp_lab_lantern", "memory", "read_file", "terminal", "write_file")
LINE = "═" * 46
# As Hermes 0.19.0 renders its memory stores into the system prompt.
SYSTEM = (
    "You are Hermes.\n\n"
    f"{LINE}\nMEMORY (your personal notes) [3% — 60/2,200 chars]\n{LINE}\n"
    "the cat is called Milo\n§\nthe boat lies in Kiel\n\n"
    f"{LINE}\nUSER PROFILE (who the user is) [1% — 11/1,375 chars]\n{LINE}\n"
    "speaks Low German\n\n"
    "Conversation started: Monday"
)


def user(text: str) -> list[Message]:
    return [{"role": "system", "content": "You are Hermes."}, {"role": "user", "content": text}]


@pytest.mark.parametrize(
    ("prompt", "call"),
    [
        ("remember: the cat is called Milo", ("memory", {"action": "add", "target": "memory",
                                                         "content": "the cat is called Milo"})),
        ("Remember:   padded  ", ("memory", {"action": "add", "target": "memory", "content": "padded"})),
        ("write file note.txt: hello there", ("write_file", {"path": "note.txt", "content": "hello there\n"})),
        ("Write file /home/hermes/a.md: x: y", ("write_file", {"path": "/home/hermes/a.md", "content": "x: y\n"})),
        ("read file note.txt", ("read_file", {"path": "note.txt"})),
        ("run: id -un && pwd", ("terminal", {"command": "id -un && pwd"})),
        ('call mcp_lab_lantern: {"text": "it burns"}', ("mcp_lab_lantern", {"text": "it burns"})),
        ("[Monday 09:00]\nremember: on its own line", ("memory", {"action": "add", "target": "memory",
                                                                  "content": "on its own line"})),
    ],
)  # fmt: skip
def test_prompts_that_call_a_tool(prompt: str, call: tuple[str, dict[str, str]]) -> None:
    reply = reply_to(user(prompt), TOOLS)
    assert reply.call == ToolCall(*call)
    assert reply.text == ""


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("Please reply with the word PINEAPPLE.", "PINEAPPLE"),
        ("reply with only the word: 'ok-42'", "ok-42"),
        ("What do you remember?", "I remember nothing yet."),
        ("Good morning", "You said: Good morning"),
        ("call memory: {add}", "I can't do that: the arguments are no JSON."),
        ("I can't remember: was it Milo?", "You said: I can't remember: was it Milo?"),
    ],
)
def test_prompts_that_are_answered(prompt: str, answer: str) -> None:
    reply = reply_to(user(prompt), TOOLS)
    assert (reply.text, reply.call) == (answer, None)


def test_what_it_remembers_is_what_the_agent_told_it() -> None:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "what do you remember?"}]
    assert memories_in(messages) == ["the cat is called Milo", "the boat lies in Kiel", "speaks Low German"]
    assert reply_to(messages, TOOLS).text == (
        "I remember: the cat is called Milo; the boat lies in Kiel; speaks Low German"
    )


def test_a_memory_in_the_conversation_alone_does_not_count() -> None:
    assert memories_in([{"role": "user", "content": SYSTEM}]) == []


def test_a_tool_that_was_not_offered_is_not_called() -> None:
    reply = reply_to(user("remember: x"), ("terminal",))
    assert reply.call is None
    assert "memory" in reply.text


FOUND = '{"query": "q", "total_available": 2, "matches": [{"name": "mcp__lab__lantern", "source": "mcp"}]}'
BRIDGE = ("tool_search", "tool_describe", "tool_call", "terminal")


def test_a_tool_that_is_searched_for_is_found_described_and_called() -> None:
    """As the agent's own tools ask for it (tools/tool_search.py, 0.20.3: bridge_tool_schemas)."""
    messages, calls = user('call mcp__lab__lantern: {"text": "it burns"}'), []
    for said in (FOUND, '{"name": "mcp__lab__lantern", "parameters": {}}', "snrub ti"):
        call = reply_to(messages, BRIDGE).call
        assert call is not None
        calls.append((call.name, call.arguments))
        messages = [*messages, {"role": "assistant", "content": None}, {"role": "tool", "content": said}]
    assert calls == [
        ("tool_search", {"query": "mcp  lab  lantern"}),
        ("tool_describe", {"name": "mcp__lab__lantern"}),
        ("tool_call", {"name": "mcp__lab__lantern", "arguments": {"text": "it burns"}}),
    ]
    assert reply_to(messages, BRIDGE) == Reply("tool-result", "Done. The tool said: snrub ti")
    assert reply_to(messages[:2], BRIDGE[1:]).call is None


@pytest.mark.parametrize("said", ['{"total_available": 2, "matches": []}', '{"error": "it is not available"}'])
def test_a_search_that_finds_nothing_is_the_end(said: str) -> None:
    messages = [*user("call mcp__lab__lantern: {}"), {"role": "tool", "content": said}]
    assert reply_to(messages, BRIDGE) == Reply("tool-result", f"That failed. The tool said: {said}")


def test_after_the_tool_the_answer_tells_what_it_said() -> None:
    messages = [
        *user("remember: x"),
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "tool_call_id": "c", "content": '{"success": true}'},
    ]
    reply = reply_to(messages, TOOLS)
    assert reply.call is None
    assert '{"success": true}' in reply.text


@pytest.mark.parametrize("result", ['{"success": false, "error": "full"}', '{"error": "no such file"}'])
def test_a_failed_tool_is_not_called_done(result: str) -> None:
    reply = reply_to([*user("read file x"), {"role": "tool", "content": result}], TOOLS)
    assert reply.text == f"That failed. The tool said: {result}"


def test_a_new_prompt_after_a_tool_result_is_a_new_turn() -> None:
    messages = [*user("remember: x"), {"role": "tool", "content": "done"}, {"role": "user", "content": "Good morning"}]
    assert reply_to(messages, TOOLS).text == "You said: Good morning"


def test_content_in_parts_is_read() -> None:
    parts = [{"type": "text", "text": "reply with the word"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    assert reply_to([{"role": "user", "content": [*parts, {"type": "text", "text": "BLUE"}]}], ()).text == "BLUE"


def test_no_user_message_is_no_crash() -> None:
    assert reply_to([{"role": "system", "content": "x"}], ()).call is None


def test_a_streamed_answer_adds_up_to_the_whole() -> None:
    text = "A long answer that takes more than one chunk of forty characters to send."
    reply = Reply("echo", text)
    usage = usage_of([{"role": "user", "content": "x"}], reply)
    sent = list(chunks(reply, usage, with_usage=True))
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in sent if c["choices"]) == text
    assert [c["choices"][0]["finish_reason"] for c in sent if c["choices"]][-1] == "stop"
    assert sent[-1]["usage"]["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert all("usage" not in c for c in chunks(reply, usage, with_usage=False))


def test_a_streamed_call_adds_up_to_the_whole() -> None:
    reply = Reply("write-file", call=ToolCall("write_file", {"path": "a", "content": "grün\n"}))
    usage = usage_of([], reply)
    deltas = [c["choices"][0]["delta"] for c in chunks(reply, usage, with_usage=False)]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["function"]["name"] == "write_file"
    arguments = "".join(call["function"]["arguments"] for call in calls)
    whole = completion(reply, usage)["choices"][0]
    assert json.loads(arguments) == {"path": "a", "content": "grün\n"}
    assert whole["message"]["tool_calls"][0]["function"]["arguments"] == arguments
    assert whole["message"]["tool_calls"][0]["id"] == calls[0]["id"]
    assert whole["finish_reason"] == "tool_calls"
