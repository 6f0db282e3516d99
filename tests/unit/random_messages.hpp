// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Random messages of every kind, and whether two are the same in every field, by the product's description of
// the fields: protocol_bytes_test.cpp has bytes that do not come from it.

#pragma once

#include "protocol/fields.hpp"
#include "protocol/messages.hpp"

#include <random>

namespace gpu_sleep::test {

/// The first frame in these bytes.
inline Result<protocol::FrameReader::Frame> frame_in(const std::vector<std::byte>& bytes) {
    protocol::FrameReader reader;
    reader.append(bytes);
    const auto frame = GPU_SLEEP_TRY(reader.next());
    if (!frame) return make_error(ErrorCode::protocol_mismatch, "it is cut");
    return *frame;
}

inline std::string in_hexadecimal(std::span<const std::byte> bytes) {
    std::string text;
    for (const auto byte : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
    return text;
}

/// Values that are random, valid for their field, and never zero or empty.
class Dice {
public:
    explicit Dice(unsigned seed) : engine_(seed) {}

    /// Gives every field of `message` a value.
    template <protocol::HasFields T>
    void fill(T& message) {
        protocol::fields(message)([this](const auto&... field) { (this->fill(field.value), ...); });
    }

private:
    std::uint64_t number(std::uint64_t most) {
        return std::uniform_int_distribution<std::uint64_t>(1, most)(engine_);
    }
    void fill(std::uint32_t& value) { value = static_cast<std::uint32_t>(engine_()); }
    void fill(std::uint64_t& value) { value = number(~std::uint64_t{0}); }
    void fill(std::int32_t& value) { value = static_cast<std::int32_t>(number(1'000'000)); }
    void fill(const bool&) {} // a constant
    void fill(bool& value) { value = number(2) == 1; }
    void fill(double& seconds) { seconds = std::uniform_real_distribution<double>(0.001, 1e6)(engine_); }
    void fill(Milliseconds& value) { value = Milliseconds(number(1'000'000)); }
    template <class E>
    void fill(E& value) requires std::is_enum_v<E> {
        value = static_cast<E>(number(protocol::k_last<E>));
    }
    void fill(std::string& text) {
        text.resize(number(40));
        for (auto& c : text) c = static_cast<char>(number(255));
    }
    template <class T, std::size_t N>
    void fill(std::array<T, N>& items) {
        for (auto& item : items) fill(item);
    }
    template <class T>
    void fill(std::vector<T>& items) {
        items.resize(number(4));
        for (auto& item : items) fill(item);
    }
    template <class T>
    void fill(std::optional<T>& item) {
        if (number(2) == 1) fill(item.emplace());
    }

    std::mt19937_64 engine_;
};

template <class T>
struct RandomMessages;
template <class... T>
struct RandomMessages<std::variant<T...>> {
    /// One message of each kind.
    static std::vector<std::variant<T...>> of(unsigned seed) {
        Dice dice(seed);
        std::vector<std::variant<T...>> messages{T()...};
        for (auto& message : messages) std::visit([&](auto& value) { dice.fill(value); }, message);
        return messages;
    }
};

inline std::vector<protocol::Request> random_requests(unsigned seed) {
    return RandomMessages<protocol::Request>::of(seed);
}
inline std::vector<protocol::Reply> random_replies(unsigned seed) {
    return RandomMessages<protocol::Reply>::of(seed);
}

template <class T>
bool same(const T& left, const T& right) {
    return left == right;
}
template <protocol::HasFields T>
bool same(const T& left, const T& right);
template <class T>
bool same(const std::vector<T>& left, const std::vector<T>& right) {
    return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                      [](const T& l, const T& r) { return same(l, r); });
}
/// Whether all fields are equal.
template <protocol::HasFields T>
bool same(const T& left, const T& right) {
    return !protocol::any_field(
        left, right, [](const auto& field, const auto& other) { return !same(field.value, other); });
}
template <class... T>
bool same(const std::variant<T...>& left, const std::variant<T...>& right) {
    return left.index() == right.index() &&
           std::visit(
               [&](const auto& value) { return same(value, std::get<std::decay_t<decltype(value)>>(right)); },
               left);
}

} // namespace gpu_sleep::test
