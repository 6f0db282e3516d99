// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The part of a snapshot's header that people can read. Internal to this module.

#pragma once

#include "store/snapshot_description.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace gpu_sleep::store {

/// `rows` are those of the chunks of the extents, in order.
[[nodiscard]] std::string make_json(const SnapshotDescription& description, Bytes file_bytes,
                                    std::span<const ChunkRow> rows);

/// The longest make_json() for any rows.
[[nodiscard]] std::size_t max_json_bytes(const SnapshotDescription& description);

/// What the JSON says, but for what depends on the contents; nothing if it cannot be understood: if it
/// has other members, in another order, or other white space than make_json() writes. Trusts nothing in it;
/// time and memory are in proportion to the text, and it throws only for want of memory.
[[nodiscard]] std::optional<SnapshotDescription> read_json(std::string_view text);

} // namespace gpu_sleep::store
