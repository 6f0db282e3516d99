// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Opening sessions, and which of several errors to tell.

#include "sleep/per_device.hpp"

namespace gpu_sleep::sleep {

Result<std::unique_ptr<driver::DeviceSession>> open_session(const driver::Api& api,
                                                            model::DeviceReport& report, Bytes needed) {
    // More than streams take, 2 MiB on an H200, and than what the driver calls free and does not give out.
    constexpr Bytes k_spared = 16 * k_mib;
    auto context = GPU_SLEEP_TRY(driver::PrimaryContext::retain(api, report.device));
    const driver::CurrentContext current(api, context.get());
    GPU_SLEEP_TRY(current.check());
    const auto memory = GPU_SLEEP_TRY(driver::memory_info(api));
    report.free_before = memory.free;
    report.total = memory.total;
    const bool is_tight = needed > 0 && memory.free < needed + k_spared;
    return driver::DeviceSession::open(api, std::move(context), !is_tight);
}

Result<void> map_memory(const driver::Api& api, ledger::Backing& backing) {
    if (!backing.mapped) GPU_SLEEP_TRY(driver::map(api, {backing.address, backing.bytes}, backing.handle));
    backing.mapped = true;
    return {};
}

Result<void> map_all(const driver::Api& api, const Run& run) {
    for (auto* backing : run.backings) GPU_SLEEP_TRY(map_memory(api, *backing));
    return driver::set_access(api, run.span(), run.backings.front()->access);
}

Result<void> unmap_memory(const driver::Api& api, ledger::Backing& backing) {
    if (backing.mapped) GPU_SLEEP_TRY(driver::unmap(api, {backing.address, backing.bytes}));
    backing.mapped = false;
    return {};
}

Result<void> release_memory(const driver::Api& api, ledger::Backing& backing) {
    GPU_SLEEP_TRY(unmap_memory(api, backing));
    if (backing.handle != 0) GPU_SLEEP_TRY(driver::release(api, backing.handle));
    backing.handle = 0;
    backing.was_host_backed |= std::exchange(backing.host_backed, false);
    return {};
}

void add_report(model::Report& report, const model::DeviceReport& device, driver::DeviceSession& session) {
    report.devices.push_back(device);
    report.devices.back().steps = session.steps().times();
}

model::DeviceReport& device_in(model::Report& report, int device) {
    for (auto& each : report.devices)
        if (each.device == device) return each;
    auto& made = report.devices.emplace_back();
    made.device = device;
    return made;
}

void add_taken_out(model::Report& report, int device, Bytes stored) {
    auto& all = device_in(report, device);
    all.relocated += stored;
    all.stored -= stored;
    all.copied -= stored;
}

Result<void> first_cause(std::vector<Result<void>>& results) {
    Result<void> cancelled;
    for (auto& result : results) {
        if (result) continue;
        if (result.error().code != ErrorCode::cancelled) return std::move(result);
        cancelled = std::move(result);
    }
    return cancelled;
}

} // namespace gpu_sleep::sleep
