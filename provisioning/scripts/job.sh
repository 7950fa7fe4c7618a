#!/bin/sh
# The guest's side of provisioning/job.py, sent with each of its commands: sh -c TEXT job.sh STATE RUN NAME VERB [...].
# POSIX sh, because a minimal container has nothing else yet.
#
# STATE and RUN: the folders of what outlives a reboot, and of what must not. NAME: the job's, of phase and digest.
set -eu
store=$1/store jobs=$1/jobs run=$2 name=$3 verb=$4
state=$1
shift 4
unit=hermes-provision-$name.service
job=$jobs/$name
secrets=$run/$name.json log=$run/$name.log end=$run/$name.exit
# The name of the job that was started last. In memory: a reboot ends every job.
last=$run/last-started

# The unit is asked before the exit file: it writes the file before it leaves the active states.
show_state() {
  active=$(systemctl show -p ActiveState --value "$unit")
  case "$active" in
  active | activating | deactivating | reloading) echo running ;;
  *)
    if [ -f "$end" ]; then
      echo "finished $(cat "$end")"
    elif [ -d "$job" ]; then
      echo lost
    else
      echo absent
    fi
    ;;
  esac
}

# Its state, and on the second line which job was started last.
probe() {
  show_state
  cat "$last" 2>/dev/null || true
}

# The units of other jobs, one a line.
others() {
  systemctl list-units --plain --no-legend --state=active,activating,deactivating 'hermes-provision-*' |
    awk -v "unit=$unit" '$1 != unit {print $1}'
}

# Docker's layers and the kernel's own file systems have no room of their own.
disks() {
  df --local --block-size=1M --output=avail,size,iavail,itotal,target -x tmpfs -x devtmpfs -x overlay -x fuse.lxcfs |
    tail -n +2
}

discard() {
  rm -rf -- "$job" "$secrets" "$log" "$end"
}

# result LIMIT: what the job has answered. One byte more than is allowed tells that there is more.
result() {
  if [ -f "$job/result.json" ]; then head -c "$(($1 + 1))" "$job/result.json"; else echo '{}'; fi
}

# has_large SHA256
has_large() {
  if [ -f "$store/$1" ]; then echo yes; else echo no; fi
}

# put_large SHA256 MODE: keeps what comes by the standard input, if it is that.
put_large() {
  umask 022
  mkdir -p "$store"
  part=$store/$1.part.$$
  trap 'rm -f "$part"' EXIT
  cat >"$part"
  echo "$1  $part" | sha256sum --check --quiet --strict
  chmod "$2" "$part"
  mv "$part" "$store/$1"
}

# Makes the job's folder of the tar that comes by the standard input.
unpack() {
  umask 077
  mkdir -p "$run" "$jobs"
  chmod 755 "$state"
  # What nobody has come for within a day: no job may run so long.
  find "$jobs" "$run" -mindepth 1 -maxdepth 1 -mmin +1440 -exec rm -rf {} +
  rm -rf "$job.part" "$job"
  mkdir "$job.part"
  tar -x -f - -C "$job.part"
  rm -f "$end"
  : >"$log"
  mv "$job.part" "$job"
}

put_secrets() {
  umask 077
  mkdir -p "$run"
  cat >"$secrets.part"
  mv "$secrets.part" "$secrets"
}

# start SECONDS: a job whose controller has gone for good ends by itself after so long.
start() {
  # Repeatable even when the job has ended, and its unit is gone, before we are asked again.
  [ ! -e "$job/started" ] || return 0
  : >"$job/started"
  printf %s "$name" >"$last"
  # /etc/environment: proxy and CA settings of the machine. sshd's sessions have them through PAM, units do not (facts
  # containers).
  systemd-run --quiet --collect --unit="$unit" --property=Type=exec --property=WorkingDirectory="$job" \
    --property=StandardInput=null --property=StandardOutput="append:$log" --property=StandardError="append:$log" \
    --property=RuntimeMaxSec="$1s" --property=ExecStopPost="$job/finish" --property=EnvironmentFile=-/etc/environment \
    --setenv=HP_JOB="$job" --setenv=HP_SECRETS="$secrets" --setenv=HP_END="$end" --setenv=HOME=/root "$job/main" || {
    rm -f "$job/started"
    exit 1
  }
}

# follow OFFSET BYTES: its state, and on the lines behind it what its log has from there on. Waits for news, up to two
# seconds: lines arrive at once, and an idle job costs little.
follow() {
  i=0
  while [ "$i" -lt 20 ] && [ ! -e "$end" ] && [ -e "$log" ] && [ "$(stat -c %s "$log")" -le "$1" ]; do
    sleep 0.1
    i=$((i + 1))
  done
  show_state
  tail -c "+$(($1 + 1))" "$log" 2>/dev/null | head -c "$2"
}

"$verb" "$@"
