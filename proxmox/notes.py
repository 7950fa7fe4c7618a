"""A guest's notes and tags: the stack's own beside those of the guest's owner.

Proxmox shows a guest's description as Markdown ("Notes"). What the stack writes stands between two HTML comments, which
are not shown. What stands outside of them is somebody else's: it stays, byte by byte, and is no difference. The same
goes for tags that no setting declares.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from proxmox.ownership import CLAIM, render_notes

BEGIN = "<!-- hermes-homelab: begin. Write your own notes above or below: these lines are the stack's. -->"
END = "<!-- hermes-homelab: end -->"
_TAGS = "Tags of the stack: "
LONGEST = 8192
"""Bytes that are surely taken: Proxmox's schema takes as many characters of a description (`maxLength => 1024 * 8`)."""
_LINE_OF = r"^<!-- hermes-homelab: {}\b[^\n]*-->[ \t\r]*$\n?"
_BODY = rf"(?:(?!{_LINE_OF.format('(?:begin|end)')}).)*?"
_BLOCK = re.compile(
    # Somebody may have taken the last line away: then the claim is the end.
    rf"{_LINE_OF.format('begin')}{_BODY}(?:{_LINE_OF.format('end')}|{CLAIM.pattern}\n?(?!{_BODY}{_LINE_OF.format('end')}))",
    re.MULTILINE | re.DOTALL,
)


def notes_block(text: str, tags: Iterable[str], claim: str) -> str:
    """What the stack writes into a guest's notes: `text` in Markdown, its tags and claim, a mark before and after."""
    listed = ", ".join(f"`{tag}`" for tag in sorted(tags)) or "none"
    said = render_notes(f"{text.strip()}\n\n{_TAGS}{listed}", claim)
    return f"{BEGIN}\n\n{said}\n{END}\n"


def merged_notes(there: str, block: str, earlier: str) -> str:
    """A guest's notes with the stack's block as it is to be; `there` itself where it is so already.

    `there`: the notes as they are. The block stays where its owner has put it. `earlier`: the text that stood before
    the claim when a release without marks has written it. Where both together are too long for Proxmox, the notes stay
    as they are as long as they have the claim.
    """
    blocks = list(_BLOCK.finditer(there))
    if len(blocks) == 1 and blocks[0].group().splitlines() == block.splitlines():
        return there
    if blocks:
        made = there[: blocks[0].start()] + block + _BLOCK.sub("", there[blocks[0].end() :])
    elif CLAIM.search(there):
        unmarked = re.compile(rf"(?:^{re.escape(earlier)}[ \t\r]*\n\s*)?{CLAIM.pattern}\n?", re.MULTILINE)
        made = unmarked.sub(lambda _: block, there, count=1)
    else:
        made = f"{there.strip()}\n\n{block}" if there.strip() else block
    return there if len(made.encode()) > LONGEST and CLAIM.search(there) else made


def merged_tags(there: str, notes: str, declared: Iterable[str]) -> list[str]:
    """A guest's tags with the declared ones among them, in the order in which Proxmox has them where none is missing.

    `there`: as Proxmox tells them; `notes`: the guest's, which say which of them the stack has set. Of these go those
    that are declared no more. All others stay.
    """
    wanted, block = set(declared), _BLOCK.search(notes)
    listed = next((line for line in block.group().splitlines() if line.startswith(_TAGS)), "") if block else ""
    gone = set(re.findall("`([^`]+)`", listed)) - wanted
    found = [tag for tag in re.split(r"[;, ]+", there) if tag and tag not in gone]
    return found if wanted <= set(found) else sorted({*found, *wanted})


# The time of the last backup: two lines beside the block, so that no run of the stack finds a difference in them.

BACKUP_MARK = "<!-- hermes-homelab: last backup. scripts/agent status and scripts/agent backup write the next line. -->"
SEEN_AGAIN = timedelta(days=1)
"""After so long the same backup is noted again: then the reader knows that somebody has looked."""
AHEAD = timedelta(minutes=10)
"""The clocks of two machines differ by less. A backup from later on is none that anybody could have seen."""
_MINUTE = "%Y-%m-%d %H:%M"
_BACKUP = re.compile(
    r"^<!-- hermes-homelab: last backup\b[^\n]*-->[ \t\r]*\n"
    r"(?:Last backup of the data: (?P<made>[0-9: -]{16}|none)[^\n]*?, seen (?P<seen>[0-9: -]{16}) UTC[^\n]*\n?)?",
    re.MULTILINE,
)


def with_last_backup(there: str, made: datetime | None, now: datetime) -> str:
    """A guest's notes with the time of its last backup and of this look at it; `there` itself where that is no news.

    `made`: as the guest tells it, None: there is none; `now`: this machine's clock. Both in UTC. Only times get into
    the text, whatever the guest has said. One that lies ahead changes nothing, nor does any where the stack's own lines
    are missing, or where there is no room.
    """
    block = _BLOCK.search(there)
    if block is None or (made is not None and made > now + AHEAD):
        return there
    when = "none" if made is None else f"{made:{_MINUTE}}"
    found = _BACKUP.search(there)
    if found is not None and found["made"] == when and now - _time_of(found["seen"], now) < SEEN_AGAIN:
        return there
    told = "none" if made is None else f"{when} UTC"
    line = f"{BACKUP_MARK}\nLast backup of the data: {told}, seen {now:{_MINUTE}} UTC by `scripts/agent`.\n"
    if found is not None:
        text = f"{there[: found.start()]}{line}{_BACKUP.sub('', there[found.end() :])}"
    else:
        text = f"{there[: block.end()]}\n{line}{there[block.end() :]}"
    return there if len(text.encode()) > LONGEST else text


def _time_of(seen: str, now: datetime) -> datetime:
    """When it was looked at last; long ago where somebody has made something else of it, or set it ahead."""
    try:
        found = datetime.strptime(seen, _MINUTE).replace(tzinfo=now.tzinfo)
    except ValueError:
        found = now + SEEN_AGAIN
    return found if found <= now + AHEAD else datetime.min.replace(tzinfo=now.tzinfo)
