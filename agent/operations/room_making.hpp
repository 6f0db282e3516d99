// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A wake that makes room: where GPU memory is short, others of the same user sleep for it.

#pragma once

#include "base/error.hpp"
#include "base/process.hpp"
#include "model/model.hpp"
#include "operations/gpu_lines.hpp"
#include "peers/client.hpp"
#include "peers/room.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpu_sleep::agent::operations {

/// Such wakes take turns, each GPU's one after another: who is not first in line, or cannot have room yet,
/// leaves everything as it is and is tried again. The turn and the room are held by nobody in between, and
/// the process can be asked anything. Used on the operations thread, but for place() and leave().
class RoomMaking {
public:
    /// Tries a wake alone, or rehearses it: WakeOperation::run().
    using Wake = std::function<Result<model::Report>(const model::WakeRequest&)>;
    /// Whether a device's primary context is active: otherwise a wake makes it.
    using IsContextActive = std::function<bool(int device)>;

    explicit RoomMaking(GpuLines& lines) noexcept : lines_(lines) {}

    /// One try. Whom it puts to sleep stands in the report's notes. Errors: those of WakeOperation::run();
    /// out_of_device_memory also where it is not its turn, or others cannot sleep: the message says who has
    /// the memory and why.
    [[nodiscard]] Result<model::Report> wake(const Wake& wake, const IsContextActive& is_context_active,
                                             const model::WakeRequest& request);

    /// The place in line, from 1; 0: it does not stand. Thread-safe.
    [[nodiscard]] std::uint32_t place() const noexcept { return place_; }
    /// Whether the last try lacks no more than the time of somebody who was woken just now. On the operations
    /// thread.
    [[nodiscard]] bool waits_for_time() const noexcept { return wait_ && !waits_for_turn_; }
    /// Whether it was not this process's turn in the last try. On the operations thread.
    [[nodiscard]] bool waits_for_turn() const noexcept { return waits_for_turn_; }
    /// No such wake waits any more. Not while one is being tried. Thread-safe.
    void leave() noexcept;

    /// What others of this user hold on the GPUs of the wake, and whether they could sleep, in words; empty
    /// if nobody says. Takes up to half a second.
    [[nodiscard]] std::string holders(const Wake& wake, const model::WakeRequest& request);
    /// The same of these GPUs.
    [[nodiscard]] std::string holders(const peers::BytesByGpu& gpus);

private:
    /// The locks of all `gpus`, if it is this process's turn.
    [[nodiscard]] std::optional<GpuLines::Locks>
    take_turn(int directory, const std::vector<std::string>& gpus, Milliseconds min_awake);
    /// Whether the line has not moved for so long that somebody in it must be stuck: nobody waits for that.
    [[nodiscard]] bool is_overdue(std::uint32_t place, Milliseconds min_awake) noexcept;
    /// Has others sleep, and adds to `notes` who does. Empty: there is room. Otherwise what stands against
    /// it. Errors: those of `look`.
    [[nodiscard]] Result<std::string> make_room(const peers::Neighbours& neighbours,
                                                const std::function<Result<peers::BytesByGpu>()>& look,
                                                Milliseconds min_awake, std::vector<std::string>& notes);
    [[nodiscard]] std::vector<peers::Holder> ask_neighbours(const peers::Neighbours& neighbours);

    GpuLines& lines_;
    std::atomic<std::uint32_t> place_{0};
    Clock::time_point moved_{};       ///< the line, last
    Clock::time_point next_asking_{}; ///< of others, whose answers stood against it
    std::string against_;             ///< what they were
    Milliseconds against_within_{};   ///< the min_awake by which they were
    std::optional<double> wait_;      ///< for how long, where that was no more than somebody's time
    bool waits_for_turn_ = false;
    /// When to ask again those that did not answer.
    std::vector<std::pair<ProcessIdentity, Clock::time_point>> silent_;
};

} // namespace gpu_sleep::agent::operations
