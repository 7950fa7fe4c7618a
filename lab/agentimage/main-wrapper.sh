#!/bin/sh
# The main program: a command that exists is run as it is, everything else is a subcommand of hermes. As user hermes.
set -eu
[ -n "${HERMES_HOME:-}" ] || HERMES_HOME=/opt/data
HOME=/opt/data
export HOME HERMES_HOME
drop() {
  [ "$(id -u)" != 0 ] || set -- /command/s6-setuidgid hermes "$@"
  exec "$@"
}
[ $# -gt 0 ] || drop hermes
if command -v "$1" >/dev/null 2>&1; then drop "$@"; fi
drop hermes "$@"
