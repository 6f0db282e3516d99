// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Snapshots as text for people and as JSON. Nothing is printed here.

#pragma once

#include "store/snapshot.hpp"
#include "store/snapshot_directory.hpp"

namespace gpu_sleep::cli {

struct SnapshotFacts {
    std::filesystem::path path;
    bool is_partial = false; ///< by its name: being written, or given up
    bool is_kept = false;    ///< by its name
    /// Its name and its header name different owners: somebody has renamed or replaced it.
    bool is_misnamed = false;
    store::Owner owner = store::Owner::ended;
    store::LockState lock = store::LockState::unknown; ///< unknown if nobody asked
    std::optional<store::SnapshotHeader> header;       ///< nothing if it could not be read
    /// Why it could not be read, verified or extracted from.
    std::optional<Error> error;
    std::optional<bool> is_good; ///< whether every byte could be read; nothing if nobody tried
    /// An extent that was extracted.
    struct Extracted {
        std::size_t extent = 0; ///< its number
        std::string output;     ///< the file
        Bytes bytes = 0;
    };
    std::optional<Extracted> extracted;
};

/// `path` itself, or if it is a directory those files in it that are named as snapshots, sorted. Errors:
/// io_failed, not_permitted.
[[nodiscard]] Result<std::vector<std::filesystem::path>> find_snapshots(const std::filesystem::path& path);

/// Whether the name is that of a snapshot that is not whole.
[[nodiscard]] bool is_partial(const std::filesystem::path& path);

/// Reads the header.
[[nodiscard]] SnapshotFacts look_at(const std::filesystem::path& path);

/// A table with a line for each; with `extents` also a table of what each holds.
[[nodiscard]] std::string render(const std::vector<SnapshotFacts>& snapshots, bool extents);

/// A line for one of which every byte could be read.
[[nodiscard]] std::string render_good(const SnapshotFacts& snapshot);

/// A line for each name of a leftover.
[[nodiscard]] std::string render_removed(const std::vector<std::string>& removed);

/// The JSON document. `removed` is unset if leftovers were not to be removed.
[[nodiscard]] std::string to_json(const std::vector<SnapshotFacts>& snapshots, int exit_status,
                                  const std::optional<std::vector<std::string>>& removed = std::nullopt);

} // namespace gpu_sleep::cli
