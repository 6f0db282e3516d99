// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Where kept bytes go besides host memory. A new kind of place implements these eight calls.

#pragma once

#include "base/files.hpp"
#include "store/coding.hpp"

#include <memory>

namespace gpu_sleep::store {

/// Where a store is.
struct StorePlace {
    std::filesystem::path where; ///< the directory; empty where a store only says what contents would take
    FileIdentity identity;       ///< of the directory
    bool is_in_memory = false;   ///< it takes of the host's memory
};

/// What one sleep puts in a store for a tag of a device: the chunks of some extents, coded by whoever puts
/// them. Used by one thread at a time, but for what put() and get() return. What it takes outside of the
/// process is given up when it is destroyed, unless forget() has let it stay.
class Parcel : public StorePlace {
public:
    explicit Parcel(const StorePlace& place) : StorePlace(place) {}
    Parcel(const Parcel&) = delete;
    Parcel& operator=(const Parcel&) = delete;
    virtual ~Parcel() = default;

    /// Begins, also once more after a failure. What it returns puts each chunk once, until flush(). What was
    /// put goes with the last copy of it, unless it was flushed. Errors: out_of_disk, io_failed,
    /// out_of_host_memory, not_permitted, out_of_threads.
    [[nodiscard]] virtual Result<PutChunk> put() = 0;
    /// All that was put, and that keep() has changed, lasts though the machine crashes. Errors: refused
    /// (nothing was put), out_of_disk, out_of_host_memory, io_failed.
    [[nodiscard]] virtual Result<void> flush() = 0;
    /// Checks that all is there as it was put; what it returns gets chunks. Errors: damaged, io_failed,
    /// not_permitted.
    [[nodiscard]] virtual Result<GetChunk> get() = 0;
    /// It is to outlast the process, once flush() was called. Returns whether it was not to before. Errors:
    /// out_of_disk, io_failed.
    [[nodiscard]] virtual Result<bool> keep() = 0;
    /// Lets go of what it holds open, and holds nothing, if it is kept: until open(). Errors: refused (it is
    /// not), io_failed.
    [[nodiscard]] virtual Result<void> close() = 0;
    /// Takes up what was closed, if nobody has changed it since; `where` says by which path. Errors:
    /// out_of_host_memory, io_failed, not_permitted, damaged (it is still closed).
    [[nodiscard]] virtual Result<void> open() = 0;
    /// Nobody needs it any more. It goes, unless it is `stays` and kept, or is older than the last sleep.
    /// Returns false where it cannot be removed.
    [[nodiscard]] virtual bool forget(bool stays) noexcept = 0;

    Bytes bytes = 0;            ///< that it takes: at most, until it is flushed; none while it is closed
    Bytes buffer_bytes = 0;     ///< of host memory that it takes from put() on, until it is flushed
    std::filesystem::path name; ///< once it was flushed
    bool is_kept = false;       ///< and flushed since: it stays under that name
};

/// Thread-safe.
class ParcelStore : public StorePlace {
public:
    ParcelStore() = default;
    ParcelStore(const ParcelStore&) = delete;
    ParcelStore& operator=(const ParcelStore&) = delete;
    virtual ~ParcelStore() = default;

    /// A place for `extents`, which takes nothing yet. Errors: io_failed.
    [[nodiscard]] virtual Result<std::unique_ptr<Parcel>> reserve(std::vector<SnapshotExtent> extents) = 0;
};

} // namespace gpu_sleep::store
