// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Feeds the protocol's readers with anything: as a stream of frames in arbitrary cuts, and as the payload of
// one frame of every type, past the checksum. What decodes must encode to the very same bytes.

#include "protocol/messages.hpp"

#include <algorithm>
#include <cstdlib>
#include <span>

using namespace gpu_sleep;
using protocol::FrameReader;

namespace {

/// `message` was read from `frame`, so it must be written as that frame, and be read from it again.
template <class Message>
void check_encoding(const Result<Message>& message, const FrameReader::Frame& frame) {
    if (!message) return;
    const auto bytes = protocol::encode(*message);
    if (!bytes) std::abort();
    FrameReader reader;
    reader.append(*bytes);
    const auto again = reader.next();
    if (!again || !again->has_value() || (*again)->type != frame.type || (*again)->payload != frame.payload)
        std::abort();
}

void check_frame(const FrameReader::Frame& frame) {
    check_encoding(protocol::decode_request(frame), frame);
    check_encoding(protocol::decode_reply(frame), frame);
}

/// Gives the reader the stream in pieces of `cut` bytes, as a socket might.
void check_stream(std::span<const std::byte> stream, std::size_t cut) {
    FrameReader reader;
    while (!stream.empty()) {
        const auto piece = stream.first(std::min(cut, stream.size()));
        stream = stream.subspan(piece.size());
        reader.append(piece);
        for (;;) {
            const auto frame = reader.next();
            if (!frame) return;
            if (!frame->has_value()) break;
            check_frame(**frame);
        }
    }
}

} // namespace

/// The first byte chooses: 0 to 31 is the type of a frame whose payload follows; anything more is the size of
/// the pieces in which the rest arrives as a stream.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    constexpr std::uint8_t k_types = 32;
    if (size == 0) return 0;
    const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
    if (data[0] < k_types)
        check_frame({data[0], {bytes.begin(), bytes.end()}});
    else
        check_stream(bytes, data[0]);
    return 0;
}
