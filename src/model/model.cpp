// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What may be a name, the rules of requests that need no state, and what reports add up to.

#include "model/model.hpp"

#include "base/text.hpp"

#include <numeric>

namespace gpu_sleep::model {
namespace {

template <class T, std::size_t N>
std::optional<T> find_word(std::string_view word, const std::array<T, N>& values) noexcept {
    for (const auto value : values)
        if (to_string(value) == word) return value;
    return std::nullopt;
}

} // namespace

bool is_valid_tag(std::string_view tag) noexcept {
    constexpr std::string_view k_allowed =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.:";
    return !tag.empty() && tag.size() <= k_max_tag_length && tag.find_first_not_of(k_allowed) == tag.npos;
}

bool is_valid_name(std::string_view name) {
    return !name.empty() && name.size() <= k_max_name_length && !is_number(name) && printable(name) == name;
}

bool is_number(std::string_view text) noexcept {
    return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

std::optional<OnTouch> parse_on_touch(std::string_view word) noexcept {
    return find_word(word, std::array{OnTouch::wait, OnTouch::wake, OnTouch::fail});
}

std::optional<GateMode> parse_gate_mode(std::string_view word) noexcept {
    return find_word(word, std::array{GateMode::shut, GateMode::checked});
}

std::optional<Store> parse_store(std::string_view word) noexcept {
    return find_word(word, k_stores);
}

// ---- Requests

bool uses_files(const Placement& placement) noexcept {
    return placement.store == Store::file ||
           std::any_of(placement.stores.begin(), placement.stores.end(),
                       [](const TagStore& each) { return each.store == Store::file; });
}

Result<void> check_pause(const SleepRequest& request) {
    const bool asks_for_more =
        request.gate == GateMode::checked || static_cast<const Choice&>(request) != Choice();
    if (request.level != Level::pause || !asks_for_more) return {};
    return make_error(
        ErrorCode::invalid_argument,
        "a pause (level 0) stops the whole program and moves no memory: it takes no tags, lets no "
        "work pass, and cannot be used with options about contents");
}

Result<void> add_store(std::string_view word, Placement& placement) {
    const auto refuse = [word](std::string_view why) {
        return make_error(ErrorCode::invalid_argument, "'{}' {}", word, why);
    };
    const auto equals = word.find('=');
    const bool is_for_all = equals == std::string_view::npos;
    const auto store = parse_store(is_for_all ? word : word.substr(equals + 1));
    if (!store) return refuse("names no store; the stores are host and file");
    const auto tag = word.substr(0, equals);
    if (!is_for_all && !is_valid_tag(tag)) return refuse("does not begin with a tag");
    const bool is_known = is_for_all ? placement.store_is_named
                                     : std::any_of(placement.stores.begin(), placement.stores.end(),
                                                   [tag](const auto& each) { return each.tag == tag; });
    if (is_known) return refuse("names a second store for the same tags");
    if (is_for_all) {
        placement.store = *store;
        placement.store_is_named = true;
    } else {
        placement.stores.push_back({std::string(tag), *store});
    }
    return {};
}

Result<std::map<std::string, Bytes>> parse_live_bytes(std::string_view words, std::string_view own_tag) {
    std::map<std::string, Bytes> all;
    for (bool is_last = false; !is_last;) {
        const auto word = words.substr(0, words.find(','));
        is_last = word.size() == words.size();
        words.remove_prefix(word.size() + (is_last ? 0 : 1));
        const auto equals = word.find('=');
        const auto tag = equals == std::string_view::npos ? own_tag : word.substr(0, equals);
        if (!is_valid_tag(tag))
            return make_error(ErrorCode::invalid_argument, "'{}' does not begin with a tag", word);
        const auto bytes =
            GPU_SLEEP_TRY(parse_bytes(word.substr(equals + 1))); // all of it, if there is no sign
        if (!all.emplace(tag, bytes).second)
            return make_error(ErrorCode::invalid_argument, "'{}' names a second size for the same tag", word);
    }
    return all;
}

// ---- Reports

Bytes kept_in(const TagReport& tag, Store store) noexcept {
    return store == Store::file ? tag.in_files : tag.kept - tag.in_files;
}

std::uint64_t done_of(const TransitionCounts& counts) noexcept {
    return std::accumulate(counts.done.begin(), counts.done.end(), std::uint64_t{0});
}

Bytes& held_in(Holdings& holdings, Store store) noexcept {
    return store == Store::file ? holdings.file_bytes : holdings.host_bytes;
}

int exit_status_of(const Failure& failure, Operation asked) noexcept {
    const auto& row = traits(failure.error.code);
    const bool is_short =
        failure.error.code == ErrorCode::out_of_host_memory || failure.error.code == ErrorCode::out_of_disk;
    // The tags that were to sleep are awake, because of too little memory or disk; others still sleep as
    // before.
    if (is_short && failure.state == State::partial && asked == Operation::sleep) return row.exit_status;
    return is_resident(failure.state) ? row.exit_status : row.exit_status_asleep;
}

void refuse(Report& report, std::string why, std::optional<ErrorCode> code) {
    if (report.refusal.empty()) {
        report.refusal = why;
        report.refusal_code = code;
    }
    report.notes.push_back(std::move(why));
}

std::string not_yet(std::string_view so, double seconds, double wanted) {
    return fmt::format("it has been {} for only {}, and may sleep in {}", so, format_seconds(seconds),
                       format_seconds(wanted - seconds));
}

void note_short_devices(const WakeRequest& request, Report& report) {
    const bool may_get_room = request.make_room || request.wait > Milliseconds(0);
    for (const auto& device : report.devices) {
        if (device.total == 0 || device.released <= device.free_before) continue;
        auto note = fmt::format("GPU {} has {} free, and {} are needed", device.device,
                                format_bytes(device.free_before), format_bytes(device.released));
        if (may_get_room)
            report.notes.push_back(std::move(note));
        else
            refuse(report, std::move(note) + ": it would fail", ErrorCode::out_of_device_memory);
    }
}

} // namespace gpu_sleep::model
