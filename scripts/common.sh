# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
# What the scripts share: where the tree is, how they speak, how a preset is built. Sourced, never run.
# shellcheck shell=bash

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=$(nproc)

# What is compiled in one clone is found by the others, whatever the language: ccache compares relative paths.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=locale

# clang is a quarter faster with large pages where page faults are slow, as in virtual machines.
compiler_tunables=glibc.malloc.hugetlb=1

# Progress goes to standard error: what a script prints on standard output is its result.
say() { printf '==> %s\n' "$*" >&2; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# Prints the comment that opens the running script, without its SPDX lines: the script's --help.
usage() { sed -n '/^# SPDX/,/^$/{/^# SPDX/d;/^# Copyright/d;s/^# \{0,1\}//p}' "$0"; }

# The directory of nvcc, also where the toolkit is installed but not on the search path; without links, for ccache compares
# the path.
cuda_bin() {
    local candidate
    for candidate in "$(command -v nvcc)" "${CUDA_HOME:-}/bin/nvcc" /usr/local/cuda/bin/nvcc; do
        [[ -x $candidate ]] && { dirname "$(readlink -f "$candidate")"; return 0; }
    done
    return 1
}

# configure PRESET: nothing where what it finds is as before: its options, the presets, and the packages that are installed. Of
# CMake's own files the build knows.
configure() {
    local options=() known=$root/build/$1/configured now
    command -v ccache >/dev/null &&
        options+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    case $1 in
    ci | release | bench) options+=(-DGPU_SLEEP_SYSROOT="$([[ ! -d $root/build/sysroot ]] || echo "$root/build/sysroot")") ;;
    esac
    now=$(printf '%s\n' "${options[@]}" "$(cuda_bin)" "$(stat -c %y /var/lib/dpkg/status 2>/dev/null || date)"
        cat "$root/CMakePresets.json")
    [[ -e $root/build/$1/build.ninja && $now == "$(cat "$known" 2>/dev/null)" ]] && return
    PATH="$(cuda_bin):$PATH" cmake -S "$root" --preset "$1" "${options[@]}" >&2 && echo "$now" >"$known"
}

# build PRESET [TARGET...]: configures, then builds the targets, or those of the preset, which are all unless it says.
build() {
    local preset=$1
    shift
    configure "$preset"
    say "building preset $preset"
    (cd "$root" && GLIBC_TUNABLES=$compiler_tunables cmake --build --preset "$preset" --parallel "$jobs" ${1:+--target "$@"} >&2)
}

# choose_driver BUILD-DIR [simulated]: the real driver where it finds a GPU, unless told otherwise; else programs
# started from here on get the simulated one. Sets driver (real or simulated), gpu_name and gpu_free_mib.
# shellcheck disable=SC2034 # for the scripts that source this file
choose_driver() {
    local program=$1/bin/demo_program found
    driver=real
    if [[ ${2:-} == simulated ]] || ! found=$("$program" --probe 2>/dev/null); then
        driver=simulated
        export LD_LIBRARY_PATH=$1/simulated${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        found=$("$program" --probe) || die "not even the simulated driver works; it is built with CUDA 13.0 or later"
    fi
    IFS='|' read -r gpu_name gpu_free_mib _ <<<"$found"
}

# Runs a command without address randomisation where that is allowed: some sanitizer runtimes cannot place their
# shadow memory on kernels that randomise with many bits.
with_fixed_addresses() {
    if setarch --addr-no-randomize true 2>/dev/null; then
        setarch --addr-no-randomize "$@"
    else
        "$@"
    fi
}

# The tree's C and C++ files, those not yet committed included.
source_files() {
    git -C "$root" ls-files --cached --others --exclude-standard -- '*.c' '*.h' '*.cpp' '*.hpp' '*.cu' '*.cuh' |
        while read -r file; do [[ -f $root/$file ]] && echo "$file"; done
}
