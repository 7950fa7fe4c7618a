"""What runs inside the container: phases over SSH, no pulumi, no proxmox.

key = wait_for_ssh("192.0.2.5", private_key_file="~/.ssh/id_ed25519")
target = SshTarget("192.0.2.5", key, private_key_file="~/.ssh/id_ed25519")
result = run_phase(target, plan, on_line=print)
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
from provisioning.plans import PhasePlan, PhaseResult, run_phase
from provisioning.ssh import Card, HostKey, SshTarget, learn_host_key, wait_for_ssh

__all__ = [
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
    "run_phase",
    "wait_for_ssh",
]
