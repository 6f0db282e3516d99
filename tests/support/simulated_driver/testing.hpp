// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What tests on the simulated driver share: a context to work in, ranges of device memory, random data.

#pragma once

#include "support/catch.hpp"
#include "support/simulated_driver/control.h"

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace gpu_sleep::sim::testing {

inline constexpr std::size_t k_granularity = std::size_t{2} << 20;

/// Initialises the driver and makes the primary context of a device current to this thread. Afterwards
/// nothing of it may be left, and faults and counts are as new.
class Session {
public:
    explicit Session(CUdevice device = 0) : device_(device) {
        REQUIRE(cuInit(0) == CUDA_SUCCESS);
        sim_clear();
        sim_reset_counts();
        before_ = sim_live_objects();
        REQUIRE(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
        REQUIRE(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    ~Session() {
        sim_clear();
        CUcontext popped = nullptr;
        cuCtxPopCurrent(&popped);
        cuDevicePrimaryCtxRelease(device_);
        const auto after = sim_live_objects();
        CHECK(after.handles == before_.handles);
        CHECK(after.physical_bytes == before_.physical_bytes);
        CHECK(after.mappings == before_.mappings);
        CHECK(after.reservations == before_.reservations);
    }

    CUcontext context = nullptr;

private:
    CUdevice device_;
    sim_live before_{};
};

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
class Range {
public:
    explicit Range(std::size_t size = k_granularity, CUdevice device = 0) : bytes(size), device_(device) {
        REQUIRE(cuMemAddressReserve(&address, bytes, 0, 0, 0) == CUDA_SUCCESS);
        bring_back();
    }
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;
    ~Range() {
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
    [[nodiscard]] CUmemGenericAllocationHandle handle() const { return handle_; }

    CUdeviceptr address = 0;
    const std::size_t bytes;

private:
    CUdevice device_;
    CUmemGenericAllocationHandle handle_ = 0;
    bool mapped_ = false;
};

/// Page-locked host memory of the program's own, registered.
class PageLocked {
public:
    explicit PageLocked(std::size_t size) : data(size) {
        REQUIRE(cuMemHostRegister(data.data(), size, 0) == CUDA_SUCCESS);
    }
    PageLocked(const PageLocked&) = delete;
    PageLocked& operator=(const PageLocked&) = delete;
    ~PageLocked() { cuMemHostUnregister(data.data()); }

    std::vector<std::byte> data;
};

[[nodiscard]] inline std::vector<std::byte> random_bytes(std::size_t count, unsigned seed = 1) {
    std::mt19937_64 generator(seed);
    std::vector<std::byte> bytes(count);
    for (auto& byte : bytes) byte = static_cast<std::byte>(generator() % 255 + 1);
    return bytes;
}

/// A kernel by its name, in a module that lives as long as the context.
[[nodiscard]] inline CUfunction kernel(const char* name) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    REQUIRE(cuModuleLoadData(&module, "image") == CUDA_SUCCESS);
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

/// Holds a stream back until release(), so that what is submitted after it runs later. Its flag, in
/// page-locked memory, goes with the context.
class Gate {
public:
    explicit Gate(CUstream stream) {
        void* memory = nullptr;
        REQUIRE(cuMemHostAlloc(&memory, sizeof(std::uint32_t), 0) == CUDA_SUCCESS);
        flag_ = static_cast<std::uint32_t*>(memory);
        REQUIRE(launch(kernel("sim_spin_until"), stream, flag_) == CUDA_SUCCESS);
    }
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;
    ~Gate() { release(); }
    void release() const { __atomic_store_n(flag_, 1U, __ATOMIC_RELEASE); }

private:
    std::uint32_t* flag_ = nullptr;
};

} // namespace gpu_sleep::sim::testing
