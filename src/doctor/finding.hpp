// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a check comes to.

#pragma once

#include "base/error.hpp"
#include "base/exit_status.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpu_sleep::doctor {

enum class Level : std::uint8_t {
    ok,
    warn, ///< it works, with less than there could be
    bad,  ///< processes, or this one, cannot be put to sleep and woken
};

struct Finding {
    Level level = Level::ok;
    std::string text;           ///< what was found, in a few words
    std::string advice;         ///< what to do; may be empty
    int exit_status = 0;        ///< of the command for this alone; not 0 if and only if it is bad
    std::string_view id{};      ///< the check's, in JSON; static
    std::string_view subject{}; ///< the same for people
};

using Findings = std::vector<Finding>;

[[nodiscard]] inline Finding ok(std::string text) {
    return {Level::ok, std::move(text), {}, exit_status::done};
}
[[nodiscard]] inline Finding warn(std::string text, std::string advice) {
    return {Level::warn, std::move(text), std::move(advice), exit_status::done};
}
[[nodiscard]] inline Finding bad(std::string text, std::string advice,
                                 int status = exit_status::failed_awake) {
    return {Level::bad, std::move(text), std::move(advice), status};
}

/// The first of those of `findings` that are bad; 0 if none is.
[[nodiscard]] inline int exit_status_of(const Findings& findings) noexcept {
    for (const auto& finding : findings)
        if (finding.exit_status != exit_status::done) return finding.exit_status;
    return exit_status::done;
}

} // namespace gpu_sleep::doctor
