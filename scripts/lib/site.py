"""MkDocs' hooks: the README and other documents beside docs/ are pages, too, and every link leads to a page or a file.

A link to a file of the repository leads to SITE_REPOSITORY, where that is set; else only its text is left.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[2]
BESIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "pvelab/README.md": "pvelab.md",
    **{
        file.relative_to(ROOT).as_posix(): f"examples/{file.parent.name}.md"
        for file in sorted((ROOT / "examples").glob("*/README.md"))
    },
}
"""A document outside of docs/, and its page."""
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def page_of(document: str) -> str | None:
    """The page of a document of the repository; None where it has none."""
    if document in BESIDE:
        return BESIDE[document]
    return document.removeprefix("docs/") if document.startswith("docs/") else None


def rewritten(markdown: str, document: str, repository: str) -> str:
    """The text of a document with the links of its page. Code blocks stay as they are."""
    page = page_of(document) or document

    def replace(found: re.Match[str]) -> str:
        target = found["target"]
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        place, mark, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(document), place))
        there = page_of(file)
        if there is not None:
            near = posixpath.relpath(there, posixpath.dirname(page) or ".")
            return f"{found['image']}[{found['text']}]({near}{mark}{anchor})"
        if repository:
            return f"[{found['text']}]({repository.rstrip('/')}/blob/main/{file}{mark}{anchor})"
        return found["text"]

    return "".join(part if part.startswith("```") else LINK.sub(replace, part) for part in FENCE.split(markdown))


def on_files(files: Files, config: Mapping[str, Any]) -> Files:
    """Add the pages of what is beside docs/."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - only MkDocs' own environment has it

    for document, page in BESIDE.items():
        files.append(File.generated(config, page, content=(ROOT / document).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Rewrite the links of a page."""
    pages = {there: document for document, there in BESIDE.items()}
    document = pages.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return rewritten(markdown, document, os.environ.get("SITE_REPOSITORY", ""))
