"""Words of the home's in texts for people: marked as such, on one line each, and never where a command is to be pasted.

The agent is hostile until proven otherwise, and it writes its home: names, notes, logs, and what a program prints that
runs as its account. A refusal is read by root and pasted from by root. So:

- what is put into a command is quoted, whatever it is (`quote`, `command`);
- a name out of the home is used only when it has the form that ours have (`plain_path`, and the patterns beside what
  makes the names), and then quoted as well;
- anything else of the home's is shown by `said` (one line, in quotes) or `told` (what a program has printed, each of
  its lines behind a bar). No line of it begins where a line of ours does.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

SAID = 200
TOLD = 2000
TOLD_LINES = 12
"""With the sentence around them they are not more than what is shown of a phase's log (job.LOG_TAIL_LINES)."""
BAR = "  | "
_PLAIN = re.compile(r"[A-Za-z0-9_.+@][A-Za-z0-9_.+@-]*(/[A-Za-z0-9_.+@][A-Za-z0-9_.+@-]*)*\Z")


def quote(word: object) -> str:
    """A word of a command that somebody pastes."""
    return shlex.quote(str(word))


def command(*words: object) -> str:
    """A command that somebody pastes."""
    return shlex.join(map(str, words))


def said(text: object, limit: int = SAID) -> str:
    """Foreign words in quotes: one line of ASCII, with everything else escaped, cut at `limit` characters."""
    words = str(text)
    return ascii(words[:limit]) + ("..." if len(words) > limit else "")


def lines_of(text: str) -> list[str]:
    """The lines that a program has printed, each behind a bar; what does not print is escaped."""
    return [BAR + "".join(map(_visible, line)) for line in text.splitlines()]


def told(text: str, limit: int = TOLD, most: int = TOLD_LINES) -> str:
    """The end of what a program has printed: behind a colon when it is one line, else on lines of its own.

    Whole lines, at most `most` with at most `limit` characters; of a last line that is longer, its end.
    """
    lines: list[str] = []
    for line in reversed([line for line in lines_of(text) if line.strip(BAR)][-most:]):
        if lines and sum(map(len, lines)) + len(line) > limit:
            break
        lines.insert(0, line if len(line) <= limit else BAR + line[-limit:])
    if len(lines) < 2:
        return lines[0].removeprefix(BAR) if lines else "(nothing)"
    return "\n" + "\n".join(lines)


def _visible(character: str) -> str:
    return character if character.isprintable() or character == "\t" else ascii(character)[1:-1]


def plain_path(text: str) -> str | None:
    """A path below a folder, of plain names and without `..`; None when it is anything else."""
    if len(text) > 1024 or not _PLAIN.match(text) or {".", ".."} & set(text.split("/")):
        return None
    return text


def name(text: str) -> str:
    """A name out of the home for a sentence: as it is when it is plain, else in quotes."""
    return plain_path(text) or said(text)


def names(items: Iterable[object]) -> str:
    """Such names in a row."""
    return ", ".join(name(str(item)) for item in items)


def named(items: Iterable[str]) -> str:
    """A list of names that have the form that ours have, one a line; for a refusal."""
    return "\n".join(f"  {item}" for item in items) or "  (none)"


def redact(text: str, secrets: Iterable[str]) -> str:
    """Replace every secret of four characters or more by `[secret]`, longest first."""
    for secret in sorted((item for item in secrets if len(item) >= 4), key=len, reverse=True):
        text = text.replace(secret, "[secret]")
    return text
