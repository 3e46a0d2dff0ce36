#!/usr/bin/env bash
# Builds and runs tests/consumer/main.cpp as a downstream would.
#   run.sh find_package|add_subdirectory|plain|pkg_config COMPILER BUILD_FOLDER_OF_DECANT VERSION
set -euo pipefail
way=$1 compiler=$2 build=$3 version=$4
here=$(dirname "$(readlink -f "$0")")
source=$(readlink -f "$here/../..")
work=$build/consumer/$way
rm -rf "$work"
mkdir -p "$work"

configure() { cmake -S "$here/cmake" -B "$work/build" "-DCMAKE_CXX_COMPILER=$compiler" "$@"; }
install_decant() { cmake --install "$build" --prefix "$work/prefix" >/dev/null; }
must_not_be_found() {
  if configure "-DCMAKE_PREFIX_PATH=$work/prefix" "$@" >"$work/refused.log" 2>&1; then
    echo "find_package accepted $*" >&2
    exit 1
  fi
  rm -rf "$work/build"
}

case $way in
  find_package)
    install_decant
    [ ! -e "$work/prefix/include/decant/decantConfig.cmake" ]
    must_not_be_found -DDECANT_WANTED=99.0
    must_not_be_found "-DDECANT_COMPONENTS=COMPONENTS;nonsense"
    configure "-DCMAKE_PREFIX_PATH=$work/prefix" "-DDECANT_WANTED=${version%.*}"
    cmake --build "$work/build"
    "$work/build/consumer"
    ;;
  add_subdirectory)
    configure "-DDECANT_SOURCE=$source"
    cmake --build "$work/build"
    "$work/build/consumer"
    ;;
  plain)
    "$compiler" -std=c++20 -I "$source/include" "$here/main.cpp" -o "$work/consumer"
    "$work/consumer"
    ;;
  pkg_config)
    if ! command -v pkg-config >/dev/null; then
      echo "SKIPPED: no pkg-config"
      exit 77
    fi
    install_decant
    export PKG_CONFIG_PATH=$work/prefix/share/pkgconfig
    [ "$(pkg-config --modversion decant)" = "$version" ]
    read -r -a flags <<<"$(pkg-config --cflags --libs decant)"
    "$compiler" -std=c++20 "${flags[@]}" "$here/main.cpp" -o "$work/consumer"
    "$work/consumer"
    ;;
  *)
    echo "unknown way: $way" >&2
    exit 2
    ;;
esac
