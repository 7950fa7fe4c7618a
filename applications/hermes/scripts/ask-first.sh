#!/bin/sh
# Ask the model before anything is changed; where the guest lacks what that takes, once the packages are there.
ask() {
  /usr/bin/python3 -I -c 'import json, ssl, urllib.request' 2>/dev/null || return 75
  "$HP_JOB/ask" "$@"
}
asked=0
ask || asked=$?
[ "$asked" = 0 ] || [ "$asked" = 75 ] || exit "$asked"
"$HP_JOB/baseline" || exit
[ "$asked" = 0 ] || ask after
