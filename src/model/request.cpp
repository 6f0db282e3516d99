// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The rules of requests that need no state.

#include "model/request.hpp"

namespace gpu_sleep::model {

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

} // namespace gpu_sleep::model
