// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Page-locked memory for what kernels are given and return.

#pragma once

#include "driver/memory.hpp"

#include <cstddef>
#include <memory>

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

} // namespace gpu_sleep::driver
