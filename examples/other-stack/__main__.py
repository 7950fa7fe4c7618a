"""Files of the agent's outputs: a DNS record, a proxy host, an SSH configuration, the API's address and key."""

import shlex
from pathlib import Path

import pulumi
from pulumi_command import local

config = pulumi.Config()
folder = Path(config.require("folder"))
cattle = pulumi.StackReference(config.require("cattle"))
address = cattle.require_output("address")
hostname = cattle.require_output("hostname")
name = pulumi.Output.format("{0}.{1}", hostname, config.require("domain"))


def file(title: str, text: pulumi.Output[str]) -> None:
    """Write a file for its owner alone, and remove it with the stack. The text may be secret: it is standard input."""
    path = shlex.quote(str(folder / title))
    write = f"umask 077 && mkdir -p {shlex.quote(str(folder))} && cat > {path}"
    local.Command(title, create=write, update=write, delete=f"rm -f {path}", stdin=text)


def proxy_host(found: dict[str, str]) -> str:
    """Caddy's site for the dashboard; a comment while no other machine can reach it."""
    if not found["dashboard"]:
        return "# the dashboard is off, or on loopback\n"
    return f"{found['name']} {{\n\treverse_proxy {found['dashboard']}\n}}\n"


file("dnsmasq.conf", pulumi.Output.format("host-record={0},{1}\n", name, address))
file("Caddyfile", pulumi.Output.all(name=name, dashboard=cattle.require_output("dashboard")).apply(proxy_host))
file(
    "ssh_config",
    pulumi.Output.format(
        'Host {0}\n  HostName {1}\n  User root\n  IdentityFile "{2}"\n',
        hostname,
        address,
        cattle.require_output("sshKeyFile"),
    ),
)
file("known_hosts", pulumi.Output.format("{0} {1}\n", address, cattle.require_output("sshHostKey")))
file(
    "api.env",
    pulumi.Output.format(
        "HERMES_API_URL={0}\nHERMES_API_KEY={1}\n", cattle.require_output("api"), cattle.require_output("apiKey")
    ),
)
pulumi.export("name", name)
