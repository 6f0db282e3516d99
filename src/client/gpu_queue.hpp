// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The line in which processes of one user stand that move memory between each other on a GPU, the lock of the
// one whose turn it is, and the locks that tell of room: what they mean is in checkpoint/room.hpp.

#pragma once

#include "base/files.hpp"
#include "client/room_plan.hpp"

#include <sys/types.h>

namespace gpu_sleep::client {

/// Locks of an empty file in an agent directory, which strangers cannot enter. They are the contract between
/// versions of the tool: byte 0 is the GPU's lock, which one process has alone, or those share that have set
/// room aside or count; a byte that is locked behind it is somebody's place, ordered by the time when it was
/// taken; byte 2^60 is locked by who counts, and behind it each locked range is somebody's room, as long as
/// that has MiB. They are record locks, which belong to a process: a child of fork() does not have them, and
/// they end with the process, however that ends. Nothing here waits. Not thread-safe; one for each GPU and
/// process, as closing the file anywhere in the process gives all of its locks up. Source: fcntl(2), F_SETLK.
class GpuQueue {
public:
    /// The line of the GPU `uuid`. `directory` is used by this call alone. Errors: io_failed.
    [[nodiscard]] static Result<GpuQueue> open(int directory, std::string_view uuid);

    GpuQueue(GpuQueue&&) noexcept = default;
    GpuQueue& operator=(GpuQueue&&) noexcept = default;

    /// Whether this is still the file of that name, and open: others clean /tmp, and programs close
    /// descriptors that they know nothing of.
    [[nodiscard]] bool is_in_place(int directory) const;

    /// Takes the place at the end, unless it has one. Errors: io_failed.
    [[nodiscard]] Result<void> stand();
    [[nodiscard]] bool stands() const noexcept { return place_ != 0; }
    /// How many stand before it; before all, if it does not stand itself.
    [[nodiscard]] std::uint32_t before() const;
    /// Takes the lock, whoever stands before. False: another process has it, or has set room aside.
    [[nodiscard]] bool lock();
    void unlock() noexcept;
    /// Gives back what end_counting() has set aside here.
    void give_room_back() noexcept;
    /// Whether closing it would give something up besides its place.
    [[nodiscard]] bool holds() const noexcept { return claim_.hold() != checkpoint::Hold::none; }
    /// Gives its place up.
    void leave() noexcept;
    /// The process that has the lock, as this one's pid namespace sees it; 0 if no other has it, or it is
    /// not seen.
    [[nodiscard]] pid_t holder() const;
    /// Whether others share the lock, for they have set room aside, or count.
    [[nodiscard]] bool is_shared() const;

private:
    friend std::optional<BytesByGpu> begin_counting(const std::vector<GpuQueue*>& lines);
    friend Result<bool> end_counting(const std::vector<GpuQueue*>& lines, const BytesByGpu& of_others,
                                     const Result<BytesByGpu>& room);

    GpuQueue(LockedFile file, std::string_view uuid);
    /// Has byte 0 locked as far as it has to be. False: others are in the way.
    bool lock_as_needed() noexcept;
    /// Nothing: as many as may at a time have some.
    [[nodiscard]] std::optional<Bytes> room_of_others() const;
    /// Begins to count, and returns how much others have set aside. Empty if it cannot: another process
    /// counts or has the lock, or as many have set room aside as may.
    [[nodiscard]] std::optional<Bytes> begin_counting() noexcept;
    void end_counting() noexcept;
    [[nodiscard]] bool set_aside(Bytes bytes) noexcept;

    LockedFile file_;
    std::string uuid_;
    std::string name_;
    off_t place_ = 0; ///< the byte; 0: none
    checkpoint::Claim claim_;
};

/// The lines of `gpus`; without those that cannot be opened, for which there are no turns.
[[nodiscard]] std::vector<GpuQueue> open_queues(int directory, const BytesByGpu& gpus);

/// Setting room aside for this process on several GPUs, or on none, in three steps: nobody else counts
/// between the first and the last, and the caller looks in between what is free. Until the room is given
/// back, or the process ends, others can set room aside, too, but take no lock.
///
/// Returns what others have set aside on each GPU; they may have taken a part of that by now. Nothing:
/// somebody else counts or has a lock, or four others have set room aside on one of them.
[[nodiscard]] std::optional<BytesByGpu> begin_counting(const std::vector<GpuQueue*>& lines);
/// Sets `room` aside; an error is why there is too little, or that it is not known. False: others have set
/// aside what is missing, so that it may be there when they are done. Then, and after an error, this process
/// has no room on these GPUs, not even from before. Errors: that of `room`.
[[nodiscard]] Result<bool> end_counting(const std::vector<GpuQueue*>& lines, const BytesByGpu& of_others,
                                        const Result<BytesByGpu>& room);

} // namespace gpu_sleep::client
