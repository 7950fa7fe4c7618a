#!/bin/sh
# The image's entrypoint: the whole supervision tree as process 1, the bare command under somebody else's init.
set -eu

if [ "$(id -u)" != 0 ] && [ "$(id -u)" != "$(id -u hermes)" ]; then
  cat >&2 <<TEXT
error: this container was started with --user $(id -u), which is not supported.
It has to start as root, and drops to the user hermes by itself. To have files belong to another user, pass
HERMES_UID and HERMES_GID (or PUID and PGID) instead.
TEXT
  exit 1
fi
if [ "$$" = 1 ]; then
  exec /init /opt/hermes/docker/main-wrapper.sh "$@"
fi
/opt/hermes/docker/stage2-hook.sh
exec /opt/hermes/docker/main-wrapper.sh "$@"
