# shellcheck shell=bash
# Sourced by the scripts that set a machine up (tests/run.sh, examples/*.sh, bench/run.sh, .ci/run): installs Debian or
# Ubuntu packages that are missing, and says which. Defines need_packages, jobs, lacks and build_example.

# need_packages NAME...: installs what is missing, as root or through sudo; does nothing where nothing is missing.
need_packages() {
  local missing=() name as_root=()
  if ! command -v dpkg-query >/dev/null; then
    echo "set-up: not a Debian or Ubuntu system; please provide what these packages hold: $*" >&2
    return 0
  fi
  for name in "$@"; do
    dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    return 0
  fi
  echo "set-up: installing ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "set-up: neither root nor sudo here; please install: ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq </dev/null
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
    </dev/null >/dev/null
}

# How many build jobs: one a core, fewer where memory is short (a compilation takes up to 1.5 GB).
jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/MemAvailable/ { print int($2 / 1500000) }' /proc/meminfo)
  [ "$memory" -ge 1 ] || memory=1
  [ "$cores" -le "$memory" ] && echo "$cores" || echo "$memory"
}

# lacks OPTION [ARGUMENT...]: whether none of the arguments begins with the option.
lacks() {
  local option=$1 argument
  shift
  for argument in "$@"; do [[ $argument != "$option"* ]] || return 1; done
}

# build_example ROOT TARGET: a program of examples/, in build/release of the checkout. It talks only when it fails.
build_example() {
  local root=$1 log=$1/build/examples.log
  mkdir -p "$root/build"
  echo "building $2 (log: $log)"
  if ! { (cd "$root" && cmake --preset release) && cmake --build "$root/build/release" -j "$(jobs)" --target "$2"; } >"$log" 2>&1; then
    cat "$log" >&2
    return 1
  fi
}
