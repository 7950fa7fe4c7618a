"""An application in a cattle: its phases after SSH answers, each a resource with its own time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pulumi

from applications import Answer, PhaseSpec, application
from components.dynamic import Component
from components.parts import Access
from components.phase import Phase
from components.plugins import RemoteCommand
from provisioning.plans import PhasePlan
from provisioning.ssh import private_key_text
from settings.stack import ApplicationStack

LOGIN_ATTEMPTS = 70  # some five minutes of refused connections (field reports F1)


def foresee(specs: Sequence[PhaseSpec], known: Mapping[str, Mapping[str, Any]]) -> dict[str, PhasePlan]:
    """Each phase's plan as far as it is known before any has run. ``known``: the phases' outputs in the state."""
    plans: dict[str, PhasePlan] = {}
    found: dict[str, Any] = {"": None}
    for spec in specs:
        plan = plans[spec.name] = spec.in_cattle(spec.render(found[spec.needs]))
        found |= {"results": spec.foresee(plan, known.get(spec.name) or {}), "digest": plan.digest}
    return plans


class Application(Component):
    """The phases in their order. Each runs again only when what it depends on changes."""

    exports: dict[str, pulumi.Output[Any]]

    def __init__(
        self,
        name: str,
        *,
        stack: ApplicationStack,
        guest: pulumi.Input[str],
        access: Access,
        replace_with: list[pulumi.Resource],
        before: Mapping[str, Mapping[str, Any]] | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """``before``: the phases' outputs in the state, by the resource's name."""
        spec = application(stack.application)
        super().__init__(spec.component, name, opts)
        for text in spec.warnings(stack):
            pulumi.log.warn(text, self)
        specs, phases = spec.phases(stack), dict[str, Phase]()
        known = {one.name: (before or {}).get(f"{name}-{one.name}") or {} for one in specs}
        expected = foresee(specs, known)
        last: Phase | None = None
        for one in specs:
            # A plan that needs nothing is known in each preview; another hangs on the phase before.
            hangs = last is not None and one.needs
            last = phases[one.name] = Phase(
                f"{name}-{one.name}",
                getattr(last, one.needs).apply(one.render) if hangs else expected[one.name],
                guest=guest,
                host=access.address,
                host_key=access.host_key,
                hardware_address=access.incarnation,
                private_key_file=stack.ssh_private_key_file,
                before=known[one.name],
                foreseen=expected[one.name],
                opts=pulumi.ResourceOptions(
                    parent=self, depends_on=[access, *([last] if last else [])], replace_with=replace_with
                ),
            )
            last.results.apply(partial(self._warn, one))
        if last is None:
            raise ValueError(f"{stack.application} has no phases")
        login = self._login(
            name,
            asks=spec.asks(stack),
            asks_secret=spec.asks_secret(stack),
            access=access,
            private_key_file=stack.ssh_private_key_file,
            verified=last,
            replace_with=replace_with,
        )
        sources: dict[str, pulumi.Output[Any]] = {
            "": pulumi.Output.from_input(None),
            "address": access.address,
            "state": pulumi.Output.unsecret(login.stdout.apply(_state_in)),
            "secret": pulumi.Output.secret(login.stdout.apply(_secret_in)),
            **{which: phase.results for which, phase in phases.items()},
        }
        self.exports = {key: _exported(sources[answer.of], answer) for key, answer in spec.outputs(stack).items()}
        self.register_outputs(self.exports)

    def _warn(self, spec: PhaseSpec, results: Mapping[str, Any]) -> None:
        for text in spec.warnings(results):
            pulumi.log.warn(text, self)

    def _login(
        self,
        name: str,
        *,
        asks: str,
        asks_secret: str,
        access: Access,
        private_key_file: str,
        verified: Phase,
        replace_with: list[pulumi.Resource],
    ) -> RemoteCommand:
        """Try the exported address, host key and login by other means than ours: Pulumi's own remote command.

        It takes a moment and changes nothing, so that a cut line costs nothing. No secret is in its text (field reports
        F4); the key is pinned (F6); the environment is not used, as sshd refuses it (F2). It is asked again after each
        verification, as that changes its text.

        ``asks_secret``: what it prints comes behind the first line, which is the state. Then nothing is logged, and all
        that is read is encrypted in the state.
        """
        if asks_secret:
            asks = f"{asks}; {asks_secret}"
        return RemoteCommand(
            f"{name}-login",
            connection={
                "host": access.address,
                "user": "root",
                "privateKey": pulumi.Output.secret(private_key_text(private_key_file)),
                "hostKey": access.host_key,
                "dialErrorLimit": LOGIN_ATTEMPTS,
                "perDialTimeout": 10,
            },
            create=verified.digest.apply(lambda digest: f"{asks} # after {digest[:16]}"),
            logging="stderr" if asks_secret else None,
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[verified],
                replace_with=replace_with,
                additional_secret_outputs=["stdout"] if asks_secret else None,
            ),
        )


def _exported(source: pulumi.Output[Any], answer: Answer) -> pulumi.Output[Any]:
    value: pulumi.Output[Any] = source.apply(answer.read)
    return pulumi.Output.secret(value) if answer.secret else value


def _state_in(said: str) -> str:
    """The state in what the login read."""
    return said.partition("\n")[0].strip()


def _secret_in(said: str) -> str:
    """What the login read behind the state; empty where the guest did not tell any."""
    return said.partition("\n")[2].strip()
