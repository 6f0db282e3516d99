// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Prepare: create, map, fill, verify. Commit: what was kept is no longer needed.

#include "sleep/wake_transaction.hpp"

#include "base/log.hpp"
#include "base/text.hpp"

namespace gpu_sleep::sleep {

using ledger::Backing;
using ledger::Ledger;
using model::Residence;

namespace {

/// How long a create that fails is tried again: memory that was just released elsewhere is still being
/// scrubbed.
constexpr Milliseconds k_create_patience{500};

/// Whether all that the backing held is brought back, so that nothing of it need be zeroed.
bool is_wholly_kept(const Backing& backing) noexcept {
    return backing.lost() == 0;
}

/// How much is mapped before the first copy begins. While the link is busy, granting access takes ten times
/// as long as otherwise, and where handles are small longer than copying: what it would fall behind by comes
/// first. Traced on an H200, 55 GB/s: 25 us for each 2 MiB, and 115 us for each handle.
Bytes lead_of(const std::vector<Backing*>& kept) {
    constexpr Bytes k_copy_us = 18; // for each MiB
    constexpr Bytes k_access_us = 13;
    constexpr Bytes k_handle_us = 115;
    Bytes bytes = 0;
    Bytes copied = 0;
    for (const auto* backing : kept) {
        bytes += backing->bytes;
        copied += backing->holds_contents ? 0 : backing->bytes;
    }
    const auto mib = bytes / k_mib;
    const auto copying = copied / k_mib * k_copy_us;
    const auto mapping = mib * k_access_us + kept.size() * k_handle_us;
    return mapping <= copying ? 0 : mib * (mapping - copying) / mapping * k_mib;
}

/// Adds `run` in parts of a bounded size: the first copy need not wait until all of it is mapped.
void add_parts(std::vector<Run>& runs, const Run& run) {
    constexpr Bytes k_least = 32 * k_mib;
    constexpr Bytes k_most = 512 * k_mib;
    Bytes size = k_least; // little first, and more later, for which there is time
    Bytes bytes = 0;
    for (auto* backing : run.backings) {
        if (bytes == 0 || bytes + backing->bytes > size) {
            if (bytes > 0) size = std::min(2 * size, k_most);
            runs.emplace_back();
            bytes = 0;
        }
        runs.back().backings.push_back(backing);
        bytes += backing->bytes;
    }
}

/// Those that are wholly kept, in parts, small ones first: creating a large handle takes up to 9 ms for each
/// GiB, which then hides behind copies. Then the others, of which mapping alone takes time.
std::vector<Run> make_wake_runs(const std::vector<Backing*>& kept, const std::vector<Backing*>& others) {
    std::vector<Run> runs;
    for (const auto& run : make_runs(kept)) add_parts(runs, run);
    std::ranges::stable_sort(runs,
                             [](const Run& a, const Run& b) { return a.span().bytes < b.span().bytes; });
    for (auto& run : make_runs(others)) runs.push_back(std::move(run));
    return runs;
}

bool keeps_any(const Run& run) noexcept {
    return std::ranges::any_of(run.backings, [](const Backing* backing) { return backing->kept.range != 0; });
}

} // namespace

Result<void> WakeTransaction::open(DeviceWake& device, const WakePlan& plan) {
    const auto needs = plan.needs(device.report.device);
    device.session = GPU_SLEEP_TRY(open_session(api_, device.report, needs));
    std::vector<Backing*> kept;
    std::vector<Backing*> others;
    for (auto* backing : plan.devices.at(device.report.device))
        (is_wholly_kept(*backing) ? kept : others).push_back(backing);
    device.runs = make_wake_runs(kept, others);
    device.lead = lead_of(kept);
    device.spare = device.report.free_before - std::min(device.report.free_before, needs);
    return check_free_memory(plan, device.report.device, {device.report.free_before, device.report.total});
}

Result<void> WakeTransaction::prepare(const WakePlan& plan, const contents::Control& control,
                                      const Fetch& fetch) {
    Bytes total = 0;
    to_host_ = plan.to_host;
    for (const auto& [ordinal, backings] : plan.devices) {
        auto& device = devices_.emplace_back();
        device.report.device = ordinal;
        GPU_SLEEP_TRY(open(device, plan));
        for (const auto* backing : backings)
            if (backing->kept.range != 0) total += bytes_placed(contents_.at(backing->kept.range));
    }
    contents::ProgressCounter progress(control, total);
    GPU_SLEEP_TRY(run_side_by_side(devices_, progress,
                                   [&](DeviceWake& device) { return bring_back(device, progress); }));
    for (const auto& device : devices_) note_spoiled(device);
    imports_ = plan.imports;
    for (auto* import : imports_) GPU_SLEEP_TRY(release_memory(api_, *import)); // what could not be undone
    if (fetch) GPU_SLEEP_TRY(fetch(imports_, spoiled_));
    std::erase_if(imports_, [](const Backing* import) { return import->handle == 0; });
    for (auto* import : imports_) GPU_SLEEP_TRY(map_all(api_, Run{{import}}));
    return {};
}

Result<void> WakeTransaction::bring_back(DeviceWake& device, contents::ProgressCounter& progress) {
    const driver::RelaxedCaptureMode relaxed(api_);
    const auto current = device.session->enter();
    GPU_SLEEP_TRY(current.check());
    const auto kinds = GPU_SLEEP_TRY(kinds_of(device.report.device));
    contents::Restore restore(contents_, *device.session, progress, devices_.size());
    std::vector<contents::Number> ranges;
    for (const auto& run : device.runs)
        for (const auto* backing : run.backings)
            if (backing->kept.range != 0) ranges.push_back(backing->kept.range);
    GPU_SLEEP_TRY(restore.expect(ranges, device.spare));
    Bytes mapped = 0;
    auto next = device.runs.begin(); // to fill
    for (auto run = device.runs.begin(); run != device.runs.end();) {
        GPU_SLEEP_TRY(map_run(device, kinds, *run));
        GPU_SLEEP_TRY(progress.add(0)); // a sign of life, and an ear
        mapped += run->span().bytes;
        if (++run != device.runs.end() && mapped < device.lead) continue;
        for (; next != run; ++next) GPU_SLEEP_TRY(fill_run(device, *next, restore));
    }
    if (&device == &devices_.front()) room_to_retain_ = contents_.budget().room_to_retain();
    GPU_SLEEP_TRY(restore.finish());
    device.failures = restore.failures();
    return {};
}

void WakeTransaction::note_spoiled(const DeviceWake& device) {
    if (device.failures.empty()) return;
    for (const auto& run : device.runs)
        for (const auto* backing : run.backings)
            if (const auto failed = device.failures.find(backing->kept.range);
                failed != device.failures.end())
                spoiled_.try_emplace(backing->tag, failed->second);
}

Result<WakeTransaction::Kinds> WakeTransaction::kinds_of(int device) const {
    const bool is_any_of_host =
        std::ranges::any_of(to_host_, [&](const Backing* backing) { return backing->device == device; });
    const auto gpu = driver::MemoryKind::of_device(api_, device);
    const auto host = is_any_of_host ? driver::MemoryKind::of_host_near(api_, device) : gpu;
    if (!gpu) return gpu.error();
    if (!host) return host.error();
    return Kinds{*gpu, *host};
}

Result<void> WakeTransaction::map_run(DeviceWake& device, const Kinds& kinds, const Run& run) {
    for (auto* backing : run.backings) {
        device.opened.push_back(backing);
        if (backing->handle == 0) {
            const model::StepClock::Timed timed(&device.session->steps(), model::Step::create);
            const bool is_of_host = to_host_.contains(backing);
            auto memory = GPU_SLEEP_TRY(
                (is_of_host ? kinds.host : kinds.gpu).create(api_, backing->bytes, k_create_patience));
            backing->handle = memory.release();
            backing->host_backed = is_of_host;
            if (!is_of_host) device.report.released += backing->bytes;
        }
        const model::StepClock::Timed timed(&device.session->steps(), model::Step::map);
        GPU_SLEEP_TRY(map_memory(api_, *backing));
    }
    const model::StepClock::Timed timed(&device.session->steps(), model::Step::access);
    return driver::set_access(api_, run.span(), run.backings.front()->access);
}

Result<void> WakeTransaction::fill_run(DeviceWake& device, const Run& run, contents::Restore& restore) {
    if (!is_wholly_kept(*run.backings.front())) {
        // Spans are copied over the zeros, so those zeros must be in order with the copies.
        GPU_SLEEP_TRY(keeps_any(run) ? device.session->zero(run.span())
                                     : device.session->zero_aside(run.span()));
    }
    std::vector<contents::Restore::Target> targets;
    for (const auto* backing : run.backings) {
        if (backing->kept.range != 0) targets.push_back({backing->kept.range, backing->address});
        device.report.kept += backing->bytes - backing->lost();
        device.report.dropped += backing->lost();
    }
    return restore.add(targets);
}

void WakeTransaction::commit() {
    auto room = contents_.room_beside_retained(room_to_retain_);
    const auto woke = [&](const std::vector<Backing*>& backings) {
        for (auto* backing : backings) {
            backing->needs_refill |= backing->has_lost_contents();
            backing->kept.bytes = 0;
            if (!contents_.retain(backing->kept.range, room)) backing->kept = {};
            backing->was_host_backed = false;
            Ledger::move(*backing, Residence::device);
        }
    };
    woke(imports_);
    for (auto& device : devices_) {
        take_back_spoiled(device);
        for (const auto& run : device.runs) woke(run.backings);
        const auto current = device.session->enter();
        if (const auto memory = device.session->memory_info()) device.report.free_after = memory->free;
    }
    contents_.note_spare();
}

void WakeTransaction::take_back_spoiled(DeviceWake& device) {
    const auto wakes = [&](const Run& run) { return !spoiled_.contains(run.backings.front()->tag); };
    const auto first = std::partition(device.runs.begin(), device.runs.end(), wakes);
    for (auto run = first; run != device.runs.end(); ++run) {
        for (auto* backing : run->backings) {
            const auto failed = device.failures.find(backing->kept.range);
            const bool is_damaged =
                failed != device.failures.end() && failed->second.code == ErrorCode::damaged;
            if (is_damaged && backing->residence() != Residence::damaged)
                Ledger::move(*backing, Residence::damaged);
            device.report.kept -= backing->bytes - backing->lost();
            device.report.dropped -= backing->lost();
        }
        device.report.released -= std::min(device.report.released, close(run->backings));
    }
    device.runs.erase(first, device.runs.end());
}

Bytes WakeTransaction::close(const std::vector<Backing*>& opened) {
    Bytes released = 0;
    for (auto* backing : opened) {
        const bool is_of_gpu = backing->handle != 0 && !backing->host_backed;
        const auto closed =
            backing->holds_contents ? unmap_memory(api_, *backing) : release_memory(api_, *backing);
        if (!closed)
            log::warning("a wake could not be undone completely: {}", closed.error().message);
        else if (is_of_gpu && !backing->holds_contents)
            released += backing->bytes;
    }
    return released;
}

bool WakeTransaction::undo() {
    bool have_ended = true;
    static_cast<void>(close(imports_));
    for (auto& device : devices_) {
        have_ended &= !device.session || device.session->synchronize();
        device.session.reset();
        static_cast<void>(close(device.opened));
    }
    return have_ended;
}

bool WakeTransaction::has_changed() const noexcept {
    return !imports_.empty() ||
           std::ranges::any_of(devices_, [](const DeviceWake& device) { return !device.runs.empty(); });
}

void WakeTransaction::describe(model::Report& report) const {
    for (const auto& device : devices_) add_report(report, device.report, *device.session);
}

Result<void> check_free_memory(const WakePlan& plan, int device, const driver::MemoryInfo& memory) {
    const auto needed = plan.needs(device);
    if (needed <= memory.free) return {};
    const auto& backings = plan.devices.at(device);
    const bool has_run_from_host = std::ranges::any_of(
        backings, [&](const Backing* each) { return each->was_host_backed && !plan.to_host.contains(each); });
    return make_error(
        ErrorCode::out_of_device_memory, "waking needs {} on GPU {}, and {} of {} are free{}",
        format_bytes(needed), device, format_bytes(memory.free), format_bytes(memory.total),
        has_run_from_host ? "; gpu-wake --live-bytes 0 leaves in host memory what ran from there" : "");
}

} // namespace gpu_sleep::sleep
