"""A phase of provisioning as a resource: what is declared, and when it was last carried out.

A phase runs again when the digest of its plan changes, and when its guest was made
anew; nothing else opens an SSH connection. Its plan is made in the program and stored
encrypted: the provider only runs it. What the preview shows (``declared``) holds no
secret, and neither do its outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi

from components.dynamic import Resource
from components.explanation import explain
from provisioning.plans import PhasePlan


class Phase(Resource, kind="guest:Phase"):
    """``results``: what the phase reports; ``digest``: of all that it depends on; ``seconds``: how long it took."""

    digest: pulumi.Output[str]
    results: pulumi.Output[dict[str, Any]]
    seconds: pulumi.Output[float]

    def __init__(
        self,
        resource_name: str,
        plan: pulumi.Input[PhasePlan],
        *,
        guest: pulumi.Input[str],
        host: pulumi.Input[str],
        host_key: pulumi.Input[str],
        hardware_address: pulumi.Input[str],
        private_key_file: str,
        before: Mapping[str, Any] | None = None,
        foreseen: PhasePlan,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """``before``: this phase's outputs in the state, None where there are none: what has changed is told.

        ``foreseen``: the plan as far as it can be known now; a preview does not know a ``plan`` that hangs on a phase
        that is to run.
        """
        made: pulumi.Output[PhasePlan] = pulumi.Output.from_input(plan)
        as_json: pulumi.Output[str] = made.apply(PhasePlan.as_json)
        secret: pulumi.Output[str] = pulumi.Output.secret(as_json)
        props = {
            "phase": foreseen.name,
            "guest": guest,
            "host": host,
            "host_key": host_key,
            "hardware_address": hardware_address,
            "private_key_file": private_key_file,
            "declared": pulumi.Output.unsecret(made.apply(lambda plan: plan.declared)),
            "digest": pulumi.Output.unsecret(made.apply(lambda plan: plan.digest)),
            "plan": secret,
            "results": None,
            "seconds": None,
        }
        super().__init__(resource_name, props, opts)
        if before and (cause := explain(resource_name, before, foreseen.declared, foreseen.digest)):
            pulumi.log.info(cause, self)
