// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From a request to a transaction and its report.

#include "sleep/engine.hpp"

#include "base/guard.hpp"
#include "driver/context.hpp"
#include "sleep/sleep_transaction.hpp"
#include "sleep/wake_transaction.hpp"

#include <algorithm>
#include <iterator>

namespace gpu_sleep::sleep {

using ledger::Backing;

namespace {

Bytes kept_if_dropped(const Backing& backing) noexcept {
    Bytes sum = 0;
    for (const auto& span : backing.preserved) sum += span.bytes;
    return sum;
}

void describe_plan(const SleepPlan& plan, model::Report& report) {
    for (const auto& [ordinal, part] : plan.devices) {
        auto& device = report.devices.emplace_back();
        device.device = ordinal;
        for (const auto* backing : part.keep) {
            device.released += backing->bytes;
            device.kept += backing->bytes;
        }
        for (const auto* backing : part.drop) {
            device.released += backing->bytes;
            device.kept += kept_if_dropped(*backing);
            device.dropped += backing->bytes - kept_if_dropped(*backing);
        }
    }
}

void describe_plan(const WakePlan& plan, model::Report& report) {
    for (const auto& [ordinal, backings] : plan.devices) {
        auto& device = report.devices.emplace_back();
        device.device = ordinal;
        for (const auto* backing : backings) {
            Bytes kept = 0;
            for (const auto& extent : backing->kept) kept += extent.span.bytes;
            if (backing->handle == 0) device.released += backing->bytes;
            device.kept += kept;
            device.dropped += backing->bytes - kept;
        }
    }
}

/// Adds the memory of each device in `report`: as it is, and as it would be. Devices whose context the
/// program has given back are passed over: to ask for theirs would make a new one.
Result<void> add_memory(const driver::Api& api, Bytes (*estimate)(Bytes free, Bytes moved),
                        model::Report& report) {
    const auto contexts = driver::active_contexts(api);
    if (!contexts) return contexts.error();
    for (const auto& context : *contexts) {
        const driver::CurrentContext current(api, context.get());
        for (auto& device : report.devices) {
            if (device.device != context.device()) continue;
            const auto memory = driver::memory_info(api);
            if (!memory) return memory.error();
            device.total = memory->total;
            device.free_before = memory->free;
            device.free_after = estimate(memory->free, device.released);
        }
    }
    return {};
}

Bytes free_after_sleep(Bytes free, Bytes released) noexcept {
    return free + released;
}

Bytes free_after_wake(Bytes free, Bytes taken) noexcept {
    return free - std::min(free, taken);
}

/// Contents that were given up without touching the device belong in the report too.
void add_given_up(const SleepPlan& plan, model::Report& report) {
    for (const auto* backing : plan.give_up) {
        const auto same = [&](const model::DeviceReport& d) { return d.device == backing->device; };
        auto device = std::find_if(report.devices.begin(), report.devices.end(), same);
        if (device == report.devices.end()) {
            report.devices.emplace_back().device = backing->device;
            device = std::prev(report.devices.end());
        }
        device->dropped += backing->bytes;
    }
}

} // namespace

Result<void> Engine::sleep(const model::SleepRequest& request, const Control& control,
                           model::Report& report) {
    auto plan = plan_sleep(ledger_, request);
    if (!plan) return std::move(plan).error();
    report.dropped_without_refill = plan->without_refill;
    if (request.dry_run) describe_plan(*plan, report);
    if (plan->is_empty() || request.dry_run) {
        add_given_up(*plan, report);
        return request.dry_run ? add_memory(api_, free_after_sleep, report) : Result<void>();
    }
    SleepTransaction transaction(api_, pinner_, vaults_, options_);
    const auto start = Clock::now();
    GPU_SLEEP_TRY(transaction.prepare(*plan, control));
    report.times.transfer = seconds_since(start);
    const auto prepared = Clock::now();
    GPU_SLEEP_TRY(transaction.commit(plan->give_up));
    report.times.release = seconds_since(prepared);
    report.changed = true;
    transaction.describe(report);
    add_given_up(*plan, report);
    return {};
}

Result<void> Engine::wake(const model::WakeRequest& request, const Control& control, model::Report& report) {
    const auto plan = plan_wake(ledger_, request);
    if (!plan) return plan.error();
    if (request.dry_run) {
        describe_plan(*plan, report);
        return add_memory(api_, free_after_wake, report);
    }
    if (plan->is_empty()) return {};

    WakeTransaction transaction(api_, vaults_);
    const auto start = Clock::now();
    if (auto prepared = guarded([&] { return transaction.prepare(*plan, control); }); !prepared) {
        transaction.undo();
        return std::move(prepared).error();
    }
    transaction.commit();
    report.times.transfer = seconds_since(start);
    report.changed = true;
    transaction.describe(report);
    return {};
}

} // namespace gpu_sleep::sleep
