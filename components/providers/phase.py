"""A phase of provisioning, carried out: components/phase.py declares when."""

from __future__ import annotations

from components.providers.access import card_of
from components.providers.base import (
    CreateResult,
    DiffResult,
    Props,
    Provider,
    UpdateResult,
    changed,
    diff_of,
    progress,
)

PHASE_SECONDS = 1800.0


class PhaseProvider(Provider):
    def _carry_out(self, props: Props) -> Props:
        # What makes plans is a tenth of a second that a look at the inputs does without.
        from provisioning.plans import PhasePlan, run_phase  # noqa: PLC0415
        from provisioning.ssh import HostKey, SshTarget  # noqa: PLC0415

        target = SshTarget(
            host=props["host"],
            host_key=HostKey.parse(props["host_key"]),
            private_key_file=props["private_key_file"],
            card=card_of(props["guest"], props.get("hardware_address")),
        )
        plan = PhasePlan.from_json(props["plan"])
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
        return CreateResult(f"{props['guest']}/{props['phase']}", self._carry_out(props))

    def update(self, _id: str, _olds: Props, news: Props) -> UpdateResult:
        return UpdateResult(self._carry_out(news))
