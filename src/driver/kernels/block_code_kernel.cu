// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The kernels of the code that codec/BLOCKS.md defines. A warp takes a tile at a time, a lane of it one word
// of each plane. Whole lines of 128 bytes are read and written, so that the coded side may be host memory as
// well; escapes, which are single bytes, are brought together in shared memory for that.

#include "driver/kernels/block_task.hpp"

namespace {

using namespace gpu_sleep::codec;
using namespace gpu_sleep::driver;

constexpr unsigned k_lanes = 32;
constexpr unsigned k_all_lanes = ~0U;
constexpr unsigned k_rows = k_tile_values / k_lanes / 8; // of a tile; a lane has eight values of each
constexpr unsigned k_most_bits = 5;
constexpr unsigned k_encode_warps = k_encode_threads / k_lanes;
constexpr unsigned k_decode_warps = k_decode_threads / k_lanes;

__device__ unsigned lane() {
    return threadIdx.x % k_lanes;
}
__device__ unsigned warp() {
    return threadIdx.x / k_lanes;
}

/// The sum over this lane and those before it.
__device__ std::uint32_t sum_to_lane(std::uint32_t value) {
    for (unsigned offset = 1; offset < k_lanes; offset *= 2) {
        const auto other = __shfl_up_sync(k_all_lanes, value, offset);
        if (lane() >= offset) value += other;
    }
    return value;
}

/// Copies `words` words of 4 bytes with all threads of the block, which wait before and afterwards.
__device__ void copy_words(void* to, const void* from, unsigned words) {
    __syncthreads();
    for (auto i = threadIdx.x; i < words; i += blockDim.x)
        static_cast<std::uint32_t*>(to)[i] = static_cast<const std::uint32_t*>(from)[i];
    __syncthreads();
}

/// How the values of a block are coded.
struct Shape {
    unsigned bits;
    bool is_wide; ///< four bytes, not two
    bool is_turned;

    __device__ explicit Shape(BlockClass c)
        : bits(code_bits(c)), is_wide(value_bytes(c) == 4), is_turned(is_rotated(c)) {}

    __device__ std::uint32_t turn(std::uint32_t word) const {
        if (!is_turned) return word;
        return is_wide ? __funnelshift_l(word, word, 1)
                       : (word & 0x7FFF7FFF) << 1 | (word >> 15 & 0x00010001);
    }
    __device__ std::uint32_t turn_back(std::uint32_t word) const {
        if (!is_turned) return word;
        return is_wide ? __funnelshift_r(word, word, 1)
                       : (word >> 1 & 0x7FFF7FFF) | (word & 0x00010001) << 15;
    }
    /// The 16 bytes of contents that this lane has first in a tile.
    __device__ uint4* content(const BlockTask& task, unsigned tile) const {
        return reinterpret_cast<uint4*>(task.content) + tile * (is_wide ? 2 : 1) * k_rows * k_lanes + lane();
    }
};

/// Of each pair of words: 0x5410 takes the lower halves, 0x7632 the upper, 0x6420 the lower bytes of all
/// halves, 0x7531 the upper.
__device__ uint2 take(uint4 from, unsigned which) {
    return {__byte_perm(from.x, from.y, which), __byte_perm(from.z, from.w, which)};
}
/// The reverse: puts bytes (0x5140, 0x7362) or halves (0x5410, 0x7632) of `upper` above those of `lower`.
__device__ uint4 put(uint2 lower, uint2 upper, unsigned first, unsigned second) {
    return {__byte_perm(lower.x, upper.x, first), __byte_perm(lower.x, upper.x, second),
            __byte_perm(lower.y, upper.y, first), __byte_perm(lower.y, upper.y, second)};
}

/// Calls `each` with the top byte of each value of this lane that has a bit of `mask`.
template <class Each>
__device__ void for_each_escape(std::uint32_t mask, uint2* tops, Each&& each) {
    for (; mask != 0; mask &= mask - 1) {
        const auto bit = static_cast<unsigned>(__ffs(mask)) - 1;
        each(reinterpret_cast<std::uint8_t*>(tops + bit / 8 * k_lanes + lane())[bit % 8]);
    }
}

struct EncodeShared {
    BlockTask task;
    std::uint32_t codes[256]; ///< of each top byte, the bits four apart
    std::uint32_t totals[k_lanes];
    uint2 tops[k_encode_warps][k_rows * k_lanes];
    std::uint8_t escapes[k_encode_warps * k_tile_values];
};

/// Writes a tile without its escapes. Returns which values of this lane are some.
__device__ std::uint32_t encode_tile(const Shape& shape, const uint4 (&content)[2 * k_rows],
                                     const std::uint32_t* codes, std::uint8_t* tile, uint2* tops) {
    std::uint32_t planes[k_most_bits] = {};
    auto* const low = reinterpret_cast<uint2*>(tile + shape.bits * k_line);
    auto* const lowest = reinterpret_cast<uint4*>(low + k_rows * k_lanes);
#pragma unroll
    for (unsigned row = 0; row < k_rows; ++row) {
        const auto at = row * k_lanes + lane();
        const auto turned = [&](uint4 quad) -> uint4 {
            return {shape.turn(quad.x), shape.turn(quad.y), shape.turn(quad.z), shape.turn(quad.w)};
        };
        uint4 halves{};
        if (shape.is_wide) {
            const auto first = turned(content[2 * row]);
            const auto second = turned(content[2 * row + 1]);
            const auto join = [&](unsigned which) -> uint4 {
                const auto a = take(first, which), b = take(second, which);
                return {a.x, a.y, b.x, b.y};
            };
            lowest[at] = join(0x5410);
            halves = join(0x7632);
        } else {
            halves = turned(content[row]);
        }
        low[at] = take(halves, 0x6420);
        const auto top = tops[at] = take(halves, 0x7531);
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
            const auto four = i == 0 ? top.x : top.y;
            const auto code = codes[four & 255] | codes[four >> 8 & 255] << 1 | codes[four >> 16 & 255] << 2 |
                              codes[four >> 24] << 3;
#pragma unroll
            for (unsigned bit = 0; bit < k_most_bits; ++bit)
                if (bit < shape.bits) planes[bit] |= (code >> 4 * bit & 15) << (8 * row + 4 * i);
        }
    }
    auto mask = k_all_lanes;
#pragma unroll
    for (unsigned bit = 0; bit < k_most_bits; ++bit) {
        if (bit >= shape.bits) break;
        reinterpret_cast<std::uint32_t*>(tile)[bit * k_lanes + lane()] = planes[bit];
        mask &= planes[bit];
    }
    return mask;
}

/// Encodes a block with all threads, and writes no more than there is room for. Returns the bytes that it
/// takes.
__device__ std::uint32_t encode(EncodeShared& shared) {
    const auto& task = shared.task;
    const auto& plan = task.plan;
    const BlockLayout layout(plan.block_class, task.content_bytes);
    if (layout.escapes > plan.coded_bytes) return layout.escapes;
    const Shape shape(plan.block_class);
    for (auto i = threadIdx.x; i < 256; i += k_encode_threads) shared.codes[i] = 0x11111; // the escape
    __syncthreads();
    if (const auto i = threadIdx.x; i + 1 < 1U << shape.bits)
        shared.codes[plan.symbols[i]] = (i & 1) | (i & 2) << 3 | (i & 4) << 6 | (i & 8) << 9 | (i & 16) << 12;
    __syncthreads();

    auto* const coded = reinterpret_cast<std::uint8_t*>(task.coded);
    auto* const words = reinterpret_cast<std::uint32_t*>(task.coded);
    uint4 content[2 * k_rows];
    const auto load = [&](unsigned tile) {
#pragma unroll
        for (unsigned i = 0; i < 2 * k_rows; ++i)
            if (tile < layout.tiles && (shape.is_wide || i < k_rows))
                content[i] = __ldcs(shape.content(task, tile) + i * k_lanes);
    };
    load(warp());
    auto end = layout.escapes;
    for (unsigned first = 0; k_line + 4 * first < layout.first_tile; first += k_encode_warps) {
        const auto tile = first + warp();
        std::uint32_t mask = 0;
        if (tile < layout.tiles)
            mask = encode_tile(shape, content, shared.codes,
                               coded + layout.first_tile + tile * layout.tile_bytes, shared.tops[warp()]);
        load(tile + k_encode_warps);
        const auto count = static_cast<std::uint32_t>(__popc(mask));
        const auto to_lane = sum_to_lane(count);
        if (lane() == k_lanes - 1) shared.totals[warp()] = to_lane;
        __syncthreads();
        const auto of_warp = lane() < k_encode_warps ? shared.totals[lane()] : 0;
        const auto before_warp = sum_to_lane(of_warp) - of_warp; // of the warp with this lane's number
        const auto before = __shfl_sync(k_all_lanes, before_warp, warp());
        const auto total = __shfl_sync(k_all_lanes, before_warp, k_encode_warps);
        if (threadIdx.x < k_encode_warps)
            words[k_line / 4 + first + lane()] =
                first + lane() < layout.tiles ? end - layout.escapes + before_warp : 0;
        auto* at = shared.escapes + before + to_lane - count;
        for_each_escape(mask, shared.tops[warp()], [&](std::uint8_t top) { *at++ = top; });
        __syncthreads();
        for (auto i = threadIdx.x; i < total; i += k_encode_threads)
            if (end + i < plan.coded_bytes) coded[end + i] = shared.escapes[i];
        end += total;
    }
    const auto unpadded = end;
    end = whole_words(end);
    if (unpadded + threadIdx.x < min(end, plan.coded_bytes)) coded[unpadded + threadIdx.x] = 0;
    __shared__ BlockHead head;
    if (threadIdx.x == 0) {
        head = {.content_bytes = task.content_bytes, .plan = plan};
        head.plan.coded_bytes = end;
    }
    __syncthreads();
    if (threadIdx.x < k_line / 4)
        words[threadIdx.x] =
            threadIdx.x < sizeof head / 4 ? reinterpret_cast<std::uint32_t*>(&head)[threadIdx.x] : 0;
    return end;
}

struct DecodeShared {
    BlockTask task;
    BlockHead head;
    std::uint8_t symbols[k_symbols + 1]; ///< and the escape, which is replaced
    uint2 tops[k_decode_warps][k_rows * k_lanes];
    std::uint32_t escapes[k_decode_warps][k_tile_values / 4 + 1];
};

/// What a lane has of a coded tile, without the lowest bytes of wide values.
struct Tile {
    std::uint32_t planes[k_most_bits];
    uint2 low[k_rows];

    __device__ void load(const Shape& shape, const std::uint8_t* from) {
#pragma unroll
        for (unsigned bit = 0; bit < k_most_bits; ++bit)
            if (bit < shape.bits)
                planes[bit] = __ldcs(reinterpret_cast<const std::uint32_t*>(from) + bit * k_lanes + lane());
#pragma unroll
        for (unsigned row = 0; row < k_rows; ++row)
            low[row] =
                __ldcs(reinterpret_cast<const uint2*>(from + shape.bits * k_line) + row * k_lanes + lane());
    }
};

/// Looks up the top bytes of a tile.
__device__ void read_tops(const Shape& shape, const Tile& tile, const std::uint8_t* symbols, uint2* tops) {
#pragma unroll
    for (unsigned row = 0; row < k_rows; ++row) {
        std::uint32_t top[2] = {};
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
            std::uint32_t codes = 0; // of four values, in a byte each: no bits of a product meet
#pragma unroll
            for (unsigned bit = 0; bit < k_most_bits; ++bit)
                if (bit < shape.bits)
                    codes |= (tile.planes[bit] >> (8 * row + 4 * half) & 15) * (0x00204081U << bit) &
                             0x01010101U << bit;
#pragma unroll
            for (unsigned j = 0; j < 4; ++j)
                top[half] |= std::uint32_t{symbols[codes >> 8 * j & 255]} << 8 * j;
        }
        tops[row * k_lanes + lane()] = {top[0], top[1]};
    }
}

/// Decodes a part of a block with all threads. Returns false where this thread met damage.
__device__ bool decode(unsigned part, DecodeShared& shared) {
    const auto& task = shared.task;
    const auto& head = shared.head;
    const auto* const coded = reinterpret_cast<const std::uint8_t*>(task.coded);
    const BlockLayout layout(task.plan.block_class, task.content_bytes);
    if (layout.escapes > task.plan.coded_bytes) return false;
    copy_words(&shared.head, coded, sizeof head / 4);
    if (!is_sound(head, task.plan, task.content_bytes)) return false;
    if (threadIdx.x < k_symbols) shared.symbols[threadIdx.x] = head.plan.symbols[threadIdx.x];
    __syncthreads();
    const auto all_escapes = head.plan.coded_bytes - layout.escapes;
    const Shape shape(task.plan.block_class);

    // Each warp has tiles in a row, and in its lanes where the escapes of each, and of the next one, begin.
    constexpr auto k_warps = k_decode_parts * k_decode_warps;
    const auto tiles = (layout.tiles + k_warps - 1) / k_warps;
    const auto first = (part * k_decode_warps + warp()) * tiles;
    auto offset = all_escapes;
    if (lane() <= tiles && first + lane() < layout.tiles)
        offset = reinterpret_cast<const std::uint32_t*>(coded + k_line)[first + lane()];
    const auto next_offset = __shfl_sync(k_all_lanes, offset, tiles);
    const auto* const escapes = reinterpret_cast<const std::uint32_t*>(coded + layout.escapes);
    auto* const fetched = shared.escapes[warp()];
    std::uint32_t fetched_from = 0;
    std::uint32_t fetched_to = 0;
    auto* const tops = shared.tops[warp()];
    bool is_whole = true;
    const auto* from_tile = coded + layout.first_tile + first * layout.tile_bytes;
    Tile next;
    if (first < layout.tiles) next.load(shape, from_tile);
    for (unsigned i = 0; i < tiles && first + i < layout.tiles; ++i) {
        const auto tile = next;
        const auto* const lowests =
            reinterpret_cast<const uint4*>(from_tile + shape.bits * k_line + k_tile_values) + lane();
        uint4 lowest[k_rows];
#pragma unroll
        for (unsigned row = 0; row < k_rows; ++row)
            if (shape.is_wide) lowest[row] = __ldcs(lowests + row * k_lanes);
        from_tile += layout.tile_bytes;
        if (i + 1 < tiles && first + i + 1 < layout.tiles) next.load(shape, from_tile);
        auto mask = k_all_lanes;
#pragma unroll
        for (unsigned bit = 0; bit < k_most_bits; ++bit)
            if (bit < shape.bits) mask &= tile.planes[bit];
        const auto count = static_cast<std::uint32_t>(__popc(mask));
        const auto to_lane = sum_to_lane(count);
        const auto total = __shfl_sync(k_all_lanes, to_lane, k_lanes - 1);
        const auto from = __shfl_sync(k_all_lanes, offset, i);
        if (from > all_escapes || total > all_escapes - from) {
            is_whole = false;
            continue;
        }
        if (from < fetched_from || from + total > fetched_to) { // those of the next tiles, too, if they fit
            fetched_from = from / 4 * 4;
            fetched_to = max(from + total, min(next_offset, min(all_escapes, fetched_from + k_tile_values)));
            __syncwarp();
            for (auto at = lane(); fetched_from + 4 * at < fetched_to; at += k_lanes)
                fetched[at] = escapes[fetched_from / 4 + at];
            __syncwarp();
        }
        read_tops(shape, tile, shared.symbols, tops);
        const auto* at =
            reinterpret_cast<const std::uint8_t*>(fetched) + (from - fetched_from) + to_lane - count;
        for_each_escape(mask, tops, [&](std::uint8_t& top) { top = *at++; });

        auto* const content = shape.content(task, first + i);
        const auto store = [&](unsigned row, uint4 quad) {
            __stcs(content + row * k_lanes, uint4{shape.turn_back(quad.x), shape.turn_back(quad.y),
                                                  shape.turn_back(quad.z), shape.turn_back(quad.w)});
        };
#pragma unroll
        for (unsigned row = 0; row < k_rows; ++row) {
            const auto halves = put(tile.low[row], tops[row * k_lanes + lane()], 0x5140, 0x7362);
            if (!shape.is_wide) {
                store(row, halves);
                continue;
            }
            const auto& lower = lowest[row];
            store(2 * row, put({lower.x, lower.y}, {halves.x, halves.y}, 0x5410, 0x7632));
            store(2 * row + 1, put({lower.z, lower.w}, {halves.z, halves.w}, 0x5410, 0x7632));
        }
    }
    return is_whole;
}

/// Top bytes are counted four times: of two-byte values, rotated or not, and of four-byte values.
constexpr unsigned k_histograms = 4;

constexpr unsigned histogram_of(BlockClass c) {
    return (value_bytes(c) == 4 ? 2U : 0U) + (is_rotated(c) ? 0U : 1U);
}

struct MeasureShared {
    BlockTask task;
    uint4 counts[2]
                [512]; ///< of the nine bits at the top of each half of a word; lanes count four times apart
    std::uint32_t keys[k_histograms][256]; ///< how often each top byte occurs, and itself
    std::uint32_t values[k_coded_classes]; ///< that are no escapes
    std::uint8_t symbols[k_histograms][k_symbols];
};

/// Counts all top bytes. Lanes that meet the same one wait for each other.
__device__ void count(MeasureShared& shared) {
    const auto* const content = reinterpret_cast<const uint4*>(shared.task.content);
    auto* const low = reinterpret_cast<std::uint32_t*>(shared.counts[0]) + lane() % 4;
    auto* const high = reinterpret_cast<std::uint32_t*>(shared.counts[1]) + lane() % 4;
#pragma unroll 8
    for (auto i = threadIdx.x; i < shared.task.content_bytes / sizeof(uint4); i += k_encode_threads) {
        const auto [x, y, z, w] = __ldcs(content + i);
        for (const auto word : {x, y, z, w}) {
            atomicAdd(low + (word >> 7 & 511) * 4, 1);
            atomicAdd(high + (word >> 23) * 4, 1);
        }
    }
    __syncthreads();
}

/// Ranks the top bytes, and adds up how many values each class would code.
__device__ void rank(MeasureShared& shared) {
    const auto counted = [&](unsigned half, unsigned bits) {
        const auto [x, y, z, w] = shared.counts[half][bits];
        return x + y + z + w;
    };
    for (auto i = threadIdx.x; i < k_histograms * 256; i += k_encode_threads) {
        const bool is_turned = i / 256 % 2 == 0;
        const auto first = is_turned ? i % 256 : i % 256 * 2;
        const auto second = is_turned ? first + 256 : first + 1;
        auto sum = counted(1, first) + counted(1, second);
        if (i / 256 < 2) sum += counted(0, first) + counted(0, second);
        shared.keys[i / 256][i % 256] = sum << 8 | i % 256;
    }
    __syncthreads();
    for (auto i = threadIdx.x; i < k_histograms * 256; i += k_encode_threads) {
        const auto& keys = shared.keys[i / 256];
        const auto mine = keys[i % 256];
        unsigned rank = 0;
#pragma unroll 8
        for (const auto key : keys) rank += key > mine ? 1 : 0;
        if (rank >= k_symbols) continue;
        shared.symbols[i / 256][rank] = static_cast<std::uint8_t>(i);
        for (unsigned c = 0; c < k_coded_classes; ++c)
            if (histogram_of(coded_class(c)) == i / 256 && rank + 1 < 1U << code_bits(coded_class(c)))
                atomicAdd(&shared.values[c], mine >> 8);
    }
    __syncthreads();
}

} // namespace

/// Any grid, as the next two; k_encode_threads threads a block.
extern "C" __global__ void __launch_bounds__(k_encode_threads, 2)
    gpu_sleep_measure_blocks(BlockTask* tasks, std::uint64_t count_of_tasks) {
    __shared__ MeasureShared shared;
    for (std::uint64_t b = blockIdx.x; b < count_of_tasks; b += gridDim.x) {
        copy_words(&shared.task, tasks + b, sizeof(BlockTask) / 4);
        for (auto i = threadIdx.x; i < 2 * 512; i += k_encode_threads) shared.counts[i / 512][i % 512] = {};
        if (threadIdx.x < k_coded_classes) shared.values[threadIdx.x] = 0;
        __syncthreads();
        count(shared);
        rank(shared);
        if (threadIdx.x != 0) continue;
        auto plan = choose_class(shared.task.content_bytes, shared.values);
        for (unsigned i = 0; i < k_symbols && plan.block_class != BlockClass::raw; ++i)
            plan.symbols[i] = shared.symbols[histogram_of(plan.block_class)][i];
        tasks[b].plan = plan;
    }
}

/// k_encode_threads threads a block.
extern "C" __global__ void __launch_bounds__(k_encode_threads, 2)
    gpu_sleep_encode_blocks(BlockTask* tasks, std::uint64_t count_of_tasks) {
    __shared__ EncodeShared shared;
    for (std::uint64_t b = blockIdx.x; b < count_of_tasks; b += gridDim.x) {
        copy_words(&shared.task, tasks + b, sizeof(BlockTask) / 4);
        const auto bytes = encode(shared);
        if (threadIdx.x != 0) continue;
        if (bytes <= shared.task.plan.coded_bytes)
            tasks[b].plan.coded_bytes = bytes;
        else
            tasks[b].failed = 1;
    }
}

/// k_decode_threads threads a block.
extern "C" __global__ void __launch_bounds__(k_decode_threads, 3)
    gpu_sleep_decode_blocks(BlockTask* tasks, std::uint64_t count_of_tasks) {
    __shared__ DecodeShared shared;
    for (std::uint64_t b = blockIdx.x; b < count_of_tasks * k_decode_parts; b += gridDim.x) {
        copy_words(&shared.task, tasks + b / k_decode_parts, sizeof(BlockTask) / 4);
        if (!decode(static_cast<unsigned>(b % k_decode_parts), shared)) tasks[b / k_decode_parts].failed = 1;
    }
}
