// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading this process's mappings, and which calls were noted.

#include "operations/unseen.hpp"

#include "base/small_file.hpp"
#include "intercepted/unknown_calls.hpp"

#include <cerrno>
#include <utility>

namespace gpu_sleep::agent::operations {

Result<std::vector<model::UnseenUse>> find_unseen_uses() {
    constexpr auto k_file = "/proc/self/maps";
    const auto mappings = read_small_file(k_file);
    if (!mappings) return errno_error(ErrorCode::io_failed, errno, "open or read", k_file);
    auto uses = model::unseen_libraries(*mappings);
    for (auto& call : find_unseen_calls()) uses.push_back(std::move(call));
    return uses;
}

std::vector<model::UnseenUse> find_unseen_calls() {
    std::vector<model::UnseenUse> uses;
    for (auto& name : intercepted::called_unknown())
        uses.push_back({"calls to the driver that this version does not know", std::move(name)});
    return uses;
}

std::string words_for(const std::vector<model::UnseenUse>& uses) {
    return "use of the GPU that cannot be seen: " + model::list_of(uses);
}

} // namespace gpu_sleep::agent::operations
