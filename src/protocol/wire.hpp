// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Messages as bytes: numbered fields, each behind its length; little endian, every read within bounds.

#pragma once

#include "protocol/fields.hpp"

#include <bit>
#include <cstring>

namespace gpu_sleep::protocol {

/// The bit of a field's number that says that a receiver must know the field.
inline constexpr std::uint16_t k_must_bit = 0x8000;

/// Items that the lists of a message may have, all together.
inline constexpr std::size_t k_max_items = 65'536;

/// Appends messages, as numbered fields, to a growing buffer. Not thread-safe.
class Writer {
public:
    /// The bytes of a number or of an enumerator, little endian.
    template <class T>
    void number(T value) {
        static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
        static_assert(std::endian::native == std::endian::little, "a big-endian host must swap here");
        const auto* bytes = reinterpret_cast<const std::byte*>(&value);
        bytes_.insert(bytes_.end(), bytes, bytes + sizeof(value));
    }

    /// A value, as PROTOCOL.md says for its type.
    template <class T>
    void write(T value) requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) {
        number(value);
    }
    void write(bool value) { number<std::uint8_t>(value ? 1 : 0); }
    void write(Milliseconds value) { number<std::int64_t>(value.count()); }
    /// Without its length.
    void write(const std::string& text) {
        const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
        bytes_.insert(bytes_.end(), bytes, bytes + text.size());
    }
    template <class T, std::size_t N>
    void write(const std::array<T, N>& items) {
        for (const auto& item : items) write(item);
    }

    template <class T>
    void write(const std::vector<T>& items) {
        for (const auto& item : items) write_sized(item);
        items_ += items.size();
    }
    template <class T>
    void write(const std::optional<T>& item) {
        if (item) write(*item); // as a field that is unset it is not sent
    }
    template <HasFields T>
    void write(const T& parts) {
        static_assert(k_is_described<T>);
        const T initial{};
        any_field(parts, initial, [&](auto field, const auto& its) {
            write_unless_default(field, its);
            return false;
        });
    }

    [[nodiscard]] std::vector<std::byte>& bytes() noexcept { return bytes_; }
    /// Whether a receiver takes so many items.
    [[nodiscard]] bool is_within_bounds() const noexcept { return items_ <= k_max_items; }

private:
    template <class Field, class T>
    void write_unless_default(Field field, const T& initial) {
        if (!Field::k_tells && is_default(field.value, initial)) return;
        number(static_cast<std::uint16_t>(Field::k_number | (Field::k_must_be_known ? k_must_bit : 0)));
        write_sized(field.value);
    }
    template <class T>
    void write_sized(const T& value) {
        const auto begin = bytes().size();
        number(std::uint32_t{0});
        write(value);
        const auto size = static_cast<std::uint32_t>(bytes().size() - begin - sizeof(std::uint32_t));
        std::memcpy(bytes().data() + begin, &size, sizeof size);
    }

    std::vector<std::byte> bytes_;
    std::size_t items_ = 0;
};

/// Takes values from a buffer that it does not own. Reads messages as numbered fields: what Writer wrote, in
/// that one form, and beside it fields that this side does not know and may skip. It fails at the first value
/// that is cut or out of range; from then on it reads zeros, false and empty texts. Not thread-safe.
class Reader {
public:
    explicit Reader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

    /// Any value of a number's type.
    template <class T>
    [[nodiscard]] T number() {
        T value{};
        const auto bytes = take(sizeof(T));
        if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof(T));
        return value;
    }

    /// Reads what Writer::write() of the same type wrote, and fails on anything that it cannot have
    /// written.
    template <std::integral T>
    void read(T& value) {
        value = number<T>();
    }
    void read(bool& value) { value = number_within<std::uint8_t>(0, 1) == 1; }
    template <class E>
    void read(E& value) requires std::is_enum_v<E> {
        const auto sent = number<std::underlying_type_t<E>>();
        if (sent <= k_last<E>)
            value = static_cast<E>(sent);
        else
            fail(fmt::format("value {} of ", sent));
    }
    /// A time span that can be shown: a number, not negative, and not beyond three centuries.
    void read(double& seconds) { seconds = number_within(0.0, 1e10); }
    void read(Milliseconds& value) {
        // Bounded so that adding two of them to any clock's time, in nanoseconds, cannot overflow.
        constexpr std::int64_t k_max_ms = 1'000'000'000'000;
        value = Milliseconds(number_within<std::int64_t>(0, k_max_ms));
    }
    template <class T, std::size_t N>
    void read(std::array<T, N>& items) {
        for (auto& item : items) read(item);
    }

    /// Whether every read so far was good.
    [[nodiscard]] bool ok() const noexcept { return ok_; }
    [[nodiscard]] bool at_end() const noexcept { return bytes_.empty(); }
    /// The first thing that this side does not know, such as "value 3 of field 1 of "; empty: none.
    [[nodiscard]] const std::string& unknown() const noexcept { return unknown_; }

    /// Whether a field of that number is among what is left.
    [[nodiscard]] bool has(unsigned field) const {
        for (Reader rest(bytes_); rest.ok() && !rest.at_end();) {
            if ((rest.number<std::uint16_t>() & ~k_must_bit) == field) return true;
            static_cast<void>(rest.take(rest.number<std::uint32_t>()));
        }
        return false;
    }

    /// All that is left.
    void read(std::string& text) {
        const auto bytes = take(bytes_.size());
        text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    template <class T>
    void read(std::vector<T>& items) {
        while (!at_end() && ok()) {
            if (++items_ > k_max_items) return fail();
            read_sized([&] { read(items.emplace_back()); });
        }
    }
    template <class T>
    void read(std::optional<T>& item) {
        read(item.emplace());
    }
    template <HasFields T>
    void read(T& parts) {
        const T initial{};
        for (unsigned last = 0; !at_end() && ok();) {
            const auto key = number<std::uint16_t>();
            const unsigned field = key & ~k_must_bit;
            if (field <= last) return fail();
            last = field;
            bool is_known = false;
            read_sized([&] {
                is_known = any_field(parts, initial,
                                     [&](auto known, const auto& its) { return read_if(key, known, its); });
                if (!is_known) bytes_ = {};
            });
            if (is_known)
                add_place(field);
            else if ((key & k_must_bit) != 0)
                fail(fmt::format("field {} of ", field));
            else
                ++skipped_;
        }
    }

private:
    /// The next bytes; none if there are not so many.
    std::span<const std::byte> take(std::size_t size) {
        if (size > bytes_.size()) {
            fail();
            return {};
        }
        const auto taken = bytes_.first(size);
        bytes_ = bytes_.subspan(size);
        return taken;
    }
    void fail(std::string unknown = {}) {
        if (std::exchange(ok_, false)) unknown_ = std::move(unknown);
        bytes_ = {};
    }
    /// Says where it was that it failed.
    void add_place(unsigned field) {
        if (!unknown_.empty()) unknown_ += fmt::format("field {} of ", field);
    }
    /// Fails on a number that is not from `least` to `most`, and on NaN; it gives `least` then.
    template <class T>
    T number_within(T least, T most) {
        const auto value = number<T>();
        if (value >= least && value <= most) return value;
        fail();
        return least;
    }
    /// Has `read_all` read a value that stands behind its length, and nothing else.
    template <class ReadAll>
    void read_sized(const ReadAll& read_all) {
        const auto value = take(number<std::uint32_t>());
        const auto rest = std::exchange(bytes_, value);
        read_all();
        if (!at_end()) fail();
        if (ok()) bytes_ = rest;
    }
    /// Whether it is that field.
    template <class Field, class T>
    bool read_if(std::uint16_t key, Field field, const T& initial) {
        if (Field::k_number != (key & ~k_must_bit)) return false;
        if (Field::k_must_be_known != ((key & k_must_bit) != 0)) fail();
        const auto skipped_before = skipped_;
        if constexpr (std::is_const_v<std::remove_reference_t<decltype(field.value)>>) {
            auto sent = field.value;
            read(sent);
            if (sent != field.value) fail();
        } else {
            read(field.value);
        }
        // A field of defaults is not written, unless something in it is not known here.
        if (!Field::k_tells && skipped_ == skipped_before && is_default(field.value, initial)) fail();
        return true;
    }

    std::span<const std::byte> bytes_;
    bool ok_ = true;
    std::string unknown_;
    std::size_t items_ = 0;
    std::size_t skipped_ = 0; ///< fields
};

} // namespace gpu_sleep::protocol
