// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Pinned memory: pinning through the driver, and a ring of pinned buffers through which contents move
// between a device and a store: the GPU copies, the processors compress or decode, and the disk writes
// or reads, all at the same time.

#pragma once

#include "contents/host_use.hpp"
#include "contents/progress.hpp"
#include "driver/api.hpp"
#include "driver/device_session.hpp"
#include "store/coding.hpp"
#include "store/host_arena.hpp"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace gpu_sleep::contents {

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
    [[nodiscard]] std::byte* slot(std::size_t index) const noexcept;
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

    std::mutex mutex_; ///< guards free_
    std::condition_variable freed_;
    std::vector<std::size_t> free_;
};

/// Contents on their way from a store to a device.
class DeviceSink final : public store::ChunkSink {
public:
    /// `addresses` says where on the device each extent goes; only those that are read are used. All outlive
    /// it.
    DeviceSink(driver::DeviceSession& session, Staging& staging,
               const std::vector<driver::DeviceAddress>& addresses, ProgressCounter& progress) noexcept
        : session_(session), staging_(staging), addresses_(addresses), progress_(progress) {}

    [[nodiscard]] Result<std::span<std::byte>> space(const store::ChunkPlace& place) override;
    [[nodiscard]] Result<void> deliver(const store::ChunkPlace& place,
                                       std::span<const std::byte> content) override;

private:
    driver::DeviceSession& session_;
    Staging& staging_;
    const std::vector<driver::DeviceAddress>& addresses_;
    ProgressCounter& progress_;
    std::size_t given_ = 0; ///< spaces
    std::size_t delivered_ = 0;
};

} // namespace gpu_sleep::contents
