// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The words of gpu-sleep as plain data: levels, policies, states, stores and gates, tags and names.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace gpu_sleep::model {

/// The word of an enumerator, of which the first is 0 and each next one more; "unknown" for any other number.
template <class Enum>
[[nodiscard]] constexpr std::string_view word_of(Enum value,
                                                 std::initializer_list<std::string_view> words) noexcept {
    const auto number = static_cast<std::size_t>(value);
    return number < words.size() ? words.begin()[number] : "unknown";
}

/// How deep a sleep is.
enum class Level : std::uint8_t {
    pause = 0, ///< the program's work waits, and all its memory stays where it is
    keep = 1,  ///< contents are kept
    drop = 2,  ///< what no policy or span preserves is dropped
};

/// How a sleep treats the contents of a tag.
enum class Retention : std::uint8_t {
    offload = 0,  ///< kept at level 1, dropped at level 2 (the default)
    preserve = 1, ///< kept at every level
    discard = 2,  ///< dropped at every level
};
[[nodiscard]] constexpr std::string_view to_string(Retention retention) noexcept {
    return word_of(retention, {"offload", "preserve", "discard"});
}

struct TagPolicy {
    Retention retention = Retention::offload;
    bool refillable = false; ///< the program declared that it can fill the tag again after a drop
};

/// Where the bytes of one backing are.
enum class Residence : std::uint8_t {
    device = 0,  ///< in GPU memory: awake
    kept = 1,    ///< released, and its contents kept
    dropped = 2, ///< released without being kept; reads as zero when it wakes
    damaged = 3, ///< released, and what was kept turned out to be damaged when it was to wake
};
[[nodiscard]] constexpr std::string_view to_string(Residence residence) noexcept {
    return word_of(residence, {"device", "kept", "dropped", "damaged"});
}

/// The state of a tag or of a process, from the residences of all its backings.
enum class State : std::uint8_t {
    awake = 0,
    asleep = 1,
    partial = 2, ///< some of it asleep, some awake
    damaged = 3, ///< asleep, and some of it damaged
    paused = 4,  ///< all of it in GPU memory, and no work passes
};
[[nodiscard]] constexpr std::string_view to_string(State state) noexcept {
    return word_of(state, {"awake", "asleep", "partial", "damaged", "paused"});
}

/// Whether none of it sleeps.
[[nodiscard]] constexpr bool is_resident(State state) noexcept {
    return state == State::awake || state == State::paused;
}

/// The fate of a touch: work that reaches the gate and may not pass.
enum class OnTouch : std::uint8_t {
    wait = 0, ///< it waits until the process is awake (the default)
    wake = 1, ///< it wakes the process, then goes on
    fail = 2, ///< it fails with an error of the driver's own kind
};
[[nodiscard]] constexpr std::string_view to_string(OnTouch on_touch) noexcept {
    return word_of(on_touch, {"wait", "wake", "fail"});
}

/// Where a sleep keeps contents.
enum class Store : std::uint8_t {
    host = 0, ///< pinned host memory (the default)
    file = 1, ///< a file of a directory, made smaller
};
[[nodiscard]] constexpr std::string_view to_string(Store store) noexcept {
    return word_of(store, {"host", "file"});
}
/// In a sentence.
[[nodiscard]] constexpr std::string_view in_words(Store store) noexcept {
    return word_of(store, {"host memory", "files"});
}

/// All stores there are: what the first has no room for may go to the others, in this order.
inline constexpr std::array k_stores{Store::host, Store::file};
inline constexpr auto k_other_stores = std::span(k_stores).subspan<1>();

/// The store of one tag.
struct TagStore {
    std::string tag;
    Store store = Store::host;
    friend bool operator==(const TagStore&, const TagStore&) = default;
};

/// How the gate stands while something of a process is asleep.
enum class GateMode : std::uint8_t {
    shut = 0,    ///< no work passes (the default, unless the program has declared that part separable)
    checked = 1, ///< work passes that names no sleeping address
};
[[nodiscard]] constexpr std::string_view to_string(GateMode gate) noexcept {
    return word_of(gate, {"shut", "checked"});
}

/// Which calls the gate lets through now.
enum class GateState : std::uint8_t {
    open = 0,    ///< all work
    checked = 1, ///< work that names no sleeping address
    shut = 2,    ///< none
};
[[nodiscard]] constexpr std::string_view to_string(GateState gate) noexcept {
    return word_of(gate, {"open", "checked", "shut"});
}

/// The tag of a range that was given none.
inline constexpr std::string_view k_default_tag = "default";
inline constexpr std::size_t k_max_tag_length = 64;

/// Bytes of a process's name.
inline constexpr std::size_t k_max_name_length = 64;

/// The rule of is_valid_name(), in words.
inline constexpr std::string_view k_name_rule =
    "a name: 1 to 64 bytes of printable UTF-8, and not a number, which would be a process id";

/// Whether a person can read and type `name`: it has 1 to 64 bytes, is printable(), and is not a number,
/// which commands read as a pid.
[[nodiscard]] bool is_valid_name(std::string_view name);

/// Whether `text` consists of digits: commands read it as a pid, so it cannot be a name.
[[nodiscard]] bool is_number(std::string_view text) noexcept;

/// A tag is 1 to 64 characters of letters, digits, '_', '-', '.' and ':'.
[[nodiscard]] bool is_valid_tag(std::string_view tag) noexcept;

/// The word's value, or nothing for any other word.
[[nodiscard]] std::optional<OnTouch> parse_on_touch(std::string_view word) noexcept;
[[nodiscard]] std::optional<GateMode> parse_gate_mode(std::string_view word) noexcept;
[[nodiscard]] std::optional<Store> parse_store(std::string_view word) noexcept;

} // namespace gpu_sleep::model
