"""What runs inside the container: phases over SSH, no pulumi, no proxmox.

key = wait_for_ssh("192.0.2.5", private_key_file="~/.ssh/id_ed25519")
target = SshTarget("192.0.2.5", key, private_key_file="~/.ssh/id_ed25519")
result = run_phase(target, render_baseline(stack), on_line=print)
"""

from provisioning.errors import (
    HostKeyMismatch,
    PhaseError,
    PhaseFailed,
    PhaseLost,
    PhaseTimeout,
    PrivateKeyError,
    ProvisioningError,
    SshAuthError,
    SshError,
    SshUnreachable,
    WrongMachine,
)
from provisioning.phases import (
    Built,
    PhasePlan,
    PhaseResult,
    render_agent,
    render_baseline,
    render_configure,
    render_verify,
    run_phase,
)
from provisioning.ssh import Card, HostKey, SshTarget, learn_host_key, wait_for_ssh

__all__ = [
    "Built",
    "Card",
    "HostKey",
    "HostKeyMismatch",
    "PhaseError",
    "PhaseFailed",
    "PhaseLost",
    "PhasePlan",
    "PhaseResult",
    "PhaseTimeout",
    "PrivateKeyError",
    "ProvisioningError",
    "SshAuthError",
    "SshError",
    "SshTarget",
    "SshUnreachable",
    "WrongMachine",
    "learn_host_key",
    "render_agent",
    "render_baseline",
    "render_configure",
    "render_verify",
    "run_phase",
    "wait_for_ssh",
]
