// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What people call a process by its command line. Nothing is read here: the arguments are given, and a
// process chooses its own, so that whoever prints a name makes it safe.

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

/// Of the arguments of a process, the program's own name first. Where they are a title that it has set, that
/// is the program's name as a whole.
[[nodiscard]] ProgramName program_name(const std::vector<std::string>& arguments);

/// "python3 train.py", "python3 -m vllm.server", "llama-server".
[[nodiscard]] std::string to_string(const ProgramName& name);

/// Whether a person who types `text` means it: the program, the script, or both as above.
[[nodiscard]] bool is_called(const ProgramName& name, std::string_view text);

} // namespace gpu_sleep::control
