// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading the kernel's list of processors.

#include "store/near_processors.hpp"

#include "base/guard.hpp"
#include "base/small_file.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace gpu_sleep::store {
namespace {

/// The number that `text` begins with, which is taken off it.
std::optional<unsigned> take_number(std::string_view& text) {
    unsigned number = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failure != std::errc{}) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return number;
}

/// A list like "0-15,32-47"; nothing if it is none.
std::optional<cpu_set_t> parse_list(std::string_view text) {
    cpu_set_t processors;
    CPU_ZERO(&processors);
    for (;;) {
        const auto first = take_number(text);
        if (!first) return std::nullopt;
        auto last = first;
        if (text.starts_with('-')) {
            text.remove_prefix(1);
            last = take_number(text);
        }
        if (!last) return std::nullopt;
        for (auto each = *first; each <= std::min<unsigned>(*last, CPU_SETSIZE - 1); ++each)
            CPU_SET(each, &processors);
        if (text.empty()) return processors;
        if (!text.starts_with(',')) return std::nullopt;
        text.remove_prefix(1);
    }
}

} // namespace

StayNear::StayNear(const std::string& bus_id, const char* devices) noexcept {
    if (!bus_id.empty()) ignoring_errors([&] { move_near(bus_id, devices); });
}

void StayNear::move_near(const std::string& bus_id, const std::filesystem::path& devices) {
    auto name = bus_id; // the kernel writes small letters
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
    const auto list = read_small_file(devices / name / "local_cpulist");
    if (!list) return;
    auto near = parse_list(std::string_view(*list).substr(0, list->find('\n')));
    if (!near || ::sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
    CPU_AND(&*near, &*near, &before_);
    if (CPU_COUNT(&*near) == 0 || CPU_EQUAL(&*near, &before_) != 0) return;
    has_moved_ = ::sched_setaffinity(0, sizeof(*near), &*near) == 0;
}

StayNear::~StayNear() {
    if (has_moved_) ::sched_setaffinity(0, sizeof(before_), &before_);
}

} // namespace gpu_sleep::store
