// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Finding libcuda and naming its errors.

#include "driver/api.hpp"

#include "driver/library.hpp"

namespace gpu_sleep::driver {
namespace {

// Two steps, so that cuda.h's renaming macros are applied before the name becomes a string.
#define GPU_SLEEP_STRING(name) #name
#define GPU_SLEEP_SYMBOL(name) GPU_SLEEP_STRING(name)

ErrorCode code_of(CUresult status) noexcept {
    switch (status) {
    case CUDA_ERROR_OUT_OF_MEMORY: return ErrorCode::out_of_device_memory;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: return ErrorCode::no_driver;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: return ErrorCode::capture_in_progress;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_DEINITIALIZED: return ErrorCode::context_lost;
    default: return ErrorCode::driver_failed;
    }
}

} // namespace

Result<Api> Api::load() {
    const auto library = GPU_SLEEP_TRY(open_libcuda());
    Api api;
#define GPU_SLEEP_FIND(name)                                                                                 \
    if (!find(library, GPU_SLEEP_SYMBOL(name), api.name))                                                    \
        return make_error(ErrorCode::no_driver, "the CUDA driver is too old: it has no {}",                  \
                          GPU_SLEEP_SYMBOL(name));
    GPU_SLEEP_DRIVER_FUNCTIONS(GPU_SLEEP_FIND)
#undef GPU_SLEEP_FIND
#define GPU_SLEEP_FIND(name) find(library, GPU_SLEEP_SYMBOL(name), api.name);
    GPU_SLEEP_OPTIONAL_DRIVER_FUNCTIONS(GPU_SLEEP_FIND)
#undef GPU_SLEEP_FIND
    return api;
}

bool ends_context(CUresult status) noexcept {
    return code_of(status) == ErrorCode::context_lost;
}

Result<void> initialise(const Api& api) {
    GPU_SLEEP_DRIVER_TRY(api, cuInit, "cannot initialise CUDA", 0);
    return {};
}

Error to_error(const Api& api, CUresult status, std::string_view call, std::string_view what) {
    const char* name = nullptr;
    if (api.cuGetErrorName(status, &name) != CUDA_SUCCESS || !name) name = "unknown error";
    return Error{code_of(status),
                 fmt::format("{}: {} ({} gave {})", what, name, call, static_cast<int>(status)),
                 std::string(call), static_cast<int>(status)};
}

} // namespace gpu_sleep::driver
