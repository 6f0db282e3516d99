// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The host program's calls of the driver.

#include "host_gpu.hpp"

#include "support/noise.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

namespace gpu_sleep::test {
namespace {

constexpr std::size_t k_piece = std::size_t{1} << 20;

std::mutex g_contexts_mutex;
std::map<int, CUcontext> g_contexts; ///< retained; guarded by g_contexts_mutex

std::uint64_t word_of(const Allocation& allocation, std::size_t index) noexcept {
    return splitmix64(allocation.seed * 0x100000001U + index);
}

void write_words(std::vector<std::uint64_t>& words, const Allocation& allocation, std::size_t first) {
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = word_of(allocation, first + i);
}

} // namespace

Result<void> checked(CUresult result, const char* call) {
    if (result == CUDA_SUCCESS) return {};
    const char* reason = "unknown error";
    cuGetErrorString(result, &reason);
    return Error{ErrorCode::driver_failed, fmt::format("{}: {}", call, reason), call,
                 static_cast<int>(result)};
}

Result<void> checked(gpu_sleep_status status) {
    if (status == GPU_SLEEP_OK) return {};
    return Error{static_cast<ErrorCode>(status), gpu_sleep_last_error(), {}, 0};
}

Result<void> use_device(int device) {
    const std::lock_guard lock(g_contexts_mutex);
    auto& context = g_contexts[device];
    if (!context) {
        GPU_SLEEP_TRY(checked(cuInit(0), "cuInit"));
        GPU_SLEEP_TRY(checked(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain"));
    }
    return checked(cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

Result<void> fill(const Allocation& allocation) {
    GPU_SLEEP_TRY(use_device(allocation.device));
    std::vector<std::uint64_t> words(std::min(allocation.bytes, k_piece) / sizeof(std::uint64_t));
    for (std::size_t at = 0; at < allocation.bytes; at += k_piece) {
        const auto bytes = std::min(k_piece, allocation.bytes - at);
        write_words(words, allocation, at / sizeof(std::uint64_t));
        GPU_SLEEP_TRY(checked(cuMemcpyHtoD(allocation.address() + at, words.data(), bytes), "cuMemcpyHtoD"));
    }
    return {};
}

Result<std::string> compare(const Allocation& allocation) {
    GPU_SLEEP_TRY(use_device(allocation.device));
    std::vector<std::uint64_t> found(std::min(allocation.bytes, k_piece) / sizeof(std::uint64_t));
    auto expected = found;
    bool is_intact = true, is_zero = true;
    for (std::size_t at = 0; at < allocation.bytes; at += k_piece) {
        const auto bytes = std::min(k_piece, allocation.bytes - at);
        found.resize(bytes / sizeof(std::uint64_t));
        expected.resize(found.size());
        auto copied = checked(cuMemcpyDtoH(found.data(), allocation.address() + at, bytes), "cuMemcpyDtoH");
        if (!copied) {
            auto error = std::move(copied).error();
            error.message += fmt::format(", {} bytes of the process are asleep", gpu_sleep_asleep_bytes());
            return error;
        }
        write_words(expected, allocation, at / sizeof(std::uint64_t));
        is_intact = is_intact && found == expected;
        is_zero = is_zero && std::all_of(found.begin(), found.end(), [](auto word) { return word == 0; });
    }
    return std::string(is_intact ? "intact" : is_zero ? "zero" : "differs");
}

Result<void> Graph::begin(unsigned flags, const Allocation& from, const Allocation& to) {
    GPU_SLEEP_TRY(use_device(0));
    GPU_SLEEP_TRY(checked(cuStreamCreate(&stream_, flags), "cuStreamCreate"));
    GPU_SLEEP_TRY(
        checked(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture"));
    return checked(cuMemcpyDtoDAsync(to.address(), from.address(), from.bytes, stream_), "cuMemcpyDtoDAsync");
}

Result<void> Graph::end() {
    CUgraph graph = nullptr;
    GPU_SLEEP_TRY(checked(cuStreamEndCapture(stream_, &graph), "cuStreamEndCapture"));
    GPU_SLEEP_TRY(checked(cuGraphInstantiate(&executable_, graph, 0), "cuGraphInstantiate"));
    return checked(cuGraphDestroy(graph), "cuGraphDestroy");
}

Result<void> Graph::replay() {
    GPU_SLEEP_TRY(use_device(0));
    GPU_SLEEP_TRY(checked(cuGraphLaunch(executable_, stream_), "cuGraphLaunch"));
    return checked(cuStreamSynchronize(stream_), "cuStreamSynchronize");
}

Result<void> spin(std::uint64_t milliseconds) {
    GPU_SLEEP_TRY(use_device(0));
    CUmodule module = nullptr;
    CUfunction kernel = nullptr;
    CUstream stream = nullptr;
    GPU_SLEEP_TRY(
        checked(cuModuleLoadData(&module, "any image has the built-in kernels"), "cuModuleLoadData"));
    GPU_SLEEP_TRY(checked(cuModuleGetFunction(&kernel, module, "sim_spin"), "cuModuleGetFunction"));
    GPU_SLEEP_TRY(checked(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
    void* parameters[] = {&milliseconds};
    return checked(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr),
                   "cuLaunchKernel");
}

} // namespace gpu_sleep::test
