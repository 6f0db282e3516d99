// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Virtual memory of the devices: address space that outlives sleep, physical memory that dies at it, and the
// mappings between. Address ranges are in bytes, multiples of the granularity. Also memory for what kernels
// are given and return, of the host and of the device.

#pragma once

#include "base/fd.hpp"
#include "base/units.hpp"
#include "driver/api.hpp"

#include <cstddef>
#include <memory>

namespace gpu_sleep::driver {

using DeviceAddress = std::uint64_t;

/// A span of device addresses.
struct AddressSpan {
    DeviceAddress address = 0;
    Bytes bytes = 0;
    [[nodiscard]] DeviceAddress end() const noexcept { return address + bytes; }
    friend bool operator==(const AddressSpan&, const AddressSpan&) = default;
};

/// A set of device ordinals, the lowest bit for device 0. No host has more than 64 devices.
using DeviceMask = std::uint64_t;
inline constexpr int k_max_devices = 64;

/// Reserved address space, freed when destroyed. Move-only.
class VaReservation : public Owned<VaReservation, AddressSpan> {
public:
    /// Errors: out_of_device_memory, driver_failed. Source: CUDA Driver API, cuMemAddressReserve.
    [[nodiscard]] static Result<VaReservation> create(const Api& api, Bytes bytes);
    [[nodiscard]] AddressSpan span() const noexcept { return get(); }

private:
    friend Owned;
    using Owned::Owned;
    static void give_back(const Api& api, AddressSpan span) noexcept {
        api.cuMemAddressFree(span.address, span.bytes);
    }
};

/// Physical memory on one device, released when destroyed. Move-only.
class PhysicalMemory : public Owned<PhysicalMemory, CUmemGenericAllocationHandle> {
public:
    using Handle = CUmemGenericAllocationHandle;
    using Owned::Owned;

private:
    friend Owned;
    static void give_back(const Api& api, Handle handle) noexcept { api.cuMemRelease(handle); }
};

/// The properties of new memory on one device, queried once: its granularity, and those that cannot be added
/// later (the POSIX file handle type and the RDMA flag, where the device has them). Immutable; thread-safe.
class MemoryKind {
public:
    /// Errors: driver_failed. Source: CUDA Driver API, cuMemGetAllocationGranularity.
    [[nodiscard]] static Result<MemoryKind> of_device(const Api& api, int device);
    /// Host memory near the device, which can be mapped at device addresses. Errors: driver_failed (there is
    /// none, in words).
    [[nodiscard]] static Result<MemoryKind> of_host_near(const Api& api, int device);

    [[nodiscard]] int device() const noexcept { return device_; }
    [[nodiscard]] bool is_of_host() const noexcept {
        return properties_.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
    }
    [[nodiscard]] Bytes granularity() const noexcept { return granularity_; }

    /// Makes physical memory of `bytes`. The driver scrubs released memory in the background, so too little
    /// memory is an error only after retries for `retry_time`. Errors: out_of_device_memory,
    /// out_of_host_memory, driver_failed.
    [[nodiscard]] Result<PhysicalMemory> create(const Api& api, Bytes bytes, Milliseconds retry_time) const;

private:
    [[nodiscard]] static Result<MemoryKind> with(const Api& api, int device, CUmemLocation location);

    CUmemAllocationProp properties_{};
    int device_ = 0;
    Bytes granularity_ = 0;
};

/// Whether host memory can be mapped at addresses of the device. Source: CUDA Driver API,
/// CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED.
[[nodiscard]] bool can_map_host_memory(const Api& api, int device);

/// Maps `handle` whole at `span`. Access must be granted before use. Errors: driver_failed (nothing mapped).
[[nodiscard]] Result<void> map(const Api& api, AddressSpan span, PhysicalMemory::Handle handle);

/// Grants every device of `devices` reading and writing of `span`, which must be mapped without holes.
/// Errors: driver_failed.
[[nodiscard]] Result<void> set_access(const Api& api, AddressSpan span, DeviceMask devices);

/// Unmaps `span`, any number of whole neighbouring mappings. No work may still use it.
/// Errors: driver_failed (nothing unmapped).
[[nodiscard]] Result<void> unmap(const Api& api, AddressSpan span);

/// Gives back the memory of `handle`, which nothing maps any more. Errors: driver_failed (the handle stays).
/// Source: CUDA Driver API, cuMemRelease.
[[nodiscard]] Result<void> release(const Api& api, PhysicalMemory::Handle handle);

/// A descriptor by which other processes map the memory of `handle`. Errors: driver_failed.
/// Source: CUDA Driver API, cuMemExportToShareableHandle.
[[nodiscard]] Result<UniqueFd> export_memory(const Api& api, PhysicalMemory::Handle handle);

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
    [[nodiscard]] static Result<DeviceBuffer> create(const Api& api, Bytes bytes);

    /// It went with its context, and its addresses may be another's.
    void forget() noexcept { static_cast<void>(release()); }
    /// Returns false if it is still there.
    [[nodiscard]] bool free() noexcept;

    [[nodiscard]] AddressSpan span() const noexcept { return get(); }

private:
    friend Owned;
    using Owned::Owned;
    static void give_back(const Api& api, AddressSpan span) noexcept;
};

} // namespace gpu_sleep::driver
