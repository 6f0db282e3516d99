# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
# Completion for gpu-run, gpu-enable, gpu-sleep, gpu-wake, gpu-switch, gpu-reclaim, gpu-inhibit, gpu-ps, gpu-doctor, gpu-snapshot and gpu-sleep-http in bash. Each
# command says by --describe what options it has and what they take; what there is to choose from stands here: processes
# and tags that gpu-ps lists, files, GPUs.
# shellcheck shell=bash

# Prints the values of one member of gpu-ps --json, one a line. Only those that are plain words: a process chooses its own
# name, and the shell expands what it is offered (compgen -W) and what is taken into its command line.
_gpu_sleep_values() {
    gpu-ps "${@:2}" --json --timeout 500ms 2>/dev/null |
        LC_ALL=C sed -n "s/^ *\"$1\": \"\{0,1\}\([A-Za-z0-9_.:@%+=][A-Za-z0-9_.:@%+=-]*\)\"\{0,1\},\{0,1\}$/\1/p" | sort -u
}

# Reads what a command, or a subcommand, says of itself into the caller's variables: its options, its subcommands, the choices
# that its word has, and of what kind the value of an option is, such as DIR or shut|checked. Forks nothing else: this has to be quick.
_gpu_sleep_ask() {
    local line name
    while IFS= read -r line; do
        [[ $line =~ ^[a-z]+$ ]] && subcommands+=("$line")
        [[ $line =~ ^[a-z]+(\|[a-z]+)+$ ]] && choices=${line//|/ }
        [[ $line =~ ^((-.),\ )?(--[a-z-]+)((\ |\[=)(.*))?$ ]] || continue
        name=${BASH_REMATCH[3]}
        options+=("$name")
        [[ ${BASH_REMATCH[5]} == '[=' ]] && name+='='
        kinds[$name]=${BASH_REMATCH[6]}
        [[ ${BASH_REMATCH[2]} ]] && kinds[${BASH_REMATCH[2]}]=${BASH_REMATCH[6]}
    done < <("${1/#\~/$HOME}" "${@:2}" --describe 2>/dev/null)
}

# The first number that is no option's value, if there is one: the process that the command is for.
_gpu_sleep_target() {
    local word previous=''
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        [[ $word =~ ^[0-9]+$ && $previous != --user && $previous != --gpu ]] && { printf '%s\n' "$word"; return; }
        previous=$word
    done
}

# Offers values of a kind; of a list, such as "a,b" or "weights=file,b", what its last part may be.
_gpu_sleep_offer() {
    local kind=$1 part=${2##*,} current=${2##*=} target words='' before='' # bash replaces what follows the last equals sign
    [[ $kind == *,* ]] && before=${current%"${current##*,}"} current=${current##*,}
    case $kind in
    FILE*) mapfile -t COMPREPLY < <(compgen -f -- "$current"); return ;;
    DIR) mapfile -t COMPREPLY < <(compgen -d -- "$current"); return ;;
    'NAME|UID') mapfile -t COMPREPLY < <(compgen -u -- "$current"); return ;;
    'TAG['*)
        target=$(_gpu_sleep_target)
        words=$(_gpu_sleep_values tag ${target:+"$target"})
        ;;
    GROUP) words=$(_gpu_sleep_values group) ;;
    GPU | FROM=TO*) words=$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null) ;;
    STORE*)
        words='host file'
        [[ $part == *=* ]] || words+=" $(_gpu_sleep_values tag | sed 's/$/=/')"
        compopt -o nospace 2>/dev/null || : # a store follows the equals sign
        ;;
    DURATION) words='10s 60s 5m 15m 1h 4h' ;;
    SIZE) words='1GiB 10GiB 20GiB 40GiB 80GiB' ;;
    *'|'*) words=${kind//|/ } ;;
    esac
    mapfile -t COMPREPLY < <(compgen -P "$before" -W "$words" -- "$current")
}

# Leaves in `kind` of what kind the value is that stands there, and all of that value in `current`. bash takes an equals sign
# for a word of its own.
_gpu_sleep_join() {
    local i=$COMP_CWORD
    current=${COMP_WORDS[i]}
    while ((i > 1)) && [[ ${COMP_WORDS[i]} == '=' || ${COMP_WORDS[i - 1]} == '=' ]]; do
        ((i -= 1))
        current=${COMP_WORDS[i]}$current
    done
    previous=${COMP_WORDS[i - 1]}
    [[ $current == -*=* ]] && previous=${current%%=*}= current=${current#*=}
    kind=${kinds[$previous]:-${kinds[${previous%=}]:-}}
}

_gpu_sleep() {
    local current=$2 previous=$3 kind words choices='' options=() subcommands=()
    local -A kinds=()
    _gpu_sleep_ask "$1"
    _gpu_sleep_join
    if [[ $kind ]]; then
        _gpu_sleep_offer "$kind" "$current"
        return
    elif [[ $current == -* ]]; then
        words=${options[*]}
    elif [[ $choices ]]; then
        words=$choices
    else
        words="$(_gpu_sleep_values pid) $(_gpu_sleep_values name)"
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}

# gpu-run: its own options, then whatever the command that it starts has.
_gpu_run() {
    local current=$2 previous=$3 kind i choices='' options=() subcommands=()
    local -A kinds=()
    _gpu_sleep_ask "$1"
    _gpu_sleep_join
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        --) ((i += 1)); break ;;
        -*)
            if [[ ${COMP_WORDS[i + 1]:-} == '=' ]]; then
                ((i += 2))
            elif [[ ${kinds[${COMP_WORDS[i]}]:-} ]]; then
                ((i += 1))
            fi
            ;;
        *) break ;;
        esac
    done
    if ((i < COMP_CWORD)) && declare -F _command_offset >/dev/null; then
        _command_offset "$i"
    elif [[ $kind ]]; then
        _gpu_sleep_offer "$kind" "$current"
    elif [[ $current == -* && $previous != -- ]]; then
        mapfile -t COMPREPLY < <(compgen -W "${options[*]} --" -- "$current")
    else
        mapfile -t COMPREPLY < <(compgen -c -- "$current")
    fi
}

# gpu-snapshot: a subcommand, then its options and a file; extents are those of the file.
_gpu_snapshot() {
    local current=$2 command='' file='' word words choices='' options=() subcommands=()
    local -A kinds=()
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        [[ $word == -* ]] && continue
        if [[ -z $command ]]; then command=$word; elif [[ -z $file ]]; then file=$word; fi
    done
    _gpu_sleep_ask "$1" ${command:+"$command"}
    if [[ ${kinds[$3]:-} == N ]]; then
        word=$(gpu-snapshot ls "${file/#\~/$HOME}" --json 2>/dev/null | grep -c '"stored_bytes"')
        words=$(seq 0 $((word - 1)))
    elif [[ $current == -* ]]; then
        words=${options[*]}
    elif [[ -z $command ]]; then
        words=${subcommands[*]}
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        return
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}

complete -F _gpu_run gpu-run
complete -F _gpu_sleep gpu-enable gpu-sleep gpu-wake gpu-switch gpu-reclaim gpu-inhibit gpu-ps gpu-doctor gpu-sleep-http
complete -o filenames -F _gpu_snapshot gpu-snapshot
