// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What tells processes of one name apart: the notebook, the job, the unit or the container that one belongs
// to. All of it is text that a process may have chosen.

#pragma once

#include <string>
#include <string_view>

namespace gpu_sleep::control {

/// Each is empty where it is not known.
struct Origin {
    std::string notebook; ///< its path, as Jupyter has it
    std::string kernel;   ///< Jupyter's id of the process
    std::string job;      ///< of Slurm
    std::string unit;     ///< of systemd, "jupyter.service", or the beginning of a container's id
};

/// The id in the name of the connection file that a kernel of Jupyter is started with: of
/// "python3 -m ipykernel_launcher -f /run/user/7/kernel-ID.json".
[[nodiscard]] std::string kernel_in(std::string_view command);

/// The innermost container, service or scope of a control group, by the text of /proc/PID/cgroup. That of a
/// login session tells nothing apart. Source: proc_pid_cgroup(5).
[[nodiscard]] std::string unit_in(std::string_view groups);

/// "notebook work/train.ipynb, kernel 1f0c, job 471, in jupyter.service".
[[nodiscard]] std::string to_text(const Origin& origin);

/// What of it tells most, shortly: "train.ipynb", "kernel 1f0c5a2b", "job 471", "jupyter.service".
[[nodiscard]] std::string to_word(const Origin& origin);

} // namespace gpu_sleep::control
