// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The payloads of version 7, in which commands still talk to agents that were started before version 8: all
// fields that it had, in the order of their numbers, without numbers or lengths.

#pragma once

#include "protocol/wire.hpp"

#include <optional>
#include <string>
#include <vector>

namespace gpu_sleep::protocol {

/// Writes a message as version 7 has it. Not thread-safe.
class Writer7 : public ByteWriter {
public:
    template <class T>
    void write(const T& value) {
        ByteWriter::write(value);
    }
    void write(const std::string& text) {
        number(static_cast<std::uint32_t>(text.size()));
        ByteWriter::write(text);
    }
    template <class T>
    void write(const std::vector<T>& items) {
        number(static_cast<std::uint32_t>(items.size()));
        for (const auto& item : items) write(item);
    }
    template <class T>
    void write(const std::optional<T>& item) {
        write(item.has_value());
        if (item) write(*item);
    }
    template <HasFields T>
    void write(const T& parts) {
        const T initial{};
        any_field(parts, initial, [&](auto field, const auto& its) {
            if constexpr (field.k_number < k_first_after_7)
                write(field.value);
            else
                is_whole_ = is_whole_ && (!field.k_must_be_known || is_default(field.value, its));
            return false;
        });
    }

    /// Whether version 7 can say all that a receiver must know.
    [[nodiscard]] bool is_whole() const noexcept { return is_whole_; }

private:
    bool is_whole_ = true;
};

/// Reads what an agent of version 7 wrote. Fields that it did not have stay as they are. Not thread-safe.
class Reader7 : public ByteReader {
public:
    using ByteReader::ByteReader;

    template <class T>
    void read(T& value) {
        ByteReader::read(value);
    }
    void read(std::string& text) { read_text(text, number<std::uint32_t>()); }
    /// Nothing is allocated by the count alone: each item takes bytes.
    template <class T>
    void read(std::vector<T>& items) {
        for (auto count = number<std::uint32_t>(); count > 0 && ok(); --count) read(items.emplace_back());
    }
    template <class T>
    void read(std::optional<T>& item) {
        bool has_value = false;
        read(has_value);
        if (has_value) read(item.emplace());
    }
    template <HasFields T>
    void read(T& parts) {
        fields(parts)([this](auto... field) { (read_if_old(field), ...); });
    }

private:
    template <class Field>
    void read_if_old(Field field) {
        if constexpr (Field::k_number < k_first_after_7) {
            if (!ok()) return;
            read(field.value);
            add_place(Field::k_number);
        }
    }
};

} // namespace gpu_sleep::protocol
