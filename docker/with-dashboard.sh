#!/bin/bash
# Runs a command with the dashboard beside it. In one container, since one that shares another's network and processes is
# not brought back by the engine when that one was started again. The command's end is the end, and its exit code.
set -uo pipefail

serve() {
  local child=
  trap 'kill "$child" 2>/dev/null; wait "$child"; exit' TERM
  while :; do
    hermes dashboard --no-open --skip-build --host 0.0.0.0 --port 9119 &
    child=$!
    wait "$child"
    echo "dashboard: ended with $?; again in 30 s" >&2
    sleep 30 &
    child=$!
    wait "$child"
  done
}

serve &
dashboard=$!
# In the background a shell gives a command no standard input of its own accord.
main=
signalled=
# Before the start: a signal that comes right after it would end this shell alone.
trap 'signalled=yes; [ -z "$main" ] || kill "$main" 2>/dev/null' TERM INT HUP
"$@" <&0 &
main=$!
[ -z "$signalled" ] || kill "$main" 2>/dev/null
code=127
signalled=yes
while [ -n "$signalled" ]; do
  # A signal ends a wait early; the next one tells the exit code, or 127 when that was told already.
  signalled=
  wait "$main"
  ended=$?
  [ "$ended" = 127 ] || code=$ended
done
kill "$dashboard" 2>/dev/null
wait "$dashboard"
exit "$code"
