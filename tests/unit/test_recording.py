"""The picture of a terminal: all that was shown, each line when it came, and nothing from elsewhere."""

from __future__ import annotations

import re
import time
from xml.etree import ElementTree

import pytest

from scripts.lib.recording import Recording, delays


def test_a_wait_is_as_long_as_it_was_up_to_a_limit() -> None:
    assert list(delays([0.5, 0.5, 1.0, 61.0, 61.2])) == pytest.approx([0.5, 0.5, 1.0, 2.5, 2.7])


def test_the_picture_shows_each_line_when_it_came(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 1.0, 2.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    console = Recording()
    console.print("\n[bold]The pet[/bold]")
    with console.status("a spinner"):
        pass
    console.print("  [green]✓[/green] it's <there>")
    picture = console.picture("scripts/demo")
    assert "it's <there>" in capsys.readouterr().out
    root = ElementTree.fromstring(picture)  # noqa: S314 - our own
    texts = {
        (element.text or "").replace("\xa0", " ").strip(): element.get("clip-path")
        for element in root.iter("{http://www.w3.org/2000/svg}text")
    }
    assert {"scripts/demo", "The pet", "✓", "it's <there>"} <= set(texts)
    assert not any("spinner" in text for text in texts)
    when = dict(re.findall(r'\[clip-path="([^"]+)"\] \{ animation-delay: ([\d.]+)s', picture))
    assert [when[str(texts[line])] for line in ("The pet", "it's <there>")] == ["1.0", "2.0"]
    # No font, script or picture that a browser would have to ask another machine for.
    assert re.findall(r"https?://[^\"]+", picture) == ["http://www.w3.org/2000/svg"]
