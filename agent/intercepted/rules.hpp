// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Decides whether memory is intercepted, and under which tag.

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::agent::intercepted {

/// Applies the rules to the calling code. Made before any mutex is taken: to find out who calls may need the
/// loader's lock, which a thread that waits for a mutex of ours may hold.
class TagChoice {
public:
    TagChoice();
    /// The tag of an allocation of this size; nothing when it is not to be intercepted.
    [[nodiscard]] std::optional<std::string> operator()(std::size_t bytes) const;
    /// Why not.
    [[nodiscard]] static const char* why_not(std::size_t bytes);

private:
    std::vector<std::string_view> callers_;
    std::string_view scope_;
};

} // namespace gpu_sleep::agent::intercepted
