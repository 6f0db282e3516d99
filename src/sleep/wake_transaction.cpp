// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Prepare: create, map, fill, verify. Commit: the vaults are no longer needed.

#include "sleep/wake_transaction.hpp"

#include "base/log.hpp"
#include "base/text.hpp"
#include "sleep/room.hpp"

#include <algorithm>
#include <set>

namespace gpu_sleep::sleep {

using ledger::Backing;
using ledger::Ledger;
using model::Residence;

namespace {

/// How long a create that fails is tried again: memory that was just released elsewhere is still being
/// scrubbed.
constexpr Milliseconds k_create_patience{500};

bool has_contents(const Run& run) noexcept {
    return run.backings.front()->residence() == Residence::host;
}

/// Adds `run` in parts of a bounded size: the first copy need not wait until all of it is mapped.
void add_parts(std::vector<Run>& runs, const Run& run) {
    constexpr Bytes k_part_bytes = 512 * k_mib;
    Bytes bytes = k_part_bytes;
    for (auto* backing : run.backings) {
        if (bytes + backing->bytes > k_part_bytes) {
            runs.emplace_back();
            bytes = 0;
        }
        runs.back().backings.push_back(backing);
        bytes += backing->bytes;
    }
}

/// Runs of one residence each, those with contents first: mapping the others then hides behind their copies.
std::vector<Run> make_wake_runs(const std::vector<Backing*>& backings) {
    std::vector<Backing*> kept;
    std::vector<Backing*> dropped;
    for (auto* backing : backings)
        (backing->residence() == Residence::host ? kept : dropped).push_back(backing);
    std::vector<Run> runs;
    for (const auto& run : make_runs(kept)) add_parts(runs, run);
    for (auto& run : make_runs(dropped)) runs.push_back(std::move(run));
    return runs;
}

bool keeps_spans(const Run& run) noexcept {
    return std::any_of(run.backings.begin(), run.backings.end(),
                       [](const Backing* b) { return !b->kept.empty(); });
}

/// Whether a failed reading is the file's trouble, and so its tag's alone.
bool is_about_file(ErrorCode code) noexcept {
    return code == ErrorCode::damaged || code == ErrorCode::io_failed || code == ErrorCode::not_permitted ||
           code == ErrorCode::protocol_mismatch;
}

} // namespace

Result<void> WakeTransaction::open(DeviceWake& device, const std::vector<Backing*>& backings) {
    auto session = open_session(api_, device.device, device.report);
    if (!session) return std::move(session).error();
    device.session = *std::move(session);
    device.runs = make_wake_runs(backings);
    return check_room(backings, device.device, {device.report.free_before, device.report.total});
}

Result<void> WakeTransaction::prepare(const WakePlan& plan, const Control& control) {
    options_.staging /= std::max<std::size_t>(1, plan.devices.size());
    Bytes total = 0;
    for (const auto& [ordinal, backings] : plan.devices) {
        auto& device = devices_.emplace_back();
        device.device = ordinal;
        GPU_SLEEP_TRY(open(device, backings));
        for (const auto* backing : backings) total += backing->kept_bytes();
    }
    ProgressCounter progress(control, total);
    GPU_SLEEP_TRY(run_side_by_side(devices_, progress,
                                   [&](DeviceWake& device) { return bring_back(device, progress); }));
    for (const auto& device : devices_) spoiled_.insert(device.spoiled.begin(), device.spoiled.end());
    return {};
}

Result<void> WakeTransaction::bring_back(DeviceWake& device, ProgressCounter& progress) {
    const driver::RelaxedCaptureMode relaxed(api_);
    const auto current = device.session->enter();
    const auto kind = driver::MemoryKind::of_device(api_, device.device);
    if (!kind) return kind.error();
    for (const auto& run : device.runs) {
        GPU_SLEEP_TRY(map_run(device, *kind, run));
        GPU_SLEEP_TRY(progress.add(0)); // a sign of life, and an ear
        GPU_SLEEP_TRY(fill_run(device, run, progress));
    }
    std::sort(device.files.begin(), device.files.end());
    GPU_SLEEP_TRY(read_files(device, device.files, progress));
    GPU_SLEEP_TRY(device.session->wait_marks([&](Bytes bytes) { return progress.add(bytes); }));
    return verify(device, progress);
}

Result<void> WakeTransaction::map_run(DeviceWake& device, const driver::MemoryKind& kind, const Run& run) {
    for (auto* backing : run.backings) {
        device.opened.push_back(backing);
        if (backing->handle == 0) {
            auto memory = kind.create(api_, backing->bytes, k_create_patience);
            if (!memory) return std::move(memory).error();
            backing->handle = memory->release();
            device.report.released += backing->bytes;
        }
        if (backing->mapped) continue; // an earlier wake could not be undone wholly
        GPU_SLEEP_TRY(driver::map(api_, {backing->address, backing->bytes}, backing->handle));
        backing->mapped = true;
    }
    return driver::set_access(api_, run.span(), run.backings.front()->access);
}

Result<void> WakeTransaction::fill_run(DeviceWake& device, const Run& run, ProgressCounter& progress) {
    if (!has_contents(run)) {
        // Spans are copied over the zeros, so those zeros must be in order with the copies.
        GPU_SLEEP_TRY(keeps_spans(run) ? device.session->zero(run.span())
                                       : device.session->zero_aside(run.span()));
    }
    std::vector<Copy> copies;
    for (auto* backing : run.backings) {
        for (const auto& extent : backing->kept) {
            const auto& vault = vaults_.at(extent.vault);
            const Copy copy{{backing->address + extent.span.offset, extent.span.bytes},
                            vault.arena.get(),
                            extent.vault_offset};
            std::optional<FileExtent> file;
            if (extent.in_file) {
                file = FileExtent{extent.vault, static_cast<std::size_t>(extent.vault_offset),
                                  copy.device.address, backing->tag};
                device.files.push_back(*file);
            } else {
                add_copy(copies, copy);
            }
            const auto first = device.blocks.size();
            add_blocks(device.blocks, copy.device);
            for (auto i = first; i < device.blocks.size(); ++i) {
                const auto& block = device.blocks[i];
                const Copy part{{block.address, block.bytes},
                                copy.arena,
                                copy.arena_offset + (block.address - copy.device.address)};
                device.kept.push_back({backing, part, file, vault.seals[extent.first_seal + (i - first)]});
            }
        }
        device.report.kept += backing->kept_bytes();
        device.report.dropped += backing->bytes - backing->kept_bytes();
    }
    const auto part = [&](std::size_t, driver::DeviceAddress to, const std::byte* from,
                          Bytes bytes) -> Result<void> {
        GPU_SLEEP_TRY(device.session->copy_to_device(to, from, bytes));
        GPU_SLEEP_TRY(device.session->mark(bytes));
        return add_copied(*device.session, progress);
    };
    for (const auto& copy : copies) GPU_SLEEP_TRY(for_each_part(copy, part));
    return {};
}

Result<std::vector<std::size_t>> WakeTransaction::find_damage(DeviceWake& device,
                                                              const std::vector<std::size_t>& indices) {
    std::vector<driver::FingerprintBlock> blocks;
    blocks.reserve(indices.size());
    for (const auto index : indices) blocks.push_back(device.blocks[index]);
    auto found = device.session->fingerprint(blocks);
    if (!found) return std::move(found).error();
    GPU_SLEEP_TRY(device.session->synchronize());
    std::vector<std::size_t> damaged;
    for (std::size_t i = 0; i < indices.size(); ++i)
        if ((*found)[i] != device.kept[indices[i]].seal) damaged.push_back(indices[i]);
    return damaged;
}

Result<void> WakeTransaction::read_file(DeviceWake& device, std::span<const FileExtent> wanted,
                                        std::size_t chunks, ProgressCounter& progress) {
    auto& snapshot = *vaults_.at(wanted.front().vault).snapshot;
    GPU_SLEEP_TRY(snapshot.file.hold());
    auto reader = store::SnapshotReader::open(snapshot.file, snapshot.header);
    if (!reader) return std::move(reader).error();
    std::vector<driver::DeviceAddress> addresses(snapshot.header.description.extents.size());
    store::SnapshotReadOptions options;
    for (const auto& extent : wanted) {
        addresses[extent.number] = extent.address;
        options.extents.push_back(extent.number);
    }
    const auto read = [&](Staging& staging) {
        options.ahead = staging.ahead();
        options.staging = std::min(options_.staging, staging.buffer_bytes());
        DeviceSink sink(*device.session, staging, addresses, progress);
        return reader->read(sink, options);
    };
    return with_staging(device.staging, *device.session, pinner_, Staging::slots_for(chunks, false, options_),
                        options_, progress, read);
}

Result<void> WakeTransaction::read_files(DeviceWake& device, const std::vector<FileExtent>& wanted,
                                         ProgressCounter& progress) {
    std::size_t chunks = 0; // of the longest file: they share the ring
    for (const auto& file : wanted)
        chunks = std::max(chunks, vaults_.at(file.vault).snapshot->header.rows.size());
    for (auto first = wanted.begin(); first != wanted.end();) {
        // One vault after another; its extents in their order.
        const auto last =
            std::find_if(first, wanted.end(), [=](const FileExtent& f) { return f.vault != first->vault; });
        auto read = read_file(device, {first, last}, chunks, progress);
        if (!read && !is_about_file(read.error().code)) return read;
        if (!read) device.spoiled.try_emplace(first->tag, std::move(read).error());
        first = last;
    }
    return {};
}

Result<void> WakeTransaction::bring_again(DeviceWake& device, const std::vector<std::size_t>& damaged,
                                          ProgressCounter& progress) {
    std::set<FileExtent> files;
    for (const auto index : damaged) {
        const auto& block = device.kept[index];
        if (block.file) {
            files.insert(*block.file);
            continue;
        }
        GPU_SLEEP_TRY(for_each_part(
            block.copy, [&](std::size_t, driver::DeviceAddress to, const std::byte* from, Bytes bytes) {
                return device.session->copy_to_device(to, from, bytes);
            }));
    }
    return read_files(device, {files.begin(), files.end()}, progress);
}

Result<void> WakeTransaction::verify(DeviceWake& device, ProgressCounter& progress) {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < device.blocks.size(); ++i)
        if (!device.spoiled.contains(device.kept[i].backing->tag)) all.push_back(i);
    auto damaged = find_damage(device, all);
    if (!damaged) return std::move(damaged).error();
    if (damaged->empty()) return {};

    // A bit that flipped on the way is still right where it was kept.
    GPU_SLEEP_TRY(bring_again(device, *damaged, progress));
    auto still = find_damage(device, *damaged);
    if (!still) return std::move(still).error();
    if (still->empty())
        log::warning("copied again to GPU {}, for it had arrived damaged: {}", device.device,
                     counted(damaged->size(), "block"));
    for (const auto index : *still) {
        auto* backing = device.kept[index].backing;
        const auto known = device.spoiled.find(backing->tag);
        // A file that could not be read once more may be put right.
        if (known != device.spoiled.end() && known->second.code != ErrorCode::damaged) continue;
        device.damaged.push_back(backing);
        if (known == device.spoiled.end())
            device.spoiled.emplace(backing->tag,
                                   make_error(ErrorCode::damaged,
                                              "{} of {} changed while asleep, the first at {:#x}",
                                              still->size(), counted(device.blocks.size(), "block"),
                                              device.blocks[index].address));
    }
    return {};
}

void WakeTransaction::commit() {
    for (auto& device : devices_) {
        take_back_spoiled(device);
        for (const auto& run : device.runs) {
            for (auto* backing : run.backings) {
                backing->needs_refill |= backing->has_lost_contents();
                vaults_.forget(std::exchange(backing->kept, {}));
                Ledger::move(*backing, Residence::device);
            }
        }
        const auto current = device.session->enter();
        if (const auto memory = device.session->memory_info()) device.report.free_after = memory->free;
    }
}

bool WakeTransaction::has_damaged_file(const DeviceWake& device, const Backing& backing) {
    const auto spoiled = device.spoiled.find(backing.tag);
    return spoiled != device.spoiled.end() && spoiled->second.code == ErrorCode::damaged &&
           std::any_of(backing.kept.begin(), backing.kept.end(),
                       [](const ledger::KeptExtent& extent) { return extent.in_file; });
}

void WakeTransaction::take_back_spoiled(DeviceWake& device) {
    const auto wakes = [&](const Run& run) { return !spoiled_.contains(run.backings.front()->tag); };
    const auto first = std::partition(device.runs.begin(), device.runs.end(), wakes);
    for (auto run = first; run != device.runs.end(); ++run) {
        for (auto* backing : run->backings) {
            backing->has_damaged_file |= has_damaged_file(device, *backing);
            device.report.kept -= backing->kept_bytes();
            device.report.dropped -= backing->bytes - backing->kept_bytes();
        }
        device.report.released -= std::min(device.report.released, close(run->backings));
    }
    device.runs.erase(first, device.runs.end());
    for (auto* backing : device.damaged)
        if (backing->residence() != Residence::damaged) Ledger::move(*backing, Residence::damaged);
}

Bytes WakeTransaction::close(const std::vector<Backing*>& opened) {
    Bytes released = 0;
    for (auto* backing : opened) {
        if (backing->mapped) {
            const auto unmapped = driver::unmap(api_, {backing->address, backing->bytes});
            if (!unmapped) {
                log::warning("a wake was not wholly undone: {}", unmapped.error().message);
                continue;
            }
            backing->mapped = false;
        }
        if (backing->handle == 0 || api_.cuMemRelease(backing->handle) != CUDA_SUCCESS) continue;
        backing->handle = 0;
        released += backing->bytes;
    }
    return released;
}

void WakeTransaction::undo() {
    for (auto& device : devices_) {
        device.session.reset(); // waits for its copies
        static_cast<void>(close(device.opened));
    }
}

bool WakeTransaction::has_changed() const noexcept {
    return std::any_of(devices_.begin(), devices_.end(),
                       [](const DeviceWake& device) { return !device.runs.empty(); });
}

void WakeTransaction::describe(model::Report& report) const {
    for (const auto& device : devices_) report.devices.push_back(device.report);
}

} // namespace gpu_sleep::sleep
