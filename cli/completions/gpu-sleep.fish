# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
# Completion in fish. Each command says by --describe what options it has, what they take and what they do; what there is to
# choose from stands here: processes and tags that gpu-ps lists, files, GPUs.

# The values of one member of gpu-ps --json. Only plain words, for a process chooses its own name.
function __gpu_sleep_values
    gpu-ps --json --timeout 500ms 2>/dev/null |
        string replace -rf "^ *\"$argv[1]\": \"?([A-Za-z0-9_.:@%+=][A-Za-z0-9_.:@%+=-]*)\"?,?\$" '$1' | sort -u
end

# Values of a kind, such as DIR or shut|checked; of a list, such as "a,b", what its last part may be.
function __gpu_sleep_offer -a kind token
    set -l before (string match -rg '^(.*,)' -- $token)
    switch $kind
        case 'FILE*'
            __fish_complete_path $token
        case DIR
            __fish_complete_directories $token
        case 'NAME|UID'
            __fish_complete_users
        case GROUP
            __gpu_sleep_values group
        case 'TAG[*'
            printf "$before%s\n" (__gpu_sleep_values tag)
        case 'STORE*'
            printf "$before%s\n" host file (__gpu_sleep_values tag)=
        case GPU 'FROM=TO*'
            nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null
        case DURATION
            printf '%s\n' 10s 60s 5m 15m 1h 4h
        case SIZE
            printf '%s\n' 1GiB 10GiB 20GiB 40GiB 80GiB
        case '*|*'
            string split '|' $kind
    end
end

function __gpu_sleep_complete
    set -l words (commandline -opc)
    set -l token (commandline -ct)
    set -l command (path basename $words[1])
    set -l subcommand
    test $command = gpu-snapshot; and set subcommand (string match -r '^[a-z]+$' -- $words[2])
    set -l name
    set -l options
    set -l choices
    $words[1] $subcommand --describe 2>/dev/null | while read -l line
        set -l short (string match -rg '^(-.), --' -- $line)
        if test -n "$name"
            set -a options $name\t(string trim -- $line)
            set name
        else if set -l parts (string match -rg '^(?:-., )?(--[a-z-]+)(?: |\[=)?(.*)$' -- $line)
            if test -n "$parts[2]"; and contains -- $words[-1] $short $parts[1]
                __gpu_sleep_offer $parts[2] $token
                return
            end
            set name $parts[1]
        else if string match -qr '^[a-z]+(\|[a-z]+)*$' -- $line
            set -a choices (string split '|' $line)
        end
    end
    if string match -q -- '-*' $token
        printf '%s\n' $options
    else if set -q choices[1]; and not set -q words[2]
        printf '%s\n' $choices
    else if test -n "$subcommand"
        __fish_complete_path $token
    else if test $command = gpu-run
        __fish_complete_command
    else
        __gpu_sleep_values pid
        __gpu_sleep_values name
    end
end

for command in gpu-enable gpu-sleep gpu-wake gpu-switch gpu-reclaim gpu-inhibit gpu-ps gpu-doctor gpu-sleep-http gpu-snapshot
    complete -c $command -f -a '(__gpu_sleep_complete)'
end
complete -c gpu-run -f -n 'not contains -- -- (commandline -opc)' -a '(__gpu_sleep_complete)'
complete -c gpu-run -f -n 'contains -- -- (commandline -opc)' -a '(__fish_complete_subcommand)'
