// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Entries with fields for the journal of systemd, by its own protocol: no library, no connection, no wait.

#pragma once

#include <span>
#include <string>
#include <string_view>

namespace gpu_sleep::journal {

inline constexpr const char* k_socket = "/run/systemd/journal/socket";

struct Field {
    std::string_view name; ///< capital letters, digits and '_'
    std::string_view value;
};

/// The datagram of an entry. Source: systemd, Native Journal Protocol.
[[nodiscard]] std::string encode(std::span<const Field> fields);

/// Sends an entry to the journal that listens on `socket`. Nothing waits: an entry that is not taken at once,
/// or that nobody is there to take, is lost; so is one of a process with a filter of system calls, which
/// might end it for this one. False: it is lost. Thread-safe. May throw for want of memory.
bool send(const std::string& socket, std::span<const Field> fields);

} // namespace gpu_sleep::journal
