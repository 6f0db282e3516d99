// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Who has memory of a GPU, and having processes sleep until it has room, from outside of them.

#pragma once

#include "control/gpus.hpp"

namespace gpu_sleep::control {

/// The processes that have memory of a GPU.
struct Holders {
    std::string text;       ///< how much each has, and whether it could sleep; empty if nobody says
    bool can_sleep = false; ///< one of them could, at once or soon
};

/// What all agents and the GPUs say. Not thread-safe.
class Neighbours {
public:
    /// Asks them, unless it has just done so: of many wakes that fail together each wants to know. False:
    /// they cannot be asked.
    [[nodiscard]] bool look();

    Finder finder;
    std::vector<Outcome> outcomes;
    std::vector<driver::Gpu> gpus;

private:
    std::optional<Clock::time_point> looked_;
};

/// Finds the processes, besides `process`, that have memory of `gpus`, and of the GPUs on which it sleeps if
/// it has an agent. `others_alone`: only those that its agent cannot ask. `moves`: the GPUs that it is to
/// come back to, as in a WakeRequest.
[[nodiscard]] Holders holders_beside(Neighbours& neighbours, const Process& process, bool others_alone,
                                     const std::vector<GpuPair>& moves, client::BytesByGpu gpus = {});

/// Why the agent of `asker` cannot ask that of `other`; empty: it can. An agent asks those of its own user
/// whose sockets lie in the same directory.
[[nodiscard]] std::string why_not_asked(Finder& finder, const Process& asker, const Process& other);

/// "4711 (python3) has 30.0 GiB: it has no agent (gpu-sleep 4711 --engine driver)", for each that NVML names
/// and of which `known` has no report: what can be done about it. `own`: who asks.
[[nodiscard]] std::vector<std::string> holders_without_agent(const Finder& finder, const driver::Gpu& gpu,
                                                             const std::vector<Outcome>& known, uid_t own);

// ---- Making room

/// Room that a GPU is to have.
struct Need {
    Bytes bytes = 0;                            ///< that are to be free
    std::string gpu{};                          ///< a number or a UUID; empty: the only one
    std::string target{};                       ///< a pid or a name: only these processes sleep; empty: all
    std::optional<uid_t> user{};                ///< whose processes; unset: all that may be asked
    model::SleepRequest request{};              ///< see client::room_request()
    std::optional<Milliseconds> only_if_idle{}; ///< only those sleep that have been idle for so long
    /// When not to try again any more while there is too little, or a look at the GPU fails after somebody
    /// has been asked.
    Clock::time_point until{};
    /// For how long after the first try it also waits if that is all it takes: some were woken just now.
    Milliseconds for_time{};
    /// Told again and again while it waits: on which GPU, why, and until when at most; may be empty.
    std::function<void(const driver::Gpu&, std::string_view why, Clock::time_point until)> waits{};
    /// Puts what holds for one process alone into its request; may be empty.
    std::function<void(const Process&, const model::Report&, model::SleepRequest&)> adapt{};
};

/// How much of a GPU is free, and was to be.
struct GpuRoom {
    driver::Gpu gpu;
    Bytes needed = 0;
    std::vector<std::string> against; ///< who has what of it, and what stands against each one's sleep
};

/// The result of making room.
struct Made {
    std::vector<Outcome> outcomes; ///< of those that were asked to sleep
    GpuRoom room;
    std::optional<Error> error; ///< there is too little, or why the last try failed
    std::optional<double> wait; ///< until there may be enough, in seconds: some were woken just now
};

/// Puts the least recently used to sleep, one after another, until there is room; a rehearsal only says whom.
/// Cannot be interrupted: a try takes until the one who is asked has answered, or has timed out.
/// Errors: those of Gpus::choose(), find_all() and find_targets(); timed_out (somebody else makes room
/// there for 10 s, and until `until`). What fails in a later try is in Made::error.
[[nodiscard]] Result<Made> make_room(const Need& need);

/// The GPUs that a program with these values of CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER would see; null
/// where one is not set. Errors: those of visible_of().
[[nodiscard]] Result<std::vector<driver::Gpu>> visible_gpus(const char* names, const char* order);

} // namespace gpu_sleep::control
