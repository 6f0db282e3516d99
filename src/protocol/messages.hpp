// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The messages between command and agent, as bytes and back. The format is written down in PROTOCOL.md beside
// this.

#pragma once

#include "base/result.hpp"
#include "model/model.hpp"
#include "model/share.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

namespace gpu_sleep::protocol {

/// Rises whenever a message changes; both sides refuse another number with `protocol_mismatch`.
inline constexpr std::uint16_t k_version = 2;

/// No frame's payload is longer; a peer that announces more is cut off before anything is allocated for it.
inline constexpr std::uint32_t k_max_payload_bytes = 1U << 20;

inline constexpr std::size_t k_header_bytes = 16;

using Request =
    std::variant<model::StatusRequest, model::SleepRequest, model::WakeRequest, model::ShareRequest>;
/// What an agent answers: any number of Progress, then one Report, Failure or Shared.
using Reply = std::variant<model::Progress, model::Report, model::Failure, model::Shared>;

/// A whole frame, header included. A message that would be too long is refused: invalid_argument.
[[nodiscard]] Result<std::vector<std::byte>> encode(const Request& request);
[[nodiscard]] Result<std::vector<std::byte>> encode(const Reply& reply);

/// Takes bytes as they arrive, in any cut, and gives whole frames. Not thread-safe.
class FrameReader {
public:
    struct Frame {
        std::uint16_t type = 0;
        std::vector<std::byte> payload;
    };

    /// Adds received bytes.
    void append(std::span<const std::byte> bytes);

    /// The next frame, or nothing while it is not complete. After an error the stream is beyond repair: close
    /// it. Errors: protocol_mismatch (another magic or version), invalid_argument (too long, or a bad
    /// checksum).
    [[nodiscard]] Result<std::optional<Frame>> next();

private:
    std::vector<std::byte> received_;
};

/// Errors: protocol_mismatch (a type that is not known, or a payload that is cut, too long, or out of range).
[[nodiscard]] Result<Request> decode_request(const FrameReader::Frame& frame);
[[nodiscard]] Result<Reply> decode_reply(const FrameReader::Frame& frame);

} // namespace gpu_sleep::protocol
