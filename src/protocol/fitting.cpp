// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Cutting a report until it fits.

#include "protocol/fitting.hpp"

namespace gpu_sleep::protocol {

Result<std::vector<std::byte>> encode_what_fits(const Reply& reply) {
    auto bytes = encode(reply);
    const auto* whole = std::get_if<model::Report>(&reply);
    if (bytes || !whole) return bytes;
    auto cut = *whole;
    cut.dropped_without_refill.clear(); // as long as the rows, and said in them
    cut.wakes_waiting.clear();          // each may name as many tags
    const auto notes = cut.notes.size();
    while (!bytes && !cut.tags.empty()) {
        cut.tags.resize(cut.tags.size() / 2);
        cut.notes.resize(notes);
        cut.notes.push_back(fmt::format("only {} of {} rows of tags are listed: there are too many",
                                        cut.tags.size(), whole->tags.size()));
        bytes = encode(Reply(cut));
    }
    return bytes;
}

} // namespace gpu_sleep::protocol
