// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Frames, messages, and cutting a report until it fits.

#include "protocol/messages.hpp"

#include "base/text.hpp"
#include "protocol/wire.hpp"

namespace gpu_sleep::protocol {
namespace {

constexpr std::uint32_t k_magic = 0x504C5347; // "GSLP"

/// Over the header up to the checksum itself, too: a type or a length that was damaged must not pass.
std::uint32_t checksum_of(std::span<const std::byte> header, std::span<const std::byte> payload) noexcept {
    return crc32c(payload, crc32c(header.first(k_header_bytes - sizeof(std::uint32_t))));
}

template <class Message>
Result<std::vector<std::byte>> encode_any(const Message& message) {
    return std::visit(
        [](const auto& value) -> Result<std::vector<std::byte>> {
            Writer payload;
            payload.write(value);
            if (!payload.is_within_bounds())
                return make_error(ErrorCode::invalid_argument, "a message has too many parts");
            return make_frame(k_type_number<std::decay_t<decltype(value)>>, payload.bytes());
        },
        message);
}

/// Why a message is refused of which some part, such as "field 3 of ", or the whole is not known here.
Error mismatch(const FrameReader::Frame& frame, std::string_view unknown) {
    return make_error(ErrorCode::protocol_mismatch,
                      "the other side is newer: both speak version {2} of the protocol, but it sent "
                      "something unknown ({0}message {1})",
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

// ---- Fields of a line of the history

constexpr std::size_t k_longest_text = 120;
constexpr std::string_view k_begin = "1"; ///< the version of the form

std::string text_of(const std::string& text) {
    return printable(std::string_view(text).substr(0, k_longest_text));
}
std::string text_of(double seconds) {
    return fmt::format("{:.3f}", seconds);
}
template <class T>
std::string text_of(T number) {
    return std::to_string(static_cast<std::uint64_t>(number));
}

bool read(std::string_view text, std::string& value) {
    value = text;
    return text.size() <= k_longest_text && text == printable(text);
}
bool read(std::string_view text, double& seconds) {
    constexpr double k_most = 1e10;
    seconds = parse_number<double>(text).value_or(-1);
    return seconds >= 0 && seconds <= k_most;
}
template <class T>
bool read(std::string_view text, T& value) {
    std::uint64_t most = std::uint64_t{1} << 53;
    if constexpr (std::is_enum_v<T>)
        most = k_last<T>;
    else
        most = std::min<std::uint64_t>(most, std::numeric_limits<T>::max());
    const auto number = parse_number<std::uint64_t>(text);
    value = static_cast<T>(number.value_or(0));
    return number && *number <= most;
}

} // namespace

// Frames are small: a bit at a time is quick enough, and needs no table.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) noexcept {
    constexpr std::uint32_t k_polynomial = 0x82F63B78;
    std::uint32_t crc = ~before;
    for (const auto byte : bytes) {
        crc ^= std::to_integer<std::uint32_t>(byte);
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (k_polynomial & (0U - (crc & 1)));
    }
    return ~crc;
}

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

Result<std::vector<std::byte>> encode_what_fits(const Reply& reply) {
    auto bytes = encode(reply);
    const auto* whole = std::get_if<model::Report>(&reply);
    if (bytes || !whole) return bytes;
    auto cut = *whole;
    cut.dropped_without_refill.clear(); // as long as the rows, and said in them
    cut.wakes_waiting.clear();          // each may name as many tags
    const auto notes = cut.notes.size();
    while (!bytes && !cut.tags.empty()) {
        cut.tags.resize(cut.tags.size() / 2);
        cut.notes.resize(notes);
        cut.notes.push_back(fmt::format("only {} of {} rows of tags are listed: there are too many",
                                        cut.tags.size(), whole->tags.size()));
        bytes = encode(Reply(cut));
    }
    return bytes;
}

std::string line_of(const model::Event& event) {
    std::string line(k_begin);
    fields(event)([&](const auto&... field) { ((line += '\t' + text_of(field.value)), ...); });
    return line + '\n';
}

std::optional<model::Event> parse_event(std::string_view line) {
    const auto next = [&] {
        const auto part = line.substr(0, line.find('\t'));
        line.remove_prefix(std::min(part.size() + 1, line.size()));
        return part;
    };
    const auto tabs = std::count(line.begin(), line.end(), '\t');
    model::Event event;
    const bool is_read = next() == k_begin && fields(event)([&](const auto&... field) {
                             return tabs == sizeof...(field) && (read(next(), field.value) && ...);
                         });
    return is_read ? std::optional(std::move(event)) : std::nullopt;
}

} // namespace gpu_sleep::protocol
