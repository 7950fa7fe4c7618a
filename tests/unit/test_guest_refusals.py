"""All texts of the programs in the guest: what can come out of the home is quoted, and so is every word of a command.

By the source: within each function, what a call that reads the home (or runs as its account) has answered is followed
through assignments and loops. Where it gets into a text for people it has to go through provisioning.guest.words, or be
shown by its `repr`. What is listed as an exception was looked at, and has its reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What runs as the agent's account itself: all that it prints is taken for the agent's where it is read.
AS_THE_AGENT = {"state.py", "home.py", "cli.py"}
MODULES = sorted(
    path
    for path in [*ROOT.glob("provisioning/guest/*.py"), *ROOT.glob("applications/*/guest/*.py")]
    if path.name not in AS_THE_AGENT
)

SOURCES = {
    "read_home",
    "as_user",
    "execute",
    "run_for",
    "state",
    "read_note",
    "note_of",
    "request",
    "journal",
    "read_bytes",
}
SOURCES |= {"prompt", "prompt_by_command", "check_prompt", "wait_for", "backups", "prune", "reader", "started_from"}
SAFE = {"said", "told", "quoted", "quote", "command", "to_paste", "name", "shown", "named", "lines_of", "plain_path"}
SAFE |= {"names", "dumps", "int", "float", "len", "round", "bool", "isinstance"}
SAFE |= {"answer_of", "proper_backup", "standing_of", "is_active", "how_it_failed", "start_remedy"}
TEXTS = {"Refusal", "CommandFailed", "EngineRefusal", "failed", "Unproven", "print", "say", "append"}
# A verb of a command that somebody may paste, in a text of ours.
VERBS = re.compile(r"\b(runuser|systemctl|scripts/agent|kill|rm|mv|find|chown|pct|apt-get)\b[^.:\n]*$")

# (function, expression): why it is none of the home's words.
SEEN = {
    ("compile_all", "count"): "a number",
    ("bring_up", "shown"): "each line behind a bar: journal has done that",
    ("_back_up", "made['files']"): "a number: answer_of has looked",
    ("_back_up", "made['seconds']"): "a number: answer_of has looked",
    ("_prune", "', '.join(removed)"): "of a backup's form: answer_of has looked",
    ("_clear_up_after_others", "line"): "made of such texts as these",
    ("_clear_up_after_others", "_way_out(subject)"): "our own words; the name `subject` is beside a note",
    ("make", "made['path']"): "of a backup's form: answer_of has looked",
    ("make", "count"): "numbers: answer_of has looked",
    ("make", "made['seconds']"): "a number: answer_of has looked",
    ("make", "', '.join(removed)"): "of a backup's form: answer_of has looked",
    ("list_backups", "size"): "numbers: proper_backup has looked",
    ("list_backups", "STANDING[each['standing']]"): "our own word",
    ("restore", "name"): "of a backup that is there, by a proper name: chosen has looked",
    ("restore", "safety"): "of a backup's form: answer_of has looked",
    ("restore", "written"): "a number: answer_of has looked",
    ("pull", "words.splitlines()[-1] if words else 'nothing'"): "the engine's, of the registry",
    ("in_image", "done.returncode"): "a number",
    ("clear", "', '.join(stale)"): "our own names",
    ("refuse_user_units", "count"): "a number",
    ("wait_for", "last"): "a status, or the words of this machine's network",
    ("check_health", "status"): "a number",
    ("check_prompt", "status"): "a number",
    ("check_running", "last"): "each part of it by its repr",
    ("check_running", "installed"): "a folder of root's",
    ("check_dashboard", "'; '.join(wrong)"): "each part of it by its repr",
    ("check_dashboard", "', '.join(missing)"): "names that are declared",
    ("check_account", "'; '.join(found)"): "our own words",
}


def called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def holds(node: ast.AST, names: set[str]) -> bool:
    """Whether a value is, or is made of, what the home says; a call that makes it safe ends the search."""
    if called(node) in SAFE:
        return False
    if called(node) in SOURCES or (isinstance(node, ast.Name) and node.id in names):
        return True
    return any(holds(child, names) for child in ast.iter_child_nodes(node))


def names_in(target: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def assigned(target: ast.AST) -> set[str]:
    """An item or attribute of something does not make all of it the home's."""
    return names_in(target) if isinstance(target, ast.Name | ast.Tuple) else set()


def tainted(function: ast.FunctionDef) -> set[str]:
    """The names in a function that hold what the home says."""
    found: set[str] = set()
    while True:
        before = set(found)
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=targets, value=value) if holds(value, found):
                    found |= {name for target in targets for name in assigned(target)}
                case ast.AnnAssign(target=target, value=value) if value is not None and holds(value, found):
                    found |= names_in(target)
                case ast.NamedExpr(target=target, value=value) if holds(value, found):
                    found |= names_in(target)
                case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value) if holds(
                    value, found
                ):
                    found |= names_in(target)
        if found == before:
            return found


def raw(function: ast.FunctionDef) -> Iterator[str]:
    """The expressions by which the home's words get into a text as they are."""
    names = tainted(function)
    for node in ast.walk(function):
        if called(node) not in TEXTS:
            continue
        for part in ast.walk(node):
            if not isinstance(part, ast.FormattedValue) or part.conversion != -1 or part.format_spec is not None:
                continue
            if holds(part.value, names):
                yield ast.unparse(part.value)


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    yield from (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_what_the_home_says_gets_into_no_text_as_it_is(path: Path) -> None:
    found = {(function.name, expression) for function in functions(path) for expression in raw(function)}
    assert found - set(SEEN) == set()


def test_the_search_finds_what_it_is_for() -> None:
    """As they were once."""
    source = """
def refuse(user, home):
    last = as_user(user, "cat", home)
    for line in last.splitlines():
        words = [line.strip()]
        if words:
            raise Refusal(f"the data is in {words[0]}: {line!r} {said(line)} {home}")
def back(trial):
    if half := trial.subject.read_note("restore"):
        raise Refusal("go back: " f"scripts/agent restore {half.get('safety')}")
"""
    one, two = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    assert list(raw(one)) == ["words[0]"]
    assert list(raw(two)) == ["half.get('safety')"]


def test_no_exception_is_listed_that_is_none() -> None:
    found = {(function.name, hole) for path in MODULES for function in functions(path) for hole in raw(function)}
    assert set(SEEN) <= found


def unquoted(path: Path) -> Iterator[tuple[str, str]]:
    """Holes behind the verb of a command, in the same sentence, that no function of words has quoted."""
    for function in functions(path):
        for node in ast.walk(function):
            if not isinstance(node, ast.JoinedStr):
                continue
            text = ""
            for part in node.values:
                if isinstance(part, ast.Constant):
                    text += str(part.value)
                elif isinstance(part, ast.FormattedValue):
                    if VERBS.search(text) and called(part.value) not in SAFE:
                        yield function.name, ast.unparse(part.value)
                    text += "X"


# (function, expression): why it needs no quotes.
PLAIN = {
    ("refuse_another_gateway", "holder"): "a number",
    ("check_owners", "uid"): "a number",
    ("check_unit", "unit"): "one of our own names",
    ("check_account", "uid"): "a number",
    ("bring_up", "verb"): "our own word",
    ("apt", "arguments[0]"): "our own word",
}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_each_word_of_a_command_in_a_text_is_quoted(path: Path) -> None:
    assert set(unquoted(path)) - set(PLAIN) == set()
