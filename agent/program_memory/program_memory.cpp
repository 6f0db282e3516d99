// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Allocating, freeing and describing the program's memory, the gate that follows it, the memory that is
// shared, and giving contents back.

#include "program_memory/program_memory.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace gpu_sleep::agent {

namespace {

std::atomic<ProgramMemory*> g_in_use{nullptr};

Error not_owned(driver::DeviceAddress address) {
    return make_error(ErrorCode::not_owned, "{:#x} is not in an agent allocation", address);
}

} // namespace

ProgramMemory::ProgramMemory(const TouchRule& environment, Bytes retained)
    : locked_(environment), most_retained_(retained), retained_limit_(retained) {}

ProgramMemory* ProgramMemory::in_use() noexcept {
    return g_in_use.load(std::memory_order_acquire);
}

void ProgramMemory::set_up(const driver::Api& api, std::function<void(Milliseconds)> tidy_within,
                           sleep::Transactions::ContextOf own_context_of) {
    const MutexLock lock(mutex_);
    sleep::Transactions::Options options;
    options.retained = retained_limit_;
    if (!storage_)
        storage_ = std::make_unique<Running>(api, locked_.ledger(), options, std::move(own_context_of));
    locked_.start(storage_->engine);
    tidy_within_ = std::move(tidy_within);
    storage_->engine.contents().when_wasted([this] { tidy_within_(Milliseconds(0)); });
}

void ProgramMemory::start() noexcept {
    running_.store(storage_.get(), std::memory_order_release);
    g_in_use.store(this, std::memory_order_release);
    if (is_ending_) end(); // it began meanwhile
}

void ProgramMemory::end() noexcept {
    g_in_use.store(nullptr, std::memory_order_release);
}

void ProgramMemory::end_with_process() noexcept {
    is_ending_ = true;
    end();
}

void ProgramMemory::remove_files() noexcept {
    if (!is_started()) return;
    constexpr int k_looks = 50;
    constexpr Milliseconds k_pause{2};
    for (int i = 0; i < k_looks; ++i) {
        const auto removed = try_with_lock([](LockedMemory& locked) {
            locked.contents().remove_files();
            return true;
        });
        if (removed) return;
        std::this_thread::sleep_for(k_pause);
    }
}

std::optional<driver::DeviceAddress> ProgramMemory::place_in_host_memory(int device, ledger::TagId tag,
                                                                         Bytes bytes) {
    const auto& name = locked_.ledger().tag(tag);
    if (bytes <= memory::k_largest_small || locked_.ledger().host_backed(tag) >= name.live_bytes)
        return std::nullopt;
    auto& engine = storage_->engine;
    const auto placed = guarded([&]() -> Result<driver::DeviceAddress> {
        GPU_SLEEP_TRY(engine.count_host_backed(bytes));
        return storage_->heap.allocate_in_host_memory(device, tag, bytes);
    });
    static_cast<void>(engine.count_host_backed()); // in whole granules, or as before
    if (placed) return *placed;
    if (!std::exchange(has_said_no_place_, true))
        log::warning("what tag '{}' allocates goes to the GPU, not to host memory: {}", name.name,
                     placed.error().message);
    return std::nullopt;
}

Result<driver::DeviceAddress> ProgramMemory::allocate_locked(int device, ledger::TagId tag, Bytes bytes) {
    if (locked_.ledger().tag(tag).live_bytes != 0) [[unlikely]]
        if (const auto address = place_in_host_memory(device, tag, bytes)) return *address;
    return guarded([&] { return storage_->heap.allocate(device, tag, bytes); });
}

Result<driver::DeviceAddress> ProgramMemory::allocate(int device, std::string_view tag, Bytes bytes) {
    const MutexLock lock(mutex_);
    const auto tags_before = locked_.ledger().tags().size();
    auto address = allocate_locked(device, locked_.ledger().tag_id(tag), bytes);
    if (!address) locked_.ledger().forget_tags_from(tags_before);
    return address;
}

Result<driver::DeviceAddress> ProgramMemory::allocate(int device, ledger::TagId tag, Bytes bytes) {
    const MutexLock lock(mutex_);
    return allocate_locked(device, tag, bytes);
}

Result<void> ProgramMemory::free(driver::DeviceAddress address) {
    if (!is_started()) return not_owned(address);
    const MutexLock lock(mutex_);
    const auto* backing = locked_.ledger().find(address);
    const auto span = backing && backing->is_asleep() ? gate::Named::Span{backing->address, backing->end()}
                                                      : gate::Named::Span{};
    const bool is_host_backed = backing && backing->host_backed;
    auto sharing = shared_.withdraw(address);
    auto freed = storage_->heap.free(address);
    if (!freed) return std::move(freed).error();
    sharing.end();
    note_end_of_sharing(address); // where others lie in the same block
    if (is_host_backed) static_cast<void>(storage_->engine.count_host_backed());
    storage_->engine.contents().forget(freed->kept);
    if (span.end != 0 && !locked_.ledger().find(address)) gate::Gate::instance().forget(span);
    return {};
}

Result<bool> ProgramMemory::allow_access(driver::DeviceAddress address, int device) {
    if (!is_started()) return not_owned(address);
    const MutexLock lock(mutex_);
    const auto place = storage_->heap.locate(address);
    if (!place) return place.error();
    const bool is_device = device >= 0 && device < driver::k_max_devices;
    if (is_device && (place->backing->access >> device & 1) != 0) return false;
    GPU_SLEEP_TRY(storage_->heap.allow_access(address, device));
    return true;
}

driver::DeviceMask ProgramMemory::devices_at(driver::DeviceAddress address) {
    const MutexLock lock(mutex_);
    const auto* backing = locked_.ledger().find(address);
    return backing && !backing->is_asleep() ? backing->access : 0;
}

bool ProgramMemory::reuse(driver::DeviceAddress address, Bytes bytes) {
    const MutexLock lock(mutex_);
    auto* const backing = locked_.ledger().find(address);
    if (!backing || (backing->stay_reason && !backing->stays_in_common) || backing->is_asleep()) return false;
    if (backing->host_backed && locked_.ledger().tag(backing->tag).live_bytes == 0) return false;
    if (!backing->preserved.empty())
        ledger::Ledger::forget_preserved(*backing, {address - backing->address, bytes});
    return true;
}

bool ProgramMemory::give_way() {
    auto& contents = running_.load()->engine.contents();
    const auto room = contents.budget().room_to_retain();
    const MutexLock lock(mutex_);
    contents.note_spare(); // before it is trimmed: it is held until it was given back
    return contents.trim_retained(room) > 0 || room == 0;
}

Result<void> ProgramMemory::prepare_piece(int device, Bytes margin) {
    auto& contents = running_.load()->engine.contents();
    return guarded([&]() -> Result<void> {
        const auto room = contents.budget().room_to_retain();
        const auto left = with_lock([&](const LockedMemory&) { return contents.room_to_prepare(room); });
        if (left < contents::Contents::k_prepared_piece + margin)
            return make_error(ErrorCode::out_of_host_memory, "room to retain only {}", format_bytes(left));
        const auto piece = contents.prepare_piece();
        if (!piece) return piece.error();
        with_lock([&](LockedMemory&) { contents.add_prepared(device, **piece); });
        return {};
    });
}

Result<memory::Heap::Place> ProgramMemory::locate_span(driver::DeviceAddress address, Bytes bytes) {
    if (!is_started()) return not_owned(address);
    auto place = storage_->heap.locate(address);
    if (!place) return place;
    const auto& whole = place->span;
    const Span span{address - place->backing->address, bytes};
    if (bytes > whole.bytes || span.end() > whole.end())
        return make_error(ErrorCode::not_owned, "{} at {:#x} do not lie within one allocation",
                          format_bytes(bytes), address);
    place->span = span;
    return place;
}

Result<void> ProgramMemory::read_kept(driver::DeviceAddress address, std::span<std::byte> to) {
    const MutexLock lock(mutex_);
    const auto place = locate_span(address, to.size());
    if (!place) return place.error();
    const auto& contents = storage_->engine.contents();
    const auto number = place->backing->kept.range;
    const bool is_asleep = place->backing->is_asleep();
    if (place->backing->shared && !is_asleep)
        return make_error(ErrorCode::refused, "these contents may be of another small allocation");
    const auto* const range = number == 0 ? nullptr
                              : is_asleep ? &contents.at(number)
                                          : contents.find_retained(number);
    if (!range)
        return make_error(ErrorCode::refused, "{}",
                          place->backing->holds_contents
                              ? "it sleeps in place in host memory, and can be read after it wakes"
                              : "none of the contents are kept");
    return contents::Contents::read(*range, place->span, to.data());
}

Result<void> ProgramMemory::preserve(driver::DeviceAddress address, Bytes bytes) {
    const MutexLock lock(mutex_);
    const auto place = locate_span(address, bytes);
    if (!place) return place.error();
    auto* const backing = place->backing;
    auto span = place->span;
    // Up to where another allocation could begin, so that one that is preserved whole counts as such.
    if (backing->shared) span.bytes = round_up(span.end(), memory::k_alignment) - span.offset;
    ledger::Ledger::preserve(*backing, span);
    return {};
}

Result<void> ProgramMemory::keep_on_gpu(driver::DeviceAddress address) {
    const MutexLock lock(mutex_);
    const auto place = locate_span(address, 1);
    if (!place) return place.error();
    if (place->backing->is_asleep()) return make_error(ErrorCode::refused, "{:#x} sleeps", address);
    if (place->backing->host_backed)
        return make_error(ErrorCode::refused, "{:#x} runs from host memory", address);
    locked_.make_stay(place->backing->address, "the program keeps it on the GPU");
    return {};
}

Result<void> ProgramMemory::mark_refilled(std::string_view tag) {
    const MutexLock lock(mutex_);
    const auto id = locked_.ledger().find_tag(tag);
    if (!id) return id.error();
    for (auto& [address, backing] : locked_.ledger().backings())
        if (backing.tag == *id && !backing.is_asleep()) backing.needs_refill = false;
    return {};
}

void ProgramMemory::require_refill(const std::vector<std::string>& tags) {
    const MutexLock lock(mutex_);
    for (auto& [address, backing] : locked_.ledger().backings())
        backing.needs_refill |=
            !backing.is_asleep() && !backing.is_wholly_preserved() &&
            std::find(tags.begin(), tags.end(), locked_.ledger().tag(backing.tag).name) != tags.end();
}

std::vector<std::string> ProgramMemory::tags_at(const std::vector<gate::Named::Span>& spans) {
    std::set<std::string> tags;
    const MutexLock lock(mutex_);
    for (const auto& span : spans)
        if (const auto* backing = locked_.ledger().find(span.begin))
            tags.insert(locked_.ledger().tag(backing->tag).name);
    return {tags.begin(), tags.end()};
}

gate::HoldRule ProgramMemory::rule_for_what_sleeps() noexcept {
    gate::HoldRule rule;
    rule.on_touch = locked_.touch_rule().on_touch;
    rule.limit = locked_.touch_rule().limit;
    rule.paused = locked_.is_paused();
    rule.checked =
        !rule.paused && gate_mode(locked_.touch_rule(), locked_.ledger()) == model::GateMode::checked;
    for (const auto& [address, backing] : locked_.ledger().backings()) {
        if (!backing.is_asleep()) continue;
        if (!rule.sleeping.empty() && rule.sleeping.back().end == address) {
            rule.sleeping.back().end = backing.end();
            continue;
        }
        const gate::Named::Span span{address, backing.end()};
        const auto added = guarded([&] { rule.sleeping.push_back(span); });
        rule.lists_all &= added.has_value();
    }
    return rule;
}

bool ProgramMemory::settle_gate() noexcept {
    auto& gate = gate::Gate::instance();
    const MutexLock lock(mutex_);
    auto rule = rule_for_what_sleeps();
    const bool holds = rule.holds_anything();
    if (holds || gate.deep_stage() >= gate::DeepStage::away)
        gate.keep_shut(std::move(rule));
    else
        gate.open();
    return holds;
}

Result<void> ProgramMemory::share(driver::DeviceAddress address, std::uint64_t id, const char* reason) {
    const MutexLock lock(mutex_);
    auto* const backing = locked_.ledger().find(address);
    if (!backing) return not_owned(address);
    if (backing->is_asleep()) return make_error(ErrorCode::refused, "{:#x} sleeps", address);
    if (auto tried = driver::export_memory(api(), backing->handle); !tried) return std::move(tried).error();
    shared_.add(address, {.allocation = id,
                          .handle = backing->handle,
                          .bytes = backing->bytes,
                          .offset = address - backing->address,
                          .place = address,
                          .reason = reason});
    locked_.make_stay(address, reason, true);
    return {};
}

void ProgramMemory::unshare(driver::DeviceAddress address) noexcept {
    if (!shared_.has_any_in(address, address + 1)) return;
    const MutexLock lock(mutex_);
    shared_.withdraw(address).end();
    note_end_of_sharing(address);
}

void ProgramMemory::note_end_of_sharing(driver::DeviceAddress address) noexcept {
    auto* const backing = locked_.ledger().find(address);
    if (!backing || !backing->stays_in_common || shared_.has_any_in(backing->address, backing->end())) return;
    backing->stay_reason = nullptr;
    backing->stays_in_common = false;
}

SharedRanges::Withdrawn::~Withdrawn() {
    if (!node_) return;
    const MutexLock lock(owner_.mutex_);
    owner_.ranges_.insert(std::move(node_));
}

Result<SharedRanges::Exported> SharedRanges::open(const driver::Api& api,
                                                  const model::SharedMemoryRequest& request,
                                                  const std::optional<ProcessIdentity>& asker,
                                                  const std::function<bool()>& is_allocated) {
    const MutexLock lock(mutex_);
    const auto found = ranges_.find(request.address);
    // Freed, it leaves the index of allocations first: it may yet be here.
    if (found == ranges_.end() || found->second.allocation != request.allocation || !is_allocated())
        return make_error(ErrorCode::not_owned, "there is no such shared memory");
    auto& range = found->second;
    if (range.handle == 0 && range.party != 0 && range.party == request.party)
        return make_error(ErrorCode::unknown_tag, "it is not among what wakes");
    if (range.handle == 0 || (range.party != 0 && range.party != request.party))
        return make_error(ErrorCode::refused, "it sleeps");
    auto memory = driver::export_memory(api, range.handle);
    if (!memory) return std::move(memory).error();
    // Of who cannot be told it is not known when it has closed it: the memory stays.
    const auto who = asker.value_or(ProcessIdentity{});
    if (std::ranges::find(range.importers, who) == range.importers.end()) range.importers.push_back(who);
    return Exported{range, *std::move(memory)};
}

Result<UniqueFd> SharedRanges::goes_down(const model::SharedMemoryRequest& request) {
    const MutexLock lock(mutex_);
    const auto found = ranges_.find(request.address);
    if (found == ranges_.end() || found->second.allocation != request.allocation)
        return make_error(ErrorCode::not_owned, "there is no such shared memory");
    if (request.party == party_ && !is_decided_) return make_error(ErrorCode::timed_out, "it is not decided");
    if (request.party == 0 || request.party != found->second.party || found->second.handle != 0)
        return make_error(ErrorCode::refused, "it stays on the GPU");
    if (!epochs_.is_held()) {
        epochs_ = HeldFile(opened([&] { return ::memfd_create("gpu-sleep-epoch", MFD_CLOEXEC); }));
        if (!epochs_ || ::pwrite(epochs_.get(), &epoch_, sizeof epoch_, 0) != sizeof epoch_)
            return errno_error(ErrorCode::io_failed, errno, "memfd_create", "gpu-sleep-epoch");
    }
    return UniqueFd(::fcntl(epochs_.get(), F_DUPFD_CLOEXEC, k_first_own_number));
}

Result<void> SharedRanges::has_passed(std::uint64_t party) const {
    const MutexLock lock(mutex_);
    if (party != 0 && party == passed_) return {};
    if (party != 0 && party == party_ && !is_withdrawn_)
        return make_error(ErrorCode::timed_out, "it is not known yet");
    return make_error(ErrorCode::refused, "it has gone back");
}

void SharedRanges::begin_epoch() noexcept {
    ++epoch_;
    if (epochs_.is_held() && ::pwrite(epochs_.get(), &epoch_, sizeof epoch_, 0) != sizeof epoch_)
        log::error("processes that share memory cannot be told that it woke");
}

} // namespace gpu_sleep::agent
