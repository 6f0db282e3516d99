// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Holding memory, working on it, and measuring the link. Nothing is given back: the end of the process does
// that.

#include "bench/sleep_server.hpp"

#include "base/result.hpp"
#include "base/units.hpp"
#include "bench/per_tensor.hpp"
#include "driver/kernels/fingerprint.hpp"
#include "driver/kernels/image.hpp"
#include "gpu_sleep/gpu_sleep.h"

#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace gpu_sleep::bench {
namespace {

constexpr Bytes k_pattern_bytes = 64 * k_mib;

Result<void> check_agent(gpu_sleep_status status, const char* call) {
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

/// A device's primary context, contents to fill memory with, and a kernel to read it.
class Device {
public:
    [[nodiscard]] Result<void> open(int ordinal) {
        GPU_SLEEP_TRY(check(cuDevicePrimaryCtxRetain(&context_, ordinal), "cuDevicePrimaryCtxRetain"));
        GPU_SLEEP_TRY(enter());
        weights_ = random_weights(k_pattern_bytes);
        GPU_SLEEP_TRY(check(cuMemAlloc(&pattern_, k_pattern_bytes), "cuMemAlloc"));
        return check(cuMemcpyHtoD(pattern_, weights_.data(), k_pattern_bytes), "cuMemcpyHtoD");
    }
    [[nodiscard]] Result<void> enter() const { return check(cuCtxSetCurrent(context_), "cuCtxSetCurrent"); }

    [[nodiscard]] Result<void> fill(CUdeviceptr to, Bytes bytes) const {
        for (Bytes done = 0; done < bytes; done += k_pattern_bytes)
            GPU_SLEEP_TRY(check(cuMemcpyDtoD(to + done, pattern_, std::min(k_pattern_bytes, bytes - done)),
                                "cuMemcpyDtoD"));
        return check(cuCtxSynchronize(), "cuCtxSynchronize");
    }
    /// Whether what fill() has written is there.
    [[nodiscard]] Result<bool> is_filled(CUdeviceptr at, Bytes bytes) {
        if (!found_) GPU_SLEEP_TRY(check(cuMemHostAlloc(&found_, k_pattern_bytes, 0), "cuMemHostAlloc"));
        for (Bytes done = 0; done < bytes; done += k_pattern_bytes) {
            const auto part = std::min(k_pattern_bytes, bytes - done);
            GPU_SLEEP_TRY(check(cuMemcpyDtoH(found_, at + done, part), "cuMemcpyDtoH"));
            if (std::memcmp(found_, weights_.data(), part) != 0) return false;
        }
        return true;
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

    /// Seconds for each of `count` launches that find nothing to do.
    [[nodiscard]] Result<double> launch(unsigned count) { return launch(count, {}); }
    /// Seconds for each of `count` passes over all that was filled.
    [[nodiscard]] Result<double> read(unsigned count) {
        std::vector<driver::FingerprintBlock> blocks;
        for (const auto& [memory, bytes] : filled_)
            for (Bytes at = 0; at < bytes; at += k_mib)
                blocks.push_back({memory + at, std::min(k_mib, bytes - at)});
        return launch(count, blocks);
    }

private:
    struct Filled {
        CUdeviceptr memory = 0;
        Bytes bytes = 0;
    };

    [[nodiscard]] Result<void> load_kernel() {
        if (kernel_) return {};
        CUmodule module = nullptr;
        GPU_SLEEP_TRY(check(cuModuleLoadData(&module, driver::kernel_image()), "cuModuleLoadData"));
        return check(cuModuleGetFunction(&kernel_, module, driver::k_fingerprint_kernel),
                     "cuModuleGetFunction");
    }
    [[nodiscard]] Result<double> launch(unsigned count, const std::vector<driver::FingerprintBlock>& blocks) {
        GPU_SLEEP_TRY(load_kernel());
        CUdeviceptr input = 0;
        CUdeviceptr output = 0;
        if (!blocks.empty()) {
            const auto bytes = blocks.size() * sizeof(blocks[0]);
            GPU_SLEEP_TRY(check(cuMemAlloc(&input, bytes), "cuMemAlloc"));
            GPU_SLEEP_TRY(
                check(cuMemAlloc(&output, blocks.size() * sizeof(driver::Fingerprint)), "cuMemAlloc"));
            GPU_SLEEP_TRY(check(cuMemcpyHtoD(input, blocks.data(), bytes), "cuMemcpyHtoD"));
        }
        std::uint64_t block_count = blocks.size();
        driver::FingerprintKey key{};
        void* arguments[] = {&input, &output, &block_count, &key};
        const auto grid = static_cast<unsigned>(std::clamp<std::size_t>(blocks.size(), 1, 16'384));
        const auto start = Clock::now();
        for (unsigned i = 0; i < count; ++i)
            GPU_SLEEP_TRY(check(cuLaunchKernel(kernel_, grid, 1, 1, driver::k_fingerprint_threads, 1, 1, 0,
                                               nullptr, arguments, nullptr),
                                "cuLaunchKernel"));
        GPU_SLEEP_TRY(check(cuCtxSynchronize(), "cuCtxSynchronize"));
        const auto seconds = std::chrono::duration<double>(Clock::now() - start).count();
        for (const auto memory : {input, output})
            if (memory != 0) GPU_SLEEP_TRY(check(cuMemFree(memory), "cuMemFree"));
        return seconds / count;
    }

    CUcontext context_ = nullptr;
    std::vector<std::uint32_t> weights_;
    CUdeviceptr pattern_ = 0;
    void* found_ = nullptr; ///< page-locked, for what is compared
    CUfunction kernel_ = nullptr;
    std::vector<Filled> filled_;
    unsigned changes_ = 0;
    Bytes blocks_ = 0; ///< looked at, in all changes
};

Result<CUdeviceptr> allocate(int device, const std::string& tag, Bytes bytes) {
    void* memory = nullptr;
    GPU_SLEEP_TRY(check_agent(gpu_sleep_alloc(&memory, bytes, device, tag.c_str()), "gpu_sleep_alloc"));
    return reinterpret_cast<CUdeviceptr>(memory);
}

Result<std::string> hold_zeros(std::istream& words) {
    std::string tag;
    words >> tag;
    for (Bytes bytes = 0; words >> bytes;) {
        const auto memory = allocate(0, tag, bytes);
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

Result<std::string> hold(int ordinal, Device& device, std::istream& words) {
    std::string tag;
    int retention = 0;
    words >> tag >> retention;
    GPU_SLEEP_TRY(
        check_agent(gpu_sleep_set_policy(tag.c_str(), static_cast<gpu_sleep_retention>(retention), 0),
                    "gpu_sleep_set_policy"));
    for (Bytes bytes = 0; words >> bytes;) {
        const auto memory = allocate(ordinal, tag, bytes);
        if (!memory) return memory.error();
        GPU_SLEEP_TRY(device.fill(*memory, bytes));
        device.add(*memory, bytes);
    }
    return std::string("ok");
}

/// Makes tensors of these sizes, and fills them.
Result<std::string> hold_tensors(Device& device, PerTensor& tensors, PerTensor::Contents contents,
                                 std::istream& sizes) {
    for (Bytes bytes = 0; sizes >> bytes;) {
        const auto address = tensors.add(bytes, contents);
        if (!address) return address.error();
        GPU_SLEEP_TRY(device.fill(*address, bytes));
        device.add(*address, bytes);
    }
    return std::string("ok");
}

Result<std::string> check_tensors(Device& device, const PerTensor& tensors) {
    for (const auto& tensor : tensors.tensors()) {
        if (!tensor.is_kept) continue;
        const auto is_same = device.is_filled(tensor.address, tensor.bytes);
        if (!is_same) return is_same.error();
        if (!*is_same) return make_error(ErrorCode::damaged, "a tensor is not what it was");
    }
    return std::string("ok");
}

/// The seconds that `act` takes.
template <class Act>
Result<std::string> timed(Act&& act) {
    const auto start = Clock::now();
    GPU_SLEEP_TRY(act());
    return fmt::format("{}", std::chrono::duration<double>(Clock::now() - start).count());
}

Result<std::string> as_text(const Result<double>& number) {
    if (!number) return number.error();
    return fmt::format("{}", *number);
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
    int count = 0;
    GPU_SLEEP_TRY(check(cuDeviceGetCount(&count), "cuDeviceGetCount"));
    return fmt::format("{} {} {}", simulated ? "simulated" : "real", count, name);
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

/// Who answers.
class Server {
public:
    [[nodiscard]] Result<std::string> answer(const std::string& line);

private:
    /// The device, made current.
    [[nodiscard]] Result<Device*> device(int ordinal);
    [[nodiscard]] Result<std::string> answer(const std::string& command, Device& first, std::istream& words);
    [[nodiscard]] Result<std::string> answer_of_tensors(const std::string& command, Device& first,
                                                        std::istream& words);

    std::map<int, Device> devices_;
    PerTensor tensors_{PerTensor::HostMemory::given_back};
};

Result<Device*> Server::device(int ordinal) {
    const auto [found, is_new] = devices_.try_emplace(ordinal);
    if (is_new) {
        GPU_SLEEP_TRY(check(cuInit(0), "cuInit"));
        GPU_SLEEP_TRY(found->second.open(ordinal));
    }
    GPU_SLEEP_TRY(found->second.enter());
    return &found->second;
}

Result<std::string> Server::answer_of_tensors(const std::string& command, Device& first,
                                              std::istream& words) {
    std::string word;
    if (command == "per-tensor") {
        words >> word;
        tensors_ = PerTensor(word == "retained" ? PerTensor::HostMemory::retained
                                                : PerTensor::HostMemory::given_back);
        return std::string("ok");
    }
    if (command == "hold-tensors") {
        words >> word;
        const auto contents = word == "kept" ? PerTensor::Contents::kept : PerTensor::Contents::dropped;
        return hold_tensors(first, tensors_, contents, words);
    }
    if (command == "sleep-tensors") return timed([this] { return tensors_.sleep(); });
    if (command == "wake-tensors") return timed([this] { return tensors_.wake(); });
    if (command == "check-tensors") return check_tensors(first, tensors_);
    return make_error(ErrorCode::invalid_argument, "unknown command '{}'", command);
}

Result<std::string> Server::answer(const std::string& command, Device& first, std::istream& words) {
    unsigned count = 1;
    if (command == "hold-zeros") return hold_zeros(words);
    if (command == "hold-plainly") {
        PerTensor plain(PerTensor::HostMemory::given_back);
        return hold_tensors(first, plain, PerTensor::Contents::kept, words);
    }
    if (command == "change") return change(first, words);
    if (command == "launch" && words >> count) return as_text(first.launch(std::max(1U, count)));
    if (command == "read" && words >> count) return as_text(first.read(std::max(1U, count)));
    if (command == "memory") return memory();
    if (command == "device") return describe_device();
    if (command == "link") return measure_link(first);
    return answer_of_tensors(command, first, words);
}

Result<std::string> Server::answer(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    int ordinal = 0;
    if (command == "hold") words >> ordinal;
    const auto used = device(ordinal);
    if (!used) return used.error();
    return command == "hold" ? hold(ordinal, **used, words) : answer(command, **used, words);
}

} // namespace

int serve() {
    Server server;
    for (std::string line; std::getline(std::cin, line) && line != "quit";) {
        const auto reply = server.answer(line);
        std::cout << (reply ? *reply : "error: " + reply.error().message) << std::endl;
    }
    return 0;
}

} // namespace gpu_sleep::bench
