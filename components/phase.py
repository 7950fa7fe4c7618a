"""A phase of provisioning as a resource: what is declared, and when it was last carried out.

A phase runs again when the digest of its scripts and inputs changes, and when its guest
was made anew; nothing else opens an SSH connection. Its inputs are stored encrypted,
what the preview shows (``declared``) holds no secret, and neither do its outputs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource, UpdateResult
from pydantic import BaseModel

from components.access import card_of
from components.dynamic import Props, Provider, changed, diff_of, progress
from components.explanation import explain
from provisioning.models import AgentInputs, BaselineInputs, ConfigureInputs, DockerInputs, VerifyInputs
from provisioning.phases import (
    PhasePlan,
    render_agent,
    render_baseline,
    render_configure,
    render_docker,
    render_verify,
    run_phase,
)
from provisioning.ssh import HostKey, SshTarget
from settings.section import shown

PHASE_SECONDS = 1800.0


class PhaseName(StrEnum):
    BASELINE = "baseline"
    AGENT = "agent"
    DOCKER = "docker"  # takes the place of agent
    CONFIGURE = "configure"
    VERIFY = "verify"


_Render = Callable[[Any], PhasePlan]
_PHASES: dict[PhaseName, tuple[type[BaseModel], _Render]] = {
    PhaseName.BASELINE: (BaselineInputs, render_baseline),
    PhaseName.AGENT: (AgentInputs, render_agent),
    PhaseName.DOCKER: (DockerInputs, render_docker),
    PhaseName.CONFIGURE: (ConfigureInputs, render_configure),
    PhaseName.VERIFY: (VerifyInputs, render_verify),
}


def inputs_as_json(inputs: BaseModel) -> str:
    """A phase's inputs with their secrets: only for a Pulumi secret."""
    return json.dumps(shown(inputs, lambda _, secret: secret), sort_keys=True)


def plan_of(phase: PhaseName, inputs: str) -> PhasePlan:
    """The plan of a phase from its inputs as JSON."""
    model, render = _PHASES[phase]
    return render(model.model_validate_json(inputs))


class _PhaseProvider(Provider):
    def _carry_out(self, props: Props) -> Props:
        target = SshTarget(
            host=props["host"],
            host_key=HostKey.parse(props["host_key"]),
            private_key_file=props["private_key_file"],
            card=card_of(props["guest"], props.get("hardware_address")),
        )
        plan = plan_of(PhaseName(props["phase"]), props["inputs"])
        result = run_phase(target, plan, on_line=progress, timeout_s=PHASE_SECONDS)
        return {
            "phase": props["phase"],
            "guest": props["guest"],
            "host_key": props["host_key"],
            "declared": props["declared"],
            "digest": props["digest"],
            "results": result.outputs,
            "seconds": round(result.seconds, 1),
        }

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        return diff_of(changed(olds, news, "digest", "host_key"))

    def create(self, props: Props) -> CreateResult:
        return CreateResult(id_=f"{props['guest']}/{props['phase']}", outs=self._carry_out(props))

    def update(self, _id: str, _olds: Props, news: Props) -> UpdateResult:
        return UpdateResult(outs=self._carry_out(news))


class Phase(Resource, module="guest", name="Phase"):
    """``results``: what the phase reports; ``digest``: of all that it depends on; ``seconds``: how long it took."""

    digest: pulumi.Output[str]
    results: pulumi.Output[dict[str, Any]]
    seconds: pulumi.Output[float]

    def __init__(
        self,
        resource_name: str,
        phase: PhaseName,
        inputs: pulumi.Output[BaseModel],
        *,
        guest: pulumi.Input[str],
        host: pulumi.Input[str],
        host_key: pulumi.Input[str],
        hardware_address: pulumi.Input[str],
        private_key_file: str,
        before: Mapping[str, Any] | None = None,
        foreseen: BaseModel | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """``before``: this phase's outputs in the state, None where there are none: what has changed is told.

        ``foreseen``: the inputs as far as they can be known now; a preview does not know ``inputs`` that hang on a
        phase that is to run.
        """
        as_json: pulumi.Output[str] = inputs.apply(inputs_as_json)
        plan = pulumi.Output.unsecret(as_json.apply(lambda text: _shown(phase, text)))
        secret: pulumi.Output[str] = pulumi.Output.secret(as_json)
        props = {
            "phase": str(phase),
            "guest": guest,
            "host": host,
            "host_key": host_key,
            "hardware_address": hardware_address,
            "private_key_file": private_key_file,
            "declared": plan.apply(lambda shown: shown[0]),
            "digest": plan.apply(lambda shown: shown[1]),
            "inputs": secret,
            "results": None,
            "seconds": None,
        }
        super().__init__(_PhaseProvider(), resource_name, props, opts)
        if before and foreseen and (cause := cause_of(resource_name, phase, before, foreseen)):
            pulumi.log.info(cause, self)


def cause_of(name: str, phase: PhaseName, before: Mapping[str, Any], inputs: BaseModel) -> str | None:
    """Why a phase with these inputs runs again, and what restarts; None when it does not. ``name``: the resource's."""
    return explain(name, before, *_shown(phase, inputs_as_json(inputs)))


def _shown(phase: PhaseName, inputs: str) -> Sequence[Any]:
    """What may be seen of a plan: its declared values and its digest (both free of secrets)."""
    plan = plan_of(phase, inputs)
    return [plan.declared, plan.digest]
