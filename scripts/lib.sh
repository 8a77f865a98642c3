# Shared by the scripts of this repository; sourced, never run.
# shellcheck shell=bash

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# fail STATUS MESSAGE…
fail() {
  local status=$1
  shift
  say "$@"
  exit "$status"
}

have() { command -v "$1" >/dev/null 2>&1; }

need_cargo() {
  have cargo || fail 69 "cargo is missing: install Rust with rustup (https://rustup.rs)"
}

may_install() { ((EUID == 0)) && have apt-get; }

# Installs packages of the system; all output to stderr, so that callers can print a result.
apt_install() {
  say "installing $*"
  {
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" </dev/null
  } >&2
}

# timed TITLE CMD…: runs CMD, then prints how long it took and keeps its status.
timed() {
  local title=$1 begin=$SECONDS status=0
  shift
  printf '\n== %s\n' "$title"
  "$@" || status=$?
  printf '== %s: %d s%s\n' "$title" $((SECONDS - begin)) "$( ((status == 0)) || echo " (FAILED, status $status)")"
  return "$status"
}

# Prints the comment at the top of a script.
print_header() { sed -n '2,/^[^#]/{ s/^# \{0,1\}//p; }' "$1"; }
