// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a capture program does instead of obeying commands when its first argument names it.

#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace gpu_sleep::test {

/// Given the arguments after its name; returns the exit status.
using Routine = std::function<int(const std::vector<std::string>&)>;
using Routines = std::map<std::string, Routine>;

/// Those of this build of the program.
inline Routines& routines() {
    static Routines all;
    return all;
}

/// Adds a file's routines before main() begins. Not every build has every file.
struct AddRoutines {
    explicit AddRoutines(Routines more) { routines().merge(std::move(more)); }
};

} // namespace gpu_sleep::test
