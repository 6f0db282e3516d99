// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Names of the words, and the rules that need no state.

#include "model/model.hpp"

#include "base/text.hpp"

#include <algorithm>
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
    const auto allowed = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
               c == '-' || c == '.' || c == ':';
    };
    return !tag.empty() && tag.size() <= k_max_tag_length && std::all_of(tag.begin(), tag.end(), allowed);
}

bool is_valid_name(std::string_view name) {
    return !name.empty() && name.size() <= k_max_name_length && !is_number(name) && printable(name) == name;
}

bool is_number(std::string_view text) noexcept {
    return !text.empty() &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

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

std::string_view to_string(Retention retention) noexcept {
    switch (retention) {
    case Retention::offload: return "offload";
    case Retention::preserve: return "preserve";
    case Retention::discard: return "discard";
    }
    return "unknown";
}

std::string_view to_string(Residence residence) noexcept {
    switch (residence) {
    case Residence::device: return "device";
    case Residence::kept: return "kept";
    case Residence::dropped: return "dropped";
    case Residence::damaged: return "damaged";
    }
    return "unknown";
}

std::string_view to_string(State state) noexcept {
    switch (state) {
    case State::awake: return "awake";
    case State::asleep: return "asleep";
    case State::partial: return "partial";
    case State::damaged: return "damaged";
    case State::paused: return "paused";
    }
    return "unknown";
}

std::string_view to_string(OnTouch on_touch) noexcept {
    switch (on_touch) {
    case OnTouch::wait: return "wait";
    case OnTouch::wake: return "wake";
    case OnTouch::fail: return "fail";
    }
    return "unknown";
}

std::string_view to_string(GateMode gate) noexcept {
    switch (gate) {
    case GateMode::shut: return "shut";
    case GateMode::checked: return "checked";
    }
    return "unknown";
}

std::string_view to_string(Store store) noexcept {
    switch (store) {
    case Store::host: return "host";
    case Store::file: return "file";
    }
    return "unknown";
}

std::string_view to_string(GateState gate) noexcept {
    switch (gate) {
    case GateState::open: return "open";
    case GateState::checked: return "checked";
    case GateState::shut: return "shut";
    }
    return "unknown";
}

std::string_view to_string(Operation operation) noexcept {
    switch (operation) {
    case Operation::status: return "status";
    case Operation::sleep: return "sleep";
    case Operation::wake: return "wake";
    }
    return "unknown";
}

std::string_view to_string(Step step) noexcept {
    switch (step) {
    case Step::populate: return "populate";
    case Step::pin: return "pin";
    case Step::await_host: return "await_host";
    case Step::fingerprint: return "fingerprint";
    case Step::copy: return "copy";
    case Step::create: return "create";
    case Step::map: return "map";
    case Step::access: return "access";
    case Step::unmap: return "unmap";
    case Step::release: return "release";
    }
    return "unknown";
}

std::string_view to_string(Transition transition) noexcept {
    switch (transition) {
    case Transition::sleep: return "sleep";
    case Transition::wake: return "wake";
    case Transition::move: return "move";
    }
    return "unknown";
}

std::string_view to_string(Progress::Phase phase) noexcept {
    switch (phase) {
    case Progress::Phase::callbacks: return "callbacks";
    case Progress::Phase::drain: return "drain";
    case Progress::Phase::transfer: return "transfer";
    case Progress::Phase::release: return "release";
    case Progress::Phase::verify: return "verify";
    case Progress::Phase::waiting: return "waiting";
    case Progress::Phase::deep: return "deep";
    case Progress::Phase::drained: return "drained";
    case Progress::Phase::ready: return "ready";
    }
    return "unknown";
}

Bytes kept_in(const TagReport& tag, Store store) noexcept {
    switch (store) {
    case Store::host: break;
    case Store::file: return tag.in_files;
    }
    return tag.kept - tag.in_files;
}

std::uint64_t done_of(const TransitionCounts& counts) noexcept {
    return std::accumulate(counts.done.begin(), counts.done.end(), std::uint64_t{0});
}

Bytes& held_in(Holdings& holdings, Store store) noexcept {
    switch (store) {
    case Store::host: break;
    case Store::file: return holdings.file_bytes;
    }
    return holdings.host_bytes;
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
        const auto bytes = parse_bytes(word.substr(equals + 1)); // all of it, if there is no sign
        if (!bytes) return bytes.error();
        if (!all.emplace(tag, *bytes).second)
            return make_error(ErrorCode::invalid_argument, "'{}' names a second size for the same tag", word);
    }
    return all;
}

int exit_status_of(const Failure& failure, Operation asked) noexcept {
    const auto& row = traits(failure.error.code);
    const bool is_short =
        failure.error.code == ErrorCode::out_of_host_memory || failure.error.code == ErrorCode::out_of_disk;
    // What was to sleep is awake, because there was too little memory or disk; what slept before still
    // sleeps.
    if (is_short && failure.state == State::partial && asked == Operation::sleep) return row.exit_status;
    return is_resident(failure.state) ? row.exit_status : row.exit_status_asleep;
}

} // namespace gpu_sleep::model
