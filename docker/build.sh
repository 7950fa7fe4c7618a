#!/bin/bash
# Runs while the image is built: hands the build arguments to the agent phase's own script, and says what came out.
#
# From the environment: AGENT_SOURCE (git|pypi), AGENT_VERSION, AGENT_REPOSITORY, AGENT_TAG, AGENT_COMMIT, AGENT_EXTRAS,
# AGENT_WEB_UI (prebuilt|build)
set -euo pipefail

faults=()
case $AGENT_SOURCE in
  git)
    [[ $AGENT_COMMIT =~ ^[0-9a-f]{40}$ ]] || faults+=("AGENT_COMMIT is '$AGENT_COMMIT': name the full 40-character commit")
    [ -n "$AGENT_TAG" ] || faults+=("AGENT_TAG is empty: name the tag that AGENT_COMMIT belongs to")
    [ -n "$AGENT_REPOSITORY" ] || faults+=("AGENT_REPOSITORY is empty: name the repository")
    ;;
  pypi) ;;
  *) faults+=("AGENT_SOURCE is '$AGENT_SOURCE': it is git or pypi") ;;
esac
[[ $AGENT_VERSION =~ ^[0-9]+(\.[0-9a-z]+)+$ ]] || faults+=("AGENT_VERSION is '$AGENT_VERSION': name a version, 0.20.3 for one")
[[ $AGENT_WEB_UI =~ ^(prebuilt|build)$ ]] || faults+=("AGENT_WEB_UI is '$AGENT_WEB_UI': it is prebuilt or build")
if [ ${#faults[@]} -gt 0 ]; then
  printf 'error: build argument %s\n' "${faults[@]}" >&2
  exit 1
fi

HP_JOB=$(mktemp -d)
export HP_JOB
{
  printf '%s=%q\n' SOURCE "$AGENT_SOURCE" VERSION "$AGENT_VERSION" DIRECTORY "$AGENT_VERSION" BUILD_ID image \
    EXTRAS "$AGENT_EXTRAS" EXTRA_PYTHON_PACKAGES "" GIT_URL "$AGENT_REPOSITORY" GIT_TAG "$AGENT_TAG" \
    GIT_COMMIT "$AGENT_COMMIT" WEB_UI "$AGENT_WEB_UI" PYTHON_MIRROR "" UV_SHA256 "" AGENT_USER hermes
} >"$HP_JOB/inputs.env"
bash "$(dirname "$0")/agent.sh"

ln -s /opt/hermes/wanted /opt/hermes-agent
rm -rf /var/cache/hermes-provision "$HP_JOB"

baked=/opt/hermes-agent/venv/bin/hermes
[ -x "$baked" ] || { echo "error: the build left no $baked" >&2; exit 1; }
home=$(runuser --user hermes -- mktemp -d)
echo "image: $baked is $(runuser --user hermes -- env HERMES_HOME="$home" HERMES_DISABLE_LAZY_INSTALLS=1 "$baked" --version | sed -n 1p)"
rm -rf "$home"
