// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The only file of the tests that is compiled with a path in it.

#include "support/tree.hpp"

#include <cstdlib>
#include <filesystem>

namespace gpu_sleep::test {

std::string source_file(std::string_view path) {
    return std::filesystem::path(GPU_SLEEP_TREE) / path;
}

std::string library_file(std::string_view name) {
    const char* const other = std::getenv("GPU_SLEEP_SANITIZED_BUILD");
    const auto build = other ? std::filesystem::path(other)
                             : std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
    return build / "lib" / name;
}

} // namespace gpu_sleep::test
