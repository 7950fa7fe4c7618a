#!/bin/bash
# The image's entrypoint: makes folders and a first config.yaml where they are missing, then runs the command asked for.
# It never changes a file that is there. Started as root it only hands empty new folders over, and drops.
#
# HERMES_UID and HERMES_GID: whom root drops to. HERMES_HOME, CODEX_HOME, CLAUDE_HOME, GEMINI_HOME, HERMES_EXECUTABLE:
# other places. HERMES_DASHBOARD=1: the dashboard beside the gateway. What is not set, or blank, is as the image has it.
set -euo pipefail

image_user=10000
: "${HOME:=/home/hermes}"
: "${HERMES_HOME:=$HOME/.hermes}"
: "${HERMES_EXECUTABLE:=/opt/hermes-agent/venv/bin/hermes}"
: "${HERMES_UID:=$image_user}" "${HERMES_GID:=$image_user}"
export HOME HERMES_HOME
signins=("${CODEX_HOME:-$HOME/.codex}" "${CLAUDE_HOME:-$HOME/.claude}" "${GEMINI_HOME:-$HOME/.gemini}")
here=$(dirname "$(readlink -f "$0")")

fail() {
  printf 'error: %s\n' "$@" >&2
  exit 1
}

faults=()
[ -x "$HERMES_EXECUTABLE" ] || faults+=("the baked agent $HERMES_EXECUTABLE is missing or not executable.
  Something is mounted over it, or the image was built wrong: mount data at $HERMES_HOME only, or build the image again.")
[ $# -gt 0 ] || faults+=("no command was given. The image's own is: hermes gateway run")
for name in HERMES_UID HERMES_GID; do
  [[ ${!name} =~ ^[1-9][0-9]{0,4}$ && ${!name} -lt 65535 ]] || faults+=("$name is '${!name}': it is a number from 1 to 65534.")
done
[[ ${HERMES_DASHBOARD:=0} =~ ^(0|1|false|true|no|yes)$ ]] || faults+=("HERMES_DASHBOARD is '$HERMES_DASHBOARD': it is 1 or 0.")
for folder in "$HERMES_HOME" "${signins[@]}"; do
  [[ $folder == /* ]] || faults+=("the folder '$folder' is no full path: it has to begin with a slash.")
done
[ ${#faults[@]} = 0 ] || fail "${faults[@]}"

# A folder that Docker has just made belongs to root, a new volume to the image's user, and both are empty. The look into
# it is its owner's: root may have no right here to enter a folder of another's.
hand_over() {
  local owner
  [ -d "$1" ] && [ ! -L "$1" ] || return 0
  owner=$(stat -c %u "$1")
  [ "$owner" != "$HERMES_UID" ] && [[ $owner =~ ^(0|$image_user)$ ]] || return 0
  [ -n "$(setpriv --reuid "$owner" --clear-groups ls -A "$1")" ] || chown "$HERMES_UID:$HERMES_GID" "$1"
}

if [ "$(id -u)" = 0 ]; then
  for folder in "$HERMES_HOME" "${signins[@]}"; do hand_over "$folder"; done
  # The image's own: with a read-only root file system it stays as it is.
  if [ "$HERMES_UID" != $image_user ] && [ -d "$HOME" ] && [ "$(stat -c %u "$HOME")" = $image_user ]; then
    chown "$HERMES_UID:$HERMES_GID" "$HOME" 2>/dev/null || true
  fi
  exec "$here/as-hermes.sh" "$0" "$@"
fi

umask 077
me="user $(id -u)"
remedy="
  On the host, for what is mounted there: chown -R $(id -u):$(id -g) FOLDER"
for folder in "$HERMES_HOME" "${signins[@]}"; do
  [ -d "$folder" ] || mkdir -p "$folder" || fail "there is no folder $folder, and $me can't make it."
done
if [ ! -w "$HERMES_HOME" ] || [ ! -x "$HERMES_HOME" ]; then
  [ "$(stat -c %u "$HERMES_HOME")" != "$(id -u)" ] || fail "$HERMES_HOME is read-only: the agent keeps its data there. Mount a folder that can be written."
  fail "$HERMES_HOME belongs to user $(stat -c %u "$HERMES_HOME"), and $me can't write there.$remedy"
fi
unreadable=$(find -H "$HERMES_HOME" -maxdepth 1 ! -type l ! -readable -print -quit)
[ -z "$unreadable" ] ||
  fail "$unreadable belongs to user $(stat -c %u "$unreadable"), and $me can't read it.$remedy"
for folder in "${signins[@]}"; do
  unreadable=$(find -H "$folder" -maxdepth 1 ! -type l ! -readable -print -quit 2>/dev/null || true)
  [ -n "$unreadable" ] || continue
  echo "warning: $unreadable belongs to user $(stat -c %u "$unreadable"), and $me can't read it: the agent can't use what" \
    "is signed in there. Set HERMES_UID to the folder's owner, or give the folder to $me." >&2
done
mkdir -p "$HERMES_HOME"/{cron,hooks,logs,memories,sessions,skills}
if [ ! -e "$HERMES_HOME/config.yaml" ] && [ ! -L "$HERMES_HOME/config.yaml" ]; then
  # Complete under another name first; a link never replaces what somebody else has put there meanwhile.
  fresh=$(mktemp "$HERMES_HOME/.config.yaml.XXXXXX")
  cat "$here/config.default.yaml" >"$fresh"
  ln "$fresh" "$HERMES_HOME/config.yaml" 2>/dev/null || [ -e "$HERMES_HOME/config.yaml" ] || cp -n "$fresh" "$HERMES_HOME/config.yaml"
  rm -f "$fresh"
fi

if [[ $HERMES_DASHBOARD =~ ^(1|true|yes)$ && "$1 ${2:-}" = "hermes gateway" ]]; then set -- "$here/with-dashboard.sh" "$@"; fi
# Process 1 reaps what others leave, and hands on signals: as the agent's user, since root has no right here to send one
# to another's process.
[ $$ != 1 ] || set -- tini -- "$@"
exec -- "$@"
