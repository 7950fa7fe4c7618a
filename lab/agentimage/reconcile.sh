#!/command/with-contenv sh
# shellcheck shell=sh
# The gateways' services, made by the agent itself from what the data says; it may also change them later.
set -eu
PATH=/command:$PATH
export PATH HOME=/opt/data
chown hermes:hermes /run/service /run/service/.s6-svscan/control /run/service/.s6-svscan/lock
exec s6-setuidgid hermes /opt/hermes/.venv/bin/python -m hermes_cli.container_boot
