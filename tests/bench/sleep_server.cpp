// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Holding memory, and measuring the link. Nothing is given back: the end of the process does that.

#include "bench/sleep_server.hpp"

#include "base/result.hpp"
#include "base/units.hpp"
#include "gpu_sleep/gpu_sleep.h"

#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace gpu_sleep::bench {
namespace {

constexpr Bytes k_pattern_bytes = 64 * k_mib;

Result<void> check(CUresult status, const char* call) {
    if (status == CUDA_SUCCESS) return {};
    const char* reason = "an unknown error";
    cuGetErrorString(status, &reason);
    return make_error(ErrorCode::driver_failed, "{}: {}", call, reason);
}

Result<void> check(gpu_sleep_status status, const char* call) {
    if (status == GPU_SLEEP_OK) return {};
    return make_error(ErrorCode::internal, "{}: {}", call, gpu_sleep_last_error());
}

/// Pairs of bf16 numbers between 2^-7 and 2, of either sign: like weights, and never zero.
std::vector<std::uint32_t> random_weights(Bytes bytes) {
    std::mt19937 random(20261121);
    std::vector<std::uint32_t> pairs(bytes / sizeof(std::uint32_t));
    std::generate(pairs.begin(), pairs.end(),
                  [&] { return (static_cast<std::uint32_t>(random()) & 0x83FF83FFU) | 0x3C003C00U; });
    return pairs;
}

/// A primary context, and contents to fill memory with.
class Device {
public:
    [[nodiscard]] Result<void> open() {
        GPU_SLEEP_TRY(check(cuInit(0), "cuInit"));
        CUcontext context = nullptr;
        GPU_SLEEP_TRY(check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain"));
        GPU_SLEEP_TRY(check(cuCtxSetCurrent(context), "cuCtxSetCurrent"));
        const auto weights = random_weights(k_pattern_bytes);
        GPU_SLEEP_TRY(check(cuMemAlloc(&pattern_, k_pattern_bytes), "cuMemAlloc"));
        return check(cuMemcpyHtoD(pattern_, weights.data(), k_pattern_bytes), "cuMemcpyHtoD");
    }

    [[nodiscard]] Result<void> fill(CUdeviceptr to, Bytes bytes) const {
        for (Bytes done = 0; done < bytes; done += k_pattern_bytes)
            GPU_SLEEP_TRY(check(cuMemcpyDtoD(to + done, pattern_, std::min(k_pattern_bytes, bytes - done)),
                                "cuMemcpyDtoD"));
        return check(cuCtxSynchronize(), "cuCtxSynchronize");
    }

    [[nodiscard]] CUdeviceptr pattern() const noexcept { return pattern_; }

    /// Memory that was filled, and may be changed.
    void add(CUdeviceptr memory, Bytes bytes) { filled_.push_back({memory, bytes}); }
    /// Changes a word in every `nth` MiB of it; another one each time.
    [[nodiscard]] Result<void> change(Bytes nth) {
        ++changes_;
        for (const auto& [memory, bytes] : filled_)
            for (Bytes at = 0; at < bytes; at += k_mib, ++blocks_)
                if (blocks_ % nth == 0)
                    GPU_SLEEP_TRY(
                        check(cuMemsetD32Async(memory + at, changes_, 1, nullptr), "cuMemsetD32Async"));
        return check(cuCtxSynchronize(), "cuCtxSynchronize");
    }

private:
    struct Filled {
        CUdeviceptr memory = 0;
        Bytes bytes = 0;
    };

    CUdeviceptr pattern_ = 0;
    std::vector<Filled> filled_;
    unsigned changes_ = 0;
    Bytes blocks_ = 0; ///< looked at, in all changes
};

Result<CUdeviceptr> allocate(const std::string& tag, Bytes bytes) {
    void* memory = nullptr;
    GPU_SLEEP_TRY(check(gpu_sleep_alloc(&memory, bytes, 0, tag.c_str()), "gpu_sleep_alloc"));
    return reinterpret_cast<CUdeviceptr>(memory);
}

Result<std::string> hold_zeros(std::istream& words) {
    std::string tag;
    words >> tag;
    for (Bytes bytes = 0; words >> bytes;) {
        const auto memory = allocate(tag, bytes);
        if (!memory) return memory.error();
        GPU_SLEEP_TRY(check(cuMemsetD8(*memory, 0, bytes), "cuMemsetD8"));
    }
    GPU_SLEEP_TRY(check(cuCtxSynchronize(), "cuCtxSynchronize"));
    return std::string("ok");
}

Result<std::string> change(Device& device, std::istream& words) {
    Bytes nth = 1;
    words >> nth;
    GPU_SLEEP_TRY(device.change(std::max<Bytes>(1, nth)));
    return std::string("ok");
}

Result<std::string> hold(Device& device, std::istream& words) {
    std::string tag;
    int retention = 0;
    words >> tag >> retention;
    GPU_SLEEP_TRY(check(gpu_sleep_set_policy(tag.c_str(), static_cast<gpu_sleep_retention>(retention), 0),
                        "gpu_sleep_set_policy"));
    for (Bytes bytes = 0; words >> bytes;) {
        const auto memory = allocate(tag, bytes);
        if (!memory) return memory.error();
        GPU_SLEEP_TRY(device.fill(*memory, bytes));
        device.add(*memory, bytes);
    }
    return std::string("ok");
}

Result<CUdeviceptr> allocate_plainly(Bytes bytes) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    std::size_t granularity = 0;
    GPU_SLEEP_TRY(
        check(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
              "cuMemGetAllocationGranularity"));
    const auto size = round_up(bytes, granularity);
    CUdeviceptr address = 0;
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    GPU_SLEEP_TRY(check(cuMemAddressReserve(&address, size, 0, 0, 0), "cuMemAddressReserve"));
    GPU_SLEEP_TRY(check(cuMemCreate(&handle, size, &properties, 0), "cuMemCreate"));
    GPU_SLEEP_TRY(check(cuMemMap(address, size, 0, handle, 0), "cuMemMap"));
    GPU_SLEEP_TRY(check(cuMemSetAccess(address, size, &access, 1), "cuMemSetAccess"));
    return address;
}

Result<std::string> hold_plainly(const Device& device, std::istream& words) {
    for (Bytes bytes = 0; words >> bytes;) {
        const auto address = allocate_plainly(bytes);
        if (!address) return address.error();
        GPU_SLEEP_TRY(device.fill(*address, bytes));
    }
    return std::string("ok");
}

Result<std::string> memory() {
    std::size_t free = 0;
    std::size_t total = 0;
    GPU_SLEEP_TRY(check(cuMemGetInfo(&free, &total), "cuMemGetInfo"));
    return fmt::format("{} {}", free, total);
}

Result<std::string> describe_device() {
    char name[256] = {};
    GPU_SLEEP_TRY(check(cuDeviceGetName(name, sizeof(name) - 1, 0), "cuDeviceGetName"));
    const bool simulated = ::dlsym(RTLD_DEFAULT, "sim_clear") != nullptr;
    return fmt::format("{} {}", simulated ? "simulated" : "real", name);
}

/// Bytes a second of `copy(host piece)` over all pieces of page-locked memory.
template <class Copy>
Result<double> rate(std::byte* host, Bytes host_bytes, Copy&& copy) {
    const auto start = Clock::now();
    for (Bytes done = 0; done < host_bytes; done += k_pattern_bytes)
        GPU_SLEEP_TRY(check(copy(host + done), "a copy"));
    GPU_SLEEP_TRY(check(cuStreamSynchronize(nullptr), "cuStreamSynchronize"));
    return static_cast<double>(host_bytes) / std::chrono::duration<double>(Clock::now() - start).count();
}

Result<std::string> measure_link(const Device& device) {
    constexpr Bytes k_host_bytes = k_gib;
    void* memory = nullptr;
    GPU_SLEEP_TRY(check(cuMemHostAlloc(&memory, k_host_bytes, 0), "cuMemHostAlloc"));
    auto* host = static_cast<std::byte*>(memory);
    const auto to_host = [&](std::byte* piece) {
        return cuMemcpyDtoHAsync(piece, device.pattern(), k_pattern_bytes, nullptr);
    };
    const auto to_device = [&](std::byte* piece) {
        return cuMemcpyHtoDAsync(device.pattern(), piece, k_pattern_bytes, nullptr);
    };
    double best_to_host = 0;
    double best_to_device = 0;
    for (int i = 0; i < 5; ++i) {
        const auto out = rate(host, k_host_bytes, to_host);
        if (!out) return out.error();
        const auto in = rate(host, k_host_bytes, to_device);
        if (!in) return in.error();
        best_to_host = std::max(best_to_host, *out);
        best_to_device = std::max(best_to_device, *in);
    }
    GPU_SLEEP_TRY(check(cuMemFreeHost(memory), "cuMemFreeHost"));
    return fmt::format("{} {}", best_to_host, best_to_device);
}

Result<std::string> answer(Device& device, const std::string& line) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "hold") return hold(device, words);
    if (command == "hold-zeros") return hold_zeros(words);
    if (command == "change") return change(device, words);
    if (command == "hold-plainly") return hold_plainly(device, words);
    if (command == "memory") return memory();
    if (command == "device") return describe_device();
    if (command == "link") return measure_link(device);
    return make_error(ErrorCode::invalid_argument, "unknown command '{}'", command);
}

} // namespace

int serve() {
    Device device;
    const auto opened = device.open();
    for (std::string line; std::getline(std::cin, line) && line != "quit";) {
        const auto reply = opened ? answer(device, line) : Result<std::string>(opened.error());
        std::cout << (reply ? *reply : "error: " + reply.error().message) << std::endl;
    }
    return 0;
}

} // namespace gpu_sleep::bench
