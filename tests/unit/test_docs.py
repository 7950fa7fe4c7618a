"""The documents and the code say the same: lists, texts, links and commands."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

import provisioning.errors
import proxmox.errors
from proxmox.rights import allocate_on, grant_commands, manage_guest, mount_foreign, see_all_guests, use_bridge
from proxmox.rights import use_template as see_template
from settings import generate
from settings.outputs import outputs_of
from tests.attacks.attack import MODULES
from tests.lifecycle.documented import blocks_of
from tests.settings import cattle, pet
from tests.tables import names_of

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *DOCS, ROOT / "pvelab" / "README.md"]
HOLE = "…"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def fenced(text: str, info: str) -> Iterator[str]:
    """The lines of all fenced blocks with this info string."""
    for block in re.findall(rf"^```{info}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield from (line.strip() for line in block.splitlines() if line.strip())


def prose(text: str) -> str:
    """A document without its code blocks, fenced or indented."""
    without = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^ {4}.*$", "", without, flags=re.MULTILINE)


# --- options ------------------------------------------------------------------------------------


def declared() -> dict[str, dict[str, Any]]:
    config: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]
    return config


def test_what_is_made_of_the_settings_is_up_to_date() -> None:
    behind = [name_of(file) for file, text in generate.made().items() if file.read_text() != text]
    assert behind == [], "python -m settings.generate"


# Of upstream's hermes-agent/docs/nixos-setup.md, "Options Reference".
NIXOS = {
    "enable",
    "package",
    "user",
    "group",
    "createUser",
    "stateDir",
    "workingDirectory",
    "addToSystemPackages",
    "settings",
    "configFile",
    "environmentFiles",
    "environment",
    "authFile",
    "authFileForceOverwrite",
    "documents",
    "mcpServers",
    "extraArgs",
    "extraPackages",
    "restart",
    "restartSec",
    "container.enable",
    "container.backend",
    "container.image",
    "container.extraVolumes",
    "container.extraOptions",
}


def test_each_option_of_the_nixos_module_leads_to_keys_that_there_are() -> None:
    text = (ROOT / "docs" / "options.md").read_text().partition("## From the NixOS module")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| `")]
    there = {name for left, _ in rows for name in re.findall(r"`([\w.]+)`", left)}
    here = {name for _, right in rows for name in re.findall(r"`((?:agent|cattle)\w+)`", right)}
    assert there >= NIXOS
    assert here <= set(declared())


def test_the_stack_files_set_only_what_is_declared() -> None:
    for file in ROOT.glob("Pulumi.*.yaml"):
        keys = {key.partition(":")[2] for key in yaml.safe_load(file.read_text())["config"]}
        assert keys <= set(declared()), file.name


# --- errors -------------------------------------------------------------------------------------


def classes_of(module: ModuleType) -> set[str]:
    found = inspect.getmembers(module, lambda item: inspect.isclass(item) and issubclass(item, Exception))
    return {name for name, item in found if item.__module__ == module.__name__}


@pytest.mark.parametrize("module", [proxmox.errors, provisioning.errors], ids=lambda module: str(module.__name__))
def test_each_error_is_explained(module: ModuleType) -> None:
    headings = set(re.findall(r"^### (\w+)$", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE))
    assert classes_of(module) <= headings


def test_no_error_is_explained_that_is_none() -> None:
    headings = re.findall(r"^### (\w+)$", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert set(headings) <= classes_of(proxmox.errors) | classes_of(provisioning.errors)


def texts_of(source: str) -> Iterator[str]:
    """The string literals of a Python source, with a hole for each value of an f-string."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def texts() -> str:
    """Every text that the program can say, one after the other."""
    found: list[str] = []
    for folder in ("settings", "components", "applications", "proxmox", "provisioning", "lab", "pvelab/src", "scripts"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix == ".py":
                found.extend(texts_of(file.read_text()))
            elif file.suffix == ".sh":
                found.append(re.sub(r"\$\([^()]*\)|\$\{[^}]*\}|\$\w+", HOLE, file.read_text()))
    return "\n".join(found)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_each_quoted_error_is_a_text_of_the_program(document: Path) -> None:
    missing = [line for line in fenced(document.read_text(), "error") if line not in texts()]
    assert not missing


def test_each_text_in_the_tables_of_errors_is_one_of_the_program() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)
    pieces = [piece.strip(" ():") for row in rows for piece in re.split(r"\.\.\.|;", row)]
    said = texts()
    long = [piece for piece in pieces if len(piece) > 9]
    assert len(long) > 20
    assert not [piece for piece in long if piece not in said]


def test_errors_are_quoted_where_they_are_explained() -> None:
    assert list(fenced((ROOT / "docs" / "errors.md").read_text(), "error"))


# --- commands -----------------------------------------------------------------------------------


def test_the_commands_that_grant_rights_are_those_that_the_checks_want() -> None:
    rights = (
        manage_guest(105),
        see_all_guests(),
        allocate_on("local-lvm"),
        see_template("local"),
        use_bridge("vmbr0"),
        *mount_foreign("local-lvm", 999),
    )
    pasted = [line for line in fenced(README.read_text(), "sh") if line.startswith("pveum ")]
    assert pasted == grant_commands(rights, "pulumi@pve!hermes")


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_the_scripts_that_are_named_exist(document: Path) -> None:
    for script in set(re.findall(r"(?<![\w./-])(scripts/[a-z][\w/.-]*\w|\.ci/\w+)", document.read_text())):
        assert (ROOT / script).exists(), script


def test_the_verbs_of_the_lab_exist() -> None:
    verbs = set(re.findall(r"scripts/lab ([a-z]+)", README.read_text()))
    known = set(re.findall(r'^        "(\w+)": ', (ROOT / "pvelab/src/pvelab/cli.py").read_text(), re.MULTILINE))
    assert verbs
    assert verbs <= known


def test_the_template_that_is_downloaded_is_the_default() -> None:
    [name] = set(re.findall(r"pveam download local (\S+)", README.read_text()))
    assert declared()["template"]["default"] == f"local:vztmpl/{name}"


BLOCKS: dict[str, list[dict[str, Any]]] = yaml.safe_load((ROOT / "tests" / "cases" / "commands.yaml").read_text())


@pytest.mark.parametrize("document", BLOCKS)
def test_each_block_is_run_by_a_test_or_says_why_not(document: str) -> None:
    """A procedure that nobody runs fails at its third command one day."""
    known = BLOCKS[document]
    begins = sorted((entry["begins"] for entry in known), key=len, reverse=True)
    found = [next((one for one in begins if block.startswith(one)), block) for block in blocks_of(ROOT / document)]
    expected = [entry["begins"] for entry in known for _ in range(entry.get("count", 1))]
    assert sorted(found) == sorted(expected)
    for entry in known:
        [how] = entry.keys() & {"run", "held", "not"}
        if how == "not":
            assert len(entry["not"].split()) > 3
            continue
        file, _, name = entry[how].partition("::")
        assert (ROOT / file).exists(), entry
        assert not name or name in functions_of(ROOT / file), entry
        if how == "run" and "lifecycle" in file:
            quoted = re.findall(r'documented\.block\("([^"]+)", "([^"]+)"\)', (ROOT / file).read_text())
            assert any(place == document and words.startswith(entry["begins"]) for place, words in quoted), entry


LOST: dict[str, tuple[str, ...]] = {
    "1": ("tests/e2e/test_stacks.py::what_is_on_the_volume_outlives_the_cattle",),
    "2": ("pvelab/tests/containers/test_guests.py::test_a_damaged_file_system_is_repaired",),
    "3": (
        "tests/e2e/test_stacks.py::what_is_lost_comes_back",
        "tests/lifecycle/test_recovery.py::test_a_pet_that_was_removed_comes_back_from_a_backup_with_other_numbers",
    ),
    "4": (
        "tests/e2e/test_stacks.py::what_is_lost_comes_back",
        "tests/e2e/test_provisioning_guest.py::test_another_node_goes_on_from_the_copy_when_all_else_is_gone",
    ),
    "5": (
        "tests/e2e/test_debian_13.py::state_and_passphrase_are_lost",
        "tests/lifecycle/test_recovery.py::test_a_lost_state_is_made_again_without_a_change_to_any_guest",
    ),
    "6": (
        "tests/e2e/test_debian_13.py::state_and_passphrase_are_lost",
        "tests/lifecycle/test_recovery.py::test_a_lost_passphrase_costs_the_secrets_alone",
    ),
    "7": (
        "tests/lifecycle/test_recovery.py::test_a_template_that_is_gone_stops_only_what_has_to_be_made",
        "tests/e2e/test_provisioning_guest.py::test_a_release_that_was_moved_or_removed_is_refused_and_what_runs_stays",
    ),
    "`pulumi destroy": ("tests/e2e/test_stacks.py::what_is_on_the_volume_outlives_the_cattle",),
}
"""By its way back in docs/recovery.md: the tests that destroy something for real, and compare what is lost with what
came after the last backup, or find that it is nothing."""
MEASURES = ("lost_is_what_came_after", "known <=", "before ==", "== before", "has_the_words")


def test_each_loss_is_one_that_a_test_brings_about_and_measures() -> None:
    text = (ROOT / "docs" / "recovery.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| (?:\[(\d)\]|(`pulumi destroy))", text, re.MULTILINE)
    assert sorted({number or words for number, words in rows}) == sorted(LOST)
    for test in itertools.chain(*LOST.values()):
        file, _, name = test.partition("::")
        source = (ROOT / file).read_text()
        [found] = [node for node in ast.walk(ast.parse(source)) if getattr(node, "name", "") == name]
        assert any(measure in (ast.get_source_segment(source, found) or "") for measure in MEASURES), test


def test_each_block_of_settings_is_one_that_a_stack_can_have() -> None:
    blocks = [block for block in blocks_of(ROOT / "docs" / "operations.md") if block.startswith("hermes-homelab:")]
    found: list[dict[str, Any]] = [yaml.safe_load(block) for block in blocks]
    assert len(found) >= 6
    for block in found:
        given = {key.partition(":")[2]: value for key, value in block.items()}
        if any(str(given.get(key, "")).endswith("...") for key in ("nodeSshHostKey", "agentCopySshHostKey")):
            continue
        role = pet if any(key.startswith("pet") for key in given) else cattle
        role(**{key: value if isinstance(value, str) else json.dumps(value) for key, value in given.items()})


def test_the_readme_shows_each_output_that_is_promised() -> None:
    [block] = [one for one in blocks_of(README) if one.startswith("$ pulumi stack output")]
    shown = [line.split()[0] for line in block.splitlines()[3:] if line.strip()]
    assert shown == sorted(outputs_of("hermes"))
    assert f"({len(shown)}):" in block


# --- links --------------------------------------------------------------------------------------


def anchors_of(document: Path) -> set[str]:
    """The anchors that GitHub makes for a document's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_each_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document.read_text())):
        if re.match(r"https?://", target):
            continue
        place, _, anchor = unquote(target).partition("#")
        file = (document.parent / place).resolve() if place else document
        assert file.exists(), target
        if anchor:
            assert anchor in anchors_of(file), target


def test_the_headings_that_the_program_names_exist() -> None:
    named: set[tuple[str, str]] = set()
    folders = ("proxmox", "components", "applications", "provisioning", "settings", "trial", "scripts/lib")
    for file in [*ROOT.glob("*"), *(file for folder in folders for file in (ROOT / folder).rglob("*"))]:
        if file.suffix in (".py", ".yaml"):
            named |= set(re.findall(r'(README|docs/\w+\.md),? "([^"]+)"', file.read_text()))
    assert "docs/operations.md" in {document for document, _ in named}
    for document, heading in named:
        text = (README if document == "README" else ROOT / document).read_text()
        assert heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE), (document, heading)


def test_each_dependency_has_its_reason() -> None:
    import tomllib  # noqa: PLC0415 - here only

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["project"]["dependencies"],
        *(name for group in project["dependency-groups"].values() for name in group),
    ]
    names = {re.split(r"[<>=~!\[ ]", requirement)[0] for requirement in wanted}
    rows = set(re.findall(r"^\| `([\w.-]+)` \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE))
    assert rows == names


# --- words --------------------------------------------------------------------------------------

DIALECT = re.compile(r"\b(anew|lent|wish(ed|es)?|borrows?|told|begun|whoever|goes on|of (one|its|their)'s own)\b")


def test_the_documents_use_plain_words() -> None:
    """Short sentences in common words: many readers' first language is not English."""
    found = []
    for document in [*DOCUMENTS, *(ROOT / "examples").rglob("README.md"), *(ROOT / "tests").rglob("README.md")]:
        for number, line in enumerate(re.sub(r"`[^`\n]*`", "", document.read_text()).splitlines(), 1):
            if word := DIALECT.search(line):
                found.append(f"{name_of(document)}:{number}: {word.group()}")
    assert found == []


# --- what is held -------------------------------------------------------------------------------

SECURITY = ROOT / "docs" / "security.md"
# A function, or one of the cases in a table of tests/cases.
TEST = re.compile(r"`((?:pvelab/)?tests/[a-z0-9_/]+\.py)::([a-z0-9_]+)`|`(tests/cases/[a-z]+\.yaml)::([^`]+)`")


def held_by(text: str) -> list[tuple[str, str]]:
    """The tests that a text names: file and name."""
    return [(file or table, name or case) for file, name, table, case in TEST.findall(text)]


def functions_of(path: Path) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def is_carried_out(path: Path, function: ast.FunctionDef) -> bool:
    """A test of pytest's, or an attack that a test carries out."""
    if path.parent.name != "attacks":
        return function.name.startswith("test_")
    marks = (mark.func for mark in function.decorator_list if isinstance(mark, ast.Call))
    return path.stem in MODULES and any(isinstance(mark, ast.Name) and mark.id == "attack" for mark in marks)


def test_each_claim_about_security_names_a_test_that_is_there() -> None:
    named = held_by(SECURITY.read_text())
    assert len(named) > 20
    missing = []
    for file, name in named:
        path = ROOT / file
        if path.suffix == ".yaml":
            there = path.exists() and name in names_of(path.name)
        else:
            function = functions_of(path).get(name) if path.exists() else None
            there = function is not None and is_carried_out(path, function)
        if not there:
            missing.append(f"{file}::{name}")
    assert missing == []
    tables = re.findall(r"^\| claim \| held by \|\n\|---\|---\|\n((?:\|.*\n)+)", SECURITY.read_text(), re.MULTILINE)
    assert len(tables) >= 3
    assert [row for table in tables for row in table.splitlines() if not TEST.search(row)] == []


def test_each_attack_is_named_among_the_claims() -> None:
    named = set(held_by(SECURITY.read_text()))
    files = [ROOT / "tests" / "attacks" / f"{name}.py" for name in MODULES]
    written = {
        (name_of(path), name)
        for path in files
        for name, function in functions_of(path).items()
        if is_carried_out(path, function)
    }
    assert written - named == set()
