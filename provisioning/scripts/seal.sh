#!/bin/bash
# The last phase of a golden template: what each clone does at its start is put in place, and what is one machine's
# alone is taken out: keys, the machine id, logs, lists and caches, the home. What is secret is overwritten first: a
# clone gets the blocks of the disk, also those that belong to no file any more.
# The container is killed after it, not shut down: a shutdown would write logs again.
#
# From inputs.env: HOME_DIR
set -euo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# shellcheck source=/dev/null
. "$HP_JOB/inputs.env"
# shellcheck source=/dev/null
. "$(dirname "$0")/run.sh"
trap 'tell_the_rest "$BASH_COMMAND"' EXIT

# ---- what a clone does at its start -----------------------------------------------------------------------------------
own_key() {
  install -d -m 0755 /usr/local/lib/hermes-stack
  install -m 0755 "$HP_JOB/host-key.sh" /usr/local/lib/hermes-stack/host-key
  cat >/etc/systemd/system/hermes-stack-host-key.service <<'UNIT'
[Unit]
Description=SSH host keys of this container, and their proof
Before=ssh.service ssh.socket sshd-keygen.service
DefaultDependencies=no
After=local-fs.target systemd-remount-fs.service
Before=shutdown.target
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/lib/hermes-stack/host-key

[Install]
WantedBy=multi-user.target
UNIT
  quietly systemctl enable hermes-stack-host-key.service || fail "the service of the host keys can't be enabled."
}

own_card() {
  install -m 0755 "$HP_JOB/announce.sh" /usr/local/lib/hermes-stack/announce
  cat >/etc/systemd/system/hermes-stack-announce.service <<'UNIT'
[Unit]
Description=Tell the network which card has the address of this container
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/lib/hermes-stack/announce

[Install]
WantedBy=multi-user.target
UNIT
  quietly systemctl enable hermes-stack-announce.service || fail "the service of the address can't be enabled."
}

# ---- what is one machine's alone --------------------------------------------------------------------------------------
# Zeros in the place of the content; links and what is no file are left out.
overwrite() {
  local file
  for file in "$@"; do
    if [ -s "$file" ] && [ -f "$file" ] && [ ! -L "$file" ]; then
      shred --iterations=0 --zero --force "$file"
    fi
  done
}

forget() {
  overwrite "$@"
  rm -rf -- "$@"
}

forget_logs() {
  local -a files
  systemctl stop rsyslog.service syslog.socket 2>/dev/null || true
  # From here on the journal is in memory.
  journalctl --relinquish-var 2>/dev/null || true
  mapfile -d '' files < <(find /var/log -xdev -type f -print0)
  [ "${#files[@]}" -eq 0 ] || forget "${files[@]}"
  find /var/log/journal -xdev -mindepth 1 -delete 2>/dev/null || true
}

forget_packages() {
  apt-get clean
  rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin
}

forget_machine() {
  shopt -s nullglob dotglob
  forget /etc/ssh/ssh_host_* /etc/ssl/private/ssl-cert-snakeoil.key
  forget /var/lib/systemd/random-seed /var/lib/systemd/credential.secret /var/lib/dhcp/* /var/lib/systemd/timesync/*
  forget /root/.*_history /root/.lesshst /root/.wget-hsts
  rm -rf /root/.cache /root/.local "$HOME_DIR" /tmp/* /var/tmp/*
  # What the earlier phases were given; this one's own folder holds nothing else than what is in the template.
  find "${HP_JOB%/*}" -xdev -mindepth 1 -maxdepth 1 ! -path "$HP_JOB" -exec rm -rf {} +
  [ -L /var/lib/dbus/machine-id ] || forget /var/lib/dbus/machine-id
  # Empty, and not away: without the file systemd would take each clone for a first boot.
  overwrite /etc/machine-id
  : >/etc/machine-id
}

own_key
own_card
forget_packages
forget_machine
forget_logs
sync
echo "golden template: no key, no machine id, no log and no list of packages is left"
