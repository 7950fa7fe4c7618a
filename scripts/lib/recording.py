"""What a program shows in a terminal, as a picture that plays it: an SVG, which a page shows as any other picture.

It holds text, so it is small and can be searched, and it needs no player, no script and no font from elsewhere.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.control import Control

WIDTH = 100  # characters
LONGEST_WAIT = 1.5  # seconds
NAME = "terminal"
TEMPLATE = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
@keyframes {unique_id}-shown {{ from {{ opacity: 0; }} to {{ opacity: 1; }} }}
@media (prefers-reduced-motion: no-preference) {{
.{unique_id}-matrix text {{ animation: {unique_id}-shown 0.1s both; }}
DELAYS
}}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


class Recording(Console):
    """A console that also keeps what is printed, with the second at which each line came."""

    def __init__(self) -> None:
        super().__init__(highlight=False)
        self._began = time.monotonic()
        self._shown: list[float] = []
        self._tape = Console(
            record=True,
            file=io.StringIO(),
            width=WIDTH,
            force_terminal=True,
            color_system="truecolor",
            highlight=False,
        )

    def print(self, *objects: Any, **options: Any) -> None:
        """As a console does it. What only moves the cursor, as a spinner does, is no part of the picture."""
        super().print(*objects, **options)
        if not any(isinstance(one, Control) for one in objects):
            self._tape.print(*objects, **options)
            lines = self._tape.export_text(clear=False).count("\n")
            self._shown += [time.monotonic() - self._began] * (lines - len(self._shown))

    def picture(self, title: str) -> str:
        """An SVG that shows each line when it came. A long wait is shortened."""
        rules = (
            f'.{NAME}-matrix [clip-path="url(#{NAME}-line-{line})"] {{{{ animation-delay: {delay:.1f}s; }}}}'
            for line, delay in enumerate(delays(self._shown))
        )
        template = TEMPLATE.replace("DELAYS", "\n".join(rules))
        return self._tape.export_svg(title=title, code_format=template, unique_id=NAME)


def delays(shown: Sequence[float]) -> Iterator[float]:
    """When each line appears in the picture, from when it came: no wait is longer than LONGEST_WAIT."""
    at = 0.0
    for before, now in pairwise([0.0, *shown]):
        at += min(now - before, LONGEST_WAIT)
        yield at
