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

void* as_shareable(const UniqueFd& descriptor) {
    return reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor.get()));
}

Result<UniqueFd> export_pool(CUmemoryPool pool) {
    int exported = -1;
    GPU_SLEEP_TEST_CALL(cuMemPoolExportToShareableHandle, &exported, pool,
                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    return UniqueFd(exported);
}

Result<CUmemoryPool> import_pool(const UniqueFd& descriptor) {
    CUmemoryPool pool = nullptr;
    GPU_SLEEP_TEST_CALL(cuMemPoolImportFromShareableHandle, &pool, as_shareable(descriptor),
                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    return pool;
}

CUmemoryPool& imported_pool() {
    static CUmemoryPool pool = nullptr;
    return pool;
}

/// Exported, and perhaps imported; the agent leaves one of a maximum size to the driver.
Result<void> make_shared_pool(bool is_imported) {
    auto pool = GPU_SLEEP_TRY(make_pool(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 64 << 20));
    const UniqueFd descriptor = GPU_SLEEP_TRY(export_pool(pool));
    if (is_imported) pool = GPU_SLEEP_TRY(import_pool(descriptor));
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
        from_hexadecimal(handle, std::as_writable_bytes(std::span(event_handle.reserved)));
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
    return in_hexadecimal(std::as_bytes(std::span(event_handle.reserved)));
}

Result<void> export_pool(const std::string& path) {
    const auto& pool = shareable_pool();
    if (!pool) return pool.error();
    const UniqueFd descriptor = GPU_SLEEP_TRY(export_pool(*pool));
    return send_descriptor(descriptor.get(), path);
}

Result<void> import_pool(const std::string& path) {
    const UniqueFd descriptor = GPU_SLEEP_TRY(receive_descriptor(path));
    imported_pool() = GPU_SLEEP_TRY(import_pool(descriptor));
    return {};
}

Result<void> open_imported_pool(int gpu) {
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    GPU_SLEEP_TEST_CALL(cuMemPoolSetAccess, imported_pool(), &access, 1);
    return {};
}

Result<void> destroy_imported_pool() {
    GPU_SLEEP_TEST_CALL(cuMemPoolDestroy, imported_pool());
    return {};
}

Result<std::string> export_pointer(const Memory& memory) {
    CUmemPoolPtrExportData data{};
    GPU_SLEEP_TEST_CALL(cuMemPoolExportPointer, &data, memory.address);
    return in_hexadecimal(std::as_bytes(std::span(data.reserved)));
}

Result<Memory> import_pointer(const std::string& pointer, std::size_t bytes) {
    CUmemPoolPtrExportData data{};
    from_hexadecimal(pointer, std::as_writable_bytes(std::span(data.reserved)));
    Memory made;
    made.kind = "pointer";
    made.bytes = bytes;
    GPU_SLEEP_TEST_CALL(cuMemPoolImportPointer, &made.address, imported_pool(), &data);
    return made;
}

Result<std::string> describe_imported(const Memory& memory, CUstream stream) {
    cuuint64_t used = 0;
    CUmemoryPool pool = nullptr;
    CUdeviceptr none = 0;
    GPU_SLEEP_TEST_CALL(cuMemPoolGetAttribute, imported_pool(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
    GPU_SLEEP_TEST_CALL(cuPointerGetAttribute, &pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory.address);
    return fmt::format("{} {} {}", used, pool == imported_pool(),
                       static_cast<int>(cuda().cuMemAllocFromPoolAsync(&none, 1, imported_pool(), stream)));
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

std::string in_hexadecimal(std::span<const std::byte> bytes) {
    std::string text;
    for (const auto byte : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
    return text;
}

void from_hexadecimal(const std::string& text, std::span<std::byte> bytes) {
    for (std::size_t i = 0; i < bytes.size() && 2 * i + 1 < text.size(); ++i)
        bytes[i] = static_cast<std::byte>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
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
    GPU_SLEEP_TEST_CALL(cuMemImportFromShareableHandle, &handle, as_shareable(descriptor),
                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (kept) *kept = descriptor.release();
    return handle;
}

} // namespace gpu_sleep::test
