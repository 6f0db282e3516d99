// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Kept ranges: which parts of a range's memory are kept, as blocks, each with its fingerprint and its place.

#pragma once

#include "base/units.hpp"
#include "codec/block_code.hpp"
#include "driver/kernels/fingerprint.hpp"
#include "model/model.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpu_sleep::contents {

class Batch;

/// The number of a kept range, which is never used again. 0 is none.
using Number = std::uint64_t;

/// A block is what one fingerprint covers.
inline constexpr Bytes k_block_bytes = driver::k_fingerprint_block_bytes;

/// Where a block is kept: in host memory, or in chunks of a store (store/coding.hpp), which are brought back
/// whole.
struct Place {
    Batch* batch = nullptr;  ///< lives as long as any block that lies in it
    Bytes at = 0;            ///< from the start of the batch's contents
    std::uint32_t bytes = 0; ///< of those, that are its: of a coded block, what it may take
    /// How GPUs have coded it (codec/block_code.hpp); raw in chunks, too.
    codec::BlockClass block_class = codec::BlockClass::raw;

    [[nodiscard]] bool is_coded() const noexcept { return block_class != codec::BlockClass::raw; }
    [[nodiscard]] Span span() const noexcept { return {at, bytes}; }
    [[nodiscard]] bool is_where(const Place& other) const noexcept {
        return batch == other.batch && at == other.at;
    }
};

struct Block {
    driver::Fingerprint seal; ///< of the bytes as the GPU held them
    Place place;              ///< no batch: all bytes are zero, and are stored nowhere

    [[nodiscard]] bool is_stored() const noexcept { return place.batch != nullptr; }
    [[nodiscard]] bool is_in(model::Store store) const noexcept;
};

/// What is kept of one range of the program's memory. Says which parts of the range it has, and nothing of
/// addresses.
struct KeptRange {
    std::vector<Span> spans;   ///< of the range: sorted and disjoint
    std::vector<Block> blocks; ///< of the first span first; the last of each span may be shorter
    Bytes stored = 0;          ///< of the program's bytes, those of blocks that have a place
    /// Its memory is awake: what is stored is a copy that the next sleep may use, and may be given back at
    /// any time.
    bool is_retained = false;
};

/// What the places of the range take, in any store.
[[nodiscard]] inline Bytes bytes_placed(const KeptRange& range) noexcept {
    return sum_of(range.blocks, [](const Block& block) { return block.place.bytes; });
}

/// Blocks that `bytes` are cut into.
[[nodiscard]] constexpr std::size_t block_count(Bytes bytes) noexcept {
    return static_cast<std::size_t>((bytes + k_block_bytes - 1) / k_block_bytes);
}

/// Calls `use(block, span, index)` for each block, in order; `span` is the part of the range that it holds.
template <class Range, class Use>
void for_each_block(Range& range, Use&& use) {
    std::size_t index = 0;
    for (const auto& span : range.spans)
        for (Bytes done = 0; done < span.bytes; done += k_block_bytes, ++index)
            use(range.blocks[index], Span{span.offset + done, std::min(k_block_bytes, span.bytes - done)},
                index);
}

} // namespace gpu_sleep::contents
