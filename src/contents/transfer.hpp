// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What moving contents needs: how much of the host it may use, pinned memory, a ring of that through which
// contents move between a device and a store, one device's part of a save or a restore, and what a save has
// of the stores.

#pragma once

#include "base/threads.hpp"
#include "contents/batch.hpp"
#include "contents/progress.hpp"
#include "driver/device_session.hpp"
#include "store/file_store.hpp"

namespace gpu_sleep::contents {

/// HostUse::relay_threads by default. Where processors are many, moving contents on takes less time than
/// pinning their memory first (tests/bench/RESULTS.md).
[[nodiscard]] inline unsigned default_relay_threads() noexcept {
    constexpr unsigned k_many = 16;
    constexpr unsigned k_others = 4; // for the driver, and the rest of the host
    constexpr unsigned k_most = 28;
    const auto processors = std::thread::hardware_concurrency();
    return processors < k_many ? 0 : std::min(processors - k_others, k_most);
}

struct HostUse {
    unsigned fill_threads = 8; ///< that make host memory ready, for each device
    /// Pinned memory for contents on their way to or from files, shared by the devices. What goes to or
    /// comes from the files takes as much again.
    Bytes staging = 256 * k_mib;
    /// Host memory that may hold contents of what is awake, for the next sleep. 0: a wake gives all back.
    Bytes retained = 0;
    /// Threads that move contents on to host memory that is pinned only afterwards, for each device, and back
    /// if that is still to be done. 0: it is pinned first.
    unsigned relay_threads = default_relay_threads();
    /// New contents of a device, or what of a batch is not pinned: less than that is not relayed.
    Bytes relay_from = 2 * k_gib;
    unsigned check_threads = 32; ///< that read copies in host memory, for each device
    store::HostBudget* budget = &store::HostBudget::own(); ///< outlives all that use it
};

/// Pins in whatever context is there at the time: contexts may come and go while contents sleep.
/// Thread-safe; lives as long as the process.
class DriverPinner final : public store::Pinner {
public:
    explicit DriverPinner(const driver::Api& api) noexcept : api_(api) {}

    [[nodiscard]] Result<void> pin(std::span<std::byte> memory) override;
    [[nodiscard]] bool unpin(std::span<std::byte> memory) noexcept override;

private:
    const driver::Api& api_;
};

/// Pinned memory for chunks on their way: each slot holds one. Made for one transaction on one device.
class Staging {
public:
    /// Two are slow, but work.
    static constexpr std::size_t k_min_slots = 2;
    /// Slots for `chunks`, but no more than HostUse::staging and free host memory allow; fewer if the files
    /// lie in host memory themselves.
    [[nodiscard]] static std::size_t slots_for(std::size_t chunks, bool has_files_in_memory,
                                               const HostUse& options);
    /// For k_min_slots host memory is waited for a little, and the budget's reserve does not count; more are
    /// made at once or not at all. Errors: out_of_host_memory, cancelled.
    [[nodiscard]] static Result<std::unique_ptr<Staging>>
    create(store::Pinner& pinner, std::size_t slots, const HostUse& options, ProgressCounter& progress);

    [[nodiscard]] std::size_t slots() const noexcept { return copied_.size(); }
    [[nodiscard]] std::byte* slot(std::size_t index) const noexcept {
        return arena_->at(index * codec::k_chunk_bytes);
    }
    /// When the last copy from or to the slot has passed: it must not be used before, whoever copied.
    [[nodiscard]] driver::DeviceSession::Point& copied(std::size_t slot) noexcept { return copied_[slot]; }
    /// The slot whose turn it is, for whoever fills them in turn.
    [[nodiscard]] std::size_t next() noexcept { return next_++ % slots(); }
    /// Chunks that may be on their way at a time: fewer than there are slots, so that the next one always has
    /// one.
    [[nodiscard]] std::size_t ahead() const noexcept { return slots() - 1; }
    /// What else they may take, in buffers for what goes to or comes from the file.
    [[nodiscard]] Bytes buffer_bytes() const noexcept { return 2 * slots() * codec::k_chunk_bytes; }

private:
    Staging(std::unique_ptr<store::HostArena> arena, std::size_t slots)
        : arena_(std::move(arena)), copied_(slots) {}

    std::unique_ptr<store::HostArena> arena_;
    std::vector<driver::DeviceSession::Point> copied_; ///< of each slot
    std::size_t next_ = 0;
};

/// Contents of a device as they are pulled: copied ahead of it as far as there are slots.
class DeviceSource final : public store::ChunkSource {
public:
    /// `extents` lie on the device once `reach`, which is told the number of the extent that is copied next,
    /// has returned. All outlive it; the session's context is current on the thread that calls take().
    DeviceSource(
        driver::DeviceSession& session, Staging& staging, const std::vector<store::SnapshotExtent>& extents,
        ProgressCounter& progress,
        std::function<Result<void>(std::size_t)> reach = [](std::size_t) { return Result<void>(); });

    [[nodiscard]] Result<std::span<const std::byte>> take(const store::ChunkPlace& place) override;
    void release(const store::ChunkPlace& place) noexcept override;

private:
    [[nodiscard]] Result<void> queue(std::size_t number, std::size_t slot);
    /// A free slot; waits for one if `waits`.
    [[nodiscard]] std::optional<std::size_t> find_slot(bool waits);

    driver::DeviceSession& session_;
    Staging& staging_;
    const std::vector<store::SnapshotExtent>& extents_;
    std::vector<store::ChunkPlace> places_;
    ProgressCounter& progress_;
    std::function<Result<void>(std::size_t)> reach_;
    std::vector<std::size_t> slot_of_; ///< of each place
    std::size_t next_ = 0;             ///< place to copy

    Mutex mutex_;
    Condition freed_;
    std::vector<std::size_t> free_ GPU_SLEEP_GUARDED_BY(mutex_);
};

/// Most device memory that coded blocks pass through, half by half. Each launch costs a program that computes
/// on the same GPU a switch, so that few large ones are better (tests/bench/RESULTS.md).
inline constexpr Bytes k_scratch = 512 * k_mib;
/// Smaller launches leave most of a GPU idle.
inline constexpr Bytes k_least_scratch = 32 * k_mib;

/// The device memory that coded blocks of so many bytes pass through, at most a quarter of what is `free`:
/// programs and neighbours come first. 0 if that is too little.
constexpr Bytes scratch_for(Bytes bytes, Bytes free) noexcept {
    const auto scratch = std::min({k_scratch, 2 * bytes, free / 4});
    return scratch < std::min(k_least_scratch, 2 * bytes) ? 0 : scratch;
}

/// The two halves of the scratch: the GPU works on one while copies go by the other.
struct Halves {
    using Point = driver::DeviceSession::Point;
    std::array<Point, 2> free{}; ///< when a half can be filled anew
    std::array<Point, 2> full{}; ///< when it was filled
    Point straight{};            ///< behind which blocks are decoded without it
    std::size_t next = 0;
    Point* copied = nullptr; ///< to be set once all copies of what was coded last are queued
    /// What is to be decoded in a half to which its copies are queued.
    struct Late {
        std::span<driver::BlockTask> tasks{};
        std::size_t half = 0;
    };
    Late late{};
};

/// Which way coded blocks go to the device: copied to the scratch and decoded there, or decoded straight from
/// host memory. Just after a large release by whatever process the driver clears what was released with the
/// GPU's copy engines, and copies are half as fast (tests/bench/RESULTS.md); beside a program that computes
/// all the time kernels are. So the first legs try both. What is decoded while the next copies are under way
/// does not count, and copies are timed twice, for the first may wait for the host.
struct Ways {
    struct Leg {
        driver::DeviceSession::Point begun;
        driver::DeviceSession::Point ended;
        Bytes bytes = 0;
    };
    std::array<Leg, 3> tried{}; ///< copied, straight, copied
    std::size_t legs = 0;
    bool can_go_straight = false; ///< the device reads pinned memory where it lies
    bool is_straight = false;
    bool is_decided = false;
};

/// One device's part of a save or a restore, for its thread alone.
struct Transfer {
    driver::DeviceSession& session; ///< its context is current
    ProgressCounter& progress;
    store::Pinner& pinner;
    HostUse options;                    ///< for this device
    std::unique_ptr<Staging> staging{}; ///< made when it is first needed
    /// That move contents to the staging; made likewise. Between calls they have nothing to do.
    std::unique_ptr<ThreadPool> movers{};
    driver::DeviceSession::CodingSpace coding{}; ///< of coded blocks
    std::size_t coding_used = 0;                 ///< of its tasks
    Halves halves{};
    Ways ways{};

    /// Waits for copies that still use the staging.
    ~Transfer();
    /// Notes that a copy of `bytes` was queued, or decoding without one, and tells what has passed meanwhile.
    /// Does not wait. Errors: cancelled, timed_out, driver_failed, context_lost.
    [[nodiscard]] Result<void> queued(Bytes bytes, bool is_coded = false);
    /// Tells what has passed. Errors: as queued().
    [[nodiscard]] Result<void> look();
    /// Waits until all that was queued has passed. Errors: as queued().
    [[nodiscard]] Result<void> wait();
    /// Runs `job(staging)` with a ring of `slots`, if there is none yet, which stays for the next job. When
    /// host memory is short, runs it again with a smaller one. Errors: out_of_host_memory, cancelled, those
    /// of the job.
    [[nodiscard]] Result<void> with_staging(std::size_t slots,
                                            const std::function<Result<void>(Staging&)>& job);
};

/// What a save has of the stores.
struct SaveOptions {
    /// Where contents go besides the host cache; it need not take any unless they do.
    std::shared_ptr<store::ParcelStore> store = std::make_shared<store::FileStore>();
    bool keeps_files = false;    ///< files stay when their contents are no longer needed
    bool takes_prepared = false; ///< new contents go to memory that was prepared, as far as there is any
    bool copies_all = false;     ///< also what is retained and has not changed
    bool checks_copies = false;  ///< reads what is in host memory before the sleep counts
    bool codes = true;           ///< what goes to the host cache, where that makes it smaller
    /// New contents that may go to the first of model::k_stores: whole tags as far as they fit, then whole
    /// blocks. Unset: all.
    std::optional<Bytes> room{};
    std::span<const model::Store> others{}; ///< where the rest goes, in this order
};

/// A block to be copied between its place and its memory on the device.
struct Move {
    Number range = 0;
    Place place;
    driver::AddressSpan device;
    const codec::BlockPlan* plan = nullptr; ///< of a coded block that leaves the device
};

struct SealedMove : Move {
    driver::Fingerprint seal;
};

/// Ranges that could not be brought back, and why.
using Failures = std::map<Number, Error>;

} // namespace gpu_sleep::contents
