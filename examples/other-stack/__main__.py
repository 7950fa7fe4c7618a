"""A stack of your own that uses the agent's: outputs by StackReference, here for ~/.ssh/config and known_hosts."""

import pulumi

cattle = pulumi.StackReference(pulumi.Config().require("cattle"))
address = cattle.require_output("address")

pulumi.export(
    "sshConfig",
    pulumi.Output.format(
        'Host {0}\n  HostName {1}\n  User root\n  IdentityFile "{2}"\n',
        cattle.require_output("hostname"),
        address,
        cattle.require_output("sshKeyFile"),
    ),
)
pulumi.export("knownHosts", pulumi.Output.format("{0} {1}\n", address, cattle.require_output("sshHostKey")))
