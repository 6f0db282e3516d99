// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Names of the words, and what may be a name.

#include "model/terms.hpp"

#include "base/text.hpp"

#include <algorithm>

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

std::string_view to_string(Retention retention) noexcept {
    return word_of(retention, {"offload", "preserve", "discard"});
}

std::string_view to_string(Residence residence) noexcept {
    return word_of(residence, {"device", "kept", "dropped", "damaged"});
}

std::string_view to_string(State state) noexcept {
    return word_of(state, {"awake", "asleep", "partial", "damaged", "paused"});
}

std::string_view to_string(OnTouch on_touch) noexcept {
    return word_of(on_touch, {"wait", "wake", "fail"});
}

std::string_view to_string(GateMode gate) noexcept {
    return word_of(gate, {"shut", "checked"});
}

std::string_view to_string(Store store) noexcept {
    return word_of(store, {"host", "file"});
}

std::string_view to_string(GateState gate) noexcept {
    return word_of(gate, {"open", "checked", "shut"});
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

} // namespace gpu_sleep::model
