// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Prepare: seal and copy. Commit: unmap and release.

#include "sleep/sleep_transaction.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <utility>

namespace gpu_sleep::sleep {

using ledger::Backing;
using ledger::Ledger;
using model::Residence;

namespace {

/// Preserved spans need not be aligned; their copies are, which keeps transfers at full speed.
constexpr Bytes k_extent_alignment = 256;

void add_extent(VaultDraft& draft, Backing& backing, ledger::Span span) {
    ledger::KeptExtent place;
    place.span = span;
    place.vault_offset = draft.to_file ? draft.extents.size() : draft.bytes;
    place.in_file = draft.to_file;
    place.first_seal = draft.seals;
    draft.extents.push_back({&backing, place});
    if (!draft.to_file) draft.bytes += round_up(span.bytes, k_extent_alignment);
    draft.seals += block_count(span.bytes);
    draft.vault.live += span.bytes;
}

Bytes bytes_of(const std::vector<Backing*>& backings) noexcept {
    Bytes sum = 0;
    for (const auto* backing : backings) sum += backing->bytes;
    return sum;
}

std::size_t chunks_of(const VaultDraft& draft) noexcept {
    std::size_t sum = 0;
    for (const auto& extent : draft.extents) sum += store::chunk_count(extent.place.span.bytes);
    return sum;
}

driver::AddressSpan device_span(const VaultDraft::Extent& extent) noexcept {
    return {extent.backing->address + extent.place.span.offset, extent.place.span.bytes};
}

} // namespace

VaultDraft& SleepTransaction::draft_of(DeviceSleep& device, ledger::TagId tag) const {
    auto& drafts = device.drafts;
    const auto known =
        std::find_if(drafts.begin(), drafts.end(), [=](const VaultDraft& d) { return d.tag == tag; });
    if (known != drafts.end()) return *known;
    auto& draft = drafts.emplace_back();
    draft.tag = tag;
    draft.to_file = keeping_.to_file(tag);
    draft.vault.keeps_file = draft.to_file && keeping_.keeps_files;
    return draft;
}

Result<void> SleepTransaction::draft(DeviceSleep& device) {
    for (auto* backing : device.plan.keep)
        add_extent(draft_of(device, backing->tag), *backing, {0, backing->bytes});
    for (auto* backing : device.plan.drop)
        for (const auto span : backing->preserved) add_extent(draft_of(device, backing->tag), *backing, span);
    for (auto& draft : device.drafts) {
        if (!draft.to_file) {
            auto arena = store::HostArena::create(draft.bytes, &pinner_);
            if (!arena) return std::move(arena).error();
            draft.vault.arena = *std::move(arena);
            for (const auto& extent : draft.extents) draft.vault.note_live(extent.place);
        }
        for (const auto& extent : draft.extents) add_blocks(device.blocks, device_span(extent));
        device.report.kept += draft.vault.live;
    }
    auto all = device.plan.keep;
    all.insert(all.end(), device.plan.drop.begin(), device.plan.drop.end());
    std::sort(all.begin(), all.end(),
              [](const Backing* a, const Backing* b) { return a->address < b->address; });
    device.runs = make_runs(all);
    device.unmapped.assign(device.runs.size(), false);
    device.report.dropped = bytes_of(all) - device.report.kept;
    return {};
}

Result<void> SleepTransaction::prepare(const SleepPlan& plan, const Control& control) {
    options_.staging /= std::max<std::size_t>(1, plan.devices.size());
    Bytes total = 0;
    for (const auto& [ordinal, part] : plan.devices) {
        auto& device = devices_.emplace_back();
        device.device = ordinal;
        device.plan = part;
        GPU_SLEEP_TRY(draft(device));
        auto session = open_session(api_, ordinal, device.report);
        if (!session) return std::move(session).error();
        device.session = *std::move(session);
        total += device.report.kept;
    }
    ProgressCounter progress(control, total);
    return run_side_by_side(devices_, progress,
                            [&](DeviceSleep& device) { return transfer(device, progress); });
}

Result<void> SleepTransaction::transfer(DeviceSleep& device, ProgressCounter& progress) {
    if (device.drafts.empty()) return {};
    const driver::RelaxedCaptureMode relaxed(api_);
    const auto current = device.session->enter();
    // The seal is taken before the first byte leaves: from here to the check on waking nothing can change
    // unseen.
    auto seals = device.session->fingerprint(device.blocks);
    if (!seals) return std::move(seals).error();

    std::vector<store::HostArena*> arenas;
    for (const auto& draft : device.drafts)
        if (draft.vault.arena) arenas.push_back(draft.vault.arena.get());
    store::ArenaPreparer::Options options;
    options.threads = options_.fill_threads;
    options.reserve = options_.host_reserve;
    auto preparer = store::ArenaPreparer::start(std::move(arenas), std::move(options));
    if (!preparer) return std::move(preparer).error();

    auto copied = copy_out(device, **preparer, progress);
    if (copied) copied = write_files(device, progress);
    const auto finished =
        device.session->synchronize(); // also after a failure: the arenas must not be in use
    GPU_SLEEP_TRY(std::move(copied));
    if (!finished) return finished.error();
    auto next = seals->begin();
    for (auto& draft : device.drafts) {
        draft.vault.seals.assign(next, next + static_cast<std::ptrdiff_t>(draft.seals));
        next += static_cast<std::ptrdiff_t>(draft.seals);
    }
    return {};
}

Result<void> SleepTransaction::copy_out(DeviceSleep& device, store::ArenaPreparer& preparer,
                                        ProgressCounter& progress) {
    for (const auto& draft : device.drafts) {
        if (draft.to_file) continue;
        const auto& arena = *draft.vault.arena;
        std::vector<Copy> copies;
        for (const auto& extent : draft.extents)
            add_copy(copies, {device_span(extent), &arena, extent.place.vault_offset});
        const auto part = [&](std::size_t piece, driver::DeviceAddress from, std::byte* to,
                              Bytes bytes) -> Result<void> {
            GPU_SLEEP_TRY(preparer.wait(arena, piece, [&] { return add_copied(*device.session, progress); }));
            GPU_SLEEP_TRY(device.session->copy_to_host(to, from, bytes));
            GPU_SLEEP_TRY(device.session->mark(bytes));
            return add_copied(*device.session, progress); // and heeds a withdrawal
        };
        for (const auto& copy : copies) GPU_SLEEP_TRY(for_each_part(copy, part));
    }
    return device.session->wait_marks([&](Bytes bytes) { return progress.add(bytes); });
}

Result<void> SleepTransaction::write_files(DeviceSleep& device, ProgressCounter& progress) {
    std::size_t chunks = 0; // of the longest file: they share the ring
    for (const auto& draft : device.drafts)
        if (draft.to_file) chunks = std::max(chunks, chunks_of(draft));
    if (chunks == 0) return {};
    const auto slots = Staging::slots_for(chunks, keeping_.directory->is_in_memory(), options_);
    for (auto& draft : device.drafts) {
        if (!draft.to_file) continue;
        GPU_SLEEP_TRY(
            with_staging(device.staging, *device.session, pinner_, slots, options_, progress,
                         [&](Staging& staging) { return write_file(device, draft, staging, progress); }));
    }
    return {};
}

Result<void> SleepTransaction::write_file(DeviceSleep& device, VaultDraft& draft, Staging& staging,
                                          ProgressCounter& progress) {
    auto description = store::describe_own();
    if (!description) return std::move(description).error();
    std::vector<driver::AddressSpan> spans;
    for (const auto& extent : draft.extents) {
        spans.push_back(device_span(extent));
        description->extents.push_back(
            {spans.back().address, spans.back().bytes, keeping_.name(draft.tag), device.device});
    }
    DeviceSource source(*device.session, staging, std::move(spans), description->extents, progress);
    store::SnapshotWriteOptions options;
    options.under_way = staging.ahead();
    options.staging = std::min(options_.staging, staging.buffer_bytes());
    options.memory.reserve = options_.host_reserve;
    auto written = store::write_snapshot(keeping_.directory, *std::move(description), source, options);
    if (!written) return std::move(written).error();
    draft.vault.snapshot = *std::move(written);
    return {};
}

Result<void> SleepTransaction::unmap_all() {
    for (auto& device : devices_) {
        for (std::size_t i = 0; i < device.runs.size(); ++i) {
            GPU_SLEEP_TRY(driver::unmap(api_, device.runs[i].span()));
            device.unmapped[i] = true;
            for (auto* backing : device.runs[i].backings) backing->mapped = false;
        }
    }
    return {};
}

void SleepTransaction::map_again() {
    for (auto& device : devices_) {
        for (std::size_t i = 0; i < device.runs.size(); ++i) {
            if (!device.unmapped[i]) continue;
            const auto& run = device.runs[i];
            Result<void> done;
            for (auto* backing : run.backings) {
                done = driver::map(api_, {backing->address, backing->bytes}, backing->handle);
                if (!done) break;
                backing->mapped = true;
            }
            if (done) done = driver::set_access(api_, run.span(), run.backings.front()->access);
            device.unmapped[i] = !done;
            if (!done) log::error("a sleep could not be undone: {}", done.error().message);
        }
    }
}

std::size_t SleepTransaction::leave_asleep() {
    std::size_t count = 0;
    for (auto& device : devices_) {
        const auto& keep = device.plan.keep;
        for (std::size_t i = 0; i < device.runs.size(); ++i) {
            if (!device.unmapped[i]) continue;
            for (auto* backing : device.runs[i].backings) {
                const bool is_kept = std::find(keep.begin(), keep.end(), backing) != keep.end();
                Ledger::move(*backing, is_kept ? Residence::host : Residence::dropped);
                ++count;
            }
        }
    }
    return count;
}

Result<void> SleepTransaction::commit(const std::vector<Backing*>& give_up) {
    // Everything that takes memory comes first: behind the last unmap nothing may fail.
    const auto ready = guarded([this]() -> Result<void> {
        for (auto& device : devices_) enlist(device);
        return name_kept_files();
    });
    if (!ready) {
        strike_off();
        return ready.error();
    }
    if (auto unmapped = unmap_all(); !unmapped) {
        map_again();
        const auto asleep = leave_asleep();
        strike_off();
        if (asleep == 0) return std::move(unmapped).error();
        return make_error(ErrorCode::driver_failed,
                          "{}; what could not be mapped again sleeps, with what was to be kept of it ({}): "
                          "gpu-wake brings it back",
                          unmapped.error().message, counted(asleep, "range"));
    }
    for (auto& device : devices_) {
        release(device);
        settle(device);
    }
    for (auto* backing : give_up) {
        vaults_.forget(std::exchange(backing->kept, {}));
        Ledger::move(*backing, Residence::dropped);
    }
    return {};
}

void SleepTransaction::release(DeviceSleep& device) {
    for (const auto& run : device.runs) {
        for (auto* backing : run.backings) {
            if (const auto status = api_.cuMemRelease(backing->handle); status != CUDA_SUCCESS) {
                // Nothing is lost: the handle stays, and waking maps it again.
                ++unreleased_;
                log::warning("range {:#x} keeps its GPU memory: cuMemRelease gave {}", backing->address,
                             static_cast<int>(status));
                continue;
            }
            backing->handle = 0;
            device.report.released += backing->bytes;
        }
    }
    const auto current = device.session->enter();
    if (const auto memory = device.session->memory_info()) device.report.free_after = memory->free;
}

void SleepTransaction::enlist(DeviceSleep& device) {
    for (auto& draft : device.drafts)
        for (auto& extent : draft.extents) extent.backing->kept.reserve(extent.backing->preserved.size() + 1);
    for (auto& draft : device.drafts) {
        const auto id = vaults_.add(std::move(draft.vault));
        for (auto& extent : draft.extents) {
            extent.place.vault = id;
            extent.backing->kept.push_back(extent.place);
        }
    }
}

Result<void> SleepTransaction::name_kept_files() {
    if (!keeping_.keeps_files || !keeping_.directory) return {};
    for (const auto& device : devices_)
        for (const auto& draft : device.drafts)
            if (draft.to_file)
                GPU_SLEEP_TRY(vaults_.at(draft.extents.front().place.vault).snapshot->file.keep());
    return keeping_.directory->flush();
}

void SleepTransaction::strike_off() {
    for (auto& device : devices_)
        for (auto& draft : device.drafts)
            for (auto& extent : draft.extents)
                if (extent.backing->residence() == Residence::device)
                    vaults_.forget(std::exchange(extent.backing->kept, {}), Vaults::Files::removed);
}

void SleepTransaction::settle(DeviceSleep& device) {
    for (auto* backing : device.plan.keep) Ledger::move(*backing, Residence::host);
    for (auto* backing : device.plan.drop) Ledger::move(*backing, Residence::dropped);
}

void SleepTransaction::describe(model::Report& report) const {
    for (const auto& device : devices_) report.devices.push_back(device.report);
    if (unreleased_ == 0) return;
    noted([&] {
        report.notes.push_back(fmt::format("the driver did not release {}; waking takes back what it holds",
                                           counted(unreleased_, "range")));
    });
}

} // namespace gpu_sleep::sleep
