// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How fast a device takes fingerprints of its memory, against a kernel that only reads the same memory in the
// same order, and against a copy within the device, in the same run. Needs a real GPU.

#include "bench/figures.hpp"
#include "driver/device_session.hpp"

#include <CLI/CLI.hpp>
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

// The compiled read_kernel.cu.
asm(R"(
    .section .rodata
    .balign 16
    .hidden gpu_sleep_read_kernel
    .globl gpu_sleep_read_kernel
gpu_sleep_read_kernel:
    .incbin ")" GPU_SLEEP_READ_KERNEL R"("
    .byte 0
    .previous
)");

extern "C" const unsigned char gpu_sleep_read_kernel[];

namespace {

using namespace gpu_sleep;
using driver::FingerprintBlock;

constexpr Bytes k_bytes = 8 * k_gib;
constexpr int k_status_skipped = 77;

struct Options {
    unsigned repeats = 11;
    std::string json;
};

/// Plain device memory, freed when destroyed; its context must be current then.
class PlainMemory {
public:
    [[nodiscard]] static Result<PlainMemory> create(const driver::Api& api, Bytes bytes) {
        CUdeviceptr address = 0;
        if (const auto status = cuMemAlloc(&address, bytes); status != CUDA_SUCCESS)
            return driver::to_error(api, status, "cuMemAlloc", "cannot allocate device memory");
        return PlainMemory(address);
    }
    PlainMemory(PlainMemory&& other) noexcept : address_(std::exchange(other.address_, 0)) {}
    PlainMemory& operator=(PlainMemory&&) = delete;
    ~PlainMemory() {
        if (address_ != 0) cuMemFree(address_);
    }

    [[nodiscard]] CUdeviceptr address() const noexcept { return address_; }

private:
    explicit PlainMemory(CUdeviceptr address) noexcept : address_(address) {}

    CUdeviceptr address_;
};

/// GB/s at which `work` passes over `bytes`, once for each repeat after a first that does not count.
template <class Work>
Result<std::vector<double>> rates(Bytes bytes, unsigned repeats, Work&& work) {
    std::vector<double> samples;
    for (unsigned i = 0; i <= repeats; ++i) {
        const auto start = Clock::now();
        GPU_SLEEP_TRY(work());
        const auto seconds = std::chrono::duration<double>(Clock::now() - start).count();
        if (i > 0) samples.push_back(static_cast<double>(bytes) / seconds / 1e9);
    }
    return samples;
}

/// Bytes read and bytes written by a copy both pass through the memory.
Result<std::vector<double>> measure_memory(const driver::Api& api, CUdeviceptr memory, unsigned repeats) {
    return rates(k_bytes, repeats, [&]() -> Result<void> {
        const auto half = k_bytes / 2;
        if (const auto status = cuMemcpyDtoDAsync(memory, memory + half, half, nullptr);
            status != CUDA_SUCCESS)
            return driver::to_error(api, status, "cuMemcpyDtoDAsync", "cannot copy within the device");
        GPU_SLEEP_DRIVER_TRY(api, cuStreamSynchronize, "a copy within the device failed", nullptr);
        return {};
    });
}

std::vector<FingerprintBlock> blocks_of(CUdeviceptr memory) {
    std::vector<FingerprintBlock> blocks;
    for (Bytes done = 0; done < k_bytes; done += driver::k_fingerprint_block_bytes)
        blocks.push_back({memory + done, driver::k_fingerprint_block_bytes});
    return blocks;
}

Result<std::vector<double>> measure_reads(const driver::Api& api, std::span<const FingerprintBlock> blocks,
                                          unsigned repeats) {
    const auto list = PlainMemory::create(api, blocks.size_bytes() + sizeof(unsigned));
    if (!list) return list.error();
    if (const auto status = cuMemcpyHtoD(list->address(), blocks.data(), blocks.size_bytes());
        status != CUDA_SUCCESS)
        return driver::to_error(api, status, "cuMemcpyHtoD", "cannot copy the list of blocks");
    CUmodule module = nullptr; // unloaded with the context
    CUfunction kernel = nullptr;
    GPU_SLEEP_DRIVER_TRY(api, cuModuleLoadData, "cannot load the kernel that reads", &module,
                         gpu_sleep_read_kernel);
    GPU_SLEEP_DRIVER_TRY(api, cuModuleGetFunction, "cannot find the kernel that reads", &kernel, module,
                         "read_blocks");
    auto address = list->address();
    auto out = address + blocks.size_bytes();
    std::uint64_t count = blocks.size();
    void* arguments[] = {&address, &count, &out};
    return rates(k_bytes, repeats, [&]() -> Result<void> {
        GPU_SLEEP_DRIVER_TRY(api, cuLaunchKernel, "cannot launch the kernel that reads", kernel,
                             static_cast<unsigned>(count), 1, 1, driver::k_fingerprint_threads, 1, 1, 0,
                             nullptr, arguments, nullptr);
        GPU_SLEEP_DRIVER_TRY(api, cuStreamSynchronize, "the kernel that reads failed", nullptr);
        return {};
    });
}

Result<std::vector<double>> measure_fingerprints(driver::DeviceSession& session,
                                                 std::span<const FingerprintBlock> blocks, unsigned repeats) {
    return rates(k_bytes, repeats, [&]() -> Result<void> {
        const auto prints = session.fingerprint(blocks);
        if (!prints) return prints.error();
        return session.synchronize();
    });
}

Result<bench::Figures> run(const driver::Api& api, const Options& options) {
    auto context = driver::PrimaryContext::retain(api, 0);
    if (!context) return std::move(context).error();
    auto session = driver::DeviceSession::open(api, *std::move(context));
    if (!session) return std::move(session).error();
    const auto current = (*session)->enter();
    const auto memory = PlainMemory::create(api, k_bytes);
    if (!memory) return memory.error();
    GPU_SLEEP_DRIVER_TRY(api, cuMemsetD8Async, "cannot fill device memory", memory->address(), 0xA5, k_bytes,
                         nullptr);
    const auto bandwidth = measure_memory(api, memory->address(), options.repeats);
    if (!bandwidth) return bandwidth.error();
    const auto blocks = blocks_of(memory->address());
    const auto reads = measure_reads(api, blocks, options.repeats);
    if (!reads) return reads.error();
    const auto fingerprints = measure_fingerprints(**session, blocks, options.repeats);
    if (!fingerprints) return fingerprints.error();
    char name[256] = {};
    GPU_SLEEP_DRIVER_TRY(api, cuDeviceGetName, "cannot ask for the device's name", name, sizeof(name) - 1, 0);
    bench::Figures figures("fingerprint_bench", fmt::format("real {}, 8 GiB in blocks of 1 MiB", name));
    figures.add({"copy within the device, read and written", "GB/s", *bandwidth, {}, {}});
    figures.add({"a kernel that only reads", "GB/s", *reads, {}, bench::median(*bandwidth)});
    figures.add({"fingerprints, against only reading", "GB/s", *fingerprints, {}, bench::median(*reads)});
    return figures;
}

/// The driver, if there is a GPU behind it.
Result<driver::Api> load_real_driver() {
    auto api = driver::Api::load();
    if (!api) return api;
    if (::dlsym(RTLD_DEFAULT, "sim_clear"))
        return make_error(ErrorCode::no_driver, "the simulated driver's memory has no bandwidth");
    GPU_SLEEP_DRIVER_TRY(*api, cuInit, "cannot initialise the driver", 0);
    return api;
}

} // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app{"Measures the fingerprint kernel on a real GPU; ends with 77 where there is none."};
    app.add_option("--repeats", options.repeats, "measurements of a kind")->check(CLI::Range(1, 1000));
    app.add_option("--json", options.json, "file for the figures");
    CLI11_PARSE(app, argc, argv);
    const auto api = load_real_driver();
    if (!api) {
        std::printf("fingerprint_bench: left out: %s\n", api.error().message.c_str());
        return k_status_skipped;
    }
    const auto figures = run(*api, options);
    if (figures) return bench::finish(*figures, options.json, false);
    std::fprintf(stderr, "fingerprint_bench: %s\n", figures.error().message.c_str());
    return EXIT_FAILURE;
}
