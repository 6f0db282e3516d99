// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program's memory that can sleep: the ledger, the heap and the kept contents, behind one mutex; which of
// it other processes may ask for; and contents that nothing needs any more. What intercepted calls and
// operations mean for it is decided above.

#pragma once

#include "base/fd.hpp"
#include "base/process.hpp"
#include "base/thread_safety.hpp"
#include "base/units.hpp"
#include "common/lock_order.hpp"
#include "contents/contents.hpp"
#include "driver/memory.hpp"
#include "gate/gate.hpp"
#include "memory/heap.hpp"
#include "program_memory/locked_memory.hpp"
#include "sleep/transactions.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace gpu_sleep::agent {

/// Which ranges other processes may ask for, who did, and with which of them it sleeps. Thread-safe. Its
/// mutex comes after that of the program's memory, which a sleep holds for long.
class SharedRanges {
public:
    struct Range {
        std::uint64_t allocation = 0; ///< the id of the allocation that is shared
        driver::PhysicalMemory::Handle handle =
            0;                           ///< of the backing; 0 while nobody may have it, for it sleeps
        Bytes bytes = 0;                 ///< of the backing
        Bytes offset = 0;                ///< of the allocation in it
        driver::DeviceAddress place = 0; ///< where the ledger has it
        const char* reason = nullptr;    ///< why it stays while others have it
        bool by_descriptor = false;      ///< so it is shared, not by CUDA IPC
        std::uint64_t party = 0; ///< in which it goes to sleep, or wakes: meanwhile only that may have it
        bool is_asleep = false;
        std::vector<ProcessIdentity> importers{}; ///< that opened it; some may have ended, or closed it
    };
    /// By the address of the allocation. What is shared by descriptors has the number of its handle for both.
    using Ranges = std::map<driver::DeviceAddress, Range>;
    struct Exported {
        Range range;
        UniqueFd memory;
    };

    void add(driver::DeviceAddress address, Range range) {
        const MutexLock lock(mutex_);
        auto& known = ranges_[address];
        if (known.allocation == range.allocation) range.importers = std::move(known.importers);
        known = std::move(range);
    }
    /// A range that nobody gets any more; shared again when this is destroyed, unless it ended.
    class Withdrawn {
    public:
        Withdrawn& operator=(Withdrawn&&) = delete;
        ~Withdrawn();
        void end() noexcept { node_ = {}; }

    private:
        friend class SharedRanges;
        using Node = Ranges::node_type;
        Withdrawn(SharedRanges& owner, Node node) noexcept : owner_(owner), node_(std::move(node)) {}

        SharedRanges& owner_;
        Node node_; ///< empty if it was not shared
    };
    /// To be called before its memory is released.
    [[nodiscard]] Withdrawn withdraw(driver::DeviceAddress address) noexcept {
        const MutexLock lock(mutex_);
        return {*this, ranges_.extract(address)};
    }
    /// The memory that `request` asks for, for `asker`. `is_allocated`: whether it still is; asked while it
    /// cannot be forgotten. Errors: not_owned; refused (it sleeps); unknown_tag (it stays asleep in the wake
    /// that the asker takes part in); those of driver::export_memory().
    [[nodiscard]] Result<Exported> open(const driver::Api& api, const model::SharedMemoryRequest& request,
                                        const std::optional<ProcessIdentity>& asker,
                                        const std::function<bool()>& is_allocated);
    [[nodiscard]] Ranges all() const {
        const MutexLock lock(mutex_);
        return ranges_;
    }
    /// Whether an allocation that begins in [begin, end) is shared.
    [[nodiscard]] bool has_any_in(driver::DeviceAddress begin, driver::DeviceAddress end) const noexcept {
        const MutexLock lock(mutex_);
        const auto first = ranges_.lower_bound(begin);
        return first != ranges_.end() && first->first < end;
    }

    /// This process takes part in a sleep or a wake of `party` from now on; in none: 0.
    void take_part(std::uint64_t party) noexcept {
        const MutexLock lock(mutex_);
        party_ = party;
        is_decided_ = is_withdrawn_ = false;
    }
    /// Nobody tells it to go on any more.
    void withdraw_from_party() noexcept {
        const MutexLock lock(mutex_);
        is_withdrawn_ = true;
    }
    /// It has passed the point of no return of that.
    void pass() noexcept {
        const MutexLock lock(mutex_);
        passed_ = party_;
    }
    /// Whether it has. Errors: refused; timed_out (it may yet be told to).
    [[nodiscard]] Result<void> has_passed(std::uint64_t party) const;
    /// Returns all, which nobody gets until decide() but the party.
    [[nodiscard]] Ranges begin_deciding() {
        const MutexLock lock(mutex_);
        for (auto& [address, range] : ranges_) range.party = party_;
        return ranges_;
    }
    [[nodiscard]] std::uint64_t party() const noexcept {
        const MutexLock lock(mutex_);
        return party_;
    }
    /// Those that go to sleep with the party are `going`; all others stay.
    void decide(const std::set<driver::DeviceAddress>& going) noexcept {
        const MutexLock lock(mutex_);
        for (auto& [address, range] : ranges_) {
            const bool goes = going.contains(address);
            range.party = goes ? party_ : 0;
            if (goes) range.handle = 0;
        }
        is_decided_ = true;
    }
    /// Whether it goes; then the file whose first eight bytes count how often what is shared woke. Errors:
    /// not_owned, timed_out (it is not decided), refused (it stays), io_failed.
    [[nodiscard]] Result<UniqueFd> goes_down(const model::SharedMemoryRequest& request);
    /// The memory of a range that is awake can be had again, that of one that sleeps (`handle_of` is 0)
    /// cannot; with a `party`, by that alone, and it may sleep again. What has woken may change from now on:
    /// the contents that importers keep do not count any more.
    /// Takes no memory.
    template <class HandleOf>
    void settle(const HandleOf& handle_of, std::uint64_t party) {
        const MutexLock lock(mutex_);
        bool has_woken = false;
        for (auto& [address, range] : ranges_) {
            const bool was_going = std::exchange(range.party, range.is_asleep ? party : 0) != 0;
            range.handle = handle_of(range);
            if (party != 0) continue;
            // What was to sleep and does not may be asleep elsewhere.
            has_woken |= (range.is_asleep || was_going) && range.handle != 0;
            range.is_asleep = range.handle == 0;
        }
        if (has_woken) begin_epoch();
    }

private:
    void begin_epoch() noexcept GPU_SLEEP_REQUIRES(mutex_);

    mutable Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::handles)
        GPU_SLEEP_ACQUIRED_BEFORE(lock_order::innermost);
    Ranges ranges_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::uint64_t party_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
    std::uint64_t passed_ GPU_SLEEP_GUARDED_BY(mutex_) = 0; ///< the last party
    bool is_decided_ GPU_SLEEP_GUARDED_BY(mutex_) = false;
    bool is_withdrawn_ GPU_SLEEP_GUARDED_BY(mutex_) = false;
    HeldFile epochs_ GPU_SLEEP_GUARDED_BY(mutex_); ///< a file that importers have, too
    std::uint64_t epoch_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
};

/// The last allocation that failed, until the log has said once who holds the GPU's memory. Thread-safe.
class Shortage {
public:
    struct Lack {
        int device = 0;
        Bytes bytes = 0; ///< that an allocation asked for
    };

    /// Whether somebody should look who has the memory: not once that was said, nor again just now.
    bool note(Lack lack) noexcept {
        constexpr Milliseconds k_between{1'000};
        const MutexLock lock(mutex_);
        if (is_said_ || Clock::now() < next_) return false;
        next_ = Clock::now() + k_between;
        lack_ = lack;
        return true;
    }
    [[nodiscard]] std::optional<Lack> take() noexcept {
        const MutexLock lock(mutex_);
        return std::exchange(lack_, std::nullopt);
    }
    void set_said() noexcept {
        const MutexLock lock(mutex_);
        is_said_ = true;
    }

private:
    Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::optional<Lack> lack_ GPU_SLEEP_GUARDED_BY(mutex_);
    Clock::time_point next_ GPU_SLEEP_GUARDED_BY(mutex_);
    bool is_said_ GPU_SLEEP_GUARDED_BY(mutex_) = false;
};

/// Thread-safe: it takes its mutex itself, and nobody else does. Its mutex comes after those of the program's
/// pools and contexts, and before those of the program's handles, of the gate and of the server's queue.
/// Under it nobody waits for anything but the driver and the files of kept contents.
class ProgramMemory {
public:
    /// `environment`: how touches are met unless a sleep says otherwise. `retained`: bytes of host memory
    /// that contents may take while their memory is awake.
    ProgramMemory(const TouchRule& environment, Bytes retained);
    ProgramMemory& operator=(ProgramMemory&&) = delete;

    /// The process's; null before CUDA is in use, in a child of fork(), and when the process is ending.
    [[nodiscard]] static ProgramMemory* in_use() noexcept;

    /// CUDA can be used. `tidy_within` is called from now on when there is something to tidy up: with the
    /// mutex held, by whoever frees memory. It must neither take memory nor wait. `own_context_of`: see
    /// sleep::Transactions. One caller at a time.
    void set_up(const driver::Api& api, std::function<void(Milliseconds)> tidy_within,
                sleep::Transactions::ContextOf own_context_of);
    /// After set_up(): all else can be used from here on. Thread-safe.
    void start() noexcept;
    [[nodiscard]] bool is_started() const noexcept { return running_.load() != nullptr; }
    /// The process is ending, or this is a child of fork(): in_use() is null from here on.
    static void end() noexcept;
    /// The process is ending: the agent calls the driver no more.
    void end_with_process() noexcept;
    [[nodiscard]] bool is_ending() const noexcept { return is_ending_; }
    /// Whether the agent may call the driver of its own accord now: CUDA is in use, and the process is not
    /// ending. Whatever else is to keep it from the driver for a while belongs here.
    [[nodiscard]] bool may_call_driver() const noexcept {
        return is_started() && !is_ending_ && !is_left_ && gate::Gate::deep_stage() < gate::DeepStage::away;
    }
    /// Another process is to have the driver lock this one, and may have it checkpointed: the agent calls the
    /// driver no more of its own accord until end_lock(). `tags` went to sleep for that.
    void begin_lock(const std::vector<std::string>& tags) {
        const MutexLock lock(mutex_);
        locked_.lock_tags().insert(locked_.lock_tags().end(), tags.begin(), tags.end());
        is_left_ = true;
    }
    void end_lock() noexcept {
        const MutexLock lock(mutex_);
        locked_.lock_tags().clear();
        is_left_ = false;
    }
    [[nodiscard]] bool is_left() const noexcept { return is_left_; }
    /// Removes the files of kept contents, but for those to be kept: the process is ending. Not while a
    /// transaction is under way, for which it waits for a bounded time.
    void remove_files() noexcept;

    /// Once it is started.
    [[nodiscard]] const driver::Api& api() const noexcept { return running_.load()->api; }
    /// Has the operations thread tidy up, though nobody asks it for anything. Once it is started.
    void tidy_within(Milliseconds delay) const { tidy_within_(delay); }

    /// An allocation of the program has failed for want of GPU memory: has the operations thread say who has
    /// it.
    void note_shortage(int device, Bytes bytes) noexcept {
        if (shortage_.note({device, bytes})) tidy_within(Milliseconds(0));
    }
    [[nodiscard]] Shortage& shortage() noexcept { return shortage_; }

    /// The number of a tag, which is made where it is new.
    [[nodiscard]] ledger::TagId tag_id(std::string_view name) {
        const MutexLock lock(mutex_);
        return locked_.ledger().tag_id(name);
    }
    /// Memory of `bytes` on `device`. Errors: those of Heap::allocate(), and nothing has changed.
    [[nodiscard]] Result<driver::DeviceAddress> allocate(int device, std::string_view tag, Bytes bytes);
    [[nodiscard]] Result<driver::DeviceAddress> allocate(int device, ledger::TagId tag, Bytes bytes);
    /// Frees what allocate() gave, awake or asleep: its contents, and what the gate and other processes know
    /// of it. No work may still use it. Errors: not_owned; driver_failed (it is still allocated).
    [[nodiscard]] Result<void> free(driver::DeviceAddress address);
    /// Gives `device` access to the range that holds `address`. Returns whether that was new. Errors: those
    /// of Heap::allow_access().
    [[nodiscard]] Result<bool> allow_access(driver::DeviceAddress address, int device);
    /// The devices that may use the range that holds `address`; none where it sleeps, or there is none.
    [[nodiscard]] driver::DeviceMask devices_at(driver::DeviceAddress address);
    /// Takes a freed part of a range for a new allocation: nothing in it is preserved any more. False if the
    /// range sleeps, has to stay on the GPU, or was moved to host memory.
    [[nodiscard]] bool reuse(driver::DeviceAddress address, Bytes bytes);

    /// See the functions of the same purpose in gpu_sleep.h.
    void set_policy(std::string_view tag, model::TagPolicy policy) {
        const MutexLock lock(mutex_);
        locked_.ledger().set_policy(locked_.ledger().tag_id(tag), policy);
    }
    void set_separable(std::string_view tag, bool is_separable) {
        const MutexLock lock(mutex_);
        locked_.ledger().set_separable(locked_.ledger().tag_id(tag), is_separable);
    }
    /// From now on what the tag allocates is placed in host memory while less than that of it is there.
    void set_live_bytes(std::string_view tag, Bytes bytes) {
        const MutexLock lock(mutex_);
        locked_.ledger().set_live_bytes(locked_.ledger().tag_id(tag), bytes);
    }
    void limit_retained(Bytes most) noexcept {
        const MutexLock lock(mutex_);
        retained_limit_ = std::min(most, most_retained_);
        if (storage_) storage_->engine.contents().limit_retained(retained_limit_);
    }
    /// Gives up what of the retained contents the host has no room for. Reads small files, and takes the
    /// mutex afterwards. Returns whether the host is short: there was any, or there is room for none. Once it
    /// is started.
    [[nodiscard]] bool give_way();
    /// Makes one piece of host memory ready for the next sleep of the device, if there is room for it: then
    /// `margin` may be retained besides. For the operations thread; the mutex is held for moments only.
    /// Errors: out_of_host_memory.
    [[nodiscard]] Result<void> prepare_piece(int device, Bytes margin);
    /// A context has ended in which host memory may have been pinned. Gives up what is retained, of all tags,
    /// and has what sleeps pinned anew before it is used.
    void note_unpinned() noexcept {
        const MutexLock lock(mutex_);
        if (!storage_) return;
        static_cast<void>(storage_->engine.contents().trim_retained(0));
        static_cast<void>(storage_->engine.contents().unpin());
    }
    [[nodiscard]] Result<void> preserve(driver::DeviceAddress address, Bytes bytes);
    [[nodiscard]] Result<void> keep_on_gpu(driver::DeviceAddress address);
    [[nodiscard]] Result<void> read_kept(driver::DeviceAddress address, std::span<std::byte> to);
    [[nodiscard]] Result<void> mark_refilled(std::string_view tag);
    /// After a refill that may have failed: what was dropped of `tags` counts as not refilled.
    void require_refill(const std::vector<std::string>& tags);

    [[nodiscard]] Bytes asleep_bytes() {
        const MutexLock lock(mutex_);
        Bytes sum = 0;
        for (const auto& [address, backing] : locked_.ledger().backings())
            sum += backing.is_asleep() ? backing.bytes : 0;
        return sum;
    }
    /// Of what is under `tags`; see Ledger::state().
    [[nodiscard]] model::State state(const std::vector<std::string>& tags = {}) {
        const MutexLock lock(mutex_);
        return locked_.state(tags);
    }
    /// The tags at the beginnings of `spans`, each once.
    [[nodiscard]] std::vector<std::string> tags_at(const std::vector<gate::Named::Span>& spans);

    /// How the gate is to be for what sleeps now.
    [[nodiscard]] gate::HoldRule hold_rule() noexcept {
        const MutexLock lock(mutex_);
        return rule_for_what_sleeps();
    }
    /// Makes the gate fit what sleeps: shut or checked by the rule while something does, shut in a pause,
    /// else open. Returns whether work waits for a wake.
    bool settle_gate() noexcept;
    /// The same while after-wake callbacks run.
    void let_allocate() noexcept {
        const MutexLock lock(mutex_);
        gate::Gate::instance().let_allocate(rule_for_what_sleeps());
    }

    /// Lets other processes ask for the range of `address`, where allocation `id` begins: it stays on the GPU
    /// from now on, for `reason`. Errors: not_owned; refused (it sleeps); those of driver::export_memory().
    [[nodiscard]] Result<void> share(driver::DeviceAddress address, std::uint64_t id, const char* reason);
    /// The allocation at `address` was freed, and its range lives on: nobody gets it any more.
    void unshare(driver::DeviceAddress address) noexcept;
    /// The ranges that are shared; does not wait for the mutex.
    [[nodiscard]] SharedRanges& shared_ranges() noexcept { return shared_; }

    /// Runs `use`, which takes a LockedMemory&, with the mutex held: for what takes several steps.
    template <class Use>
    auto with_lock(Use&& use);
    /// The same if nobody holds it: what `use` returned, or nothing.
    template <class Use>
    auto try_with_lock(Use&& use) -> std::optional<std::invoke_result_t<Use, LockedMemory&>>;

private:
    /// A block of which nothing is shared any more sleeps as any other.
    void note_end_of_sharing(driver::DeviceAddress address) noexcept GPU_SLEEP_REQUIRES(mutex_);

    /// The members that exist once CUDA is in use.
    struct Running {
        Running(const driver::Api& found, ledger::Ledger& ledger, const sleep::Transactions::Options& options,
                sleep::Transactions::ContextOf own_context_of)
            : api(found), heap(api, ledger), engine(api, ledger, options, std::move(own_context_of)) {}
        driver::Api api;
        memory::Heap heap;
        sleep::Transactions engine;
    };

    /// The backing of an allocation, and the part of it that is `bytes` from `address` on. Errors: not_owned
    /// (not within one allocation).
    [[nodiscard]] Result<memory::Heap::Place> locate_span(driver::DeviceAddress address, Bytes bytes)
        GPU_SLEEP_REQUIRES(mutex_);
    [[nodiscard]] Result<driver::DeviceAddress> allocate_locked(int device, ledger::TagId tag, Bytes bytes)
        GPU_SLEEP_REQUIRES(mutex_);
    /// Nothing where it goes to the GPU: the tag has its share already, or there is no host memory to be had.
    [[nodiscard]] std::optional<driver::DeviceAddress> place_in_host_memory(int device, ledger::TagId tag,
                                                                            Bytes bytes)
        GPU_SLEEP_REQUIRES(mutex_);
    /// The rule for what sleeps now. The gate has it before the mutex is free: what is freed in between would
    /// stay listed for ever.
    [[nodiscard]] gate::HoldRule rule_for_what_sleeps() noexcept GPU_SLEEP_REQUIRES(mutex_);

    std::unique_ptr<Running> storage_; ///< its heap and its engine are used with the mutex held
    std::atomic<Running*> running_{nullptr};
    std::atomic<bool> is_ending_{false};
    std::atomic<bool> is_left_{false}; ///< see begin_lock()
    std::function<void(Milliseconds)> tidy_within_ = [](Milliseconds) {};

    Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::memory) GPU_SLEEP_ACQUIRED_BEFORE(lock_order::handles);
    LockedMemory locked_ GPU_SLEEP_GUARDED_BY(mutex_);
    const Bytes most_retained_;                         ///< by the environment
    Bytes retained_limit_ GPU_SLEEP_GUARDED_BY(mutex_); ///< by the program, too
    bool has_said_no_place_ GPU_SLEEP_GUARDED_BY(mutex_) = false;
    SharedRanges shared_;
    Shortage shortage_;
};

template <class Use>
auto ProgramMemory::with_lock(Use&& use) {
    const MutexLock lock(mutex_);
    return std::forward<Use>(use)(locked_);
}

template <class Use>
auto ProgramMemory::try_with_lock(Use&& use) -> std::optional<std::invoke_result_t<Use, LockedMemory&>> {
    if (!mutex_.try_lock()) return std::nullopt;
    const MutexLock lock(mutex_, std::adopt_lock);
    return std::forward<Use>(use)(locked_);
}

/// Contents that nothing needs any more, until their memory and files are given back little by little, where
/// that takes nobody's time: haste would slow the program's first work after waking. Used on the operations
/// thread alone, but for host_bytes().
class RetiredContents {
public:
    explicit RetiredContents(ProgramMemory& memory) noexcept : memory_(memory) {}

    /// Takes over what has been retired since. Before any of the others, once the memory is open.
    void collect() {
        memory_.with_lock([this](LockedMemory& locked) {
            retired_.splice(retired_.end(), locked.contents().reap());
            held_ = contents::held_by(retired_, model::Store::host);
        });
    }
    /// Gives a little of it back, which takes 0.4 ms: one piece of host memory after another, without the
    /// memory's mutex. All is made ready before the first is unmapped, which stops every thread of the
    /// program for a moment. False when nothing is left. The caller holds the contexts.
    [[nodiscard]] bool give_back_some() {
        for (const auto& batch : retired_)
            if (batch->arena() && batch->arena()->unpin_next()) return true;
        retired_.clear();
        held_ = 0;
        return shrink_one();
    }
    /// Closes retired files, whose room on the disk is free then. Returns whether there were any.
    [[nodiscard]] bool give_back_files() {
        return retired_.remove_if([](const auto& batch) { return !batch->is_cached(); }) > 0;
    }
    [[nodiscard]] bool has_any() const noexcept { return !retired_.empty(); }
    /// Whether there is something to give back, collected or not.
    [[nodiscard]] bool has_waste() {
        return has_any() ||
               memory_.with_lock([](LockedMemory& locked) { return locked.contents().has_waste(); });
    }
    /// Host memory that nothing needs any more. Thread-safe; `locked` is the memory.
    [[nodiscard]] Bytes host_bytes(const LockedMemory& locked) const noexcept {
        return locked.contents().retired_bytes() + held_;
    }

private:
    /// Gives back dead contents of one piece of host memory. Returns whether there was one.
    [[nodiscard]] bool shrink_one() {
        const auto waste =
            memory_.with_lock([](LockedMemory& locked) { return locked.contents().find_waste(); });
        if (!waste) return false;
        // The driver may take its time. No operation runs beside this one, and nobody else reads the
        // contents.
        const auto given_back = waste->give_back();
        memory_.with_lock([&](LockedMemory&) { contents::Contents::note_shrunk(*waste, given_back); });
        return true;
    }

    ProgramMemory& memory_;
    contents::Batches retired_;  ///< being given back
    std::atomic<Bytes> held_{0}; ///< by those, of host memory
};

} // namespace gpu_sleep::agent
