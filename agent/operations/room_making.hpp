// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Room on GPUs: this process's places in their queues, the locks and the room that it has, and a wake that
// makes room: where GPU memory is short, others of the same user sleep for it.

#pragma once

#include "client/client.hpp"
#include "client/gpu_queue.hpp"
#include "client/room.hpp"
#include "operations/process_status.hpp"

namespace gpu_sleep::agent::operations {

/// Returns the GPU memory that a rehearsed wake would take.
[[nodiscard]] client::BytesByGpu needs_of_wake(const model::Report& rehearsed);

/// One for the process, to which the locks belong. GPUs are named by their UUIDs. A GPU that has no line,
/// because there is no directory for it, counts as locked: then there are no turns. Thread-safe.
class GpuLines {
public:
    /// Has each line do so at the end.
    template <void (client::GpuQueue::*does)() noexcept>
    struct AtEnd {
        void operator()(GpuLines* lines) const noexcept { lines->have_all(does); }
    };
    /// Locks of GPUs, given up when it is destroyed, or of none. One at a time.
    using Locks = std::unique_ptr<GpuLines, AtEnd<&client::GpuQueue::unlock>>;
    /// Room on GPUs, given back when it is destroyed. One at a time.
    using Room = std::unique_ptr<GpuLines, AtEnd<&client::GpuQueue::give_room_back>>;

    /// Stands in the line of each of `gpus`. Returns how many stand before this process.
    [[nodiscard]] std::uint32_t stand(int directory, const std::vector<std::string>& gpus) {
        std::uint32_t before = 0;
        const MutexLock lock(mutex_);
        for (const auto& gpu : gpus)
            if (auto* const line = find(directory, gpu); line && line->stand())
                before = std::max(before, line->before());
        return before;
    }
    /// Gives up all places.
    void leave() noexcept {
        have_all(&client::GpuQueue::leave);
        const MutexLock lock(mutex_);
        std::erase_if(lines_, [](const auto& each) { return !each.second.holds(); });
    }

    /// Takes the locks of all `gpus`, whoever stands in line, or of none: nobody waits with one of them.
    /// Nothing: another process has one.
    [[nodiscard]] std::optional<Locks> lock(int directory, const std::vector<std::string>& gpus);
    /// Whether others have set room aside on one of `gpus`, or count.
    [[nodiscard]] bool are_shared(int directory, const std::vector<std::string>& gpus) {
        const MutexLock lock(mutex_);
        return std::ranges::any_of(gpus, [&](const std::string& gpu) GPU_SLEEP_REQUIRES(mutex_) {
            const auto* const line = find(directory, gpu);
            return line && line->is_shared();
        });
    }

    using CountRoom = std::function<Result<client::BytesByGpu>(const client::BytesByGpu& of_others)>;
    /// Sets room aside on all `gpus`, of which `count` says how much, while nobody else counts: see
    /// client::begin_counting(). Waits for others to be done. `keep_going` is asked meanwhile. Errors:
    /// out_of_device_memory (others are not done at the deadline), cancelled, those of `count`.
    [[nodiscard]] Result<Room> wait_for_room(const std::vector<std::string>& gpus, const CountRoom& count,
                                             Clock::time_point deadline,
                                             const std::function<bool()>& keep_going);

private:
    /// Null if there is none.
    [[nodiscard]] client::GpuQueue* find(int directory, const std::string& gpu) GPU_SLEEP_REQUIRES(mutex_);
    void have_all(void (client::GpuQueue::*does)() noexcept) noexcept {
        const MutexLock lock(mutex_);
        for (auto& [gpu, line] : lines_) (line.*does)();
    }

    Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost); ///< held for moments only
    std::map<std::string, client::GpuQueue> lines_ GPU_SLEEP_GUARDED_BY(mutex_);
};

/// Such wakes take turns, each GPU's one after another: who is not first in line, or cannot have room yet,
/// leaves everything as it is and is tried again. The turn and the room are held by nobody in between, and
/// the process can be asked anything. Used on the operations thread, but for place() and leave().
class RoomMaking {
public:
    /// Tries a wake alone, or rehearses it.
    using Wake = std::function<Result<model::Report>(const model::WakeRequest&)>;

    RoomMaking(const ProgramMemory& memory, GpuLines& lines, ProcessStatus& status) noexcept
        : memory_(memory), lines_(lines), status_(status) {}

    /// One try, the first or one of those after it; with `goes_first` before those in line. Whom it puts to
    /// sleep stands in the report's notes.
    /// Errors: those of wake(); out_of_device_memory also where it is not its turn, or others
    /// cannot sleep: the message says who has the memory and why; inhibited where the request minds that.
    [[nodiscard]] Result<model::Report> wake(const Wake& wake, const model::WakeRequest& request,
                                             bool is_tried, bool goes_first);

    /// Rehearses a wake and says in the report's notes who would be put to sleep for it, or what stands
    /// against it. Takes no place in line. Errors: those of WakeOperation::run().
    [[nodiscard]] Result<model::Report> rehearse(const Wake& wake, const model::WakeRequest& request);

    /// The place in line, from 1; 0: it does not stand. Thread-safe.
    [[nodiscard]] std::uint32_t place() const noexcept { return place_; }
    /// Whether the last try lacks no more than the time of somebody who was woken just now. On the operations
    /// thread.
    [[nodiscard]] bool waits_for_time() const noexcept { return wait_ && !waits_for_turn_; }
    /// Whether it was not this process's turn in the last try. On the operations thread.
    [[nodiscard]] bool waits_for_turn() const noexcept { return waits_for_turn_; }
    /// No such wake waits any more. Not while one is being tried. Thread-safe.
    void leave() noexcept {
        if (place_.exchange(0) != 0) lines_.leave();
    }

    /// GPU memory that other processes of this user hold.
    struct Holders {
        std::string words;        ///< and why each cannot sleep; empty if nobody says
        bool could_sleep = false; ///< one of them
    };
    /// On these GPUs. Takes up to half a second.
    [[nodiscard]] Holders holders(const client::BytesByGpu& gpus);

private:
    /// The locks of all `gpus`, if it is this process's turn, or it goes first.
    [[nodiscard]] std::optional<GpuLines::Locks>
    take_turn(int directory, const std::vector<std::string>& gpus, Milliseconds min_awake, bool goes_first);
    /// Has others sleep, and adds to `notes` who does. Empty: there is room. Otherwise what stands against
    /// it. Errors: those of `look`.
    [[nodiscard]] Result<std::string> make_room(const client::Neighbours& neighbours,
                                                const std::function<Result<client::BytesByGpu>()>& look,
                                                Milliseconds min_awake, bool is_tried,
                                                std::vector<std::string>& notes);
    [[nodiscard]] std::vector<client::Holder> ask_neighbours(const client::Neighbours& neighbours);

    const ProgramMemory& memory_;
    GpuLines& lines_;
    ProcessStatus& status_;
    std::atomic<std::uint32_t> place_{0};
    Clock::time_point moved_{};       ///< the line, last
    Clock::time_point next_asking_{}; ///< of others, whose answers stood against it
    std::string against_;             ///< what they were
    Milliseconds against_within_{};   ///< the min_awake by which they were
    std::optional<double> wait_;      ///< for how long, where that was no more than somebody's time
    double inhibited_for_ = 0;        ///< see client::RoomMade
    Clock::time_point first_try_{};
    bool waits_for_turn_ = false;
    /// When to ask again those that did not answer.
    std::vector<std::pair<ProcessIdentity, Clock::time_point>> silent_;
};

} // namespace gpu_sleep::agent::operations
