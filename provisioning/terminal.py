"""Text that comes from a guest, made fit for a terminal: in this one place, for whoever shows it on this machine.

The agent is hostile until proven otherwise, and much of what a guest says is its words: log lines, answers, file names,
error texts. A terminal obeys control characters (a new title, the clipboard by OSC 52, hidden or overwritten text), and
directional characters show a line in another order than it is. Here each of them becomes text that can be seen.

Who shows something of a guest's takes it from here: progress (provisioning.job), errors (provisioning.errors), outputs
(JobResult), answers, what `scripts/agent` prints. What is the operator's own terminal by intent, `scripts/agent ssh`
and `hermes` in the guest, is not filtered: there the guest draws.
"""

from __future__ import annotations

import unicodedata
from typing import Any

LINE_LIMIT = 4000
"""Characters of a line that are shown: enough for a traceback's longest, and no flood."""
RAW_LIMIT = 64 * 1024
"""Bytes that are kept of a line whose end has not come yet."""


def visible(text: str, *, limit: int | None = LINE_LIMIT) -> str:
    """`text` with its line ends, tabs and all that prints; every other character as `\\x1b`, `\\u202e`.

    `limit`: characters of each line; None: as long as they are.
    """
    return "\n".join(_cut(_escaped(line), limit) for line in text.split("\n"))


def one_line(text: str, *, limit: int | None = LINE_LIMIT) -> str:
    """As `visible`, with line ends as `\\n`: for what has to stay one line, or one value."""
    return _cut(_escaped(text.replace("\n", "\\n")), limit)


def visible_value(value: Any) -> Any:
    """A JSON value whose strings, names included, are fit to be shown; each stays one line."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, dict):
        return {one_line(str(key)): visible_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [visible_value(item) for item in value]
    return value


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(character if _shown(character) else ascii(character)[1:-1] for character in text)


def _shown(character: str) -> bool:
    # `isprintable` is false for all spaces but one; the others (a no-break space, that of Chinese) do nothing but that.
    return character.isprintable() or character == "\t" or unicodedata.category(character) == "Zs"


def _cut(line: str, limit: int | None) -> str:
    if limit is None or len(line) <= limit:
        return line
    return f"{line[:limit]} [{len(line) - limit} more characters]"


class Lines:
    """Bytes in, as they come; whole lines out, undecodable bytes replaced. They are not made visible yet.

    Of a line without an end no more than its first RAW_LIMIT bytes are kept, so that one that is endless costs nothing.
    """

    def __init__(self) -> None:
        self._open = bytearray()

    def feed(self, chunk: bytes) -> list[str]:
        *ended, rest = chunk.split(b"\n")
        found = []
        for line in ended:
            self._keep(line)
            found += self.end(always=True)
        self._keep(rest)
        return found

    def end(self, *, always: bool = False) -> list[str]:
        """The line that has no end yet, if there is one; with `always` also an empty one."""
        if not self._open and not always:
            return []
        line = self._open.decode("utf-8", "replace").rstrip("\r")
        self._open.clear()
        return [line]

    def _keep(self, more: bytes) -> None:
        self._open += more[: RAW_LIMIT - len(self._open)]
