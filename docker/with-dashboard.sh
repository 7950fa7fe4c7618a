#!/bin/bash
# Runs a command with the dashboard beside it. In one container, since one that shares another's network and processes is
# not brought back by the engine when that one was started again. The command's end is the end, and its exit code.
set -uo pipefail

serve() {
  # By the shell's own list: a signal may come before a variable has the child's number.
  trap 'kill $(jobs -p) 2>/dev/null; wait; exit' TERM
  while :; do
    hermes dashboard --no-open --skip-build --host 0.0.0.0 --port 9119 &
    wait "$!"
    echo "dashboard: ended with $?; again in 30 s" >&2
    sleep 30 &
    wait "$!"
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
