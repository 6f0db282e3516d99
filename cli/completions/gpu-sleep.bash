# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
# Completion for gpu-run, gpu-sleep, gpu-wake, gpu-reclaim, gpu-inhibit, gpu-ps, gpu-doctor and gpu-snapshot in bash: options, the
# processes and tags that gpu-ps lists, and the files and extents of snapshots.
# shellcheck shell=bash

# Prints the values of one member of gpu-ps --json, one a line. Only those that are plain words: a process chooses its own
# name, and the shell expands what it is offered (compgen -W) and what is taken into its command line.
_gpu_sleep_values() {
    gpu-ps "${@:2}" --json --timeout 500ms 2>/dev/null |
        LC_ALL=C sed -n "s/^ *\"$1\": \"\{0,1\}\([A-Za-z0-9_.:@%+=][A-Za-z0-9_.:@%+=-]*\)\"\{0,1\},\{0,1\}$/\1/p" | sort -u
}

# The options that the help of a command, or of a subcommand, lists.
_gpu_sleep_options() {
    "${1/#\~/$HOME}" "${@:2}" --help 2>/dev/null | sed -nE 's/^  (-[a-z],)?(--[a-z-]+).*/\2/p'
}

# The words that an option of a command takes, as the help lists them: "shut checked" of "--gate shut|checked".
_gpu_sleep_choices() {
    [[ $2 =~ ^--[a-z-]+$ ]] || return
    "${1/#\~/$HOME}" --help 2>/dev/null | sed -nE "s/^  $2 ([a-z0-9]+(\|[a-z0-9]+)+)( .*)?$/\1/p" | tr '|' ' '
}

# The numbers of the GPUs.
_gpu_sleep_gpus() {
    nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null
}

# The first number that is no option's value, if there is one: the process that the command is for.
_gpu_sleep_target() {
    local word previous=''
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        [[ $word =~ ^[0-9]+$ && $previous != --user && $previous != --gpu ]] && { printf '%s\n' "$word"; return; }
        previous=$word
    done
}

_gpu_sleep() {
    local current=$2 previous=$3 target words=''
    # bash takes an equals sign for a word of its own.
    if [[ $current == = ]]; then previous+='='; elif [[ $previous == = ]]; then previous=${COMP_WORDS[COMP_CWORD - 2]}=; fi
    case $previous in
    --level | --on-touch | --gate | --engine | --sort) words=$(_gpu_sleep_choices "$1" "$previous") ;;
    --store) words='host file' ;;
    --dir | --spill) mapfile -t COMPREPLY < <(compgen -d -- "$current"); return ;;
    --group) words=$(_gpu_sleep_values group) ;;
    --timeout | --wait | --touch-limit | --min-awake) words='10s 30s 60s 5m' ;;
    --need) words='10GiB 20GiB 40GiB 80GiB' ;;
    --gpu) words=$(_gpu_sleep_gpus) ;; # of gpu-wake FROM=TO
    --idle) words='15m 15m:host 4h:file 1d:deep' ;;
    --for | --default-idle) words='15m 1h 4h 1d' ;;
    --host-budget) words='64GiB 200GiB' ;;
    --config) mapfile -t COMPREPLY < <(compgen -f -- "$current"); return ;;
    --user) mapfile -t COMPREPLY < <(compgen -u -- "$current"); return ;;
    --prometheus=) mapfile -t COMPREPLY < <(compgen -f -- "${current#=}"); return ;;
    --tags | --order | --keep | --discard)
        target=$(_gpu_sleep_target)
        words=$(_gpu_sleep_values tag ${target:+"$target"})
        ;;
    *)
        if [[ $current == -* ]]; then
            words=$(_gpu_sleep_options "$1")
        else
            words="$(_gpu_sleep_values pid) $(_gpu_sleep_values name)"
        fi
        ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}

# gpu-run: its own options, then whatever the command that it starts has.
_gpu_run() {
    local current=$2 word i words=''
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        case $word in
        --) ((i += 1)); break ;;
        --name | --group | --tag | --min-size | --rules | --on-touch | --touch-limit | --need | --min-awake | --gate | --retain | --host-budget | \
            --on-stop | --stop-grace | --idle | --store | --dir | --enable-for | --disable-for | --root) ((i += 1)) ;;
        -*) ;;
        *) break ;;
        esac
    done
    if ((i < COMP_CWORD)) && declare -F _command_offset >/dev/null; then
        _command_offset "$i"
        return
    fi
    case $3 in
    --on-touch | --on-stop | --gate | --enable-for | --disable-for) words=$(_gpu_sleep_choices "$1" "$3") ;;
    --touch-limit | --min-awake) words='10s 30s 60s 5m' ;;
    --need) words='10GiB 20GiB 40GiB 80GiB' ;;
    --stop-grace) words='2s 5s 10s' ;;
    --idle) words='5m 15m 1h' ;;
    --store) words='host file' ;;
    --root | --dir) mapfile -t COMPREPLY < <(compgen -d -- "$current"); return ;;
    --min-size) words='64KiB 1MiB 16MiB' ;;
    --retain | --host-budget) words='0 16GiB 64GiB' ;;
    --name | --group | --tag) ;;
    --rules) mapfile -t COMPREPLY < <(compgen -f -- "$current"); return ;;
    *)
        if [[ $current == -* && $3 != -- ]]; then
            words="$(_gpu_sleep_options "$1") --"
        else
            mapfile -t COMPREPLY < <(compgen -c -- "$current")
            return
        fi
        ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}

# gpu-snapshot: a subcommand, then its options and a file; extents are those of the file.
_gpu_snapshot() {
    local current=$2 command='' file='' word words=''
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        [[ $word == -* ]] && continue
        if [[ -z $command ]]; then command=$word; elif [[ -z $file ]]; then file=$word; fi
    done
    case $3 in
    --extent)
        word=$(gpu-snapshot ls "${file/#\~/$HOME}" --json --keep-leftovers 2>/dev/null | grep -c '"stored_bytes"')
        words=$(seq 0 $((word - 1)))
        ;;
    --output | -o) mapfile -t COMPREPLY < <(compgen -f -- "$current"); return ;;
    *)
        if [[ $current == -* ]]; then
            words=$(_gpu_sleep_options "$1" ${command:+"$command"})
        elif [[ -z $command ]]; then
            words='ls verify extract'
        else
            mapfile -t COMPREPLY < <(compgen -f -- "$current")
            return
        fi
        ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}

complete -F _gpu_run gpu-run
complete -F _gpu_sleep gpu-sleep gpu-wake gpu-reclaim gpu-inhibit gpu-ps gpu-doctor
complete -o filenames -F _gpu_snapshot gpu-snapshot
