"""What a shell needs to point Pulumi and the stacks at a lab: ``eval "$(scripts/lab env)"``."""

from __future__ import annotations

import os

from lab.instance import CACHE, Lab
from pvelab import environment as pvelab_environment

CONFIG_FILE_VARIABLE = "PULUMI_OPTION_CONFIG_FILE"


def environment(lab: Lab) -> dict[str, str]:
    """All variables, pvelab's included; LabError when the lab was never up."""
    from lab.cli import StacksLab  # noqa: PLC0415 - it imports this module

    return pvelab_environment.environment(lab, StacksLab())


def own_variables(lab: Lab) -> dict[str, str | None]:
    """Those for Pulumi, the stacks and the services; None: not there."""
    ready = lab.ready()
    tools = [str(CACHE / "venv" / "bin"), str(CACHE / "pulumi-cli" / "bin")]
    path = [entry for entry in os.environ.get("PATH", "/usr/bin:/bin").split(os.pathsep) if entry not in tools]
    return {
        "PULUMI_HOME": str(CACHE / "pulumi-home"),
        "PULUMI_BACKEND_URL": lab.pulumi_state.as_uri(),
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(lab.passphrase_file),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        # `pulumi stack rm` would delete the stack's settings file, with its encrypted secrets.
        "PULUMI_OPTION_PRESERVE_CONFIG": "true",
        # A plugin that is missing is an error: the engine would download it, compared with nothing.
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        # The committed Pulumi.<stack>.yaml stay as they are: lab/stacks.py says why.
        CONFIG_FILE_VARIABLE: str(lab.stack_config_file),
        "PATH": os.pathsep.join([*tools, *path]),
        "HERMES_SSH_KEY_FILE": str(lab.ssh_key_file),
        "HERMES_LAB_DIR": str(lab.state_dir),
        "HERMES_LAB_TEMPLATE": ready.template,
        "HERMES_LAB_TEMPLATE_13": ready.template_newer,
        "HERMES_LAB_MODEL_URL": ready.model_url,
        "HERMES_LAB_MODEL": ready.model,
        "HERMES_LAB_MODEL_KEY_FILE": str(lab.model_key_file),
        "HERMES_LAB_GATEWAY": ready.gateway,
        "HERMES_LAB_SUBNET": ready.subnet,
        "HERMES_LAB_SOURCE_KIND": ready.source_kind,
        "HERMES_LAB_SOURCE_URL": ready.source_url,
        "HERMES_LAB_SOURCE_VERSION": ready.source_version,
        "HERMES_LAB_SOURCE_TAG": ready.source_tag,
        "HERMES_LAB_SOURCE_COMMIT": ready.source_commit,
        "HERMES_LAB_SOURCE_PREVIOUS_VERSION": ready.source_previous_version,
        "HERMES_LAB_SOURCE_PREVIOUS_TAG": ready.source_previous_tag,
        "HERMES_LAB_SOURCE_PREVIOUS_COMMIT": ready.source_previous_commit,
        "HERMES_LAB_REGISTRY": ready.registry,
        "HERMES_LAB_REGISTRY_CA_FILE": ready.registry_ca_file,
        "HERMES_LAB_IMAGE": ready.image,
        "HERMES_LAB_IMAGE_NEXT": ready.image_next,
        "HERMES_LAB_IMAGE_PREVIOUS": ready.image_previous,
        "HERMES_LAB_IMAGE_BASE": ready.image_base,
    }
