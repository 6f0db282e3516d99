// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Messages to frames and back. What they consist of is in fields.hpp, how values are written in wire.hpp, and
// what frames them in frame.cpp.

#include "protocol/messages.hpp"

#include "protocol/wire.hpp"

#include <type_traits>
#include <utility>

namespace gpu_sleep::protocol {
namespace {

template <class Message>
Result<std::vector<std::byte>> encode_any(const Message& message) {
    return std::visit(
        [](const auto& value) -> Result<std::vector<std::byte>> {
            constexpr auto type = k_type_number<std::decay_t<decltype(value)>>;
            static_assert(type != 0, "a message needs a number");
            Writer payload;
            payload.write(value);
            if (!payload.is_within_bounds())
                return make_error(ErrorCode::invalid_argument, "a message has too many parts");
            return make_frame(type, payload.bytes());
        },
        message);
}

/// Why a message is refused of which some part, such as "field 3 of ", or the whole is not known here.
Error mismatch(const FrameReader::Frame& frame, std::string_view unknown) {
    return make_error(
        ErrorCode::protocol_mismatch,
        "the other side sent something this side does not know ({}message {}): it is newer, though "
        "both speak version {} of the protocol",
        unknown, frame.type, k_version);
}

/// The payload as a `T`. Nothing may be left over.
template <class T, class Message>
Result<Message> decode_as(const FrameReader::Frame& frame) {
    T message;
    Reader in(frame.payload);
    in.read(message);
    if (!in.unknown().empty()) return mismatch(frame, in.unknown());
    if (!in.ok() || !in.at_end())
        return make_error(ErrorCode::protocol_mismatch, "a message could not be understood");
    return Message(std::move(message));
}

/// Whether the frame carries a `T`, as far as its number and the field that tells it say.
template <class T>
bool is_one(const FrameReader::Frame& frame) {
    if (frame.type != k_type_number<T>) return false;
    if constexpr (k_teller<T> != 0) return Reader(frame.payload).has(k_teller<T>);
    return true;
}

/// The payload as the first kind of message, from `Index` on, that the frame carries.
template <class Message, std::size_t Index = 0>
Result<Message> decode_any(const FrameReader::Frame& frame) {
    if constexpr (Index == std::variant_size_v<Message>) {
        return mismatch(frame, "");
    } else {
        using T = std::variant_alternative_t<Index, Message>;
        if (is_one<T>(frame)) return decode_as<T, Message>(frame);
        return decode_any<Message, Index + 1>(frame);
    }
}

} // namespace

Result<std::vector<std::byte>> encode(const Request& request) {
    return encode_any(request);
}

Result<std::vector<std::byte>> encode(const Reply& reply) {
    return encode_any(reply);
}

Result<Request> decode_request(const FrameReader::Frame& frame) {
    return decode_any<Request>(frame);
}

Result<Reply> decode_reply(const FrameReader::Frame& frame) {
    return decode_any<Reply>(frame);
}

} // namespace gpu_sleep::protocol
