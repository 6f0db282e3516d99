// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a sleep and a wake share: a session on each device, copies between ranges and arenas, blocks to
// fingerprint, counting progress, and running one job for each device side by side. Internal to this module.

#pragma once

#include "base/guard.hpp"
#include "base/quiet_thread.hpp"
#include "driver/device_session.hpp"
#include "ledger/ledger.hpp"
#include "sleep/engine.hpp"
#include "store/host_arena.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace gpu_sleep::sleep {

/// A session in the primary context of the device `ordinal`. Notes the device's memory, as it is before the
/// transaction, in `report`. Errors: those of PrimaryContext::retain() and DeviceSession::open().
[[nodiscard]] Result<std::unique_ptr<driver::DeviceSession>> open_session(const driver::Api& api, int ordinal,
                                                                          model::DeviceReport& report);

/// A copy between device memory and an arena.
struct Copy {
    driver::AddressSpan device;
    const store::HostArena* arena = nullptr;
    Bytes arena_offset = 0;
};

/// Adds a copy, or lengthens the last one when the new one continues it on both sides.
void add_copy(std::vector<Copy>& copies, Copy copy);

/// Adds the blocks of `span`, the last of which may be shorter.
void add_blocks(std::vector<driver::FingerprintBlock>& blocks, driver::AddressSpan span);

/// The number of blocks that add_blocks() makes of `bytes`.
[[nodiscard]] constexpr std::uint64_t block_count(Bytes bytes) noexcept {
    return (bytes + driver::k_fingerprint_block_bytes - 1) / driver::k_fingerprint_block_bytes;
}

/// Calls `part(piece index, device address, host address, bytes)` for each part of `copy` that lies in one
/// piece of its arena: a copy must not cross the border of a registration.
template <class Part>
[[nodiscard]] Result<void> for_each_part(const Copy& copy, Part&& part) {
    for (Bytes done = 0; done < copy.device.bytes;) {
        const auto offset = copy.arena_offset + done;
        const auto index = static_cast<std::size_t>(offset / store::HostArena::k_piece_bytes);
        const auto piece_end = (index + 1) * store::HostArena::k_piece_bytes;
        const auto bytes = std::min(copy.device.bytes - done, piece_end - offset);
        GPU_SLEEP_TRY(part(index, copy.device.address + done, copy.arena->data() + offset, bytes));
        done += bytes;
    }
    return {};
}

/// Counts bytes moved on all devices, tells the asker, and heeds its withdrawal and its deadline.
/// Thread-safe.
class ProgressCounter {
public:
    ProgressCounter(const Control& control, Bytes total) noexcept : control_(control), total_(total) {}

    /// Errors: cancelled, timed_out (the asker's deadline has passed).
    [[nodiscard]] Result<void> add(Bytes bytes);
    /// Ends the transfer on every device after one has failed.
    void stop() noexcept { stopped_ = true; }

private:
    const Control& control_;
    std::mutex mutex_; ///< one call of the asker at a time
    Bytes total_;
    Bytes done_ = 0;
    std::atomic<bool> stopped_{false};
};

/// Adds to `progress` what has been copied so far. Does not wait. Errors: cancelled, timed_out,
/// driver_failed, context_lost.
[[nodiscard]] Result<void> add_copied(driver::DeviceSession& session, ProgressCounter& progress);

/// Runs `job(state)` for every state, each on a thread of its own when there are several. When one fails the
/// progress counter is stopped. Returns the first error that is not `cancelled`, or else the first.
template <class State, class Job>
[[nodiscard]] Result<void> run_side_by_side(std::vector<State>& states, ProgressCounter& progress, Job&& job);

/// The first error of `results` that says why, as opposed to `cancelled`, which follows from another.
[[nodiscard]] Result<void> first_cause(std::vector<Result<void>>& results);

template <class State, class Job>
Result<void> run_side_by_side(std::vector<State>& states, ProgressCounter& progress, Job&& job) {
    std::vector<Result<void>> results(states.size());
    const auto run = [&](std::size_t i) {
        results[i] = guarded([&] { return job(states[i]); });
        if (!results[i]) progress.stop();
    };
    std::vector<std::thread> threads;
    threads.reserve(states.size()); // once one runs, nothing here may throw
    for (std::size_t i = 1; i < states.size(); ++i) {
        if (auto thread =
                guarded([&] { return start_quiet_thread("gpu-sleep-move", [&run, i] { run(i); }); }))
            threads.push_back(*std::move(thread));
        else
            run(i);
    }
    if (!states.empty()) run(0);
    for (auto& thread : threads) thread.join();
    return first_cause(results);
}

} // namespace gpu_sleep::sleep
