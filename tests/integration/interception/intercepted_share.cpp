// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Descriptors through sockets, and back to memory; shared objects.

#include "intercepted_share.hpp"

#include "base/fd.hpp"
#include "support/descriptor_message.hpp"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

namespace gpu_sleep::test {
namespace {

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
    const auto address = GPU_SLEEP_TRY(address_of(path));
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto* const to = reinterpret_cast<const sockaddr*>(&address);
    for (int i = 0; ::connect(socket.get(), to, sizeof address) != 0; ++i) {
        if (i == k_tries) return failure("connect", path);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    const DescriptorMessage message(descriptor);
    if (::sendmsg(socket.get(), &message.header, MSG_NOSIGNAL) != 1) return failure("sendmsg", path);
    return {};
}

Result<UniqueFd> receive_descriptor(const std::string& path) {
    const auto address = GPU_SLEEP_TRY(address_of(path));
    const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listener.get(), 1) != 0)
        return failure("bind", path);
    const UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ::unlink(path.c_str());
    DescriptorMessage message;
    if (!socket || ::recvmsg(socket.get(), &message.header, MSG_CMSG_CLOEXEC) != 1)
        return failure("recvmsg", path);
    auto descriptor = message.received();
    if (!descriptor) return make_error(ErrorCode::io_failed, "no descriptor came through {}", path);
    return descriptor;
}

std::function<CUresult()>& destroy_last() {
    static auto& destroy = *new std::function<CUresult()>;
    return destroy;
}

/// Exported; `is_imported`: from another process, for all that the agent sees.
Result<void> make_shared_pool(bool is_imported) {
    CUmemoryPool pool = nullptr;
    if (is_imported) {
        const UniqueFd descriptor(::memfd_create("pool", MFD_CLOEXEC));
        GPU_SLEEP_TEST_CALL(cuMemPoolImportFromShareableHandle, &pool,
                            reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor.get())),
                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    } else {
        CUmemPoolProps wanted{};
        wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        wanted.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        GPU_SLEEP_TEST_CALL(cuMemPoolCreate, &pool, &wanted);
        int exported = -1;
        GPU_SLEEP_TEST_CALL(cuMemPoolExportToShareableHandle, &exported, pool,
                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        ::close(exported);
    }
    destroy_last() = [pool] { return cuda().cuMemPoolDestroy(pool); };
    return {};
}

Result<void> import_outside_memory() {
    CUexternalMemory memory = nullptr;
    const CUDA_EXTERNAL_MEMORY_HANDLE_DESC wanted{};
    GPU_SLEEP_TEST_CALL(cuImportExternalMemory, &memory, &wanted);
    destroy_last() = [memory] { return cuda().cuDestroyExternalMemory(memory); };
    return {};
}

/// In a context that ends then.
template <class Make>
Result<void> in_passing_context(Make&& make) {
    CUcontext context = nullptr;
    GPU_SLEEP_TEST_CALL(cuCtxCreate, &context, nullptr, 0, 0);
    GPU_SLEEP_TRY(make());
    GPU_SLEEP_TEST_CALL(cuCtxDestroy, context);
    return {};
}

} // namespace

Result<std::string> make_shared_object(const std::string& kind, const std::string& handle) {
    CUipcEventHandle event_handle{};
    CUevent event = nullptr;
    if (kind == "event") {
        GPU_SLEEP_TEST_CALL(cuEventCreate, &event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
        GPU_SLEEP_TEST_CALL(cuIpcGetEventHandle, &event_handle, event);
    } else if (kind == "opened_event") {
        from_hexadecimal(handle, event_handle.reserved);
        GPU_SLEEP_TEST_CALL(cuIpcOpenEventHandle, &event, event_handle);
    } else if (kind == "pool" || kind == "imported_pool") {
        GPU_SLEEP_TRY(in_passing_context([&] { return make_shared_pool(kind == "imported_pool"); }));
    } else if (kind == "memory") {
        GPU_SLEEP_TRY(in_passing_context(import_outside_memory));
    } else if (kind == "semaphore") {
        CUexternalSemaphore semaphore = nullptr;
        const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC wanted{};
        GPU_SLEEP_TEST_CALL(cuImportExternalSemaphore, &semaphore, &wanted);
        destroy_last() = [semaphore] { return cuda().cuDestroyExternalSemaphore(semaphore); };
    } else {
        return make_error(ErrorCode::invalid_argument, "there is no kind '{}'", kind);
    }
    if (!event) return std::string();
    destroy_last() = [event] { return cuda().cuEventDestroy(event); };
    return in_hexadecimal(event_handle.reserved);
}

Result<void> destroy_shared_object() {
    return checked(destroy_last()(), "destroy");
}

Result<void> bind_to_multicast(const Memory& memory) {
    CUmemGenericAllocationHandle group = 0;
    CUmulticastObjectProp wanted{};
    wanted.numDevices = 1;
    wanted.size = memory.bytes;
    GPU_SLEEP_TEST_CALL(cuMulticastCreate, &group, &wanted);
    GPU_SLEEP_TEST_CALL(cuMulticastBindAddr, group, 0, memory.address, memory.bytes, 0);
    return {};
}

std::string in_hexadecimal(std::span<const char> bytes) {
    std::string text;
    for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return text;
}

void from_hexadecimal(const std::string& text, std::span<char> bytes) {
    for (std::size_t i = 0; i < bytes.size() && 2 * i + 1 < text.size(); ++i)
        bytes[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
}

Result<int> export_memory(const Memory& memory, const std::string& path) {
    int exported = -1;
    GPU_SLEEP_TEST_CALL(cuMemExportToShareableHandle, &exported, memory.segments.handles.at(0),
                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (path.empty()) return exported;
    const UniqueFd descriptor(exported);
    GPU_SLEEP_TRY(send_descriptor(descriptor.get(), path));
    return -1;
}

Result<CUmemGenericAllocationHandle> import_handle(const std::string& path, int* kept) {
    auto descriptor = GPU_SLEEP_TRY(receive_descriptor(path));
    CUmemGenericAllocationHandle handle = 0;
    GPU_SLEEP_TEST_CALL(cuMemImportFromShareableHandle, &handle,
                        reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor.get())),
                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (kept) *kept = descriptor.release();
    return handle;
}

} // namespace gpu_sleep::test
