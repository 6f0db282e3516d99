// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The ways to allocate.

#include "intercepted_memory.hpp"

#include "base/units.hpp"

namespace gpu_sleep::test {
namespace {

constexpr std::size_t k_MiB = std::size_t{1} << 20;

CUmemAllocationProp properties() {
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, chosen_gpu()};
    return wanted;
}

Result<void> grant(CUdeviceptr address, std::size_t bytes) {
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, chosen_gpu()};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    GPU_SLEEP_TEST_CALL(cuMemSetAccess, address, bytes, &access, 1);
    return {};
}

Result<void> map(Segments& segments, CUmemGenericAllocationHandle handle) {
    segments.handles.push_back(handle);
    GPU_SLEEP_TEST_CALL(cuMemAddressReserve, &segments.begin, segments.reserved, 0, 0, 0);
    GPU_SLEEP_TEST_CALL(cuMemMap, segments.begin, segments.handle_bytes, 0, handle, 0);
    return grant(segments.begin, segments.handle_bytes);
}

/// Grows `segments` until `bytes` are mapped, a handle at a time, as expandable segments do.
Result<void> grow(Segments& segments, std::size_t bytes) {
    const auto wanted = properties();
    while (segments.handles.size() * segments.handle_bytes < bytes) {
        const auto at = segments.begin + segments.handles.size() * segments.handle_bytes;
        CUmemGenericAllocationHandle handle = 0;
        GPU_SLEEP_TEST_CALL(cuMemCreate, &handle, segments.handle_bytes, &wanted, 0);
        segments.handles.push_back(handle);
        GPU_SLEEP_TEST_CALL(cuMemMap, at, segments.handle_bytes, 0, handle, 0);
        GPU_SLEEP_TRY(grant(at, segments.handle_bytes));
    }
    return {};
}

Result<Segments> make_segments(std::size_t bytes, std::size_t handle_bytes, std::size_t reserved) {
    Segments made;
    made.handle_bytes = handle_bytes;
    made.reserved = reserved;
    GPU_SLEEP_TEST_CALL(cuMemAddressReserve, &made.begin, reserved, 0, 0, 0);
    GPU_SLEEP_TRY(grow(made, bytes));
    return made;
}

/// Maps the one handle of `first` a second time. A handle that it got back for the address must do as well.
Result<Segments> map_again(const Segments& first) {
    Segments made;
    made.handle_bytes = made.reserved = first.handle_bytes;
    CUmemGenericAllocationHandle handle = 0;
    GPU_SLEEP_TEST_CALL(cuMemRetainAllocationHandle, &handle, reinterpret_cast<void*>(first.begin));
    GPU_SLEEP_TRY(map(made, handle));
    return made;
}

Result<Segments> make_shareable(std::size_t bytes, bool on_host) {
    Segments made;
    made.handle_bytes = made.reserved = round_up(bytes, 2 * k_MiB);
    auto wanted = properties();
    wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (on_host) wanted.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
    CUmemGenericAllocationHandle handle = 0;
    GPU_SLEEP_TEST_CALL(cuMemCreate, &handle, made.handle_bytes, &wanted, 0);
    GPU_SLEEP_TRY(map(made, handle));
    return made;
}

Result<void> give_back(Segments& segments) {
    if (segments.begin == 0) return {};
    GPU_SLEEP_TEST_CALL(cuMemUnmap, segments.begin, segments.handles.size() * segments.handle_bytes);
    GPU_SLEEP_TRY(release_handles(segments));
    GPU_SLEEP_TEST_CALL(cuMemAddressFree, segments.begin, segments.reserved);
    return {};
}

/// The program's own pool, made when it is first needed.
const Result<CUmemoryPool>& own_pool() {
    static const auto& pool = *new Result<CUmemoryPool>(make_pool(CU_MEM_HANDLE_TYPE_NONE));
    return pool;
}

Result<void> allocate_segments(Memory& memory) {
    const auto handle_bytes = memory.kind == "vmm2" ? 2 * k_MiB : 20 * k_MiB;
    const auto mapped = (memory.bytes + handle_bytes - 1) / handle_bytes * handle_bytes;
    const auto reserved = memory.kind == "segments" ? 1024 * k_MiB : mapped;
    const bool alias = memory.kind == "alias";
    const auto one = round_up(memory.bytes, 2 * k_MiB);
    const bool on_host = memory.kind == "host_shared";
    memory.segments = GPU_SLEEP_TRY(memory.kind == "shared" || on_host ? make_shareable(memory.bytes, on_host)
                                    : alias                            ? make_segments(one, one, one)
                                            : make_segments(mapped, handle_bytes, reserved));
    memory.address = memory.segments.begin;
    if (alias) memory.second = GPU_SLEEP_TRY(map_again(memory.segments));
    return {};
}

} // namespace

Result<void> checked(CUresult result, const char* call) {
    if (result == CUDA_SUCCESS) return {};
    const char* name = "unknown status";
    cuda().cuGetErrorName(result, &name);
    return Error{ErrorCode::driver_failed, fmt::format("{}: {}", call, name), call, static_cast<int>(result)};
}

Result<CUmemoryPool> make_pool(CUmemAllocationHandleType types, std::size_t most) {
    CUmemoryPool pool = nullptr;
    CUmemPoolProps wanted{};
    wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, chosen_gpu()};
    wanted.handleTypes = types;
    wanted.maxSize = most;
    GPU_SLEEP_TEST_CALL(cuMemPoolCreate, &pool, &wanted);
    return pool;
}

const Result<CUmemoryPool>& shareable_pool() {
    static const auto& pool = *new Result<CUmemoryPool>(make_pool(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    return pool;
}

Result<Memory> map_handle(CUmemGenericAllocationHandle handle, std::size_t bytes) {
    Memory memory;
    memory.kind = "imported";
    memory.bytes = bytes;
    memory.segments.handle_bytes = memory.segments.reserved = round_up(bytes, 2 * k_MiB);
    GPU_SLEEP_TRY(map(memory.segments, handle));
    memory.address = memory.segments.begin;
    return memory;
}

Result<void> release_handles(Segments& segments) {
    if (!std::exchange(segments.has_handles, false)) return {};
    for (const auto handle : segments.handles) GPU_SLEEP_TEST_CALL(cuMemRelease, handle);
    return {};
}

Result<Memory> allocate(const std::string& kind, std::size_t bytes, CUstream stream) {
    Memory memory;
    memory.kind = kind;
    memory.bytes = bytes;
    if (kind == "plain") {
        GPU_SLEEP_TEST_CALL(cuMemAlloc, &memory.address, bytes);
    } else if (kind == "pitch") {
        std::size_t pitch = 0;
        GPU_SLEEP_TEST_CALL(cuMemAllocPitch, &memory.address, &pitch, bytes, 1, 8);
    } else if (kind == "managed") {
        GPU_SLEEP_TEST_CALL(cuMemAllocManaged, &memory.address, bytes, CU_MEM_ATTACH_GLOBAL);
    } else if (kind == "async") {
        GPU_SLEEP_TEST_CALL(cuMemAllocAsync, &memory.address, bytes, stream);
    } else if (kind == "pool" || kind == "shareable") {
        const auto& pool = kind == "pool" ? own_pool() : shareable_pool();
        if (!pool) return pool.error();
        GPU_SLEEP_TEST_CALL(cuMemAllocFromPoolAsync, &memory.address, bytes, *pool, stream);
    } else if (kind == "vmm2" || kind == "vmm20" || kind == "segments" || kind == "alias" ||
               kind == "shared" || kind == "host_shared") {
        GPU_SLEEP_TRY(allocate_segments(memory));
    } else if (kind == "array") {
        const CUDA_ARRAY_DESCRIPTOR wanted{bytes, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1};
        GPU_SLEEP_TEST_CALL(cuArrayCreate, &memory.array, &wanted);
        memory.address = reinterpret_cast<CUdeviceptr>(memory.array);
    } else {
        return make_error(ErrorCode::invalid_argument, "there is no kind '{}'", kind);
    }
    return memory;
}

Result<void> release(Memory& memory, CUstream stream) {
    const auto address = std::exchange(memory.address, 0);
    if (memory.kind == "async" || memory.kind == "pool" || memory.kind == "shareable" ||
        memory.kind == "pointer") {
        GPU_SLEEP_TEST_CALL(cuMemFreeAsync, address, stream);
    } else if (memory.kind == "opened") {
        GPU_SLEEP_TEST_CALL(cuIpcCloseMemHandle, address);
    } else if (memory.array) {
        GPU_SLEEP_TEST_CALL(cuArrayDestroy, memory.array);
    } else if (memory.segments.begin != 0) {
        GPU_SLEEP_TRY(give_back(memory.second));
        GPU_SLEEP_TRY(give_back(memory.segments));
    } else {
        GPU_SLEEP_TEST_CALL(cuMemFree, address);
    }
    return {};
}

} // namespace gpu_sleep::test
