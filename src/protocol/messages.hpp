// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The messages between command and agent, and the frames in which they travel: a header with magic,
// version, type, length and checksum, and a payload; and the lines of the history. PROTOCOL.md beside this is
// their description.

#pragma once

#include "model/history.hpp"
#include "model/request.hpp"

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

/// CRC-32C (Castagnoli) of `bytes`, continued from `before`, the checksum of what precedes them (0 for
/// nothing). Thread-safe. Source: RFC 3720, appendix B.4.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;

/// A message of a command: a request, and Directives while a joint one runs. A kind that is told by a field
/// comes before the one that has its type number without that field.
using Request =
    std::variant<model::StatusRequest, model::ReleaseRequest, model::LiveRequest, model::CallRequest,
                 model::IdleSleepRequest, model::SleepRequest, model::WakeRequest, model::SharedMemoryRequest,
                 model::InhibitRequest, model::TimerRequest, model::Directive>;
/// An answer of an agent: any number of Progress, then one Report, Failure or SharedMemory.
using Reply = std::variant<model::Progress, model::Report, model::Failure, model::SharedMemory>;

/// A whole frame, header included. A message that would be too long is refused: invalid_argument.
[[nodiscard]] Result<std::vector<std::byte>> encode(const Request& request);
[[nodiscard]] Result<std::vector<std::byte>> encode(const Reply& reply);

/// Errors: protocol_mismatch (a type, a value, or a field that must be known is not; or a payload that is
/// cut, too long, or out of range).
[[nodiscard]] Result<Request> decode_request(const FrameReader::Frame& frame);
[[nodiscard]] Result<Reply> decode_reply(const FrameReader::Frame& frame);

/// The whole frame of `reply`. A report that is too long is told with fewer rows of tags, and says so in a
/// note. Errors: those of encode().
[[nodiscard]] Result<std::vector<std::byte>> encode_what_fits(const Reply& reply);

// ---- The lines of the history

/// The line of an event, with its end. Texts are made printable, and cut.
[[nodiscard]] std::string line_of(const model::Event& event);

/// Reads a line without its end. Returns nothing for text of another form, whoever wrote it.
[[nodiscard]] std::optional<model::Event> parse_event(std::string_view line);

} // namespace gpu_sleep::protocol
