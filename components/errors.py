"""Which errors are written for people: shown by their text alone, without a traceback around it."""

from __future__ import annotations

from proxmox.errors import ProxmoxError
from provisioning.errors import ProvisioningError

PERSONAL_ERRORS = (ProxmoxError, ProvisioningError)
