// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Copying between the device and arenas, which are made ready piece by piece meanwhile, and giving arenas
// back. New contents are relayed where that is faster: to pin memory takes longer than to copy, and is then
// done after the sleep, or by the copies that come first; unless it is much, which is relayed back.

#include "contents/host_keeper.hpp"

#include "base/fd.hpp"
#include "contents/host_use.hpp"
#include "contents/relay.hpp"
#include "store/arena_preparer.hpp"
#include "store/host_account.hpp"
#include "store/host_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace gpu_sleep::contents {
namespace {

constexpr Bytes k_piece = store::HostArena::k_piece_bytes;

/// Parts of ranges need not be aligned; their copies are, which keeps transfers at full speed.
constexpr Bytes k_alignment = 256;

/// Adds a copy, or lengthens the last one when the new one continues it on both sides.
void add_copy(std::vector<HostCopy>& copies, const HostCopy& copy) {
    if (!copies.empty()) {
        auto& last = copies.back();
        const bool continues = last.arena == copy.arena && last.device.end() == copy.device.address &&
                               last.at + last.device.bytes == copy.at;
        if (continues) {
            last.device.bytes += copy.device.bytes;
            return;
        }
    }
    copies.push_back(copy);
}

/// The copies of `blocks`, as long as they can be.
std::vector<HostCopy> joined(std::span<const Move> blocks) {
    std::vector<HostCopy> copies;
    for (const auto& block : blocks)
        add_copy(copies,
                 {block.device, &static_cast<const HostBatch*>(block.place.batch)->arena(), block.place.at});
    return copies;
}

/// Where that is still to be done.
void pin(Transfer& transfer, store::HostArena& arena, std::size_t piece) {
    if (arena.is_pinned(piece)) return;
    const model::StepClock::Timed timed(&transfer.session.steps(), model::Step::pin);
    arena.pin(piece);
}

store::ArenaPreparer::Options filling(const HostUse& options) {
    store::ArenaPreparer::Options filling;
    filling.threads = options.fill_threads;
    filling.reserve = options.host_reserve;
    return filling;
}

/// Calls `use(piece index, part)` for each part of `span` that lies in one piece: a copy must not cross the
/// border of a registration.
template <class Use>
void for_each_piece(Span span, Use&& use) {
    while (span.bytes > 0) {
        const auto index = static_cast<std::size_t>(span.offset / k_piece);
        const auto bytes = std::min(span.bytes, (index + 1) * k_piece - span.offset);
        use(index, Span{span.offset, bytes});
        span = {span.offset + bytes, span.bytes - bytes};
    }
}

/// Calls `part(piece index, device address, host address, bytes)` for each piece that `copy` crosses, until
/// one fails.
template <class Part>
Result<void> for_each_part(const HostCopy& copy, Part&& part) {
    Result<void> done;
    for_each_piece({copy.at, copy.device.bytes}, [&](std::size_t index, Span span) {
        if (!done) return;
        done = part(index, copy.device.address + (span.offset - copy.at), copy.arena->at(span.offset),
                    span.bytes);
    });
    return done;
}

Bytes unpinned_bytes(const store::HostArena& arena) noexcept {
    Bytes sum = 0;
    for (std::size_t i = 0; i < arena.piece_count(); ++i)
        if (!arena.is_pinned(i)) sum += arena.piece(i).size();
    return sum;
}

} // namespace

Bytes HostBatch::reserve(Bytes bytes) {
    const auto at = bytes_;
    bytes_ += round_up(bytes, k_alignment);
    return at;
}

Result<void> HostBatch::begin() {
    const auto ready = stock_ ? stock_->arena_->piece_count() * k_piece : 0;
    store::HostShare share; // taken before anything is, as the stock would lose its pieces
    GPU_SLEEP_TRY(
        share.take(store::HostAccount::own(), bytes_ - std::min(ready, bytes_ / k_piece * k_piece)));
    arena_ =
        GPU_SLEEP_TRY(store::HostArena::create(bytes_, pinner_, stock_ ? stock_->arena_.get() : nullptr));
    arena_->share().absorb(share, share.bytes());
    if (stock_) stock_->pieces_.resize(stock_->arena_->piece_count());
    for (std::size_t i = 0; i < arena_->piece_count(); ++i) pieces_.push_back({arena_->piece(i).size()});
    for (const auto& source : sources_)
        for_each_piece({source.at, source.memory.bytes},
                       [this](std::size_t index, Span part) { pieces_[index].live += part.bytes; });
    return {};
}

void HostBatch::absorb(store::HostArena& stock, std::size_t count) {
    if (!arena_) arena_ = store::HostArena::create_stock(pinner_);
    pieces_.reserve(arena_->piece_count() + count);
    arena_->absorb(stock, count);
    pieces_.resize(arena_->piece_count(), {k_piece});
}

Bytes HostBatch::held() const noexcept {
    Bytes sum = 0;
    for (const auto& use : pieces_) sum += use.held;
    return sum;
}

bool HostBatch::forget(Span span) noexcept {
    bool has_more = Batch::forget(span);
    for_each_piece(span, [&](std::size_t index, Span part) {
        auto& use = pieces_[index];
        const bool was_worth_it = use.is_worth_shrinking();
        use.live -= part.bytes;
        use.dead += part.bytes;
        has_more |= !was_worth_it && use.is_worth_shrinking();
    });
    return has_more;
}

bool HostBatch::has_waste() const noexcept {
    return std::any_of(pieces_.begin(), pieces_.end(),
                       [](const PieceUse& use) { return use.is_worth_shrinking(); });
}

std::optional<std::size_t> HostBatch::take_waste() noexcept {
    const auto use = std::find_if(pieces_.begin(), pieces_.end(),
                                  [](const PieceUse& each) { return each.is_worth_shrinking(); });
    if (use == pieces_.end()) return std::nullopt;
    use->dead = 0;
    return static_cast<std::size_t>(use - pieces_.begin());
}

Span HostBatch::part(std::size_t index) const noexcept {
    return {index * k_piece, arena_->piece(index).size()};
}

Bytes HostBatch::shrink(std::size_t index, std::span<const Span> needed) {
    const auto piece = part(index);
    std::vector<std::span<const std::byte>> memory;
    memory.reserve(needed.size());
    for (const auto& span : needed) {
        const auto begin = std::max(span.offset, piece.offset);
        const auto end = std::min(span.end(), piece.end());
        if (begin < end) memory.emplace_back(arena_->at(begin), end - begin);
    }
    return arena_->shrink(index, memory);
}

void HostBatch::protect() noexcept {
    if (arena_) arena_->protect();
}

const std::byte* HostBatch::memory(Span span, std::vector<std::byte>& buffer) const {
    const auto* const begin = arena_->at(span.offset);
    if (arena_->at(span.end() - 1) == begin + (span.bytes - 1)) return begin;
    buffer.clear();
    for_each_piece(span, [&](std::size_t, Span part) {
        buffer.insert(buffer.end(), arena_->at(part.offset), arena_->at(part.offset) + part.bytes);
    });
    return buffer.data();
}

Result<void> HostBatch::read(Span span, std::byte* to) const {
    // The kernel reads what is out of reach of threads, and so nobody else's access to it changes. Source:
    // proc(5).
    const UniqueFd memory(open_file(AT_FDCWD, "/proc/self/mem", O_RDONLY | O_CLOEXEC));
    int failure = memory ? 0 : errno;
    for_each_piece(span, [&](std::size_t, Span part) {
        while (failure == 0 && part.bytes > 0) {
            const auto from = reinterpret_cast<off_t>(arena_->at(part.offset));
            const auto count = ::pread(memory.get(), to, part.bytes, from);
            if (count <= 0) {
                failure = count < 0 ? errno : EIO;
                if (failure == EINTR) failure = 0;
                continue;
            }
            to += count;
            part = {part.offset + static_cast<Bytes>(count), part.bytes - static_cast<Bytes>(count)};
        }
    });
    if (failure == 0) return {};
    return errno_error(ErrorCode::io_failed, failure, memory ? "pread" : "open", "cannot read kept contents");
}

bool HostBatch::pin_some() noexcept {
    return arena_ && arena_->pin_next();
}

Result<void> HostBatch::unprotect() noexcept {
    return arena_ ? arena_->unprotect() : Result<void>();
}

Result<void> HostKeeper::open(const model::Choice& choice, SaveOptions& options,
                              std::vector<std::string>& /*notes*/) {
    options.copies_all = choice.copy_all;
    options.checks_copies = choice.check_copies;
    return {};
}

std::unique_ptr<Batch> HostKeeper::make_batch(Label label, const SaveOptions& options) {
    const auto found = stocks_.find(label.device);
    const bool takes = options.takes_prepared && found != stocks_.end() && !found->second.empty();
    auto* const stock = takes ? static_cast<HostBatch*>(found->second.front().get()) : nullptr;
    return std::make_unique<HostBatch>(*this, pinner_, stock);
}

Bytes HostKeeper::prepared(int device) const noexcept {
    const auto found = stocks_.find(device);
    return found == stocks_.end() || found->second.empty() ? 0 : found->second.front()->held();
}

Bytes HostKeeper::prepared() const noexcept {
    Bytes sum = 0;
    for (const auto& [device, stock] : stocks_) sum += prepared(device);
    return sum;
}

std::vector<int> HostKeeper::prepared_devices() const {
    std::vector<int> devices;
    for (const auto& [device, stock] : stocks_) devices.push_back(device);
    return devices;
}

void HostKeeper::add_prepared(int device, store::HostArena& more) {
    auto& stock = stocks_[device];
    if (stock.empty()) stock.push_back(std::make_unique<HostBatch>(*this, pinner_));
    static_cast<HostBatch*>(stock.front().get())->absorb(more, more.piece_count());
}

std::unique_ptr<Batch> HostKeeper::take_prepared(int device, Bytes most) {
    const auto held = prepared(device);
    const auto count = (held - std::min(held, most)) / k_piece;
    if (count == 0) return nullptr;
    auto& stock = static_cast<HostBatch&>(*stocks_.at(device).front());
    auto taken = std::make_unique<HostBatch>(*this, pinner_);
    taken->absorb(stock.arena(), count);
    stock.pieces_.resize(stock.arena().piece_count());
    return taken;
}

bool HostKeeper::unpin_prepared() noexcept {
    bool are_all_unpinned = true;
    for (const auto& [device, stock] : stocks_)
        for (const auto& batch : stock) are_all_unpinned &= batch->unpin();
    return are_all_unpinned;
}

void HostKeeper::take_prepared(std::list<std::unique_ptr<Batch>>& batches) noexcept {
    for (auto& [device, stock] : stocks_) batches.splice(batches.end(), stock);
}

void HostKeeper::note_needs(Bytes needed, const Rehearsal& rehearsal, model::Report& report) const {
    if (needed == 0) return;
    auto headroom = store::host_headroom_beyond(rehearsal.options.host_reserve);
    if (const auto left = store::address_space_left(); left < headroom.bytes)
        headroom = {left, "the process's limit on address space, ulimit -v"};
    if (const auto room = store::HostAccount::own().room(); room && room->bytes < headroom.bytes)
        headroom = {room->bytes, "this user's limit for all processes"};
    const auto available = headroom.bytes;
    const auto* const outcome = needed <= available      ? ""
                                : rehearsal.choice.spill ? ": the rest would go to files"
                                                         : ": it would fail unless enough bytes are zero";
    report.notes.push_back(fmt::format("needs at most {} of host memory, and {} may be taken ({}){}",
                                       format_bytes(needed), format_bytes(available), headroom.limited_by,
                                       outcome));
}

Result<void> HostKeeper::take(Transfer& transfer, std::span<Batch* const> batches) {
    std::vector<store::HostArena*> arenas;
    Bytes total = 0;
    for (auto* const batch : batches) {
        arenas.push_back(&static_cast<HostBatch*>(batch)->arena());
        total += arenas.back()->bytes() - arenas.back()->populated_bytes();
    }
    // To memory that is pinned, or is to be so, the device copies itself.
    const bool relays = transfer.options.relay_threads > 0 && total >= transfer.options.relay_from;
    std::vector<HostCopy> direct;
    std::vector<HostCopy> relayed;
    for (std::size_t i = 0; i < batches.size(); ++i) {
        auto* const arena = arenas[i];
        for (const auto& source : std::exchange(static_cast<HostBatch*>(batches[i])->sources_, {}))
            for_each_piece({source.at, source.memory.bytes}, [&](std::size_t piece, Span part) {
                add_copy(
                    relays && !arena->is_pinned(piece) ? relayed : direct,
                    {{source.memory.address + (part.offset - source.at), part.bytes}, arena, part.offset});
            });
    }
    store::ClaimOptions claims;
    claims.reserve = transfer.options.host_reserve;
    claims.patience = transfer.progress.host_patience();
    std::unique_ptr<store::ArenaPreparer> preparer;
    if (!relays) {
        preparer = GPU_SLEEP_TRY(store::ArenaPreparer::start(
            arenas, {claims, transfer.options.fill_threads, &transfer.session.steps()}));
    }
    for (const auto& copy : direct) {
        const auto part = [&](std::size_t piece, driver::DeviceAddress from, std::byte* to,
                              Bytes bytes) -> Result<void> {
            if (preparer) GPU_SLEEP_TRY(preparer->wait(*copy.arena, piece, [&] { return transfer.look(); }));
            GPU_SLEEP_TRY(transfer.session.copy_to_host(to, from, bytes));
            return transfer.queued(bytes); // and heeds a withdrawal
        };
        GPU_SLEEP_TRY(for_each_part(copy, part));
    }
    if (!relayed.empty()) GPU_SLEEP_TRY(relay(transfer, relayed, claims));
    if (relays)
        for (auto* const arena : arenas) arena->note_ready();
    return transfer.wait();
}

Result<void> HostKeeper::replace(Transfer& transfer, std::span<const Move> blocks) {
    for (const auto& copy : joined(blocks)) {
        const auto part = [&](std::size_t piece, driver::DeviceAddress from, std::byte* to,
                              Bytes bytes) -> Result<void> {
            pin(transfer, *copy.arena, piece);
            GPU_SLEEP_TRY(transfer.session.copy_to_host(to, from, bytes));
            return transfer.queued(bytes);
        };
        GPU_SLEEP_TRY(for_each_part(copy, part));
    }
    return {};
}

Result<void> HostKeeper::give(Transfer& transfer, std::span<const Move> blocks, Failures& /*failures*/) {
    std::vector<HostCopy> relayed;
    const store::HostArena* reached = nullptr; // neighbours lie in one, as a rule
    bool relays = false;
    for (const auto& copy : joined(blocks)) {
        if (std::exchange(reached, copy.arena) != copy.arena) {
            // Nothing is pinned meanwhile, so all calls of a wake see the same.
            relays = unpinned_bytes(*copy.arena) >= std::max<Bytes>(1, transfer.options.relay_from);
            if (relays) {
                relays = GPU_SLEEP_TRY(prepare_to_relay_back(transfer));
            }
        }
        const auto part = [&](std::size_t piece, driver::DeviceAddress to, const std::byte* from,
                              Bytes bytes) -> Result<void> {
            if (relays && !copy.arena->is_pinned(piece)) {
                relayed.push_back({{to, bytes}, copy.arena, copy.at + (to - copy.device.address)});
                return {};
            }
            pin(transfer, *copy.arena, piece);
            GPU_SLEEP_TRY(transfer.session.copy_to_device(to, from, bytes));
            return transfer.queued(bytes);
        };
        GPU_SLEEP_TRY(for_each_part(copy, part));
    }
    return relayed.empty() ? Result<void>() : relay_back(transfer, relayed);
}

Result<void> HostKeeper::take_over(Handover& handover, Batch& batch, std::span<const Carried> parts) {
    auto& host = static_cast<HostBatch&>(batch);
    const auto& arena = host.arena();
    const auto preparer =
        GPU_SLEEP_TRY(store::ArenaPreparer::start({&host.arena()}, filling(handover.options)));
    const auto make_ready = [&](std::span<const std::byte> memory) {
        Result<void> ready;
        const auto offset = static_cast<Bytes>(memory.data() - arena.data());
        for_each_piece({offset, memory.size()}, [&](std::size_t piece, Span) {
            if (ready) ready = preparer->wait(arena, piece, [&] { return handover.progress.add(0); });
        });
        return ready;
    };
    std::map<Keeper*, std::vector<Fetched>> wanted;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::span<std::byte> to(arena.data() + host.sources_[i].at, parts[i].bytes);
        wanted[&parts[i].from().batch->keeper()].push_back({parts[i].from(), to});
    }
    for (const auto& [keeper, fetched] : wanted) GPU_SLEEP_TRY(keeper->fetch(handover, fetched, make_ready));
    host.sources_ = {};
    return {};
}

} // namespace gpu_sleep::contents
