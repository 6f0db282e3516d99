// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From ranges to batches, and their contents to where they are kept.

#include "contents/save.hpp"

#include "base/log.hpp"
#include "base/text.hpp"
#include "contents/host_cache.hpp"
#include "contents/stored.hpp"
#include "driver/context.hpp"

namespace gpu_sleep::contents {
namespace {

const codec::BlockPlan k_raw;

const codec::BlockPlan& plan_at(const std::vector<codec::BlockPlan>& plans, std::size_t block) noexcept {
    return plans.empty() ? k_raw : plans[block];
}

bool is_coded(const codec::BlockPlan& plan) noexcept {
    return plan.block_class != codec::BlockClass::raw;
}

/// After the session was synchronized. Errors: refused.
Result<void> check_coded(const Transfer& transfer) {
    const auto used = transfer.coding.tasks.first(transfer.coding_used);
    const auto failed = std::ranges::find_if(used, [](const auto& task) { return task.failed != 0; });
    if (failed == used.end()) return {};
    return make_error(ErrorCode::refused, "memory at {:#x} changes while it is put to sleep",
                      failed->content);
}

} // namespace

Save::Save(Contents& contents, SaveOptions options, std::size_t devices)
    : contents_(contents), options_(std::move(options)), limits_(contents.options()) {
    limits_.staging /= std::max<std::size_t>(1, devices);
    options_.takes_prepared = true;
}

Save::~Save() {
    for (auto* const batch : taken_back_) static_cast<void>(batch->retain()); // it has not begun
    for (auto& [device, part] : parts_) {
        for (auto& item : part.items) {
            if (part.overwritten.contains(item.number))
                contents_.end(std::move(item.lent), nullptr);
            else
                contents_.take_back(std::move(item.lent));
        }
    }
}

Number Save::add(Label label, model::Store store, driver::DeviceAddress address, std::vector<Span> spans,
                 Number previous) {
    auto& part = parts_[label.device];
    const auto number = contents_.next_number();
    auto& range = ranges_.emplace_hint(ranges_.end(), number, KeptRange{})->second;
    range.spans = std::move(spans);
    std::size_t count = 0;
    for (const auto& span : range.spans) {
        count += block_count(span.bytes);
        part.bytes += span.bytes;
    }
    range.blocks.resize(count);
    part.items.push_back({number, address, &range, store, std::move(label.tag), previous});
    return number;
}

Result<void> Save::seal(driver::DeviceSession& session) {
    const auto found = parts_.find(session.device());
    if (found == parts_.end()) return {};
    auto& part = found->second;
    const driver::RelaxedCaptureMode relaxed(contents_.api());
    const auto current = session.enter();
    GPU_SLEEP_TRY(current.check());
    std::vector<driver::FingerprintBlock> blocks;
    blocks.reserve(block_count(part.bytes) + part.items.size());
    for (const auto& item : part.items)
        for_each_block(*item.range, [&](const Block&, Span span, std::size_t) {
            blocks.push_back({item.address + span.offset, span.bytes});
        });
    const auto seals = GPU_SLEEP_TRY(session.fingerprint(blocks));
    GPU_SLEEP_TRY(session.synchronize());
    auto seal = seals.begin();
    for (const auto& item : part.items)
        for (auto& block : item.range->blocks) block.seal = *seal++;
    return options_.codes ? measure(session, part) : Result<void>();
}

Result<void> Save::measure(driver::DeviceSession& session, Part& part) const {
    constexpr driver::DeviceAddress k_alignment = 16; // kernels read so much at once
    std::vector<driver::BlockTask> tasks;
    std::vector<codec::BlockPlan*> plans;
    Bytes bytes = 0;
    for (auto& item : part.items) {
        if (item.store != model::Store::host) continue;
        const auto* const previous = usable_previous(item, false);
        item.plans.resize(item.range->blocks.size());
        for_each_block(*item.range, [&](const Block&, Span span, std::size_t i) {
            const auto fate = fate_of(item, i, previous);
            const auto address = item.address + span.offset;
            const bool can_be_coded = address % k_alignment == 0 && span.bytes % codec::k_coded_unit == 0;
            if (fate == Fate::zero || fate == Fate::as_kept || !can_be_coded) return;
            auto& task = tasks.emplace_back();
            task.content = address;
            task.content_bytes = static_cast<std::uint32_t>(span.bytes);
            plans.push_back(&item.plans[i]);
            bytes += span.bytes;
        });
    }
    if (tasks.empty() || !session.has_own_stream()) return {};
    const auto memory = GPU_SLEEP_TRY(session.memory_info());
    const auto scratch = scratch_for(bytes, memory.free);
    if (scratch == 0) return {};
    const auto space = session.prepare_coding(tasks.size(), scratch);
    if (!space) return space.error().code == ErrorCode::out_of_device_memory ? Result<void>() : space.error();
    std::copy(tasks.begin(), tasks.end(), space->tasks.begin());
    GPU_SLEEP_TRY(session.code(driver::BlockWork::measure, space->tasks, driver::CodedSide::device));
    GPU_SLEEP_TRY(session.synchronize());
    for (std::size_t i = 0; i < plans.size(); ++i) *plans[i] = space->tasks[i].plan;
    part.coding = *space;
    return {};
}

Save::Fate Save::fate_of(const Item& item, std::size_t i, const KeptRange* previous) const noexcept {
    const auto& seal = item.range->blocks[i].seal;
    if (seal.is_zero) return Fate::zero;
    if (!previous || !previous->blocks[i].is_in(item.store)) return Fate::placed;
    const auto& old = previous->blocks[i];
    const auto& plan = plan_at(item.plans, i);
    // What was not measured could not be mended.
    const bool stays_coded = options_.codes && (!options_.checks_copies || is_coded(plan));
    const bool is_same = !options_.copies_all && old.seal == seal;
    if (is_same && (!old.place.is_coded() || stays_coded)) return Fate::as_kept;
    if (!old.place.is_coded()) return Fate::replaced;
    const bool fits = item.plans.empty() ? options_.codes // a dry run
                                         : is_coded(plan) && plan.coded_bytes <= old.place.bytes;
    return fits ? Fate::replaced : Fate::placed;
}

const KeptRange* Save::usable_previous(const Item& item, bool is_unchanged) const {
    const auto* previous = contents_.find_retained(item.previous);
    // Block by block only in the host cache: elsewhere all of a tag is used, or none.
    const bool is_used = item.store == model::Store::host || is_unchanged;
    return is_used && previous && previous->spans == item.range->spans ? previous : nullptr;
}

Bytes Save::new_bytes(const Item& item) const {
    const auto* const previous = usable_previous(item, false);
    Bytes sum = 0;
    for_each_block(*item.range, [&](const Block&, Span span, std::size_t i) {
        if (fate_of(item, i, previous) == Fate::placed) sum += room_for(plan_at(item.plans, i), span.bytes);
    });
    return sum;
}

Save::Allowances Save::share_room() const {
    Allowances needs; // and then what they are allowed
    if (!options_.room) return needs;
    for (const auto& [device, part] : parts_)
        for (const auto& item : part.items)
            if (item.store == model::k_stores.front()) needs[{device, item.tag}] += new_bytes(item);
    auto room = *options_.room;
    Bytes* first_without = nullptr;
    for (auto& [tag, bytes] : needs) {
        if (bytes <= room) {
            room -= bytes;
            continue;
        }
        if (!first_without) first_without = &bytes;
        bytes = 0;
    }
    if (first_without) *first_without = room;
    return needs;
}

std::set<std::string> Save::unchanged_tags(const Part& part) {
    struct Found {
        Batch* batch = nullptr;
        Bytes bytes = 0;
        bool is_same = true;
    };
    std::map<std::string, Found> tags;
    for (const auto& item : part.items) {
        if (item.store == model::Store::host) continue;
        auto& found = tags[item.tag];
        const auto* previous = contents_.find_retained(item.previous);
        if (previous && previous->spans != item.range->spans) previous = nullptr;
        for_each_block(*item.range, [&](const Block& block, Span span, std::size_t i) {
            if (block.seal.is_zero || !found.is_same) return;
            auto* const batch = previous ? previous->blocks[i].place.batch : nullptr;
            if (!found.batch) found.batch = batch;
            found.is_same = batch && batch == found.batch && batch->store() == item.store &&
                            previous->blocks[i].seal == block.seal;
            found.bytes += span.bytes;
        });
    }
    std::set<std::string> unchanged;
    for (const auto& [tag, found] : tags) {
        if (!found.is_same || !found.batch || found.batch->live() != found.bytes) continue;
        taken_back_.reserve(taken_back_.size() + 1);
        if (!found.batch->take_back(tag, *options_.store)) continue;
        taken_back_.push_back(found.batch);
        unchanged.insert(tag);
    }
    return unchanged;
}

void Save::lay_out(Part& part, int device, Item& item, bool is_unchanged, Bytes& allowance) {
    auto& range = *item.range;
    const auto* const previous = usable_previous(item, is_unchanged);
    for_each_block(range, [&](Block& block, Span span, std::size_t i) {
        const auto fate = fate_of(item, i, previous);
        if (fate == Fate::zero) return;
        range.stored += span.bytes;
        if (fate != Fate::placed) block.place = previous->blocks[i].place;
        if (fate == Fate::as_kept) return;
        const driver::AddressSpan memory{item.address + span.offset, span.bytes};
        const auto& plan = plan_at(item.plans, i);
        auto* moves = &part.replaced;
        if (fate == Fate::replaced) {
            if (block.place.is_coded()) block.place.block_class = plan.block_class;
        } else {
            const auto room = room_for(plan, memory.bytes);
            const bool has_room = item.store != model::k_stores.front() || allowance >= room;
            const auto store = has_room ? item.store : options_.others.front();
            // What follows goes there, too: it lies together.
            allowance = has_room ? allowance - room : 0;
            if (!has_room) spilled_ += memory.bytes;
            auto& [batch, blocks] = part.batches[{store, item.tag}];
            if (!batch)
                batch =
                    batches_.emplace_back(contents_.make_batch({device, item.tag}, store, options_)).get();
            block.place = batch->add(item.number, memory, plan);
            moves = &blocks;
        }
        moves->push_back({item.number, block.place, memory, &plan});
        part.copied += memory.bytes;
        part.moved += block.place.bytes;
    });
    part.stored += range.stored;
}

void Save::lay_out() {
    auto allowances = share_room();
    for (auto& [device, part] : parts_) {
        const auto unchanged = options_.copies_all ? std::set<std::string>() : unchanged_tags(part);
        for (auto& item : part.items) {
            auto unlimited = std::numeric_limits<Bytes>::max();
            const auto found = allowances.find({device, item.tag});
            lay_out(part, device, item, unchanged.contains(item.tag),
                    found == allowances.end() ? unlimited : found->second);
        }
    }
}

Result<void> Save::keep_files() {
    if (!options_.keeps_files) return {};
    std::vector<Number> numbers;
    for (const auto& [device, part] : parts_)
        for (const auto& item : part.items) numbers.push_back(item.number);
    const auto kept = contents_.keep_files(numbers);
    return kept ? Result<void>() : kept.error();
}

Result<void> Save::begin() {
    for (const auto& batch : batches_) GPU_SLEEP_TRY(batch->begin());
    // From here on their places may be written to, and nobody else may give them back.
    for (auto& [device, part] : parts_)
        for (auto& item : part.items) item.lent = contents_.lend(item.previous);
    taken_back_.clear();
    return {};
}

Result<void> Save::take_from_all(Transfer& transfer, Part& part) {
    std::vector<Batch*> cached;
    std::vector<Batch*> others;
    std::vector<Move> blocks;
    for (auto& [key, fresh] : part.batches) {
        (fresh.first->is_cached() ? cached : others).push_back(fresh.first);
        if (fresh.first->is_cached()) blocks.insert(blocks.end(), fresh.second.begin(), fresh.second.end());
    }
    if (!cached.empty()) GPU_SLEEP_TRY(take_into_cache(transfer, cached, blocks));
    if (!others.empty()) GPU_SLEEP_TRY(store_from_device(transfer, others));
    // Last: what is retained stays so where memory or room for what is new is short.
    for (const auto& block : part.replaced) GPU_SLEEP_TRY(block.place.batch->unprotect());
    for (const auto& block : part.replaced) part.overwritten.insert(block.range);
    GPU_SLEEP_TRY(replace_in_cache(transfer, part.replaced));
    return transfer.wait();
}

Result<void> Save::take(driver::DeviceSession& session, ProgressCounter& progress) {
    const auto found = parts_.find(session.device());
    if (found == parts_.end()) return {};
    const driver::RelaxedCaptureMode relaxed(contents_.api());
    const auto current = session.enter();
    GPU_SLEEP_TRY(current.check());
    Transfer transfer{session, progress, contents_.pinner(), limits_};
    auto& part = found->second;
    transfer.coding = part.coding;
    // What is there already is read while the rest is copied.
    std::unique_ptr<CopyCheck> before;
    if (options_.checks_copies) {
        before = GPU_SLEEP_TRY(check(part, true));
    }
    auto taken = take_from_all(transfer, part);
    const auto finished = session.synchronize(); // also after a failure: no place must be in use
    GPU_SLEEP_TRY(std::move(taken));
    if (!finished) return finished.error();
    GPU_SLEEP_TRY(check_coded(transfer));
    if (before) {
        GPU_SLEEP_TRY(mend(transfer, part, *before));
        const auto copied = GPU_SLEEP_TRY(check(part, false));
        GPU_SLEEP_TRY(mend(transfer, part, *copied));
    }
    session.end_coding();
    return {};
}

Result<std::unique_ptr<CopyCheck>> Save::check(const Part& part, bool was_there) const {
    std::vector<CopyCheck::Copy> copies;
    for (const auto& item : part.items) {
        const bool is_same = item.lent && item.lent.mapped().spans == item.range->spans;
        for_each_block(*item.range, [&](const Block& block, Span span, std::size_t i) {
            const auto* const old = is_same ? &item.lent.mapped().blocks[i] : nullptr;
            if (!block.is_in(model::Store::host)) return;
            const bool stays =
                !options_.copies_all && old && old->place.is_where(block.place) && old->seal == block.seal;
            const driver::AddressSpan memory{item.address + span.offset, span.bytes};
            if (stays == was_there)
                copies.push_back({{item.number, block.place, memory, &plan_at(item.plans, i)}, block.seal});
        });
    }
    for (const auto& copy : copies) GPU_SLEEP_TRY(copy.place.batch->unprotect());
    return CopyCheck::start(std::move(copies), limits_.check_threads);
}

Result<void> Save::mend(Transfer& transfer, Part& part, CopyCheck& check) const {
    const auto listen = [&] { return transfer.look(); };
    const auto damaged = GPU_SLEEP_TRY(check.finish(listen));
    if (damaged.empty()) return {};
    for (const auto& block : damaged) part.overwritten.insert(block.range);
    const std::vector<Move> blocks(damaged.begin(), damaged.end());
    GPU_SLEEP_TRY(replace_in_cache(transfer, blocks));
    GPU_SLEEP_TRY(transfer.wait());
    GPU_SLEEP_TRY(transfer.session.synchronize());
    const auto again = GPU_SLEEP_TRY(CopyCheck::start(damaged, limits_.check_threads));
    const auto still = GPU_SLEEP_TRY(again->finish(listen));
    if (!still.empty())
        return make_error(ErrorCode::io_failed,
                          "host memory is damaged: {} differ from the GPU's, the first at {:#x}",
                          counted(still.size(), "block"), still.front().device.address);
    log::warning("blocks copied again to host memory, because the first copy had changed: {}",
                 damaged.size());
    return {};
}

void Save::admit() noexcept {
    for (auto& [device, part] : parts_) {
        for (auto& item : part.items) {
            // Places of its own alone: what was retained of other spans, or goes elsewhere now, is given
            // back.
            const bool is_same = item.lent && item.lent.mapped().spans == item.range->spans;
            contents_.end(std::move(item.lent), is_same ? item.range : nullptr);
        }
    }
    contents_.admit(ranges_, batches_);
}

} // namespace gpu_sleep::contents
