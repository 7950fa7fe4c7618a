#!/bin/bash
# At every start, as root, before any service: the user's number, owners and modes in HERMES_HOME, first files.
set -euo pipefail
export PATH=/command:$PATH
data=${HERMES_HOME:-/opt/data}
say() { echo "[stage2] $*"; }
as_hermes() { if [ "$(id -u)" = 0 ]; then s6-setuidgid hermes "$@"; else "$@"; fi; }
number() { [[ $1 =~ ^[0-9]{1,5}$ ]] && ((10#$1 >= 1 && 10#$1 <= 65534)); }
# A link in the data could lead root's chown anywhere.
plain() {
  if [ -L "$data" ] || [ -L "$data/$1" ]; then
    say "Warning: $data/$1 is a symbolic link; left alone"
    return 1
  fi
}

mkdir -p "$data"
uid=${HERMES_UID:-${PUID:-}}
gid=${HERMES_GID:-${PGID:-}}
if [ -n "$gid" ] && number "$gid" && [ "$gid" != "$(id -g hermes)" ]; then
  say "Changing hermes GID to $gid"
  groupmod -o -g "$gid" hermes
fi
if [ -n "$uid" ] && number "$uid" && [ "$uid" != "$(id -u hermes)" ]; then
  say "Changing hermes UID to $uid"
  # usermod would change owners in the home by itself, all of them.
  sed -i "s/^\(hermes:[^:]*\):[0-9]*:[0-9]*:/\1:$uid:$(id -g hermes):/" /etc/passwd
fi

folders=(backups cron sessions logs logs/gateways hooks memories skills skins plans workspace home pairing platforms
  platforms/pairing lazy-packages)
if [ ! -L "$data" ] && [ "$(stat -c %u "$data")" != "$(id -u hermes)" ]; then
  say "Fixing ownership of $data (targeted) to hermes ($(id -u hermes))"
  chown hermes:hermes "$data"
  for name in "${folders[@]}" profiles; do
    if [ -d "$data/$name" ] && plain "$name"; then chown -R --no-dereference hermes:hermes "$data/$name"; fi
  done
fi
if [ ! -L "$data" ]; then
  find "$data" -maxdepth 1 -type f -exec chown hermes:hermes {} + -exec chmod u+rw {} +
fi
for name in profiles cron pairing platforms/pairing; do
  if [ -d "$data/$name" ] && plain "$name"; then
    find "$data/$name" \( ! -user hermes -o ! -group hermes \) -exec chown --no-dereference hermes:hermes {} +
  fi
done
cd "$data"
as_hermes mkdir -p "${folders[@]}"

seed() {
  if [ ! -e "$data/$1" ] && plain "$1"; then as_hermes cp "/opt/hermes/docker/seed/$2" "$data/$1"; fi
}
seed .env env
seed config.yaml config.yaml
seed SOUL.md SOUL.md
if plain .env && ! grep -q '^API_SERVER_KEY=..*' "$data/.env"; then
  sed -i '/^API_SERVER_KEY=$/d' "$data/.env"
  printf 'API_SERVER_KEY=%s\n' "$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')" >>"$data/.env"
  say "Generated API_SERVER_KEY for the loopback gateway api_server"
fi
if plain .env; then
  chown hermes:hermes "$data/.env"
  chmod 0600 "$data/.env"
fi
if plain config.yaml; then
  chown hermes:hermes "$data/config.yaml"
  chmod 0640 "$data/config.yaml"
fi
case "${HERMES_SKIP_CONFIG_MIGRATION:-}" in
  1 | true | TRUE | yes) ;;
  *)
    HOME=/opt/data as_hermes /opt/hermes/.venv/bin/python -c '
from hermes_cli.config import check_config_version, migrate_config
have, latest = check_config_version()
if have < latest:
    migrate_config(interactive=False, quiet=True)
    print(f"[stage2] config.yaml: version {have} -> {latest}")' || say "Warning: the config migration failed; continuing"
    ;;
esac
if [ ! -e "$data/auth.json" ] && [ -n "${HERMES_AUTH_JSON_BOOTSTRAP:-}" ] && plain auth.json; then
  (umask 077 && printf '%s' "$HERMES_AUTH_JSON_BOOTSTRAP" >"$data/auth.json")
  chown hermes:hermes "$data/auth.json"
fi
if [ ! -e "$data/gateway_state.json" ] && [ "${HERMES_GATEWAY_BOOTSTRAP_STATE:-}" = running ] && plain gateway_state.json; then
  printf '{"gateway_state":"running"}\n' >"$data/gateway_state.json"
  chown hermes:hermes "$data/gateway_state.json"
fi
say "Setup complete; starting user services"
