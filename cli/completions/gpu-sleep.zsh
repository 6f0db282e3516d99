#compdef gpu-run gpu-enable gpu-sleep gpu-wake gpu-switch gpu-reclaim gpu-inhibit gpu-ps gpu-doctor gpu-sleep-http gpu-snapshot
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
# Completion in zsh. Each command says by --describe what options it has, what they take and what they do; what there is to
# choose from stands here: processes and tags that gpu-ps lists, files, GPUs.

# Offers the values of one member of gpu-ps --json. Only plain words, for a process chooses its own name.
_gpu_sleep_values() {
    compadd "${@:2}" -- ${(f)"$(gpu-ps --json --timeout 500ms 2>/dev/null |
        LC_ALL=C sed -n "s/^ *\"$1\": \"\{0,1\}\([A-Za-z0-9_.:@%+=][A-Za-z0-9_.:@%+=-]*\)\"\{0,1\},\{0,1\}$/\1/p" | sort -u)"}
}

# Offers values of a kind, such as DIR or shut|checked; of a list, what its last part may be.
_gpu_sleep_offer() {
    [[ $1 == *,* ]] && compset -P '*,'
    case $1 in
    FILE*) _files ;;
    DIR) _files -/ ;;
    'NAME|UID') _users ;;
    GROUP) _gpu_sleep_values group ;;
    'TAG['*) _gpu_sleep_values tag -q -S , ;;
    STORE*) compset -P '*='; compadd -- host file; [[ $IPREFIX == *= ]] || _gpu_sleep_values tag -S = ;;
    GPU | FROM=TO*) compadd -- ${(f)"$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null)"} ;;
    DURATION) compadd -- 10s 60s 5m 15m 1h 4h ;;
    SIZE) compadd -- 1GiB 10GiB 20GiB 40GiB 80GiB ;;
    *'|'*) compadd -- ${(s:|:)1} ;;
    esac
}

_gpu_sleep_targets() {
    _gpu_sleep_values pid
    _gpu_sleep_values name
}

# Leaves in `specs` what _arguments needs to know of a command, or of a subcommand, in `words` its subcommands and the
# choices that its word has.
_gpu_sleep_ask() {
    local line name short kind
    specs=() words_of=()
    while IFS= read -r line; do
        if [[ $line =~ '^[a-z]+([|][a-z]+)*$' ]]; then
            words_of+=(${(s:|:)line})
        elif [[ $line =~ '^((-.), )?(--[a-z-]+)(( |\[=)(.*))?$' ]]; then
            name=$match[3] short=$match[2] kind=$match[6]
            [[ $match[5] == '[=' ]] && kind=${kind%\]}
            IFS= read -r line
            line=${line##[ ]#}
            line="[${${line//\[/\\[}//\]/\\]}]${kind:+:${kind//:/ }: _gpu_sleep_offer ${(q)kind}}"
            specs+=("$name${kind:+=}$line" ${short:+"$short$line"})
        fi
    done < <("${(Q)1}" "${@:2}" --describe 2>/dev/null)
}

_gpu_sleep() {
    local -a specs words_of
    setopt localoptions extendedglob
    case $service in
    gpu-run)
        _gpu_sleep_ask $words[1]
        _arguments -S $specs '(-)1:command:_command_names -e' '*::arguments:_normal'
        ;;
    gpu-snapshot)
        if ((CURRENT == 2)); then
            _gpu_sleep_ask $words[1]
            _arguments $specs "1:subcommand:(${(j: :)words_of})"
        else
            _gpu_sleep_ask $words[1] $words[2]
            _arguments $specs '1:subcommand:' '2:file:_files'
        fi
        ;;
    *)
        _gpu_sleep_ask $words[1]
        if ((${#words_of})); then
            _arguments $specs "1:what:(${(j: :)words_of})"
        else
            _arguments $specs '*:process:_gpu_sleep_targets'
        fi
        ;;
    esac
}

_gpu_sleep "$@"
