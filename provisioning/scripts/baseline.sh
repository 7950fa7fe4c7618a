#!/bin/bash
# Baseline: the home is a local volume, the packages are there, the account exists and nobody logs in as it, its folders
# are made.
# Safe to repeat: a second run calls no apt and changes nothing.
#
# From inputs.env: HOME_DIR, HOME_ON_ROOT (not empty: the home needs no volume), PRIVATE_DIR, FOLDERS (blank-separated),
# AGENT_USER, AGENT_GROUP, AGENT_UID, AGENT_GID, AGENT_TITLE, UID_SETTING, USERS_GROUP, PACKAGES (blank-separated), MOTD
set -euo pipefail
# /etc/environment may have narrowed it.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# shellcheck source=/dev/null
. "$HP_JOB/inputs.env"
# shellcheck source=/dev/null
. "$(dirname "$0")/run.sh"
trap 'tell_the_rest "$BASH_COMMAND"' EXIT

# ---- the home, before anything is changed ---------------------------------------------------------------------------
# A home on the root file system would be lost with the container; the database of the agent is not safe on network
# or fuse file systems (facts hermes 3, issues 22032 and 55305).
check_home() {
  local fstype owner
  if [ -n "$HOME_ON_ROOT" ]; then
    # Declared to be lost with the container. The folder is empty or root's when it is new, as a volume is.
    [ -d "$HOME_DIR" ] || mkdir "$HOME_DIR"
    fstype=$(findmnt --noheadings --output FSTYPE --target "$HOME_DIR")
  else
    fstype=$(findmnt --noheadings --output FSTYPE --mountpoint "$HOME_DIR")
  fi ||
    fail "nothing is mounted at $HOME_DIR: the agent's data would be lost together with the container." \
      "Attach the volume to the container at this path, then run again. Nothing was changed."
  # Of mounts on top of each other the last one counts.
  fstype=$(tail -n 1 <<<"$fstype")
  case "$fstype" in
  nfs* | cifs | smb* | fuse* | 9p | overlay | tmpfs | ramfs)
    fail "$HOME_DIR is on $fstype: the agent's databases need a local file system that keeps its data." \
      "Use a volume of the node's own storage. Nothing was changed."
    ;;
  esac
  owner=$(stat -c %u "$HOME_DIR")
  case "$owner" in
  0 | "$AGENT_UID") ;;
  65534)
    fail "$HOME_DIR belongs to an account outside of this container (shown as 65534)." \
      "The volume was written by a container with another id mapping: privileged and unprivileged can't share one." \
      "Correct the owner on the node to 100000 + $AGENT_UID. Nothing was changed."
    ;;
  *)
    fail "$HOME_DIR belongs to uid $owner, expected $AGENT_UID (or root, when the volume is new)." \
      "If this is the right volume, set $UID_SETTING to $owner; or give its files over on purpose:" \
      "  find $(printf %q "$HOME_DIR") -xdev -uid $owner -execdir chown -h $AGENT_UID:$AGENT_GID {} \\;" \
      "Nothing was changed."
    ;;
  esac
}

# The names must be free or ours, also before anything is changed.
check_account() {
  local entry again="A container keeps its account: pulumi destroy, then up, makes a new one. Nothing was changed."
  if entry=$(getent group "$AGENT_GROUP") && [ "$(cut -d: -f3 <<<"$entry")" != "$AGENT_GID" ]; then
    fail "the group $AGENT_GROUP exists with another number: $entry, expected $AGENT_GID." "$again"
  fi
  if entry=$(getent group "$AGENT_GID") && [ "$(cut -d: -f1 <<<"$entry")" != "$AGENT_GROUP" ]; then
    fail "the group number $AGENT_GID is taken: $entry, expected $AGENT_GROUP." "$again"
  fi
  if entry=$(getent passwd "$AGENT_USER") && [ "$(cut -d: -f3 <<<"$entry")" != "$AGENT_UID" ]; then
    fail "the user $AGENT_USER exists with another number: $entry, expected $AGENT_UID." "$again"
  fi
  if entry=$(getent passwd "$AGENT_USER") && [ "$(cut -d: -f4 <<<"$entry")" != "$AGENT_GID" ]; then
    fail "the user $AGENT_USER exists with another group: $entry, expected $AGENT_GID." "$again"
  fi
  if entry=$(getent passwd "$AGENT_UID") && [ "$(cut -d: -f1 <<<"$entry")" != "$AGENT_USER" ]; then
    fail "the user number $AGENT_UID is taken: $entry, expected $AGENT_USER." "$again"
  fi
}

# ---- packages: one transaction, only what is missing ----------------------------------------------------------------
missing_packages() {
  local name status
  for name in $PACKAGES; do
    status=$(dpkg-query --show --showformat='${db:Status-Status}' "$name" 2>/dev/null) || status=absent
    [ "$status" = installed ] || printf '%s\n' "$name"
  done
}

install_packages() {
  local -a missing
  local words beside
  mapfile -t missing < <(missing_packages)
  if [ "${#missing[@]}" -eq 0 ]; then
    echo "packages: all there"
    return
  fi
  echo "packages: installing ${missing[*]}"
  configure_the_rest
  # The lists come from the network. The account is made meanwhile, and is there before a package makes one of its own.
  words=$(mktemp "$HP_JOB/said.XXXXXX")
  (
    trap 'tell_the_rest "$BASH_COMMAND"' EXIT
    prepare_account
  ) >"$words" 2>&1 &
  beside=$!
  apt_get update || {
    wait "$beside" || true
    fail "the package lists can't be brought up to date." "$APT_ADVICE"
  }
  wait "$beside" || fail_as_told "$words"
  PREPARED=1
  cat "$words"
  echo "packages: lists are up to date, installing"
  apt_get install "${missing[@]}" || fail "these packages can't be installed: ${missing[*]}" "$APT_ADVICE"
}

# ---- account and folders --------------------------------------------------------------------------------------------
prepare_account() {
  make_account
  close_ssh
  close_cron
  close_manager
}

make_account() {
  getent group "$AGENT_GROUP" >/dev/null || groupadd --gid "$AGENT_GID" "$AGENT_GROUP"
  getent group "$USERS_GROUP" >/dev/null || groupadd --system "$USERS_GROUP"
  # No password, no shell, no sudo, no skeleton files: what is in the home is the volume's business.
  getent passwd "$AGENT_USER" >/dev/null ||
    useradd --uid "$AGENT_UID" --gid "$AGENT_GID" --home-dir "$HOME_DIR" --no-create-home --shell /usr/sbin/nologin \
      --comment "$AGENT_TITLE" "$AGENT_USER"
  [ "$(id --groups "$AGENT_USER")" = "$AGENT_GID" ] || usermod --groups "" "$AGENT_USER"
  [ "$(getent passwd "$AGENT_USER" | cut -d: -f7)" = /usr/sbin/nologin ] || usermod --shell /usr/sbin/nologin "$AGENT_USER"
  case "$(passwd --status "$AGENT_USER")" in "$AGENT_USER L "*) ;; *) usermod --lock "$AGENT_USER" ;; esac
}

# ---- ways around the services' sandbox ------------------------------------------------------------------------------
# The home is the agent's, and so is every file in it that lets somebody in: a key for sshd, a unit for a user's systemd.
# On the volume it would outlive the container. So the account has no way in but what root and the units start.

# Settings of the operator's stay: their files come first where they sort before ours, and sshd takes the first value it
# meets. DenyUsers adds up, whatever the order.
close_ssh() {
  local place=/etc/ssh/sshd_config.d/50-hermes-stack.conf taken_up=/run/hermes-stack.sshd text
  text="# Written by the stack; changes by hand are overwritten. Files that sort before this one win, DenyUsers aside.
DenyUsers $AGENT_USER
PasswordAuthentication no
KbdInteractiveAuthentication no
Match User $AGENT_USER
  AuthorizedKeysFile none
Match all"
  # A run that was ended in between has written it, and sshd has not read it yet.
  [ "$(cat "$place" 2>/dev/null || true)" != "$text" ] || [ ! -f "$taken_up" ] || return 0
  rm -f "$taken_up"
  mkdir -p "${place%/*}"
  printf '%s\n' "$text" >"$place.new"
  mv "$place.new" "$place"
  if ! /usr/sbin/sshd -t; then
    rm "$place"
    fail "sshd does not take its configuration, so $AGENT_USER can't be kept out of it." \
      "Mend /etc/ssh/sshd_config and what it includes, then run again."
  fi
  # Sessions that are open stay open: this one is among them.
  systemctl reload-or-try-restart ssh.service
  touch "$taken_up"
  echo "ssh: nobody logs in as $AGENT_USER, and nobody by a password"
}

# cron asks cron.allow where there is one, else cron.deny; at asks alike, but without both only root may use it.
close_cron() {
  local name allow deny
  for name in cron at; do
    allow=/etc/$name.allow deny=/etc/$name.deny
    if [ -f "$allow" ]; then
      ! grep --quiet --line-regexp --fixed-strings "$AGENT_USER" "$allow" || sed -i "/^$AGENT_USER\$/d" "$allow"
    elif [ -f "$deny" ] || [ "$name" = cron ]; then
      grep --quiet --line-regexp --fixed-strings "$AGENT_USER" "$deny" 2>/dev/null || echo "$AGENT_USER" >>"$deny"
    else
      echo root >"$allow"
    fi
  done
  # What is there already is carried out whatever these files say.
  rm -f "/var/spool/cron/crontabs/$AGENT_USER"
  [ ! -d /var/spool/cron/atjobs ] || find /var/spool/cron/atjobs -xdev -type f -uid "$AGENT_UID" -delete
}

# The account's own systemd would start what it finds in the home. Lingering has one start at boot.
close_manager() {
  local unit=user@$AGENT_UID.service
  rm -f "/var/lib/systemd/linger/$AGENT_USER"
  [ "$(systemctl is-enabled "$unit" 2>/dev/null || true)" != masked ] || return 0
  # Sessions from before, of which a hostile agent may have left some. No other can begin: sshd and cron come first.
  systemctl stop "user-$AGENT_UID.slice"
  pkill -KILL --euid "$AGENT_UID" "^sshd" || true
  systemctl mask --quiet "$unit"
}

make_folders() {
  # Only the top of the home changes hands, and only when it is new; never recursively.
  if [ "$(stat -c %u "$HOME_DIR")" = 0 ]; then
    chown "$AGENT_UID:$AGENT_GID" "$HOME_DIR"
    chmod 0750 "$HOME_DIR"
  fi
  # As the agent's user: in a folder that it owns, root would follow links that the agent has planted.
  # Made before the agent runs, with the modes that they are to have; it keeps what is there.
  # shellcheck disable=SC2016,SC2086  # the inner shell expands $1; FOLDERS are several words
  runuser --user "$AGENT_USER" -- sh -c '
    set -eu; umask 077; cd "$1"; mkdir -p "$2"; chmod 0700 "$2"; shift; mkdir -p "$@"' sh \
    "$HOME_DIR" "$PRIVATE_DIR" $FOLDERS ||
    fail "the folders in $HOME_DIR can't be made as user $AGENT_USER." \
      "Something in the home belongs to another user: find $HOME_DIR ! -uid $AGENT_UID"
}

# ---- what is read at a login ----------------------------------------------------------------------------------------
# pam_motd shows the files of this folder after /etc/motd, which stays Debian's or the operator's.
write_motd() {
  local place=/etc/motd.d/hermes-homelab
  [ "$(cat "$place" 2>/dev/null || true)" != "$MOTD" ] || return 0
  mkdir -p "${place%/*}"
  # Not in the folder: what a run that was cut off has left there would be shown, too.
  printf '%s\n' "$MOTD" >/etc/motd.hermes-homelab.new
  mv /etc/motd.hermes-homelab.new "$place"
}

check_home
check_account
install_packages
[ -n "${PREPARED:-}" ] || prepare_account
make_folders
write_motd
echo "home: $HOME_DIR on $(findmnt --noheadings --output FSTYPE --target "$HOME_DIR" | tail -n 1), user $AGENT_USER ($AGENT_UID)"
