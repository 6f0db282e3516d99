// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Chooses which processes to put to sleep to free GPU memory, and in which order, from what they report.
// Sends no requests.

#pragma once

#include "checkpoint/room.hpp"
#include "model/report.hpp"

namespace gpu_sleep::client {

using checkpoint::BytesByGpu;

/// A process that may make room.
struct Candidate {
    BytesByGpu frees; ///< what its sleep would give back. What stays there, as its context does, is not in it
    double idle = 0;  ///< seconds since it was used last, as far as that is known
    double awake = 0; ///< seconds since it was woken last; without end if it never was
    double protected_for = 0; ///< seconds for which it is still left alone, because it was woken just now
    std::string against;      ///< what else stands against its sleep; empty: nothing
};

/// `report`, a status, as a candidate for who leaves alone what was woken less than `min_awake` ago.
[[nodiscard]] Candidate candidate_of(const model::Report& report, Milliseconds min_awake);

/// Says that a process was woken `seconds` ago and is left alone for another `rest` seconds.
[[nodiscard]] std::string woken_too_recently(double seconds, double rest);

/// Says why `candidate` cannot be put to sleep; empty if it can.
[[nodiscard]] std::string against(const Candidate& candidate);

/// Chooses the processes to put to sleep so that `missing` becomes free: the least recently used, and none
/// that is not needed. Returns their places in `candidates`, in the order of their last use; none if all
/// together are not enough.
[[nodiscard]] std::vector<std::size_t> plan_room(std::span<const Candidate> candidates,
                                                 const BytesByGpu& missing);

/// In how many seconds plan_room() would find enough, once nobody is protected any more: if that is all that
/// stands against it. Nothing if more does.
[[nodiscard]] std::optional<double> seconds_until_room(std::span<const Candidate> candidates,
                                                       const BytesByGpu& missing);

} // namespace gpu_sleep::client
