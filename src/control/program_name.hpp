// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The name by which people call a process, from its command line, and what tells processes of one name apart:
// the notebook, the job, the unit or the container that one belongs to. Nothing is read here, and all of it
// is text that a process may have chosen: whoever prints it makes it safe.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::control {

struct ProgramName {
    std::string program;    ///< its file's name: "python3"
    std::string script;     ///< what an interpreter runs, its file's name: "train.py"; or the module of -m
    bool is_module = false; ///< of `script`
};

/// Reads the name from the arguments of a process, the program's first. If they are a title that it has set,
/// the name is the whole title.
[[nodiscard]] ProgramName program_name(const std::vector<std::string>& arguments);

/// "python3 train.py", "python3 -m vllm.server", "llama-server".
[[nodiscard]] std::string to_string(const ProgramName& name);

/// Whether a person who types `text` means it: the program, the script, or both as above.
[[nodiscard]] bool is_called(const ProgramName& name, std::string_view text);

/// Each is empty where it is not known.
struct Origin {
    std::string notebook;    ///< its path, as Jupyter has it
    std::string kernel;      ///< Jupyter's id of the process
    std::string job;         ///< of Slurm
    std::string unit;        ///< of systemd, "jupyter.service", or the beginning of a container's id
    std::string container{}; ///< the beginning of its id
    std::string pod{};       ///< its UID, as Kubernetes has it
};

/// The innermost container, service or scope of a control group, by the text of /proc/PID/cgroup. That of a
/// login session tells nothing apart. Source: proc_pid_cgroup(5).
[[nodiscard]] std::string unit_in(std::string_view groups);

/// The beginning of the id of the container in the same text, whatever is inside of it.
[[nodiscard]] std::string short_container_in(std::string_view groups);
/// The UID in the name that kubelet gives the control group of a pod, in the same text.
[[nodiscard]] std::string pod_in(std::string_view groups);

/// "notebook work/train.ipynb, kernel 1f0c, job 471, in jupyter.service".
[[nodiscard]] std::string to_text(const Origin& origin);

/// The part of it that tells most, in short: "train.ipynb", "kernel 1f0c5a2b", "job 471", "jupyter.service".
[[nodiscard]] std::string to_word(const Origin& origin);

} // namespace gpu_sleep::control
