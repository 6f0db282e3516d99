// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Each thread's tags.

#include "common/tag_scope.hpp"

#include <string>
#include <vector>

namespace gpu_sleep::agent {
namespace {

thread_local std::vector<std::string> t_tags;

} // namespace

void push_scope_tag(std::string_view tag) {
    t_tags.emplace_back(tag);
}

bool pop_scope_tag() noexcept {
    if (t_tags.empty()) return false;
    t_tags.pop_back();
    return true;
}

std::string_view current_scope_tag() noexcept {
    return t_tags.empty() ? std::string_view() : std::string_view(t_tags.back());
}

} // namespace gpu_sleep::agent
