// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contexts, retained and entered.

#include "driver/context.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gpu_sleep::driver {

Result<PrimaryContext> PrimaryContext::retain(const Api& api, int device) {
    CUcontext context = nullptr;
    GPU_SLEEP_DRIVER_TRY(api, cuDevicePrimaryCtxRetain, "cannot use the primary context", &context, device);
    return PrimaryContext(api, context, device);
}

PrimaryContext& PrimaryContext::operator=(PrimaryContext&& other) noexcept {
    if (this != &other) {
        reset();
        api_ = other.api_;
        context_ = std::exchange(other.context_, nullptr);
        device_ = other.device_;
    }
    return *this;
}

void PrimaryContext::reset() noexcept {
    if (context_) api_->cuDevicePrimaryCtxRelease(device_);
    context_ = nullptr;
}

Result<std::optional<PrimaryContext>> active_context(const Api& api, int device) {
    unsigned flags = 0;
    int active = 0;
    GPU_SLEEP_DRIVER_TRY(api, cuDevicePrimaryCtxGetState, "cannot look for contexts", device, &flags,
                         &active);
    if (!active) return std::optional<PrimaryContext>();
    auto context = PrimaryContext::retain(api, device);
    if (!context) return std::move(context).error();
    return std::optional(*std::move(context));
}

Result<std::vector<PrimaryContext>> active_contexts(const Api& api) {
    std::vector<PrimaryContext> contexts;
    const auto devices = device_count(api);
    if (!devices) return devices.error();
    for (int device = 0; device < *devices; ++device) {
        auto context = active_context(api, device);
        if (!context) return std::move(context).error();
        if (context->has_value()) contexts.push_back(**std::move(context));
    }
    return contexts;
}

Result<std::optional<PrimaryContext>> first_active_context(const Api& api) {
    const auto devices = device_count(api);
    if (!devices) return devices.error();
    for (int device = 0; device < *devices; ++device) {
        auto context = active_context(api, device);
        if (!context || context->has_value()) return context;
    }
    return std::optional<PrimaryContext>();
}

bool has_own_context_current(const Api& api) {
    CUcontext current = nullptr;
    if (api.cuCtxGetCurrent(&current) != CUDA_SUCCESS || !current) return false;
    const auto contexts = active_contexts(api);
    const auto is_current = [=](const PrimaryContext& c) { return c.get() == current; };
    return contexts && std::none_of(contexts->begin(), contexts->end(), is_current);
}

std::optional<int> current_device(const Api& api) {
    CUdevice device = 0;
    return api.cuCtxGetDevice(&device) == CUDA_SUCCESS ? std::optional(device) : std::nullopt;
}

Result<MemoryInfo> memory_info(const Api& api) {
    std::size_t free = 0;
    std::size_t total = 0;
    GPU_SLEEP_DRIVER_TRY(api, cuMemGetInfo, "cannot query free memory", &free, &total);
    return MemoryInfo{free, total};
}

Result<int> device_count(const Api& api) {
    int count = 0;
    GPU_SLEEP_DRIVER_TRY(api, cuDeviceGetCount, "cannot count the devices", &count);
    return count;
}

Result<Bytes> device_memory(const Api& api, int device) {
    std::size_t memory = 0;
    GPU_SLEEP_DRIVER_TRY(api, cuDeviceTotalMem, "cannot query the device's memory", &memory, device);
    return Bytes{memory};
}

Result<bool> can_reach(const Api& api, int device, int other) {
    int reachable = 0;
    GPU_SLEEP_DRIVER_TRY(api, cuDeviceCanAccessPeer, "cannot query peer access", &reachable, device, other);
    return reachable != 0;
}

std::string device_name(const Api& api, int device) {
    char name[256] = {};
    return api.cuDeviceGetName(name, sizeof(name) - 1, device) == CUDA_SUCCESS ? name : std::string();
}

int device_attribute(const Api& api, int device, CUdevice_attribute attribute) {
    int value = 0;
    return api.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
}

bool is_mps_client(const Api& api, int device) {
    constexpr auto k_mps_enabled = static_cast<CUdevice_attribute>(133); // which older headers lack
    return device_attribute(api, device, k_mps_enabled) != 0;
}

std::string device_uuid(const Api& api, int device) {
    CUuuid uuid{};
    if (!api.cuDeviceGetUuid_v2 || api.cuDeviceGetUuid_v2(&uuid, device) != CUDA_SUCCESS) return {};
    const bool is_part = device_name(api, device).find(" MIG ") != std::string::npos;
    std::string text = is_part ? "MIG" : "GPU";
    constexpr std::size_t k_first_group = 4;
    constexpr std::size_t k_last_group = 10;
    for (std::size_t i = 0; i < sizeof(uuid.bytes); ++i) {
        if (i == 0 || (i >= k_first_group && i <= k_last_group && i % 2 == 0)) text += '-';
        text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
    }
    return text;
}

} // namespace gpu_sleep::driver
