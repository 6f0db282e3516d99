// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The process that is put to sleep: holding memory, working on it, and measuring the link. Nothing is given
// back: the end of the process does that.

#include "base/units.hpp"
#include "bench/subject.hpp"
#include "driver/fingerprint_key.hpp"
#include "driver/kernels/fingerprint.hpp"
#include "gpu_sleep/gpu_sleep.h"

#include <cuda.h>
#include <dlfcn.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iostream>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace gpu_sleep::bench {
namespace {

constexpr Bytes k_pattern_bytes = 64 * k_mib;

/// Throws std::runtime_error, with the name of `call`, unless it has succeeded.
void check(CUresult status, const char* call) {
    if (status == CUDA_SUCCESS) return;
    const char* reason = "an unknown error";
    cuGetErrorString(status, &reason);
    throw std::runtime_error(std::string(call) + ": " + reason);
}

void check_agent(gpu_sleep_status status) {
    if (status != GPU_SLEEP_OK) throw std::runtime_error(gpu_sleep_last_error());
}

/// Pairs of bf16 numbers between 2^-7 and 2, of either sign: like weights, and never zero.
std::vector<std::uint32_t> random_weights(Bytes bytes) {
    std::mt19937 random(20261121);
    std::vector<std::uint32_t> pairs(bytes / sizeof(std::uint32_t));
    std::generate(pairs.begin(), pairs.end(),
                  [&] { return (static_cast<std::uint32_t>(random()) & 0x83FF83FFU) | 0x3C003C00U; });
    return pairs;
}

/// The driver's memory of `bytes`, page-locked.
std::byte* page_locked(Bytes bytes) {
    void* memory = nullptr;
    check(cuMemHostAlloc(&memory, bytes, 0), "cuMemHostAlloc");
    return static_cast<std::byte*>(memory);
}

/// A plain algorithm to compare with: what allocators with a sleep mode do inside a server, by the CUDA
/// driver API alone. Tensors with memory of their own. To sleep, each in its turn is copied to page-locked
/// host memory of its own, unmapped and released; to wake, each is created, mapped and copied back. In the
/// current context; one thread at a time. Nothing is given back at the end: the end of the process does that.
class PerTensor {
public:
    /// Whether host memory stays for the next sleep, or is given back by waking.
    explicit PerTensor(bool retains_host) noexcept : retains_host_(retains_host) {}

    struct Tensor {
        CUdeviceptr address = 0;
        Bytes bytes = 0; ///< as requested
        Bytes size = 0;  ///< rounded up
        bool is_kept = true;
        CUmemGenericAllocationHandle handle = 0;
        void* host = nullptr;
    };

    /// Makes a tensor, and returns where it is: there it stays. If it is not kept, it comes back with any
    /// contents.
    CUdeviceptr add(Bytes bytes, bool is_kept);
    void sleep();
    void wake();

    [[nodiscard]] const std::vector<Tensor>& all() const noexcept { return tensors_; }

private:
    bool retains_host_;
    std::vector<Tensor> tensors_;
};

CUmemAllocationProp properties() {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return properties;
}

/// Gives the tensor memory at its address.
void make(PerTensor::Tensor& tensor) {
    const auto kind = properties();
    const CUmemAccessDesc access{kind.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check(cuMemCreate(&tensor.handle, tensor.size, &kind, 0), "cuMemCreate");
    check(cuMemMap(tensor.address, tensor.size, 0, tensor.handle, 0), "cuMemMap");
    check(cuMemSetAccess(tensor.address, tensor.size, &access, 1), "cuMemSetAccess");
}

CUdeviceptr PerTensor::add(Bytes bytes, bool is_kept) {
    const auto kind = properties();
    std::size_t granularity = 0;
    check(cuMemGetAllocationGranularity(&granularity, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
          "cuMemGetAllocationGranularity");
    auto& tensor = tensors_.emplace_back();
    tensor.bytes = bytes;
    tensor.size = round_up(bytes, granularity);
    tensor.is_kept = is_kept;
    check(cuMemAddressReserve(&tensor.address, tensor.size, 0, 0, 0), "cuMemAddressReserve");
    make(tensor);
    return tensor.address;
}

void PerTensor::sleep() {
    for (auto& tensor : tensors_) {
        if (tensor.is_kept) {
            if (!tensor.host) check(cuMemHostAlloc(&tensor.host, tensor.bytes, 0), "cuMemHostAlloc");
            check(cuMemcpyDtoH(tensor.host, tensor.address, tensor.bytes), "cuMemcpyDtoH");
        }
        check(cuMemUnmap(tensor.address, tensor.size), "cuMemUnmap");
        check(cuMemRelease(tensor.handle), "cuMemRelease");
    }
}

void PerTensor::wake() {
    for (auto& tensor : tensors_) {
        make(tensor);
        if (!tensor.host) continue;
        check(cuMemcpyHtoD(tensor.address, tensor.host, tensor.bytes), "cuMemcpyHtoD");
        if (retains_host_) continue;
        check(cuMemFreeHost(tensor.host), "cuMemFreeHost");
        tensor.host = nullptr;
    }
    check(cuCtxSynchronize(), "cuCtxSynchronize");
}

/// Who answers, with the primary context of the first device, contents to fill memory with, and a kernel.
class Server {
public:
    Server() : weights_(random_weights(k_pattern_bytes)) {
        check(cuInit(0), "cuInit");
        check(cuDevicePrimaryCtxRetain(&context_, 0), "cuDevicePrimaryCtxRetain");
        check(cuCtxSetCurrent(context_), "cuCtxSetCurrent");
        check(cuMemAlloc(&pattern_, k_pattern_bytes), "cuMemAlloc");
        check(cuMemcpyHtoD(pattern_, weights_.data(), k_pattern_bytes), "cuMemcpyHtoD");
    }

    [[nodiscard]] std::string answer(const std::string& line);

private:
    struct Filled {
        CUdeviceptr memory = 0;
        Bytes bytes = 0;
    };

    // One for each command; what they return is the answer.
    [[nodiscard]] std::string hold(std::istream& words);
    [[nodiscard]] std::string change(Bytes nth);
    [[nodiscard]] std::string cycle_tensors(std::istream& words);
    [[nodiscard]] double launch(unsigned count);
    [[nodiscard]] std::string measure_link() const;

    /// Fills memory, which may be changed then.
    void fill(CUdeviceptr to, Bytes bytes);
    /// Whether what fill() has written is there. `found`: page-locked memory of k_pattern_bytes.
    [[nodiscard]] bool is_filled(CUdeviceptr at, Bytes bytes, std::byte* found) const;

    std::vector<std::uint32_t> weights_;
    CUcontext context_ = nullptr;
    CUdeviceptr pattern_ = 0;
    CUfunction kernel_ = nullptr;
    PerTensor plain_{false};
    std::vector<Filled> filled_;
    unsigned changes_ = 0;
    Bytes blocks_ = 0; ///< looked at, in all changes
};

void Server::fill(CUdeviceptr to, Bytes bytes) {
    for (Bytes done = 0; done < bytes; done += k_pattern_bytes)
        check(cuMemcpyDtoD(to + done, pattern_, std::min(k_pattern_bytes, bytes - done)), "cuMemcpyDtoD");
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    filled_.push_back({to, bytes});
}

bool Server::is_filled(CUdeviceptr at, Bytes bytes, std::byte* found) const {
    for (Bytes done = 0; done < bytes; done += k_pattern_bytes) {
        const auto part = std::min(k_pattern_bytes, bytes - done);
        check(cuMemcpyDtoH(found, at + done, part), "cuMemcpyDtoH");
        if (std::memcmp(found, weights_.data(), part) != 0) return false;
    }
    return true;
}

std::string Server::hold(std::istream& words) {
    std::string kind;
    words >> kind;
    const bool is_agents = kind != "plain";
    if (is_agents)
        check_agent(
            gpu_sleep_set_policy(kind.c_str(), kind == "dropped" ? GPU_SLEEP_DISCARD : GPU_SLEEP_OFFLOAD, 0));
    for (Bytes bytes = 0; words >> bytes;) {
        void* memory = nullptr;
        if (is_agents) check_agent(gpu_sleep_alloc(&memory, bytes, 0, kind.c_str()));
        const auto address = is_agents ? reinterpret_cast<CUdeviceptr>(memory) : plain_.add(bytes, true);
        if (kind == "zeros")
            check(cuMemsetD8(address, 0, bytes), "cuMemsetD8");
        else
            fill(address, bytes);
    }
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    return "ok";
}

/// Another word each time.
std::string Server::change(Bytes nth) {
    ++changes_;
    for (const auto& [memory, bytes] : filled_)
        for (Bytes at = 0; at < bytes; at += k_mib, ++blocks_)
            if (blocks_ % nth == 0)
                check(cuMemsetD32Async(memory + at, changes_, 1, nullptr), "cuMemsetD32Async");
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    return "ok";
}

std::string Server::cycle_tensors(std::istream& words) {
    std::string host;
    unsigned cycles = 0, pause_ms = 0;
    std::size_t kept = 0;
    words >> host >> cycles >> pause_ms >> kept;
    PerTensor tensors(host == "retained");
    for (Bytes bytes = 0; words >> bytes;) fill(tensors.add(bytes, tensors.all().size() < kept), bytes);
    std::vector<double> seconds;
    for (unsigned i = 0; i < 2 * cycles; ++i) {
        std::this_thread::sleep_for(Milliseconds(pause_ms));
        const auto start = Clock::now();
        i % 2 == 0 ? tensors.sleep() : tensors.wake();
        seconds.push_back(seconds_since(start));
    }
    auto* const found = page_locked(k_pattern_bytes);
    for (const auto& tensor : tensors.all())
        if (tensor.is_kept && !is_filled(tensor.address, tensor.bytes, found))
            throw std::runtime_error("a tensor is not what it was");
    return fmt::format("{}", fmt::join(seconds, " "));
}

double Server::launch(unsigned count) {
    if (!kernel_) {
        CUmodule module = nullptr;
        check(cuModuleLoadData(&module, driver::kernel_image()), "cuModuleLoadData");
        check(cuModuleGetFunction(&kernel_, module, driver::k_fingerprint_kernel), "cuModuleGetFunction");
    }
    CUdeviceptr no_blocks = 0;
    std::uint64_t none = 0;
    driver::FingerprintKey key{};
    void* arguments[] = {&no_blocks, &no_blocks, &none, &key};
    const auto start = Clock::now();
    for (unsigned i = 0; i < count; ++i)
        check(cuLaunchKernel(kernel_, 1, 1, 1, driver::k_fingerprint_threads, 1, 1, 0, nullptr, arguments,
                             nullptr),
              "cuLaunchKernel");
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    return seconds_since(start) / count;
}

std::string Server::measure_link() const {
    constexpr Bytes k_host_bytes = k_gib;
    auto* const host = page_locked(k_host_bytes);
    double best[2] = {}; // to the host, to the device
    for (int i = 0; i < 10; ++i) {
        const auto start = Clock::now();
        for (Bytes done = 0; done < k_host_bytes; done += k_pattern_bytes)
            check(i % 2 == 0 ? cuMemcpyDtoHAsync(host + done, pattern_, k_pattern_bytes, nullptr)
                             : cuMemcpyHtoDAsync(pattern_, host + done, k_pattern_bytes, nullptr),
                  "a copy");
        check(cuCtxSynchronize(), "cuCtxSynchronize");
        best[i % 2] = std::max(best[i % 2], static_cast<double>(k_host_bytes) / seconds_since(start));
    }
    check(cuMemFreeHost(host), "cuMemFreeHost");
    return fmt::format("{} {}", best[0], best[1]);
}

std::string Server::answer(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "hold") return hold(words);
    if (command == "tensors") return cycle_tensors(words);
    if (command == "link") return measure_link();
    if (command == "memory") {
        std::size_t free = 0, total = 0;
        check(cuMemGetInfo(&free, &total), "cuMemGetInfo");
        return fmt::format("{}", free);
    }
    if (command == "device") {
        char name[256] = {};
        check(cuDeviceGetName(name, sizeof(name) - 1, 0), "cuDeviceGetName");
        return fmt::format("{} {}", ::dlsym(RTLD_DEFAULT, "sim_clear") ? "simulated" : "real", name);
    }
    unsigned count = 1;
    words >> count;
    if (command == "change") return change(count);
    if (command == "launch") return fmt::format("{}", launch(count));
    throw std::runtime_error("unknown command: " + line);
}

} // namespace

int serve() {
    Server server;
    for (std::string line; std::getline(std::cin, line) && line != "quit";) {
        std::string reply;
        try {
            reply = server.answer(line);
        } catch (const std::exception& error) {
            reply = std::string("error: ") + error.what();
        }
        std::cout << reply << std::endl;
    }
    return 0;
}

} // namespace gpu_sleep::bench
