// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Making room on GPUs: putting other processes to sleep until enough is free.

#pragma once

#include "client/client.hpp"
#include "client/room_plan.hpp"

namespace gpu_sleep::client {

/// A process that may have memory on the GPUs in question.
struct Holder {
    std::string title;    ///< for a person
    model::Report status; ///< as it was just now
    std::function<Result<UniqueFd>()> connect;
    std::optional<model::SleepRequest> request{}; ///< in place of that of all
    /// It sleeps only if it has been idle for so long; unset: also while it works.
    std::optional<Milliseconds> only_if_idle{};
};

/// The sleep of those who make room: they wake by themselves, and are left alone if they were woken less than
/// `min_awake` ago. Level, stores, limits and whether it is a dry run are the asker's.
[[nodiscard]] model::SleepRequest room_request(Milliseconds min_awake);

/// A process that was put to sleep.
struct Slept {
    std::size_t holder = 0; ///< its place in the list
    Answer answer;
};

struct RoomMade {
    BytesByGpu missing;       ///< still, or none; in a dry run, what is missing without a sleep
    std::vector<Slept> slept; ///< in a dry run the dry runs of those that would be
    /// For each holder that stays awake: how much it has, and why it stays awake.
    std::vector<std::string> against;
    /// In how many seconds there may be enough, if some only were woken just now.
    std::optional<double> wait;
    /// In how many seconds enough inhibitors end, without end if they do not; 0 where more stands against it.
    double inhibited_for = 0;
    std::optional<Error> error; ///< of `look`, after somebody has answered: what is missing is not known
    [[nodiscard]] bool is_enough() const noexcept { return missing.empty() && !error; }
};

/// Puts the least recently used of `holders` to sleep, no more than needed and all of those at once, until
/// `look`, which asks the driver, says that nothing is missing; one that refuses is replaced by others, and
/// beside one that is slow others are asked, if there is room with them alone. Who is not asleep when there
/// is room, or when the time is over (the request's, if it bounds all, or two minutes), stays as it was.
/// `request`: see room_request(). Errors: those of `look`, before anybody has answered.
[[nodiscard]] Result<RoomMade> make_room(const std::vector<Holder>& holders,
                                         const std::function<Result<BytesByGpu>()>& look,
                                         const model::SleepRequest& request);

/// "4711 (llama) has 30.0 GiB: it was woken 3 s ago", for each of `holders` that has memory on one of `gpus`.
[[nodiscard]] std::vector<std::string> describe(const std::vector<Holder>& holders,
                                                const std::vector<Candidate>& candidates,
                                                const BytesByGpu& gpus);

} // namespace gpu_sleep::client
