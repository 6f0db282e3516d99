// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading this process's mappings, and which calls were noted.

#include "operations/unseen.hpp"

#include "base/fd.hpp"
#include "intercepted/unknown_calls.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace gpu_sleep::agent::operations {
namespace {

Result<std::string> read_mappings() {
    static constexpr const char* k_file = "/proc/self/maps";
    const UniqueFd file(::open(k_file, O_RDONLY | O_CLOEXEC));
    if (!file) return errno_error(ErrorCode::io_failed, errno, "open", k_file);
    std::string text;
    std::array<char, 65'536> piece{};
    for (;;) {
        const auto bytes = ::read(file.get(), piece.data(), piece.size());
        if (bytes < 0 && errno == EINTR) continue;
        if (bytes < 0) return errno_error(ErrorCode::io_failed, errno, "read", k_file);
        if (bytes == 0) return text;
        text.append(piece.data(), static_cast<std::size_t>(bytes));
    }
}

} // namespace

Result<std::vector<model::UnseenUse>> find_unseen_uses() {
    const auto mappings = read_mappings();
    if (!mappings) return mappings.error();
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
