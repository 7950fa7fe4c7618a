"""The register of attacks, and what they act in."""

from __future__ import annotations

import base64
import contextlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

from applications.hermes.guest.names import CONTAINER_UNIT
from applications.hermes.talk import ask
from tests.e2e.phase_guest import Guest

Mode = Literal["bare-metal", "docker", "podman"]

MODULES = ("imports", "accounts", "links", "limits", "notes")
"""The modules of this folder that hold attacks."""

WORKSPACE = "/home/hermes/workspace"


@dataclass
class Scene:
    """A guest whose agent is at work."""

    mode: Mode
    guest: Guest
    prove: Callable[[], tuple[int, str, str]]
    """The verify phase: its exit status, its result, what it said."""
    renew: Callable[[], None]
    """Throw the container away, make another on the same volume, and bring it up in the same mode."""
    _undo: list[str] = field(default_factory=list)

    def agent(self, command: str) -> str:
        """What the agent answers when its model has its shell run `command`, with /home/hermes/workspace as its folder.

        The model repeats 500 characters of what the tool said. A command that fails is no fault here.
        """
        return self._run("sh", command)

    def agent_program(self, program: str) -> str:
        """The same for a Python program."""
        return self._run("python3 -I", program)

    def _run(self, interpreter: str, text: str) -> str:
        # Encoded, so that no word of it is another of the model's rules, and no pattern of the agent's asks a person.
        encoded = base64.b64encode(text.encode()).decode()
        return ask(self.guest.target(), f"run: echo {encoded} | base64 -d >/tmp/attack; {interpreter} /tmp/attack 2>&1")

    def root(self, command: str, timeout_s: float = 60) -> str:
        """What a command of root's in the guest prints, both streams; it has to succeed."""
        return self.guest.shell(f"{{ {command}\n}} 2>&1", timeout_s)

    def undo(self, command: str) -> None:
        """Run by root when the attack is over, whatever came of it; the last first."""
        self._undo.append(command)

    def baseline(self) -> None:
        """What the next `pulumi up` does to a container that was made by an earlier version."""
        self.guest.run(self.guest.baseline())

    def restart(self) -> None:
        """The agent starts again, as after a reboot."""
        if self.mode == "bare-metal":
            self.root("systemctl restart 'hermes-*.service'", 120)
        else:
            self.root(f"systemctl restart {CONTAINER_UNIT}", 240)

    def reboot(self) -> None:
        """The guest's power goes off and on, as by its node."""
        assert self.guest.runtime.shutdown(self.guest.spec, 100)
        self.guest.running = False
        self.guest.up()

    def proved(self) -> None:
        """The agent answers a real prompt, and never had to be restarted."""
        status, _, said = self.prove()
        assert status == 0, said

    def clear_up(self) -> None:
        while self._undo:
            self.root(self._undo.pop(), 120)


Attack = Callable[[Scene], None]
_REGISTER: dict[str, tuple[frozenset[Mode], Attack]] = {}


def attack(*modes: Mode) -> Callable[[Attack], Attack]:
    """Mark a function as an attack, for these modes or for all."""

    def marked(function: Attack) -> Attack:
        assert function.__name__ not in _REGISTER, f"two attacks are called {function.__name__}"
        _REGISTER[function.__name__] = (frozenset(modes or get_args(Mode)), function)
        return function

    return marked


def attacks(mode: Mode) -> list[str]:
    """The names of the attacks that are carried out in a mode, in the order in which they are written."""
    for module in MODULES:
        importlib.import_module(f"tests.attacks.{module}")
    return [name for name, (modes, _) in _REGISTER.items() if mode in modes]


def carry_out(name: str, scene: Scene) -> None:
    """One attack, and its clearing up."""
    with contextlib.ExitStack() as stack:
        stack.callback(scene.clear_up)
        _REGISTER[name][1](scene)
