# Servers unpacked into a private cache, without root and beside the system's own packages; sourced, never run.
# shellcheck shell=bash

# is_server FILE [VERSION]: whether it is one, of a version that begins so.
is_server() {
  [[ $("$1" --version 2>/dev/null) == *" server v=${2:-}"* ]]
}

# A machine's user may have no home that can be written (nobody, build users).
cache_folder() {
  local folder
  for folder in "${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/leasehold" "${TMPDIR:-/tmp}/leasehold-cache-$EUID"; do
    if mkdir -p "$folder" 2>/dev/null && [[ -O $folder && -w $folder ]]; then
      echo "$folder"
      return
    fi
  done
  fail 73 "neither ~/.cache nor ${TMPDIR:-/tmp} can be written; set XDG_CACHE_HOME"
}

# into_cache NAME VERSION CMD…: CMD unpacks a server where it is run and writes its starter to
# "start", which becomes NAME in the cache if it is_server. It moves there last, so a run that is
# interrupted or beside another one leaves no half-filled cache.
into_cache() {
  local name=$1 version=$2 cache folder
  shift 2
  cache=$(cache_folder) || return
  folder=$(mktemp -d "$cache/unpacked.XXXXXX") || return
  say "downloading $name into $cache (once)"
  if (cd "$folder" && "$@" && chmod +x start) >&2 && is_server "$folder/start" "$version"; then
    mv "$folder/start" "$cache/$name"
  else
    rm -rf "$folder"
    return 1
  fi
}

# unpack_packages LIST APT_OPTION…: the packages that the command LIST names, unpacked right here.
unpack_packages() {
  local packages deb
  packages=$("$@") || return
  # shellcheck disable=SC2086 # a list of words
  apt-get "${@:2}" download -qq $packages || return
  for deb in ./*.deb; do
    dpkg-deb -x "$deb" . && rm "$deb" || return
  done
}

# The same by package lists of our own: the system's may be absent, old, or of another release.
unpack_by_own_lists() {
  local own=(-o "Dir::State::Lists=$PWD/lists" -o "Dir::Cache=$PWD/archives" "${@:2}")
  mkdir -p lists/partial archives/partial &&
    apt-get "${own[@]}" update -qq && unpack_packages "$1" "${own[@]}" && rm -rf lists archives
}

# The libraries that a package names itself.
libraries_of() {
  apt-cache "${@:2}" depends --important "$1" | sed -n 's/^ *Depends: \(lib[^ ]*\)$/\1/p'
}

# Where the libraries are that were unpacked here, for the loader.
library_folders() {
  local folders
  folders=$(
    shopt -s nullglob
    printf '%s:' "$PWD"/usr/lib/*/ "$PWD"/lib/*/
  )
  echo "${folders%:}"
}
