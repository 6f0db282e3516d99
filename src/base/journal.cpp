// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One datagram for each entry.

#include "base/journal.hpp"

#include "base/cancellation.hpp"
#include "base/fd.hpp"
#include "base/process.hpp"
#include "base/unix_socket.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace gpu_sleep::journal {
namespace {

constexpr std::size_t k_byte_bits = 8;

/// Little endian.
void append_size(std::string& entry, std::uint64_t size) {
    for (std::size_t i = 0; i < sizeof(size); ++i)
        entry += static_cast<char>(size >> (k_byte_bits * i) & 0xFFU);
}

} // namespace

std::string encode(std::span<const Field> fields) {
    std::string entry;
    for (const auto& [name, value] : fields) {
        entry += name;
        if (value.find('\n') == std::string_view::npos) {
            entry += '=';
        } else { // its length says where it ends
            entry += '\n';
            append_size(entry, value.size());
        }
        entry += value;
        entry += '\n';
    }
    return entry;
}

bool send(const std::string& socket, std::span<const Field> fields) {
    const auto address = unix_address(socket);
    if (socket.empty() || !address || has_call_filter()) return false;
    const auto entry = encode(fields);
    const CancellationHold no_cancellation;
    const int errno_before = errno;
    const auto sender =
        opened([&] { return ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
    const auto sent = sender ? ::sendto(sender.get(), entry.data(), entry.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                                        reinterpret_cast<const sockaddr*>(&*address), sizeof(*address))
                             : -1;
    errno = errno_before;
    return sent == static_cast<ssize_t>(entry.size());
}

} // namespace gpu_sleep::journal
