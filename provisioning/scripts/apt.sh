#!/bin/bash
# apt.sh ARGUMENTS...: apt-get for the phases that are no shell scripts. Needs HP_JOB; run.sh is beside this file.
set -euo pipefail
# shellcheck source=/dev/null
. "$(dirname "$0")/run.sh"
apt_get "$@" || fail "apt-get $1 failed." "$APT_ADVICE"
