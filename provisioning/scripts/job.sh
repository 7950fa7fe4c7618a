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

# probe SHA256...: its state, which job was started last, the units of other jobs that run, and which of these large files
# are missing; a line each.
probe() {
  show_state
  started=$(cat "$last" 2>/dev/null || true) beside=$(others | tr '\n' ' ') missing=
  for sum; do
    [ -f "$store/$sum" ] || missing="$missing $sum"
  done
  printf '%s\n' "$started" "$beside" "$missing"
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

# start SECONDS SIZE: has the job running, of what comes by the standard input: SIZE bytes of secrets, then its folder as a
# tar. A job whose controller has gone for good ends by itself after SECONDS. Ends with 75 where systemd refuses.
start() {
  umask 077
  mkdir -p "$run" "$jobs"
  chmod 755 "$state"
  # What nobody has come for within a day: no job may run so long.
  find "$jobs" "$run" -mindepth 1 -maxdepth 1 -mmin +1440 -exec rm -rf {} +
  part=$job.part.$$ hidden=$secrets.part.$$
  trap 'rm -rf "$part" "$hidden"' EXIT
  mkdir "$part"
  head -c "$2" >"$hidden"
  tar -x -f - -C "$part"
  # A request whose connection broke may still be at work here: from here on one at a time.
  exec 9>>"$last"
  flock 9
  # Repeatable even when the job has ended, and its unit is gone, before we are asked again.
  [ ! -e "$job/started" ] || return 0
  rm -rf "$job"
  rm -f "$end"
  : >"$log"
  mv "$hidden" "$secrets"
  mv "$part" "$job"
  : >"$job/started"
  printf %s "$name" >"$last"
  # /etc/environment: proxy and CA settings of the machine. sshd's sessions have them through PAM, units do not (facts
  # containers).
  systemd-run --quiet --collect --unit="$unit" --property=Type=exec --property=WorkingDirectory="$job" \
    --property=StandardInput=null --property=StandardOutput="append:$log" --property=StandardError="append:$log" \
    --property=RuntimeMaxSec="$1s" --property=ExecStopPost="$job/finish" --property=EnvironmentFile=-/etc/environment \
    --setenv=HP_JOB="$job" --setenv=HP_SECRETS="$secrets" --setenv=HP_END="$end" --setenv=HOME=/root "$job/main" 9>&- || {
    rm -f "$job/started"
    exit 75
  }
}

# follow OFFSET BYTES LIMIT: its state, and on the lines behind it what its log has from there on. Waits for news, up to two
# seconds: lines arrive at once, and an idle job costs little. With the last of the log comes what the job has answered:
# the second line has its size, and it stands before the log. One byte more than LIMIT tells that there is more.
follow() {
  i=0
  while [ "$i" -lt 20 ] && [ ! -e "$end" ] && [ -e "$log" ] && [ "$(stat -c %s "$log")" -le "$1" ]; do
    sleep 0.1
    i=$((i + 1))
  done
  told=$(show_state) size='' result=$job/result.json
  echo "$told"
  case $told in
  finished*)
    if [ "$(stat -c %s "$log" 2>/dev/null || echo 0)" -le "$(($1 + $2))" ]; then
      [ -f "$result" ] || result=/dev/null
      size=$(head -c "$(($3 + 1))" "$result" | wc -c)
    fi
    ;;
  esac
  echo "$size"
  [ -z "$size" ] || head -c "$size" "$result"
  tail -c "+$(($1 + 1))" "$log" 2>/dev/null | head -c "$2"
}

"$verb" "$@"
