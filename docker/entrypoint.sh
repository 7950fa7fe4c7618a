#!/bin/bash
# The image's entrypoint: makes folders and a first config.yaml where they are missing, then runs the command asked for.
# It never changes a file that is there. Started as root it only hands empty new folders to hermes, and drops.
#
# HERMES_HOME, CODEX_HOME, CLAUDE_HOME, GEMINI_HOME and HERMES_EXECUTABLE may be set; the defaults are the image's.
set -euo pipefail

: "${HOME:=/home/hermes}"
: "${HERMES_HOME:=$HOME/.hermes}"
: "${HERMES_EXECUTABLE:=/opt/hermes-agent/venv/bin/hermes}"
export HOME HERMES_HOME
homes=("$HERMES_HOME" "${CODEX_HOME:-$HOME/.codex}" "${CLAUDE_HOME:-$HOME/.claude}" "${GEMINI_HOME:-$HOME/.gemini}")
default=$(dirname "$(readlink -f "$0")")/config.default.yaml
user=10000

fail() {
  printf 'error: %s\n' "$@" >&2
  exit 1
}

[ -x "$HERMES_EXECUTABLE" ] || fail "the baked agent $HERMES_EXECUTABLE is missing or not executable." \
  "Something is mounted over it, or the image was built wrong: mount data at $HERMES_HOME only, or build the image again."

if [ "$(id -u)" = 0 ]; then
  for folder in "${homes[@]}"; do
    # A folder of the host that was not there is made by Docker, and belongs to root.
    if [ -d "$folder" ] && [ ! -L "$folder" ] && [ "$(stat -c %u "$folder")" = 0 ] && [ -z "$(ls -A "$folder")" ]; then
      chown "$user:$user" "$folder"
    fi
  done
  exec setpriv --reuid "$user" --regid "$user" --clear-groups --inh-caps=-all --no-new-privs -- "$0" "$@"
fi

umask 077
for folder in "${homes[@]}"; do
  [ -d "$folder" ] || mkdir -p "$folder" || fail "$folder is missing and can't be made by user $(id -u)."
done
if [ ! -w "$HERMES_HOME" ] || [ ! -x "$HERMES_HOME" ]; then
  fail "$HERMES_HOME belongs to user $(stat -c %u "$HERMES_HOME"), and user $(id -u) can't write there." \
    "On the host, for the folder that is mounted there: chown -R $user:$user FOLDER"
fi
mkdir -p "$HERMES_HOME"/{cron,hooks,logs,memories,sessions,skills}
if [ ! -e "$HERMES_HOME/config.yaml" ] && [ ! -L "$HERMES_HOME/config.yaml" ]; then
  # Complete under another name first; a link never replaces what somebody else has put there meanwhile.
  fresh=$(mktemp "$HERMES_HOME/.config.yaml.XXXXXX")
  cat "$default" >"$fresh"
  ln "$fresh" "$HERMES_HOME/config.yaml" 2>/dev/null || [ -e "$HERMES_HOME/config.yaml" ] || cp -n "$fresh" "$HERMES_HOME/config.yaml"
  rm -f "$fresh"
fi

[ $# -gt 0 ] || fail "no command was given. The image's own is: hermes gateway run"
exec "$@"
