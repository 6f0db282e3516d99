// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Feeds the reader of configurations with anything. A mistake is told with its file; what is read as the
// user's own loosens nothing of what is read as the administrator's.

#include "control/policy/policy.hpp"

#include <cstdlib>

using namespace gpu_sleep::control::policy;

namespace {

/// Whether at each time `merged` is as deep as `limits`.
bool is_no_looser(const Ladder& merged, const Ladder& limits) {
    for (const auto& rung : limits) {
        const auto reached = rung_at(merged, seconds_of(rung.idle));
        if (!reached || reached->tier < rung.tier) return false;
    }
    return true;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const auto limits = parse_configuration(text, "c.toml", Author::administrator);
    if (!limits && !limits.error().message.starts_with("c.toml:")) std::abort();
    const auto middle = text.find('\0');
    const auto wishes =
        parse_configuration(text.substr(middle == text.npos ? 0 : middle + 1), "c.toml", Author::user);
    const auto own = parse_configuration(text.substr(0, middle), "c.toml", Author::administrator);
    if (!wishes || !own) return 0;
    const Subject subject{"alice", "server", "python3"};
    const auto limit = policy_of(*own, subject);
    const auto merged = merge(limit, policy_of(*wishes, subject));
    if (!is_no_looser(merged.ladder, limit.ladder)) std::abort();
    if (limit.host_budget && merged.host_budget > limit.host_budget) std::abort();
    return 0;
}
