// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What tests share that call the driver API themselves, on the simulated driver or a real one: ranges of
// device memory, page-locked memory, kernels, streams that are held back, random data.

#pragma once

#include "support/catch.hpp"
#include "support/driver_kernels.hpp"
#include "support/simulated_driver/control.h"

#include <cuda.h>
#include <sys/mman.h>

namespace gpu_sleep::driver_testing {

inline constexpr std::size_t k_granularity = std::size_t{2} << 20;

[[nodiscard]] inline CUmemAllocationProp properties_on(CUdevice device) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return properties;
}

[[nodiscard]] inline CUmemGenericAllocationHandle create(std::size_t bytes, CUdevice device = 0) {
    const auto properties = properties_on(device);
    CUmemGenericAllocationHandle handle = 0;
    REQUIRE(cuMemCreate(&handle, bytes, &properties, 0) == CUDA_SUCCESS);
    return handle;
}

inline CUresult grant(CUdeviceptr address, std::size_t bytes, CUdevice device,
                      CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    CUmemAccessDesc description{};
    description.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    description.flags = flags;
    return cuMemSetAccess(address, bytes, &description, 1);
}

/// Reserved addresses with memory behind them, which take_away() and bring_back() release and create.
class Range : test::NotCopied {
public:
    explicit Range(std::size_t size = k_granularity, CUdevice device = 0) : bytes(size), device_(device) {
        REQUIRE(cuMemAddressReserve(&address, bytes, 0, 0, 0) == CUDA_SUCCESS);
        bring_back();
    }
    ~Range() {
        if (abandoned_) return;
        if (mapped_) take_away();
        CHECK(cuMemAddressFree(address, bytes) == CUDA_SUCCESS);
    }

    void take_away() {
        CHECK(cuMemUnmap(address, bytes) == CUDA_SUCCESS);
        CHECK(cuMemRelease(handle_) == CUDA_SUCCESS);
        mapped_ = false;
    }
    void bring_back() {
        handle_ = create(bytes, device_);
        REQUIRE(cuMemMap(address, bytes, 0, handle_, 0) == CUDA_SUCCESS);
        REQUIRE(grant(address, bytes, device_) == CUDA_SUCCESS);
        mapped_ = true;
    }
    /// The context is lost, and with it every way to give the memory back: the process has to end.
    void abandon() { abandoned_ = true; }
    [[nodiscard]] CUmemGenericAllocationHandle handle() const { return handle_; }

    CUdeviceptr address = 0;
    const std::size_t bytes;

private:
    CUdevice device_;
    CUmemGenericAllocationHandle handle_ = 0;
    bool mapped_ = false, abandoned_ = false;
};

/// Page-locked host memory of the program's own, registered: pages that nothing else lies in, since a driver
/// may lock whole pages.
class PageLocked : test::NotCopied {
public:
    explicit PageLocked(std::size_t size) : mapped_bytes_((size + k_page - 1) / k_page * k_page) {
        void* const memory =
            ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(memory != MAP_FAILED);
        data = {static_cast<std::byte*>(memory), size};
        REQUIRE(cuMemHostRegister(memory, size, 0) == CUDA_SUCCESS);
    }
    ~PageLocked() {
        cuMemHostUnregister(data.data());
        ::munmap(data.data(), mapped_bytes_);
    }

    std::span<std::byte> data;

private:
    static constexpr std::size_t k_page = 4096;
    std::size_t mapped_bytes_;
};

[[nodiscard]] inline std::vector<std::byte> random_bytes(std::size_t count, unsigned seed = 1) {
    std::mt19937_64 generator(seed);
    std::vector<std::byte> bytes(count);
    for (auto& byte : bytes) byte = static_cast<std::byte>(generator() % 255 + 1);
    return bytes;
}

/// One of the kernels that control.h names, in a module that lives as long as the context. Not while a stream
/// is held back: a driver may wait for all work before it loads a module.
[[nodiscard]] inline CUfunction kernel(const char* name) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    REQUIRE(cuModuleLoadData(&module, k_kernels_ptx) == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&function, module, name) == CUDA_SUCCESS);
    return function;
}

/// Launches `function` with one thread.
template <class... Arguments>
CUresult launch(CUfunction function, CUstream stream, Arguments... arguments) {
    void* parameters[] = {&arguments...};
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

[[nodiscard]] inline CUstream make_stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream stream = nullptr;
    REQUIRE(cuStreamCreate(&stream, flags) == CUDA_SUCCESS);
    return stream;
}

[[nodiscard]] inline CUevent make_event(unsigned flags = CU_EVENT_DEFAULT) {
    CUevent event = nullptr;
    REQUIRE(cuEventCreate(&event, flags) == CUDA_SUCCESS);
    return event;
}

/// A device's primary context, retained once more.
[[nodiscard]] inline CUcontext retain_primary(CUdevice device) {
    CUcontext context = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
    return context;
}

/// One of the program's own, which is current then.
[[nodiscard]] inline CUcontext make_context(CUdevice device) {
    CUcontext context = nullptr;
    REQUIRE(cuCtxCreate(&context, nullptr, 0, device) == CUDA_SUCCESS);
    return context;
}

[[nodiscard]] inline CUdeviceptr reserve(std::size_t bytes) {
    CUdeviceptr address = 0;
    REQUIRE(cuMemAddressReserve(&address, bytes, 0, 0, 0) == CUDA_SUCCESS);
    return address;
}

inline CUdeviceptr allocate(std::size_t bytes) {
    CUdeviceptr address = 0;
    REQUIRE(cuMemAlloc(&address, bytes) == CUDA_SUCCESS);
    return address;
}

inline CUdeviceptr allocate_async(CUstream stream, std::size_t bytes) {
    CUdeviceptr address = 0;
    REQUIRE(cuMemAllocAsync(&address, bytes, stream) == CUDA_SUCCESS);
    return address;
}

[[nodiscard]] inline CUdeviceptr allocate_from(CUmemoryPool pool, std::size_t bytes, CUstream stream) {
    CUdeviceptr address = 0;
    REQUIRE(cuMemAllocFromPoolAsync(&address, bytes, pool, stream) == CUDA_SUCCESS);
    return address;
}

[[nodiscard]] inline CUmemoryPool default_pool(CUdevice device) {
    CUmemoryPool pool = nullptr;
    REQUIRE(cuDeviceGetDefaultMemPool(&pool, device) == CUDA_SUCCESS);
    return pool;
}

/// Of the first device.
[[nodiscard]] inline CUmemoryPool make_pool(std::size_t most_bytes = 0) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    properties.maxSize = most_bytes;
    CUmemoryPool pool = nullptr;
    REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
    return pool;
}

[[nodiscard]] inline cuuint64_t number(CUmemoryPool pool, CUmemPool_attribute attribute) {
    cuuint64_t value = 0;
    REQUIRE(cuMemPoolGetAttribute(pool, attribute, &value) == CUDA_SUCCESS);
    return value;
}

inline void set(CUmemoryPool pool, CUmemPool_attribute attribute, cuuint64_t value) {
    REQUIRE(cuMemPoolSetAttribute(pool, attribute, &value) == CUDA_SUCCESS);
}

template <class Element>
std::vector<Element> read(CUdeviceptr address, std::size_t count) {
    std::vector<Element> out(count);
    REQUIRE(cuMemcpyDtoH(out.data(), address, count * sizeof(Element)) == CUDA_SUCCESS);
    return out;
}

/// Of what lives in the simulated driver the same is there as before.
inline void check_nothing_left(const sim_live& before, const sim_live& after) {
    CHECK(after.handles == before.handles);
    CHECK(after.physical_bytes == before.physical_bytes);
    CHECK(after.mappings == before.mappings);
    CHECK(after.reservations == before.reservations);
}

/// Holds a stream back until release(), so that what is submitted after it runs later. Its flag, in
/// page-locked memory, goes with the context.
class Gate : test::NotCopied {
public:
    explicit Gate(CUstream stream) {
        void* memory = nullptr;
        REQUIRE(cuMemHostAlloc(&memory, sizeof(std::uint32_t), 0) == CUDA_SUCCESS);
        flag_ = static_cast<std::uint32_t*>(memory);
        *flag_ = 0;
        REQUIRE(launch(kernel("sim_spin_until"), stream, flag_) == CUDA_SUCCESS);
    }
    ~Gate() { release(); }
    void release() const { __atomic_store_n(flag_, 1U, __ATOMIC_RELEASE); }

private:
    std::uint32_t* flag_ = nullptr;
};

} // namespace gpu_sleep::driver_testing
