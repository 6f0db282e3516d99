// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Opening sessions, and which of several errors to tell.

#include "sleep/per_device.hpp"

namespace gpu_sleep::sleep {

Result<std::unique_ptr<driver::DeviceSession>> open_session(const driver::Api& api, int ordinal,
                                                            model::DeviceReport& report) {
    auto context = driver::PrimaryContext::retain(api, ordinal);
    if (!context) return std::move(context).error();
    auto session = driver::DeviceSession::open(api, *std::move(context));
    if (!session) return session;
    const auto current = (*session)->enter();
    const auto memory = (*session)->memory_info();
    if (!memory) return memory.error();
    report.device = ordinal;
    report.free_before = memory->free;
    report.total = memory->total;
    return session;
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
