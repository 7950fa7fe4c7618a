#!/bin/sh
# Runs a command in its own place as the agent's user: HERMES_UID and HERMES_GID, else the image's 10000. Root drops to it
# for good; any other user stays who it is.
set -eu
[ "$(id -u)" = 0 ] || exec "$@"
exec setpriv --reuid="${HERMES_UID:-10000}" --regid="${HERMES_GID:-10000}" --clear-groups --inh-caps=-all --no-new-privs \
  -- "$@"
