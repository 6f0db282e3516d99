// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Little-endian numbers in memory, and zstd's bit streams: written forwards, read backwards. Internal to this
// module.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

namespace gpu_sleep::codec {

static_assert(std::endian::native == std::endian::little, "a big-endian host must swap here");

template <class T>
[[nodiscard]] inline T load(const std::byte* from) noexcept {
    T value;
    std::memcpy(&value, from, sizeof(value));
    return value;
}

template <class T>
inline void store(std::byte* to, T value) noexcept {
    std::memcpy(to, &value, sizeof(value));
}

/// The low `bytes` (at most 4) bytes of a number.
[[nodiscard]] inline std::uint32_t load_bytes(const std::byte* from, std::size_t bytes) noexcept {
    std::uint32_t value = 0;
    std::memcpy(&value, from, bytes);
    return value;
}

inline void store_bytes(std::byte* to, std::uint32_t value, std::size_t bytes) noexcept {
    std::memcpy(to, &value, bytes);
}

/// Calls `body` with 0, 1, ... Count - 1 as constants: the loops that everything waits for keep their state
/// in registers this way, whatever the compiler thinks of unrolling.
template <std::size_t Count, class Body>
[[gnu::always_inline]] inline void unrolled(Body&& body) noexcept {
    [&]<std::size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
        (body(std::integral_constant<std::size_t, I>{}), ...);
    }
    (std::make_index_sequence<Count>{});
}

/// The position of the highest bit that is set in `value`, which is not 0.
[[nodiscard]] constexpr unsigned highest_bit(std::uint32_t value) noexcept {
    return static_cast<unsigned>(std::bit_width(value)) - 1;
}

/// Appends bits, the first ones lowest. For the short streams of tree descriptions.
class BitWriter {
public:
    explicit BitWriter(std::span<std::byte> out) noexcept : out_(out) {}

    void add(std::uint32_t value, unsigned bits) noexcept {
        container_ |= std::uint64_t{value & ((1U << bits) - 1)} << held_;
        for (held_ += bits; held_ >= 8; held_ -= 8) push();
    }
    /// Fills the last byte with zeros. Returns the bytes written; nothing if they do not fit.
    [[nodiscard]] std::optional<std::size_t> finish() noexcept {
        if (held_ > 0) push();
        return fits_ ? std::optional(size_) : std::nullopt;
    }

private:
    void push() noexcept {
        if (size_ == out_.size())
            fits_ = false;
        else
            out_[size_++] = static_cast<std::byte>(container_ & 0xFF);
        container_ >>= 8;
    }

    std::span<std::byte> out_;
    std::size_t size_ = 0;
    std::uint64_t container_ = 0;
    unsigned held_ = 0;
    bool fits_ = true;
};

/// Reads bits forwards. Beyond the end there are zeros, and ok() is false.
class ForwardBits {
public:
    explicit ForwardBits(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

    [[nodiscard]] std::uint32_t peek(unsigned bits) const noexcept {
        std::uint64_t window = 0;
        for (std::size_t i = 0; i < 5 && at_ / 8 + i < bytes_.size(); ++i)
            window |= std::to_integer<std::uint64_t>(bytes_[at_ / 8 + i]) << (8 * i);
        return static_cast<std::uint32_t>(window >> (at_ % 8)) & ((1U << bits) - 1);
    }
    void skip(unsigned bits) noexcept { at_ += bits; }
    [[nodiscard]] std::uint32_t take(unsigned bits) noexcept {
        const auto value = peek(bits);
        skip(bits);
        return value;
    }
    [[nodiscard]] bool ok() const noexcept { return at_ <= bytes_.size() * 8; }
    /// Bytes begun so far.
    [[nodiscard]] std::size_t bytes() const noexcept { return (at_ + 7) / 8; }

private:
    std::span<const std::byte> bytes_;
    std::size_t at_ = 0;
};

/// Reads bits backwards from the marker, the highest bit set in the last byte. For short streams.
class BackwardBits {
public:
    explicit BackwardBits(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {
        if (bytes_.empty() || bytes_.back() == std::byte{0}) return;
        left_ = (bytes_.size() - 1) * 8 + highest_bit(std::to_integer<std::uint32_t>(bytes_.back()));
        has_marker_ = true;
    }

    [[nodiscard]] bool has_marker() const noexcept { return has_marker_; }
    /// Nothing if fewer bits are left.
    [[nodiscard]] std::optional<std::uint32_t> take(unsigned bits) noexcept {
        if (left_ < bits) return std::nullopt;
        std::uint32_t value = 0;
        for (unsigned i = 0; i < bits; ++i) {
            --left_;
            const auto byte = std::to_integer<std::uint32_t>(bytes_[left_ / 8]);
            value = value << 1 | (byte >> (left_ % 8) & 1);
        }
        return value;
    }

private:
    std::span<const std::byte> bytes_;
    std::size_t left_ = 0;
    bool has_marker_ = false;
};

} // namespace gpu_sleep::codec
