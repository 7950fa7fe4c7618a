#!/bin/bash
# shellcheck disable=SC2034  # what sources this reads its variables
# For the phases' scripts: how a tool is run, and how a step fails. The tool's own words are kept from the log, hundreds
# of lines that nobody reads, unless it fails: then its last ones come right before the reason.
# Needs HP_JOB, a folder of root's alone.

TOLD_LINES=12

fail() {
  printf 'error: %s\n' "$@" >&2
  FAILED=told
  exit 1
}

# fail_as_told FILE: a step that ran beside has failed, and its words are there.
fail_as_told() {
  cat "$1" >&2
  FAILED=told
  exit 1
}

# Told when a script ends: a command has failed for which no step has words of its own. Its own words stand above.
tell_the_rest() {
  local status=$?
  [ "$status" -eq 0 ] || [ -n "${FAILED:-}" ] || printf 'error: %s\n' "this command failed with $status: $1" \
    "Mend what is named here, then run again: the phase can be repeated." >&2
}

# quietly COMMAND...: nothing of it is seen unless it fails.
quietly() {
  local log status=0
  log=$(mktemp "$HP_JOB/said.XXXXXX")
  "$@" >"$log" 2>&1 </dev/null || status=$?
  [ "$status" -eq 0 ] || tell "$log" "$status"
  rm -f "$log"
  return "$status"
}

tell() {
  if [ -s "$1" ]; then
    tail -n "$TOLD_LINES" "$1" >&2
  else
    echo "(it ended with $2 and said nothing)" >&2
  fi
}

# ---- apt --------------------------------------------------------------------------------------------------------------
LOCK_SECONDS=120
APT_OPTIONS=(
  --yes --quiet --no-install-recommends
  -o Acquire::Retries=3
  -o Acquire::http::Timeout=20
  -o Acquire::https::Timeout=20
  -o Acquire::Languages=none
  -o Acquire::PDiffs=false
  -o APT::Update::Error-Mode=any
  -o "DPkg::Lock::Timeout=$LOCK_SECONDS"
  # Without fsync per file: the container is new, a crash is answered by the next run.
  -o Dpkg::Options::=--force-unsafe-io
  # Keep configuration files that the operator has edited, never ask.
  -o Dpkg::Options::=--force-confdef
  -o Dpkg::Options::=--force-confold
  -o Dpkg::Use-Pty=0
)
APT_LOCKED='Could not get lock|Unable to lock|Unable to acquire'

# apt_get ARGUMENTS...: apt-get without questions. After a failure APT_ADVICE says what to do about its cause.
apt_get() {
  local log status end=$((SECONDS + LOCK_SECONDS)) said=''
  log=$(mktemp "$HP_JOB/said.XXXXXX")
  while :; do
    status=0
    DEBIAN_FRONTEND=noninteractive apt-get "${APT_OPTIONS[@]}" "$@" >"$log" 2>&1 </dev/null || status=$?
    # For dpkg's lock apt-get waits by itself, for that of the package lists it does not.
    if [ "$status" -eq 0 ] || [ "$SECONDS" -ge "$end" ] || ! grep --quiet --extended-regexp "$APT_LOCKED" "$log"; then
      break
    fi
    [ -n "$said" ] || echo "packages: another apt or dpkg is at work, waiting for its end"
    said=1
    sleep 1
  done
  if [ "$status" -ne 0 ]; then
    tell "$log" "$status"
    APT_ADVICE=$(apt_advice "$log")
  fi
  rm -f "$log"
  return "$status"
}

# What to do about a failure of apt-get, by what it said in the file $1.
apt_advice() {
  # A list of packages that it can't fetch names them all, so what is rarer comes first.
  if grep --quiet 'No space left on device' "$1"; then
    echo "A disk of the container is full: docs/operations.md, A full disk."
  elif grep --quiet --extended-regexp "$APT_LOCKED" "$1"; then
    echo "Another apt or dpkg holds the lock for longer than $LOCK_SECONDS s, the process is named above: let it end, then run again."
  elif grep --quiet --extended-regexp 'Unable to locate package|no installation candidate|Couldn.t find any package' "$1"; then
    echo "The sources in /etc/apt have no such package: correct the name (agentExtraPackages) or the sources, then run again."
  elif grep --quiet --extended-regexp 'NO_PUBKEY|EXPKEYSIG|is not signed|Release file .*(expired|not valid yet)' "$1"; then
    echo "The signature of a source is not accepted: look at the container's clock, and at the keys of /etc/apt."
  elif grep --quiet --extended-regexp 'resolv|onnect|timed out|unreachable|Failed to fetch|Unable to fetch' "$1"; then
    echo "The container does not reach what /etc/apt names: check its gateway, name server and proxy, then run again."
  elif grep --quiet --extended-regexp 'unmet dependencies|held broken packages|dpkg was interrupted|error processing' "$1"; then
    echo "Packages in the container are broken: apt-get --fix-broken install there says how, then run again."
  else
    echo "Mend what is named above, then run again."
  fi
}

# Packages that an earlier run, which was killed, has left half configured.
configure_the_rest() {
  [ -z "$(dpkg --audit)" ] || quietly dpkg --configure -a ||
    fail "dpkg can't finish what an earlier run has begun." "Log in and run: dpkg --configure -a"
}
