// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The files of the history: those that agents write, and the one in which root keeps what it finds there.

#pragma once

#include "control/find.hpp"
#include "model/history.hpp"

namespace gpu_sleep::control {

/// Where the files are; tests name a tree of their own.
struct HistoryPlaces {
    std::filesystem::path tmp = "/tmp";
    std::filesystem::path kept = "/var/log/gpu-sleep"; ///< root's directory
};

/// Reads what this user's agents have written; for root what those of all users have, and what root has kept.
/// In the order of their times, each once. Owners write these files, and may write anything: only plain files
/// that nobody but their owner can write to are read, up to a size, lines of another form are passed over,
/// and a line counts as its file's owner's. What cannot be read is left out. `processes`: their /tmp, too.
[[nodiscard]] std::vector<model::Event> read_history(const std::vector<Process>& processes = {},
                                                     const HistoryPlaces& places = {});

/// Keeps the events until `now` for root alone: for 30 days, and of each user the last 20,000. Errors: those
/// of file_error().
[[nodiscard]] Result<void> keep_history(const std::vector<model::Event>& events, double now,
                                        const HistoryPlaces& places = {});

/// The time that "22:00" means: the last one before `now`. Errors: invalid_argument.
[[nodiscard]] Result<double> parse_since(const std::string& text, double now);

/// In seconds since 1970.
[[nodiscard]] double now_of_history();

} // namespace gpu_sleep::control
