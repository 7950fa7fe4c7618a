#!/bin/sh
# "docker exec CONTAINER hermes ..." comes as root: what it writes has to belong to the agent's user all the same.
exec /app/as-hermes.sh "${HERMES_EXECUTABLE:-/opt/hermes-agent/venv/bin/hermes}" "$@"
