"""What runs in a cattle. An application is a folder here, and its name in NAMES: nothing else of the program knows it.

The folder is a package with two modules that are read from here: `settings` has DECLARED, `application` has
APPLICATION. What runs in the guest for it lies in its package `guest`. docs/applications.md makes one, step by step.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import argparse

    from provisioning.plans import PhasePlan
    from settings.section import Output, Section
    from settings.stack import CattleStack

NAMES: Sequence[str] = [
    "hermes",
]
"""The folders. The setting `application` takes one of them, or none."""


# --- settings -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Sections of settings under one heading of docs/options.md. `note`: what stands before their table."""

    title: str
    sections: tuple[type[Section], ...]
    note: str = ""


@dataclass(frozen=True)
class Declared:
    """What can be declared about an application.

    `model`: which class a stack with these settings (texts, by key) is read into, and which sections its fields with a
    choice get. An application runs in an ApplicationStack; a CattleStack of another kind has none in it.
    `not_in_images`: settings that are required of a cattle and do not get into a golden template, with values that an
    image stack is read with where it has none.
    """

    groups: tuple[Group, ...]
    model: Callable[[Mapping[str, Any]], tuple[type[CattleStack], Mapping[str, type[Section]]]]
    outputs: Mapping[str, Output] = field(default_factory=dict)
    not_in_images: Mapping[str, str] = field(default_factory=dict)


# --- what is done in the guest ------------------------------------------------------------------


@dataclass(frozen=True)
class PhaseSpec:
    """A phase. They run one after the other, each when the digest of its plan changes.

    `render`: its plan, from what it `needs` of the phase before: its results, its digest, or nothing (then it gets
    None). `foresee`: what the results are going to be, from the plan and the last run's outputs: for previews.
    `warnings`: what people have to know of the results, said in every run. `baked`: whether it needs neither data nor
    secrets, so that a golden template has it behind it; such phases come first, and need nothing of each other.
    `in_cattle`: adds what a run in a cattle does besides, with secrets or not, and a golden template must not have.
    """

    name: str
    render: Callable[[Any], PhasePlan]
    needs: Literal["", "results", "digest"] = ""
    foresee: Callable[[PhasePlan, Mapping[str, Any]], Mapping[str, Any]] = lambda _plan, last: last.get("results") or {}
    warnings: Callable[[Mapping[str, Any]], Iterable[str]] = lambda _results: ()
    baked: bool = False
    in_cattle: Callable[[PhasePlan], PhasePlan] = lambda plan: plan


@dataclass(frozen=True)
class Answer:
    """The value of an output, read from a source.

    `of`: address (the guest's), state and secret (what `Application.asks` prints), a phase (its results), or "" for
    what the settings alone say; then `read` gets None.
    """

    of: str
    read: Callable[[Any], Any] = lambda found: found
    secret: bool = False


@dataclass(frozen=True)
class Command:
    """A verb of scripts/agent. `run` gets a provisioning.console.Guest; None where it is `alone`: it needs no stack."""

    help: str
    run: Callable[[Any, argparse.Namespace], int]
    arguments: Callable[[argparse.ArgumentParser], object] = lambda parser: parser
    alone: bool = False


@dataclass(frozen=True)
class Application:
    """What is done with an application. The functions get the stack that `Declared.model` has chosen.

    `component` and `resource`: what it is called in the stacks' states. `asks`: a shell command that prints the state
    of what runs, and fails with a remedy where it does not run. `asks_secret`: another, whose output is a secret: it is
    never logged, and encrypted in the state.
    """

    component: str
    resource: str
    phases: Callable[[Any], Sequence[PhaseSpec]]
    asks: Callable[[Any], str]
    outputs: Callable[[Any], Mapping[str, Answer]]
    asks_secret: Callable[[Any], str] = lambda _stack: ""
    warnings: Callable[[Any], Iterable[str]] = lambda _stack: ()
    commands: Mapping[str, Command] = field(default_factory=dict)


def declared(name: str) -> Declared:
    """The settings of an application."""
    found: Declared = importlib.import_module(f"applications.{name}.settings").DECLARED
    return found


def application(name: str) -> Application:
    """The application of that name."""
    found: Application = importlib.import_module(f"applications.{name}.application").APPLICATION
    return found
