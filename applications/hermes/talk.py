"""Talk to the agent in a container, over SSH and its own API or command line."""

from __future__ import annotations

import json
from dataclasses import asdict

from applications.hermes.guest.inputs import Probe
from provisioning.errors import ProvisioningError
from provisioning.guest.common import LIBRARY
from provisioning.ssh import SshTarget, connect
from provisioning.terminal import visible

PROMPT_SECONDS = 300.0
START_SECONDS = 90.0  # how long a gateway that is starting is waited for


class AgentSilentError(ProvisioningError):
    """The agent did not answer a prompt; the text is what the container says about it."""


def ask(target: SshTarget, prompt: str, *, timeout_s: float = PROMPT_SECONDS) -> str:
    """Send one prompt as a fresh conversation and answer what the agent says.

    By the agent's API where it is on, by its command line else: the container knows. The API key is read there and
    stays there. The answer is fit to be shown (provisioning.terminal). Raises AgentSilentError, or an SSH error.
    """
    asked = Probe(prompt=prompt, services_timeout_s=START_SECONDS, prompt_timeout_s=timeout_s)
    connection = connect(target)
    try:
        done = connection.run(
            f"/usr/bin/python3 -I {LIBRARY}/verify.py",
            stdin=json.dumps({"only": "prompt", **asdict(asked)}).encode(),
            timeout_s=START_SECONDS + timeout_s + 30,
        )
    finally:
        connection.close()
    if done.status != 0:
        raise AgentSilentError(done.words)
    return visible(str(json.loads(done.stdout)["answer"]), limit=None)
