// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How much a process needs to come back, and how processes share the room of a GPU.

#include "checkpoint/room.hpp"

#include <algorithm>

namespace gpu_sleep::checkpoint {
namespace {

/// More than the driver keeps on a GPU for a process and NVML does not count as that one's: 5.6 MiB for a
/// context, by tests/bench/RESULTS.md. A restore takes it, too.
constexpr Bytes k_not_counted = 16 * k_mib;
/// The most that a checkpoint frees and NVML does not count. More was freed by others, such as other members
/// of a tree.
constexpr Bytes k_most_not_counted = 256 * k_mib;
/// Less on a GPU that the process is not known to use is no sign that it does.
constexpr Bytes k_noise = 16 * k_mib;
/// A context with its modules, where nothing better is known: a wake without room for it is not to begin.
constexpr Bytes k_assumed_rest = 2 * k_gib;
/// How many processes may set room aside at a time. Eight deep sleepers of 1 GiB come back soonest on average
/// with four: the first after 0.7 s and the last after 1.5 s; one by one the last after 2.4 s, and all at
/// once none before 1.1 s (tests/bench/RESULTS.md, one H100).
constexpr std::uint32_t k_most_at_a_time = 4;

} // namespace

Bytes need_of_all(std::optional<Bytes> used, Bytes freed) noexcept {
    if (!used) return freed > k_noise ? freed : 0;
    return freed >= *used ? freed : *used + k_not_counted;
}

Rest rest_of(Bytes used, Bytes freed) noexcept {
    if (used == 0) return {freed != 0 ? freed : k_assumed_rest, 0};
    return {used, freed - std::min(freed, used)};
}

Bytes need_of(const Rest& rest, Bytes waking) noexcept {
    return rest.bytes + std::max(waking, std::clamp(rest.more, k_not_counted, k_most_not_counted));
}

Bytes free_besides(const BytesByGpu& taken, const std::string& uuid, Bytes free) {
    const auto found = taken.find(uuid);
    return found == taken.end() ? free : free - std::min(free, found->second);
}

std::optional<Bytes> left_to_others(std::uint32_t processes, Bytes bytes) noexcept {
    return processes < k_most_at_a_time ? std::optional(bytes) : std::nullopt;
}

Result<bool> judge_count(const Result<BytesByGpu>& room, bool is_set, const BytesByGpu& of_others) {
    const bool others_have_any =
        std::any_of(of_others.begin(), of_others.end(), [](const auto& each) { return each.second != 0; });
    if (room || (others_have_any && room.error().code == ErrorCode::out_of_device_memory)) return is_set;
    return room.error();
}

} // namespace gpu_sleep::checkpoint
