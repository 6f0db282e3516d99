// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Numbers, strings and lists as bytes: little endian, lengths first, every read within bounds.

#pragma once

#include "base/units.hpp"
#include "protocol/fields.hpp"

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace gpu_sleep::protocol {

/// Appends values to a growing buffer. Not thread-safe.
class Writer {
public:
    /// The bytes of a number or of an enumerator, little endian.
    template <class T>
    void number(T value) {
        static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
        static_assert(std::endian::native == std::endian::little, "a big-endian host must swap here");
        const auto* bytes = reinterpret_cast<const std::byte*>(&value);
        bytes_.insert(bytes_.end(), bytes, bytes + sizeof(value));
    }

    /// A field, or all fields of a struct, as PROTOCOL.md says for its type.
    template <class T>
    void write(T value) requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) {
        number(value);
    }
    void write(bool value) { number<std::uint8_t>(value ? 1 : 0); }
    void write(Milliseconds value) { number<std::int64_t>(value.count()); }
    void write(const std::string& text) {
        number(static_cast<std::uint32_t>(text.size()));
        const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
        bytes_.insert(bytes_.end(), bytes, bytes + text.size());
    }
    template <class T, std::size_t N>
    void write(const std::array<T, N>& items) {
        for (const auto& item : items) write(item);
    }
    template <class T>
    void write(const std::vector<T>& items) {
        number(static_cast<std::uint32_t>(items.size()));
        for (const auto& item : items) write(item);
    }
    template <class T>
    void write(const std::optional<T>& item) {
        write(item.has_value());
        if (item) write(*item);
    }
    template <HasFields T>
    void write(const T& parts) {
        static_assert(k_names_all_members<T>);
        std::apply([this](const auto&... field) { (write(field), ...); }, fields(parts));
    }

    [[nodiscard]] std::vector<std::byte>& bytes() noexcept { return bytes_; }

private:
    std::vector<std::byte> bytes_;
};

/// Takes values from a buffer that it does not own. It fails at the first value that is cut or out of range;
/// from then on it reads zeros, false and empty texts. Not thread-safe.
class Reader {
public:
    explicit Reader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

    /// Any value of a number's type.
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

    /// Reads what Writer::write() of the same type wrote, and fails on anything that it cannot have written.
    template <std::integral T>
    void read(T& value) {
        value = number<T>();
    }
    void read(bool& value) { value = number_within<std::uint8_t>(0, 1) == 1; }
    template <class E>
    void read(E& value) requires std::is_enum_v<E> {
        using Number = std::underlying_type_t<E>;
        constexpr auto range = accepted(E{});
        value =
            static_cast<E>(number_within(static_cast<Number>(range.first), static_cast<Number>(range.last)));
    }
    /// A time span that can be shown: a number, not negative, and not beyond three centuries.
    void read(double& seconds) { seconds = number_within(0.0, 1e10); }
    void read(Milliseconds& value) {
        // Bounded so that adding two of them to any clock's time, in nanoseconds, cannot overflow.
        constexpr std::int64_t k_max_ms = 1'000'000'000'000;
        value = Milliseconds(number_within<std::int64_t>(0, k_max_ms));
    }
    void read(std::string& text) {
        const auto length = number<std::uint32_t>();
        if (length > bytes_.size()) return fail();
        text.assign(reinterpret_cast<const char*>(bytes_.data()), length);
        bytes_ = bytes_.subspan(length);
    }
    template <class T, std::size_t N>
    void read(std::array<T, N>& items) {
        for (auto& item : items) read(item);
    }
    /// A count of more items than the bytes that are left can hold fails before anything is allocated.
    template <class T>
    void read(std::vector<T>& items) {
        const auto count = number<std::uint32_t>();
        if (count > bytes_.size() / k_min_bytes<T>) return fail();
        items.reserve(count);
        for (std::uint32_t i = 0; i < count && ok_; ++i) read(items.emplace_back());
    }
    template <class T>
    void read(std::optional<T>& item) {
        bool has_value = false;
        read(has_value);
        if (has_value) read(item.emplace());
    }
    template <HasFields T>
    void read(T& parts) {
        std::apply([this](auto&... field) { (read(field), ...); }, fields(parts));
    }

    /// Whether every read so far was good.
    [[nodiscard]] bool ok() const noexcept { return ok_; }
    [[nodiscard]] bool at_end() const noexcept { return bytes_.empty(); }

private:
    /// Fails on a number that is not from `least` to `most`, and on NaN; it gives `least` then.
    template <class T>
    T number_within(T least, T most) {
        const auto value = number<T>();
        if (value >= least && value <= most) return value;
        fail();
        return least;
    }
    void fail() noexcept {
        ok_ = false;
        bytes_ = {};
    }

    std::span<const std::byte> bytes_;
    bool ok_ = true;
};

/// CRC-32C (Castagnoli) of `bytes`, continued from `before`, the checksum of what precedes them (0 for
/// nothing). Thread-safe. Source: RFC 3720, appendix B.4.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;

} // namespace gpu_sleep::protocol
