// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Frames, in which messages travel: a header with magic, version, type, length and checksum, and a payload.
// What payloads mean is in messages.hpp.

#pragma once

#include "base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace gpu_sleep::protocol {

/// The version of the frames, and of how their payloads hold numbered fields. A field that is added does not
/// raise it.
inline constexpr std::uint16_t k_version = 8;

/// No frame's payload is longer; a peer that announces more is cut off before anything is allocated for it.
inline constexpr std::uint32_t k_max_payload_bytes = 1U << 20;

inline constexpr std::size_t k_header_bytes = 16;

/// A frame of the payload, header included. One that would be too long is refused: invalid_argument.
[[nodiscard]] Result<std::vector<std::byte>> make_frame(std::uint16_t type,
                                                        std::span<const std::byte> payload);

/// Takes bytes as they arrive, in any cut, and gives whole frames. Not thread-safe.
class FrameReader {
public:
    struct Frame {
        std::uint16_t type = 0;
        std::vector<std::byte> payload;
    };

    /// Adds received bytes.
    void append(std::span<const std::byte> bytes);

    /// The next frame, or nothing while it is not complete. After an error the stream is
    /// beyond repair: close it. Errors: protocol_mismatch (another magic or version), invalid_argument (too
    /// long, or a bad checksum).
    [[nodiscard]] Result<std::optional<Frame>> next();

private:
    std::vector<std::byte> received_;
};

} // namespace gpu_sleep::protocol
