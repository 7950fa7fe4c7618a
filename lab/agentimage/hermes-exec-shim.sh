#!/bin/sh
# "docker exec CONTAINER hermes ..." comes as root: what it writes has to belong to the agent's user all the same.
real=/opt/hermes/.venv/bin/hermes
case "${HERMES_DOCKER_EXEC_AS_ROOT:-}" in
  1 | true | TRUE | yes) exec "$real" "$@" ;;
esac
[ "$(id -u)" = 0 ] || exec "$real" "$@"
HOME=/opt/data exec /command/s6-setuidgid hermes "$real" "$@"
