// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Looking unknown calls up, and making them.

#include "intercepted_unknown.hpp"

#include <dlfcn.h>

namespace gpu_sleep::test {
namespace {

/// As the simulated driver has it.
using FutureSubmit = CUresult (*)(float, CUdeviceptr, std::size_t, double, CUstream, std::uint64_t,
                                  std::uint64_t, std::uint64_t, std::uint64_t);
FutureSubmit g_submit = nullptr;

void* driver() {
    return ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
}

} // namespace

Result<std::string> look_up_unknown_call(const std::string& way) {
    void* found = nullptr;
    if (way == "symbol") {
        found = find_or_die(driver(), "cuFutureSubmit");
    } else {
        auto* const ask =
            reinterpret_cast<decltype(&::cuGetProcAddress)>(find_or_die(driver(), "cuGetProcAddress_v2"));
        if (ask("cuFutureSubmit", &found, 13000, 0, nullptr) != CUDA_SUCCESS)
            return make_error(ErrorCode::internal, "the driver does not find it");
    }
    const auto before = std::exchange(g_submit, reinterpret_cast<FutureSubmit>(found));
    return std::string(before == g_submit ? "same" : "");
}

Result<void> submit_by_unknown_call(const Memory& memory, CUstream stream) {
    const auto status = g_submit(2.5F, memory.address, memory.bytes, 0.5, stream, 3, 6, 9, 12);
    if (status == CUDA_SUCCESS) return {};
    return make_error(ErrorCode::driver_failed, "cuFutureSubmit gave {}", static_cast<int>(status));
}

int version_by_unknown_call() {
    int version = 0;
    reinterpret_cast<decltype(&::cuDriverGetVersion)>(find_or_die(driver(), "cuDriverGetVersion_v9"))(
        &version);
    return version;
}

} // namespace gpu_sleep::test
