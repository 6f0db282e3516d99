// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Keeping count of what each batch is needed for.

#include "contents/contents.hpp"

#include "base/log.hpp"
#include "base/text.hpp"
#include "driver/context.hpp"

#include <fmt/format.h>

namespace gpu_sleep::contents {
namespace {

/// Calls `use(batch, span of its contents)` for each part of the range that lies together, but for blocks
/// whose place `successor`, if there is one, has as well.
template <class Use>
void for_each_part(const KeptRange& range, Use&& use, const KeptRange* successor = nullptr) {
    Batch* batch = nullptr;
    Span part;
    for_each_block(range, [&](const Block& block, Span, std::size_t i) {
        const bool is_taken_over = successor && successor->blocks[i].place.is_where(block.place);
        if (is_taken_over || !block.is_stored()) return;
        if (block.place.batch == batch && block.place.at == part.end()) {
            part.bytes += block.place.bytes;
            return;
        }
        if (batch) use(*batch, part);
        batch = block.place.batch;
        part = block.place.span();
    });
    if (batch) use(*batch, part);
}

/// What the range takes of the host cache.
Bytes bytes_in_host(const KeptRange& range) noexcept {
    return sum_of(range.blocks,
                  [](const Block& block) { return block.is_in(model::Store::host) ? block.place.bytes : 0; });
}

/// Copies `part` of a block of `bytes` to `to`, also while it is out of reach. Errors: as Contents::read().
Result<void> read_part(const Place& place, Bytes bytes, Span part, std::byte* to) {
    if (!place.batch->is_cached()) return make_error(ErrorCode::refused, "the contents are in files");
    const auto& arena = *place.batch->arena();
    if (!place.is_coded()) return arena.read({place.at + part.offset, part.bytes}, to);
    std::vector<std::byte> coded(place.bytes);
    std::vector<std::byte> content(bytes);
    GPU_SLEEP_TRY(arena.read(place.span(), coded.data()));
    if (!codec::decode_block(place.block_class, coded, content))
        return make_error(ErrorCode::damaged, "the kept contents are damaged");
    std::copy_n(content.begin() + static_cast<std::ptrdiff_t>(part.offset), part.bytes, to);
    return {};
}

/// Has `report` say what `needed` of the directory are.
void note_file_needs(Bytes needed, const std::string& directory, bool is_fallback,
                     const store::Headroom& headroom, model::Report& report) {
    if (directory.empty()) return;
    auto space = store::SnapshotDirectory::free_space_in(directory);
    if (!space) {
        if (is_fallback)
            report.notes.push_back(space.error().message + ": nothing could be put there");
        else
            refuse(report, space.error().message + ": it would fail", space.error().code);
        return;
    }
    std::string limit;
    if (space->in_memory && headroom.bytes < space->bytes) {
        space->bytes = headroom.bytes;
        limit = fmt::format(", in host memory ({})", headroom.limited_by);
    }
    report.notes.push_back(
        fmt::format("{} at most {} in files in {}, and {} are free there{}{}",
                    is_fallback ? "without enough host memory, needs" : "needs", format_bytes(needed),
                    directory, format_bytes(space->bytes), limit,
                    needed <= space->bytes ? "" : ": it fails unless the files compress enough"));
}

bool has_waste_in(const std::unique_ptr<Batch>& batch) noexcept {
    return batch->arena() && batch->arena()->find_waste();
}

} // namespace

Bytes held_by(const Batches& batches, model::Store store) noexcept {
    return sum_of(batches, [=](const auto& batch) { return batch->store() == store ? batch->held() : 0; });
}

Result<Bytes> needs_of(const Batches& batches, model::Store store) {
    Bytes sum = 0;
    for (const auto& batch : batches) {
        if (batch->store() != store) continue;
        sum += GPU_SLEEP_TRY(batch->needs());
    }
    return sum;
}

Result<SaveOptions> Contents::open(const model::Choice& choice, std::span<const model::Store> others,
                                   std::vector<std::string>& notes) const {
    SaveOptions options;
    options.others = others;
    options.codes = !choice.raw;
    options.copies_all = choice.copy_all;
    options.checks_copies = choice.check_copies;
    options.keeps_files = choice.keep_files;
    if (choice.directory.empty()) return options;
    auto directory = store::SnapshotDirectory::open(choice.directory);
    const bool uses_it = model::uses_files(choice) || !others.empty();
    if (!directory && uses_it) return std::move(directory).error();
    if (!directory) return options;
    // Whoever looks here takes away what a crash has left.
    if (const auto removed = (*directory)->remove_leftovers(); !removed)
        log::debug("leftovers could not be removed: {}", removed.error().message);
    if (const auto doubtful = (*directory)->doubtful(); doubtful && !doubtful->empty()) {
        auto note =
            fmt::format("{} has files that may belong to processes not visible here: {}, the first {}",
                        choice.directory, counted(doubtful->size(), "snapshot"), doubtful->front().text());
        // A sleep may try again.
        if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(std::move(note));
    }
    if (!uses_it) return options;
    options.store = std::make_shared<store::FileStore>(*std::move(directory), budget());
    return options;
}

std::unique_ptr<Batch> Contents::make_batch(Label label, model::Store store, const SaveOptions& options) {
    if (store != model::Store::host) return std::make_unique<Batch>(std::move(label), options.store);
    const auto found = stocks_.find(label.device);
    const bool takes = options.takes_prepared && found != stocks_.end() && !found->second.empty();
    auto* const stock = takes ? found->second.front()->arena() : nullptr;
    return std::make_unique<Batch>(std::move(label), budget(), &pinner_, stock);
}

void Contents::note_needs(model::Store store, Bytes needed, const model::Choice& choice, bool is_fallback,
                          model::Report& report) const {
    if (needed == 0) return;
    if (store != model::Store::host)
        return note_file_needs(needed, choice.directory, is_fallback, budget().room(), report);
    const auto room = budget().room();
    const auto* const outcome = needed <= room.bytes ? ""
                                : choice.spill       ? ": the rest would go to files"
                                                     : ": it would fail unless enough bytes are zero";
    report.notes.push_back(fmt::format("needs at most {} of host memory, and {} may be taken ({}){}",
                                       format_bytes(needed), format_bytes(room.bytes), room.limited_by,
                                       outcome));
}

Bytes Contents::bytes_in(model::Store store, Number range) const {
    Bytes sum = 0;
    for_each_block(ranges_.at(range), [&](const Block& block, Span span, std::size_t) {
        if (block.is_in(store)) sum += span.bytes;
    });
    return sum;
}

bool Contents::is_elsewhere(Number range, model::Store store) const {
    const auto& blocks = ranges_.at(range).blocks;
    return std::any_of(blocks.begin(), blocks.end(),
                       [=](const Block& block) { return block.is_stored() && !block.is_in(store); });
}

std::set<std::string> Contents::directories(Number range) const {
    std::set<std::string> found;
    for_each_part(ranges_.at(range), [&](const Batch& batch, Span) {
        if (!batch.is_cached() && batch.held() != 0) found.insert(batch.parcel()->where.native());
    });
    return found;
}

Result<bool> Contents::keep_files(const std::vector<Number>& ranges) {
    std::set<Batch*> batches;
    for (const auto range : ranges)
        for_each_part(ranges_.at(range), [&](Batch& batch, Span) { batches.insert(&batch); });
    std::vector<store::Parcel*> named;
    const auto name_all = [&]() -> Result<void> {
        for (auto* const batch : batches) {
            if (batch->is_cached()) continue;
            const bool is_new = GPU_SLEEP_TRY(batch->parcel()->keep());
            if (is_new) named.push_back(batch->parcel());
        }
        return {};
    };
    auto done = name_all();
    // Also after a failure: what has its name by now is to keep it.
    for (auto* const parcel : named)
        if (auto flushed = parcel->flush(); !flushed && done) done = std::move(flushed);
    return done ? Result<bool>(!named.empty()) : std::move(done).error();
}

void Contents::admit(std::map<Number, KeptRange>& ranges, Batches& batches) noexcept {
    for (auto& [number, range] : ranges) range.in_host = bytes_in_host(range);
    ranges_.merge(ranges);
    batches_.splice(batches_.end(), batches);
}

void Contents::relocate(std::map<Number, KeptRange>& ranges, Batches& batches) noexcept {
    batches_.splice(batches_.end(), batches);
    for (auto& [number, range] : ranges) {
        auto& kept = ranges_.at(number);
        std::swap(kept, range);
        kept.in_host = bytes_in_host(kept);
        forget_blocks(range, &kept, Files::as_asked);
    }
}

void Contents::forget(Number range, Files files) noexcept {
    const auto node = ranges_.extract(range);
    if (node) forget_blocks(node.mapped(), nullptr, files);
}

Bytes Contents::in_host(bool are_retained) const noexcept {
    return sum_of(ranges_, [=](const auto& each) {
        return each.second.is_retained == are_retained ? each.second.in_host : 0;
    });
}

Bytes Contents::room_beside_retained(Bytes most) const noexcept {
    most = std::min(most, retained_limit_);
    const auto held = this->held(model::Store::host);
    return most - std::min(most, held - std::min(held, in_host(false)));
}

Bytes Contents::room_to_prepare(Bytes most) const noexcept {
    const auto bound = std::min(retained_limit_, most);
    return bound - std::min(bound, retained());
}

Result<std::unique_ptr<store::HostArena>> Contents::prepare_piece() {
    auto piece = GPU_SLEEP_TRY(store::HostArena::create(k_prepared_piece, &pinner_, nullptr, &budget()));
    GPU_SLEEP_TRY(piece->make_ready());
    return piece;
}

Bytes Contents::prepared(int device) const noexcept {
    const auto found = stocks_.find(device);
    return found == stocks_.end() ? 0 : held_by(found->second, model::Store::host);
}

Bytes Contents::prepared() const noexcept {
    return sum_of(stocks_, [](const auto& stock) { return held_by(stock.second, model::Store::host); });
}

std::vector<int> Contents::prepared_devices() const {
    std::vector<int> devices;
    for (const auto& [device, stock] : stocks_) devices.push_back(device);
    return devices;
}

void Contents::add_prepared(int device, store::HostArena& more) {
    auto& stock = stocks_[device];
    if (stock.empty()) stock.push_back(std::make_unique<Batch>(store::HostArena::create_stock(&pinner_)));
    stock.front()->arena()->absorb(more, more.piece_count());
}

void Contents::limit_prepared(int device, Bytes most) {
    const auto held = prepared(device);
    const auto count = (held - std::min(held, most)) / k_prepared_piece;
    if (count == 0) return;
    Batches surplus;
    surplus.push_back(std::make_unique<Batch>(store::HostArena::create_stock(&pinner_)));
    surplus.front()->arena()->absorb(*stocks_.at(device).front()->arena(), count);
    retired_.splice(retired_.end(), surplus);
    told_();
}

bool Contents::retain(Number range, Bytes& room) noexcept {
    const auto found = ranges_.find(range);
    if (found == ranges_.end()) return false;
    auto& kept = found->second;
    const bool has_room = kept.in_host <= room;
    if (!has_room) kept.in_host = 0;
    room -= kept.in_host;
    kept.is_retained = true;
    for_each_part(kept, [](Batch& batch, Span part) { batch.note_awake(part.bytes); });
    bool is_wasted = false;
    const Batch* asked = nullptr; // neighbours lie in one, as a rule
    bool its_stay = false;
    for_each_block(kept, [&](Block& block, Span span, std::size_t) {
        auto* const batch = block.place.batch;
        if (!batch) return;
        if (std::exchange(asked, batch) != batch) its_stay = batch->is_cached() ? has_room : batch->retain();
        if (its_stay) return;
        kept.stored -= span.bytes;
        batch->note_not_awake(block.place.bytes);
        is_wasted |= forget_part(*batch, std::exchange(block.place, {}).span(), Files::as_asked);
    });
    if (is_wasted) told_();
    const bool stays = kept.stored != 0;
    if (!stays) forget(range);
    return stays;
}

Bytes Contents::retained() const noexcept {
    const auto retained = in_host(true);
    if (retained == 0) return prepared();
    const auto held = held_by(batches_, model::Store::host);
    return std::max(retained, held - std::min(held, in_host(false))) + prepared();
}

const KeptRange* Contents::find_retained(Number range) const noexcept {
    const auto found = ranges_.find(range);
    return found != ranges_.end() && found->second.is_retained ? &found->second : nullptr;
}

Result<void> Contents::read(const KeptRange& range, Span part, std::byte* to) {
    Result<void> done;
    Bytes found = 0;
    for_each_block(range, [&](const Block& block, Span span, std::size_t) {
        const auto begin = std::max(span.offset, part.offset);
        const auto end = std::min(span.end(), part.end());
        if (!done || begin >= end) return;
        auto* const target = to + (begin - part.offset);
        const auto bytes = end - begin;
        if (block.is_stored())
            done = read_part(block.place, span.bytes, {begin - span.offset, bytes}, target);
        else if (block.seal.is_zero)
            std::fill_n(target, bytes, std::byte{0});
        else
            return; // it was retained, and has been given back
        found += bytes;
    });
    if (done && found != part.bytes) return make_error(ErrorCode::refused, "not all of the contents is kept");
    return done;
}

void Contents::limit_retained(Bytes most) noexcept {
    retained_limit_ = most;
    static_cast<void>(trim_retained(most));
}

Bytes Contents::trim_retained(Bytes most) noexcept {
    auto given_up = retained() > most ? prepared() : 0;
    if (given_up > 0) {
        for (auto& [device, stock] : stocks_) retired_.splice(retired_.end(), stock);
        told_();
    }
    auto left = retained(); // with what is wasted, which goes with what it lies beside
    for (auto next = ranges_.begin(); next != ranges_.end() && left > most;) {
        const auto& [number, range] = *next++;
        const auto bytes = range.is_retained ? range.in_host : 0;
        if (bytes == 0) continue;
        left -= bytes;
        given_up += bytes;
        forget(number);
    }
    return given_up;
}

void Contents::protect() noexcept {
    for (const auto& batch : batches_)
        if (batch->arena()) batch->arena()->protect();
}

void Contents::take_back(Lent&& lent) noexcept {
    if (!lent) return;
    for_each_part(lent.mapped(), [](Batch& batch, Span) { static_cast<void>(batch.retain()); });
    ranges_.insert(std::move(lent));
}

void Contents::end(Lent&& lent, const KeptRange* successor) noexcept {
    const auto ended = std::move(lent);
    if (ended) forget_blocks(ended.mapped(), successor, Files::as_asked);
}

void Contents::forget_blocks(const KeptRange& range, const KeptRange* successor, Files files) noexcept {
    // Places that a successor takes over are of memory that sleeps.
    if (range.is_retained)
        for_each_part(range, [](Batch& batch, Span part) { batch.note_not_awake(part.bytes); });
    bool is_wasted = false;
    const auto forget = [&](Batch& batch, Span part) { is_wasted |= forget_part(batch, part, files); };
    for_each_part(range, forget, successor);
    if (is_wasted) told_();
}

bool Contents::forget_part(Batch& batch, Span part, Files files) noexcept {
    const bool is_wasted = batch.forget(part);
    if (batch.is_needed()) return is_wasted;
    retire(batch, files);
    return true;
}

void Contents::retire(const Batch& batch, Files files) noexcept {
    const auto found = std::find_if(batches_.begin(), batches_.end(),
                                    [&](const auto& each) { return each.get() == &batch; });
    (*found)->retire(files);
    retired_.splice(retired_.end(), batches_, found);
}

std::optional<Waste> Contents::find_waste() {
    const auto wasteful = std::find_if(batches_.begin(), batches_.end(), has_waste_in);
    if (wasteful == batches_.end()) return std::nullopt;
    auto* const arena = (*wasteful)->arena();
    Waste waste{arena, *arena->find_waste(), {}};
    const auto part = arena->span_of(waste.part);
    for (const auto& [number, range] : ranges_)
        for_each_part(range, [&](const Batch& batch, Span span) {
            const bool overlaps = span.offset < part.end() && part.offset < span.end();
            if (&batch == wasteful->get() && overlaps) waste.needed.push_back(span);
        });
    std::ranges::sort(waste.needed, {}, &Span::offset);
    arena->note_tried(waste.part); // last: where there is no memory for the above it stays to be done
    return waste;
}

bool Contents::has_waste() const noexcept {
    return !retired_.empty() || std::any_of(batches_.begin(), batches_.end(), has_waste_in);
}

Batch* Contents::find_unpinned() noexcept {
    const auto found = std::find_if(batches_.begin(), batches_.end(), [](const auto& batch) {
        return batch->arena() && batch->arena()->has_untried();
    });
    return found == batches_.end() ? nullptr : found->get();
}

bool Contents::unpin() noexcept {
    bool are_all_unpinned = store::HostArena::stuck_bytes() == 0;
    const auto unpin_all = [&](const Batches& batches) {
        for (const auto& batch : batches) are_all_unpinned &= !batch->arena() || batch->arena()->unpin_all();
    };
    for (const auto& [device, stock] : stocks_) unpin_all(stock);
    unpin_all(batches_);
    unpin_all(retired_);
    return are_all_unpinned;
}

std::vector<std::string> Contents::directories() const {
    std::set<std::string> found;
    for (const auto& batch : batches_)
        if (!batch->is_cached() && batch->held() != 0) found.insert(batch->parcel()->where.native());
    return {found.begin(), found.end()};
}

std::vector<std::filesystem::path> Contents::files_left_behind() const {
    std::vector<std::filesystem::path> files;
    for (const auto& batch : retired_)
        if (auto file = batch->left_behind()) files.push_back(*std::move(file));
    return files;
}

void Contents::remove_files() noexcept {
    for (const auto& batch : batches_) batch->retire(Files::as_asked);
}

} // namespace gpu_sleep::contents
