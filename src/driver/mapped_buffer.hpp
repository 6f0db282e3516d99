// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory for what kernels are given and return, of the host and of the device.

#pragma once

#include "driver/memory.hpp"

#include <cstddef>
#include <memory>
#include <utility>

namespace gpu_sleep::driver {

/// Page-locked memory that the device reads and writes in place. Freed when destroyed; for one thread at a
/// time.
class MappedBuffer {
public:
    /// The calling thread needs a current context. Errors: out_of_host_memory, driver_failed, context_lost.
    /// Source: CUDA Driver API, cuMemHostAlloc.
    [[nodiscard]] static Result<std::unique_ptr<MappedBuffer>> create(const Api& api, Bytes bytes) {
        void* memory = nullptr;
        const auto status =
            api.cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
        if (status != CUDA_SUCCESS) {
            auto error = to_error(api, status, "cuMemHostAlloc", "cannot allocate page-locked memory");
            if (error.code == ErrorCode::out_of_device_memory) error.code = ErrorCode::out_of_host_memory;
            return error;
        }
        return std::unique_ptr<MappedBuffer>(new MappedBuffer(api, static_cast<std::byte*>(memory), bytes));
    }
    MappedBuffer(const MappedBuffer&) = delete;
    MappedBuffer& operator=(const MappedBuffer&) = delete;
    ~MappedBuffer() { api_.cuMemFreeHost(data_); }

    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }

private:
    MappedBuffer(const Api& api, std::byte* data, Bytes bytes) noexcept
        : api_(api), data_(data), bytes_(bytes) {}

    const Api& api_;
    std::byte* data_;
    Bytes bytes_;
};

/// Memory of the device whose context was current. Freed when destroyed, which waits for work that uses it;
/// its context is current then. Move-only.
class DeviceBuffer : Owned<DeviceBuffer, AddressSpan> {
public:
    /// Errors: out_of_device_memory, driver_failed, context_lost. Source: CUDA Driver API, cuMemAlloc.
    [[nodiscard]] static Result<DeviceBuffer> create(const Api& api, Bytes bytes) {
        CUdeviceptr address = 0;
        GPU_SLEEP_DRIVER_TRY(api, cuMemAlloc, "cannot allocate memory to work in", &address, bytes);
        return DeviceBuffer(api, {address, bytes});
    }

    /// It went with its context, and its addresses may be another's.
    void forget() noexcept { static_cast<void>(release()); }
    /// Returns false if it is still there.
    [[nodiscard]] bool free() noexcept {
        if (api().cuMemFree(get().address) == CUDA_SUCCESS) forget();
        return get().bytes == 0;
    }

    [[nodiscard]] AddressSpan span() const noexcept { return get(); }

private:
    friend Owned;
    using Owned::Owned;
    static void give_back(const Api& api, AddressSpan span) noexcept { api.cuMemFree(span.address); }
};

} // namespace gpu_sleep::driver
