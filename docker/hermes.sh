#!/bin/sh
# "docker exec CONTAINER hermes ..." comes as root: what it writes has to belong to the agent's user all the same.
set -eu
baked=/opt/hermes-agent/venv/bin/hermes
[ "$(id -u)" = 0 ] || exec "$baked" "$@"
exec setpriv --reuid=10000 --regid=10000 --clear-groups --inh-caps=-all --no-new-privs -- "$baked" "$@"
