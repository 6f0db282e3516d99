// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Feeds the protocol's readers with anything: as a stream of frames in arbitrary cuts, and as the payload of
// one frame of every type, past the checksum. What decodes must encode to the very same bytes, but for fields
// that may be skipped.

#include "protocol/messages.hpp"

#include <cstdlib>

using namespace gpu_sleep;
using protocol::FrameReader;

namespace {

FrameReader::Frame frame_of(const std::vector<std::byte>& bytes) {
    FrameReader reader;
    reader.append(bytes);
    auto frame = reader.next();
    if (!frame || !frame->has_value()) std::abort();
    return **std::move(frame);
}

/// A field at the end of the payload, of the last number there is.
FrameReader::Frame with_unknown(FrameReader::Frame frame, bool must_be_known) {
    for (const int byte : {0xFF, must_be_known ? 0xFF : 0x7F, 1, 0, 0, 0, 1})
        frame.payload.push_back(static_cast<std::byte>(byte));
    return frame;
}

/// `message` was read from `frame`, so it must be written as that frame, but for what was skipped, and be
/// read from it again.
template <class Message, class Decode>
void check_encoding(const FrameReader::Frame& frame, const Decode& decode) {
    const Result<Message> message = decode(frame);
    if (!message) return;
    const auto bytes = protocol::encode(*message);
    if (!bytes) std::abort();
    const auto written = frame_of(*bytes);
    constexpr std::size_t k_least_skipped = 6; // a field without a value
    const bool has_skipped = frame.payload.size() >= written.payload.size() + k_least_skipped;
    if (written.type != frame.type || (written.payload != frame.payload && !has_skipped)) std::abort();
    const auto again = decode(written);
    if (!again || *protocol::encode(*again) != *bytes) std::abort();
    const auto skipped = decode(with_unknown(written, false));
    if (!skipped || *protocol::encode(*skipped) != *bytes) std::abort();
    if (decode(with_unknown(written, true))) std::abort();
}

void check_frame(const FrameReader::Frame& frame) {
    check_encoding<protocol::Request>(frame, protocol::decode_request);
    check_encoding<protocol::Reply>(frame, protocol::decode_reply);
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
