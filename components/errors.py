"""Which errors are written for people: shown by their text alone, without a traceback around it."""

from __future__ import annotations

from provisioning.errors import ProvisioningError
from proxmox.errors import ProxmoxError

PERSONAL_ERRORS = (ProxmoxError, ProvisioningError)
