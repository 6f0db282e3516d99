// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Numbers, strings and lists as bytes: little endian, lengths first, every read within bounds.

#pragma once

#include "base/units.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace gpu_sleep::protocol {

/// Appends values to a growing buffer. Not thread-safe.
class Writer {
public:
    template <class T>
    void number(T value) {
        static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
        static_assert(std::endian::native == std::endian::little, "a big-endian host must swap here");
        const auto* bytes = reinterpret_cast<const std::byte*>(&value);
        bytes_.insert(bytes_.end(), bytes, bytes + sizeof(value));
    }
    void boolean(bool value) { number<std::uint8_t>(value ? 1 : 0); }
    void string(std::string_view text) {
        number(static_cast<std::uint32_t>(text.size()));
        const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
        bytes_.insert(bytes_.end(), bytes, bytes + text.size());
    }
    void duration(Milliseconds value) { number(static_cast<std::int64_t>(value.count())); }
    template <class T, class Each>
    void optional(const std::optional<T>& value, Each&& each) {
        boolean(value.has_value());
        if (value) each(*value);
    }
    template <class T, class Each>
    void list(const std::vector<T>& items, Each&& each) {
        number(static_cast<std::uint32_t>(items.size()));
        for (const auto& item : items) each(item);
    }
    void strings(const std::vector<std::string>& items) {
        list(items, [this](const std::string& item) { string(item); });
    }

    [[nodiscard]] std::vector<std::byte>& bytes() noexcept { return bytes_; }

private:
    std::vector<std::byte> bytes_;
};

/// Takes values from a buffer that it does not own. After the first read beyond the end, or value out of
/// range, it has failed and gives zeros. Not thread-safe.
class Reader {
public:
    explicit Reader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

    template <class T>
    [[nodiscard]] T number() {
        T value{};
        if (bytes_.size() < sizeof(T)) {
            fail();
            return value;
        }
        std::memcpy(&value, bytes_.data(), sizeof(T));
        bytes_ = bytes_.subspan(sizeof(T));
        return value;
    }
    /// An enumerator from 0, or `first`, to `last`.
    template <class T>
    [[nodiscard]] T enumerator(T last, T first = T{}) {
        const auto value = number<std::underlying_type_t<T>>();
        if (value < static_cast<std::underlying_type_t<T>>(first) ||
            value > static_cast<std::underlying_type_t<T>>(last)) {
            fail();
            return first;
        }
        return static_cast<T>(value);
    }
    [[nodiscard]] bool boolean() {
        const auto value = number<std::uint8_t>();
        if (value > 1) fail();
        return value == 1;
    }
    [[nodiscard]] std::string string() {
        const auto length = number<std::uint32_t>();
        if (length > bytes_.size()) {
            fail();
            return {};
        }
        std::string text(reinterpret_cast<const char*>(bytes_.data()), length);
        bytes_ = bytes_.subspan(length);
        return text;
    }
    [[nodiscard]] Milliseconds duration() {
        // Bounded so that adding two of them to any clock's time, in nanoseconds, cannot overflow.
        constexpr std::int64_t k_longest_ms = 1'000'000'000'000;
        const auto count = number<std::int64_t>();
        if (count < 0 || count > k_longest_ms) {
            fail();
            return Milliseconds{0};
        }
        return Milliseconds(count);
    }
    /// A time span that can be shown: a number, not negative, and not beyond three centuries.
    [[nodiscard]] double seconds() {
        constexpr double k_longest_s = 1e10;
        const auto value = number<double>();
        if (!(value >= 0 && value <= k_longest_s)) {
            fail();
            return 0;
        }
        return value;
    }
    template <class T, class Each>
    [[nodiscard]] std::optional<T> optional(Each&& each) {
        if (!boolean()) return std::nullopt;
        return each();
    }
    /// A list whose items take at least `least_bytes` each: a longer count than can be there fails before
    /// anything is allocated.
    template <class T, class Each>
    [[nodiscard]] std::vector<T> list(std::size_t least_bytes, Each&& each) {
        const auto count = number<std::uint32_t>();
        std::vector<T> items;
        if (count > bytes_.size() / least_bytes) {
            fail();
            return items;
        }
        items.reserve(count);
        for (std::uint32_t i = 0; i < count && ok_; ++i) items.push_back(each());
        return items;
    }
    [[nodiscard]] std::vector<std::string> strings() {
        return list<std::string>(sizeof(std::uint32_t), [this] { return string(); });
    }

    void fail() noexcept {
        ok_ = false;
        bytes_ = {};
    }
    /// Whether every read so far was good.
    [[nodiscard]] bool ok() const noexcept { return ok_; }
    [[nodiscard]] bool at_end() const noexcept { return bytes_.empty(); }

private:
    std::span<const std::byte> bytes_;
    bool ok_ = true;
};

/// CRC-32C (Castagnoli) of `bytes`, continued from `before`, the checksum of what precedes them (0 for
/// nothing). Thread-safe. Source: RFC 3720, appendix B.4.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;

} // namespace gpu_sleep::protocol
