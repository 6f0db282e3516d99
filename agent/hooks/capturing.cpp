// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking the driver for captures.

#include "hooks/capturing.hpp"

#include "hooks/late_symbol.hpp"
#include "intercepted/captures.hpp"

#include <array>
#include <optional>

namespace gpu_sleep::hooks {
namespace {

constinit LateSymbol<decltype(::cuStreamGetCaptureInfo_v2)> g_info("cuStreamGetCaptureInfo_v2");

/// The number of the capture that the stream belongs to, if that goes on. Breaks none.
std::optional<cuuint64_t> capture_of(CUstream stream) noexcept {
    auto* const info = g_info.get();
    auto state = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t number = 0;
    if (!info || info(stream, &state, &number, nullptr, nullptr, nullptr) != CUDA_SUCCESS ||
        state != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return std::nullopt;
    return number;
}

} // namespace

bool is_recorded(CUstream stream, bool per_thread) noexcept {
    std::array<CUstream, 8> own{};
    const auto count = agent::intercepted::streams_captured_here(own);
    if (count == 0) return false;
    const auto number = capture_of(!stream && per_thread ? CU_STREAM_PER_THREAD : stream);
    for (std::size_t i = 0; number && i < count; ++i)
        if (capture_of(own[i]) == number) return true;
    return false;
}

} // namespace gpu_sleep::hooks
