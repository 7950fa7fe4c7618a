"""The documents as pages: which link leads where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.lib.site import BESIDE, page_of, rewritten

ROOT = Path(__file__).parents[2]
HOST = "https://git.example.org/me/home"


@pytest.mark.parametrize(
    ("document", "link", "expected"),
    [
        ("README.md", "[a](docs/setup.md#b)", "[a](setup.md#b)"),
        ("README.md", "![a](docs/dashboard.png)", "![a](dashboard.png)"),
        ("docs/setup.md", "[a](../README.md#c)", "[a](index.md#c)"),
        ("docs/setup.md", "[a](options.md)", "[a](options.md)"),
        ("docs/setup.md", "[a](../examples/other-stack/README.md)", "[a](examples/other-stack.md)"),
        ("examples/other-stack/README.md", "[a](../../docs/outputs.md)", "[a](../outputs.md)"),
        ("docs/setup.md", "[`a`](../proxmox/client.py)", f"[`a`]({HOST}/blob/main/proxmox/client.py)"),
        ("README.md", "[a](https://pulumi.com) [b](#c)", "[a](https://pulumi.com) [b](#c)"),
        ("README.md", "```sh\n[a](docs/setup.md)\n```", "```sh\n[a](docs/setup.md)\n```"),
    ],
)
def test_a_link_leads_to_the_page_or_to_the_repository(document: str, link: str, expected: str) -> None:
    assert rewritten(link, document, HOST) == expected


def test_where_the_repository_is_not_known_a_file_is_its_text() -> None:
    assert rewritten("see [`a`](../proxmox/client.py).", "docs/setup.md", "") == "see `a`."


def test_each_document_has_a_page_in_the_navigation() -> None:
    named = set(re.findall(r"^ +- [^:]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {page_of(file.relative_to(ROOT).as_posix()) for file in (ROOT / "docs").glob("*.md")}
    assert named == pages | set(BESIDE.values())
