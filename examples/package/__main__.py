"""A pet with two volumes, the agent on one of them, and the other one in a container that is there already."""

import pulumi
import pulumi_hermes_homelab as hermes

config = pulumi.Config()
pet = hermes.PetStorage(
    "pet",
    pet_vmid=998,
    pet_volumes=[
        {"name": "agent", "storage": "local-lvm", "size": 2, "path": "/mnt/agent"},
        {"name": "files", "storage": "local-lvm", "size": 1, "path": "/mnt/files"},
    ],
)
agent = hermes.Cattle(
    "agent",
    cattle_vmid=106,
    cattle_hostname="agent",
    cattle_volume=pet.volumes["agent"]["volid"],
    agent_mode=config.require("agentMode"),
    agent_model=config.require("model"),
    agent_model_url=config.require("modelUrl"),
    agent_model_key=config.get_secret("modelKey"),
)
if files := config.require_int("files"):
    hermes.Attachment("files", vmid=files, volume=pet.volumes["files"]["volid"], path="/srv/files")

pulumi.export("volumes", pet.volumes)
pulumi.export("vmid", agent.vmid)
pulumi.export("address", agent.address)
pulumi.export("apiKey", agent.api_key)
