// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A socket that takes entries as the journal does, and reads them.

#pragma once

#include "base/fd.hpp"
#include "support/catch.hpp"

#include <sys/socket.h>
#include <sys/un.h>

namespace gpu_sleep::test {

/// Fields of an entry by their names.
using Entry = std::map<std::string, std::string>;

/// Reads an entry as the journal does; a field that is there twice, or an entry that is cut, fails the test.
inline Entry parse_entry(const std::string& bytes) {
    Entry entry;
    for (std::size_t at = 0; at < bytes.size();) {
        const auto end = bytes.find_first_of("=\n", at);
        REQUIRE(end != std::string::npos);
        const auto name = bytes.substr(at, end - at);
        std::string value;
        if (bytes[end] == '=') {
            const auto newline = bytes.find('\n', end);
            REQUIRE(newline != std::string::npos);
            value = bytes.substr(end + 1, newline - end - 1);
            at = newline + 1;
        } else {
            std::uint64_t size = 0;
            REQUIRE(end + 1 + sizeof(size) <= bytes.size());
            std::memcpy(&size, bytes.data() + end + 1, sizeof(size));
            REQUIRE(end + 1 + sizeof(size) + size < bytes.size());
            value = bytes.substr(end + 1 + sizeof(size), size);
            at = end + 1 + sizeof(size) + size;
            REQUIRE(bytes[at++] == '\n');
        }
        CHECK(entry.emplace(name, value).second);
    }
    return entry;
}

class FakeJournal {
public:
    explicit FakeJournal(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        REQUIRE(path.size() < sizeof(address.sun_path));
        std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
        REQUIRE(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    }

    /// The next entry that has come, if one has.
    [[nodiscard]] std::optional<Entry> next() const {
        std::string bytes(1 << 16, '\0');
        const auto got = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
        if (got < 0) return std::nullopt;
        bytes.resize(static_cast<std::size_t>(got));
        return parse_entry(bytes);
    }

private:
    UniqueFd socket_;
};

} // namespace gpu_sleep::test
