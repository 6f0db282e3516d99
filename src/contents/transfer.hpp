// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What moving contents needs: one device's part of a save or a restore, and what a save has of the stores.

#pragma once

#include "base/threads.hpp"
#include "contents/batch.hpp"
#include "contents/host_use.hpp"
#include "contents/progress.hpp"
#include "contents/staging.hpp"
#include "driver/device_session.hpp"
#include "model/model.hpp"
#include "store/file_store.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace gpu_sleep::contents {

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
    /// New contents that may go where they are to: whole tags as far as they fit, then whole blocks; the rest
    /// goes to the other places, in the order of model::k_stores. Unset: all.
    std::optional<Bytes> room{};
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
