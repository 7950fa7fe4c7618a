#!/usr/bin/env bash
# What `pulumi up` would do, as the text of a pull request's comment. Reads only; ends with 1 when a preview fails.
#
#   examples/pull-request/preview.sh [STACK...]     default: pet cattle
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
[ $# -gt 0 ] || set -- pet cattle

longest=$((60000 / $#)) # GitHub takes comments of 65536 characters
fence='````````````'    # longer than any that a declared document should hold
failed=0
for stack in "$@"; do
  if text=$(pulumi preview --stack "$stack" --diff --suppress-progress --suppress-outputs --non-interactive --color never 2>&1); then
    title=$(sed -n '/^Resources:/,/^$/{s/^ *//;/^Resources:/d;/^$/d;p}' <<<"$text" | paste -sd, | sed 's/,/, /g')
  else
    failed=1
    title='**the preview failed**'
  fi
  [ ${#text} -le "$longest" ] || text="${text:0:$longest}"$'\n... cut here'
  printf '### %s: %s\n\n<details><summary>pulumi preview --diff</summary>\n\n%s\n%s\n%s\n\n</details>\n\n' \
    "$stack" "$title" "$fence" "$text" "$fence"
done
exit "$failed"
