// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Writing and reading the header that is before every payload.

#include "protocol/frame.hpp"

#include "base/units.hpp"
#include "protocol/wire.hpp"

#include <utility>

namespace gpu_sleep::protocol {
namespace {

constexpr std::uint32_t k_magic = 0x504C5347; // "GSLP"

/// Over the header up to the checksum itself, too: a type or a length that was damaged must not pass.
std::uint32_t checksum_of(std::span<const std::byte> header, std::span<const std::byte> payload) noexcept {
    return crc32c(payload, crc32c(header.first(k_header_bytes - sizeof(std::uint32_t))));
}

} // namespace

Result<std::vector<std::byte>> make_frame(std::uint16_t type, std::span<const std::byte> payload) {
    if (payload.size() > k_max_payload_bytes)
        return make_error(ErrorCode::invalid_argument, "a message of {} is too long",
                          format_bytes(payload.size()));
    Writer frame;
    frame.number(k_magic);
    frame.number(k_version);
    frame.number(type);
    frame.number(static_cast<std::uint32_t>(payload.size()));
    frame.number(checksum_of(frame.bytes(), payload));
    frame.bytes().insert(frame.bytes().end(), payload.begin(), payload.end());
    return std::move(frame.bytes());
}

void FrameReader::append(std::span<const std::byte> bytes) {
    received_.insert(received_.end(), bytes.begin(), bytes.end());
}

Result<std::optional<FrameReader::Frame>> FrameReader::next() {
    if (received_.size() < k_header_bytes) return std::optional<Frame>();
    Reader header(std::span<const std::byte>(received_).first(k_header_bytes));
    const auto magic = header.number<std::uint32_t>();
    const auto version = header.number<std::uint16_t>();
    const auto type = header.number<std::uint16_t>();
    const auto length = header.number<std::uint32_t>();
    const auto checksum = header.number<std::uint32_t>();
    if (magic != k_magic)
        return make_error(ErrorCode::protocol_mismatch, "the other side does not speak this protocol");
    if (version != k_version)
        return make_error(ErrorCode::protocol_mismatch,
                          "the other side speaks version {} of the protocol, and this one version {}",
                          version, k_version);
    if (length > k_max_payload_bytes)
        return make_error(ErrorCode::invalid_argument, "a message of {} is too long", format_bytes(length));
    if (received_.size() < k_header_bytes + length) return std::optional<Frame>();

    const auto begin = received_.begin() + static_cast<std::ptrdiff_t>(k_header_bytes);
    const auto end = begin + static_cast<std::ptrdiff_t>(length);
    Frame frame{type, {begin, end}};
    if (checksum_of(received_, frame.payload) != checksum)
        return make_error(ErrorCode::invalid_argument, "a message was damaged on the way");
    received_.erase(received_.begin(), end);
    return std::optional(std::move(frame));
}

} // namespace gpu_sleep::protocol
