// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sockets with names that say which memory they hold, and the list of them that the kernel keeps.

#include "support/simulated_driver/shared_memory.hpp"

#include "support/descriptor_message.hpp"
#include "support/simulated_driver/settings.hpp"
#include "support/simulated_driver/shared_state.hpp"

#include <cuda.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <atomic>
#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace gpu_sleep::sim {
namespace {

constexpr std::string_view k_prefix = "gpu-sleep-sim/";

/// Tells the machines apart that processes pretend to share. A process without a state file is alone on its
/// own.
std::string machine() {
    const auto& file = settings().state_file;
    return std::to_string(file.empty() ? static_cast<std::size_t>(::getpid())
                                       : std::hash<std::string>()(file));
}

bool queue_descriptor(int socket, const sockaddr_un& name, socklen_t length, int descriptor) {
    test::DescriptorMessage message(descriptor);
    auto address = name;
    message.header.msg_name = &address;
    message.header.msg_namelen = length;
    return ::sendmsg(socket, &message.header, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

/// What a socket's name says.
struct Share {
    int gpu = 0;
    std::uint64_t inode = 0, bytes = 0;
    char holder = 0;
    int process = 0;
};

bool parse(const std::string& line, const std::string& own_prefix, Share& share) {
    const auto begin = line.find(own_prefix);
    return begin != std::string::npos &&
           std::sscanf(line.c_str() + begin + own_prefix.size(), "%d/%" SCNu64 "/%" SCNu64 "/%c/%d/",
                       &share.gpu, &share.inode, &share.bytes, &share.holder, &share.process) == 5;
}

} // namespace

UniqueFd make_share(int file, int device, Holder holder) {
    static std::atomic<unsigned> count{0};
    struct stat status {};
    UniqueFd made(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!made || ::fstat(file, &status) != 0) return {};
    auto& state = SharedState::instance();
    sockaddr_un name{};
    name.sun_family = AF_UNIX; // an abstract name: it begins with a zero
    const auto text = std::string(k_prefix) + machine() + '/' +
                      std::to_string(device < 0 ? device : state.own().gpus[device]) + '/' +
                      std::to_string(status.st_ino) + '/' + std::to_string(status.st_size) + '/' +
                      static_cast<char>(holder) + '/' + std::to_string(::getpid()) + '/' +
                      std::to_string(count++);
    if (text.size() >= sizeof name.sun_path) return {};
    std::memcpy(name.sun_path + 1, text.data(), text.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
    if (::bind(made.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0 ||
        !queue_descriptor(made.get(), name, length, file))
        return {};
    state.shares_memory() = true;
    return made;
}

UniqueFd file_of_share(int descriptor) {
    sockaddr_un name{};
    socklen_t length = sizeof name;
    if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&name), &length) != 0 ||
        name.sun_family != AF_UNIX || std::memcmp(name.sun_path + 1, k_prefix.data(), k_prefix.size()) != 0)
        return {};
    test::DescriptorMessage message;
    if (::recvmsg(descriptor, &message.header, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1) return {};
    return message.received();
}

std::vector<SharedMemory> shared_memory() {
    auto& state = SharedState::instance();
    if (!state.shares_memory()) return {};
    struct Found {
        SharedMemory memory;
        bool is_held = false, is_counted = false;
    };
    std::map<std::uint64_t, Found> found; // by inode
    const auto own_prefix = '@' + std::string(k_prefix) + machine() + '/';
    std::ifstream list("/proc/net/unix");
    for (std::string line; std::getline(list, line);) {
        Share share;
        if (!parse(line, own_prefix, share)) continue;
        auto& [memory, is_held, is_counted] = found[share.inode];
        memory.gpu = share.gpu;
        memory.bytes = share.bytes;
        if (share.holder == static_cast<char>(Holder::descriptor)) {
            is_held = true;
            continue;
        }
        // What a checkpointed process has takes nothing; a child that was forked keeps its parent's sockets.
        const auto* const process = state.find(share.process);
        if (!process || process->state == CU_PROCESS_STATE_CHECKPOINTED) continue;
        is_held = true;
        if (share.holder == static_cast<char>(Holder::exporter))
            is_counted = true;
        else if (memory.importer == 0)
            memory.importer = share.process;
    }
    std::vector<SharedMemory> result;
    for (const auto& [inode, share] : found)
        if (share.is_held && !share.is_counted) result.push_back(share.memory);
    return result;
}

} // namespace gpu_sleep::sim
