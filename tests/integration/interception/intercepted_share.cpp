// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Descriptors through sockets, and back to memory.

#include "intercepted_share.hpp"

#include "base/fd.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace gpu_sleep::test {
namespace {

/// Room for the one descriptor that goes along with a byte. Source: unix(7), SCM_RIGHTS.
struct Message {
    char byte = 0;
    iovec part{&byte, 1};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
    msghdr header{};

    Message() noexcept {
        header.msg_iov = &part;
        header.msg_iovlen = 1;
        header.msg_control = room.data();
        header.msg_controllen = room.size();
    }
};

Result<sockaddr_un> address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path)
        return make_error(ErrorCode::invalid_argument, "{} is too long", path);
    path.copy(address.sun_path, path.size());
    return address;
}

Error failure(const char* call, const std::string& path) {
    return errno_error(ErrorCode::io_failed, errno, call, path);
}

Result<void> send_descriptor(int descriptor, const std::string& path) {
    constexpr int k_tries = 1000;
    const auto address = address_of(path);
    if (!address) return address.error();
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto* const to = reinterpret_cast<const sockaddr*>(&*address);
    for (int i = 0; ::connect(socket.get(), to, sizeof *address) != 0; ++i) {
        if (i == k_tries) return failure("connect", path);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    Message message;
    auto* const control = CMSG_FIRSTHDR(&message.header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(control), &descriptor, sizeof descriptor);
    if (::sendmsg(socket.get(), &message.header, MSG_NOSIGNAL) != 1) return failure("sendmsg", path);
    return {};
}

Result<UniqueFd> receive_descriptor(const std::string& path) {
    const auto address = address_of(path);
    if (!address) return address.error();
    const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0 ||
        ::listen(listener.get(), 1) != 0)
        return failure("bind", path);
    const UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ::unlink(path.c_str());
    Message message;
    if (!socket || ::recvmsg(socket.get(), &message.header, MSG_CMSG_CLOEXEC) != 1)
        return failure("recvmsg", path);
    const auto* const control = CMSG_FIRSTHDR(&message.header);
    if (!control || control->cmsg_type != SCM_RIGHTS)
        return make_error(ErrorCode::io_failed, "no descriptor came through {}", path);
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(control), sizeof descriptor);
    return UniqueFd(descriptor);
}

} // namespace

Result<void> export_memory(const Memory& memory, const std::string& path) {
    int exported = -1;
    GPU_SLEEP_TEST_CALL(cuMemExportToShareableHandle, &exported, memory.segments.handles.at(0),
                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    const UniqueFd descriptor(exported);
    return send_descriptor(descriptor.get(), path);
}

Result<Memory> import_memory(const std::string& path, std::size_t bytes) {
    const auto descriptor = receive_descriptor(path);
    if (!descriptor) return descriptor.error();
    CUmemGenericAllocationHandle handle = 0;
    GPU_SLEEP_TEST_CALL(cuMemImportFromShareableHandle, &handle,
                        reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor->get())),
                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    return map_handle(handle, bytes);
}

} // namespace gpu_sleep::test
