// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Where a pool puts freed blocks, and which ranges it gives back.

#include "intercepted/pool_table.hpp"

#include "intercepted/pending_work.hpp"

namespace gpu_sleep::agent::intercepted {

namespace {

/// The size of the driver's own ranges: the least that a range takes.
constexpr Bytes k_least_range = 2 * k_mib;

/// A spare whose event is asked, and that is not done, costs as much as a small allocation.
constexpr int k_max_questions = 16;

/// The largest range that a block may have a part of, while there are others.
Bytes most_range(Bytes bytes) noexcept {
    constexpr Bytes k_any = 64 * k_mib;
    return bytes <= k_least_range / 2 ? k_least_range : std::max(k_any, 4 * bytes);
}

void give_event(LastUse& last_use) noexcept {
    if (last_use.done) books().contexts.give_event(last_use.freed_in.context, last_use.done);
    last_use.done = nullptr;
}

/// Notes that nobody uses a freed block any more, and returns whether that is so.
bool note_if_done(const Pools& all, ProgramMemory& memory, LastUse& last_use) GPU_SLEEP_REQUIRES(all.mutex) {
    if (all.is_held(last_use)) return false;
    if (last_use.done && memory.api().cuEventQuery(last_use.done) != CUDA_SUCCESS) return false;
    give_event(last_use);
    return true;
}

/// Whether the stream may have it: also where its event says so, of which `questions` may be asked still.
bool may_have(const Pools& all, ProgramMemory& memory, const Pool& pool, LastUse& last_use,
              const StreamKey& key, int& questions) GPU_SLEEP_REQUIRES(all.mutex) {
    if (all.is_held(last_use)) return false;
    if (last_use.in_order && last_use.freed_in == key) return true;
    if (!pool.reuses_unwaited && last_use.free_call > all.synchronized_to) return false;
    if (!last_use.done) return true;
    return questions-- > 0 && note_if_done(all, memory, last_use);
}

/// The smallest spare that fits. `may_ask`: those whose events say so as well.
Blocks::iterator find_fit(Pools& all, ProgramMemory& memory, Pool& pool, const BlockRequest& request,
                          Bytes most, bool may_ask) GPU_SLEEP_REQUIRES(all.mutex) {
    int questions = may_ask ? k_max_questions : 0;
    for (auto fit = pool.spares.lower_bound({request.bytes, 0}); fit != pool.spares.end(); ++fit) {
        if (fit->first > most) break;
        const auto block = all.blocks.find(fit->second);
        auto& spare = block->second;
        if (spare.range->bytes > most || spare.range->tag != request.tag) continue;
        // The backing stays as its first owner had it, also when that must stay. While the process is partly
        // asleep, a checked gate lets allocations pass: they must not be given sleeping memory.
        if (may_have(all, memory, pool, spare.last_use, request.key, questions) &&
            memory.reuse(block->first, request.bytes))
            return block;
    }
    return all.blocks.end();
}

/// Gives out the front of a spare. Takes memory before it changes anything.
CUdeviceptr take_front(Pools& all, Blocks::iterator at, Bytes bytes) GPU_SLEEP_REQUIRES(all.mutex) {
    auto& block = at->second;
    auto& spares = block.range->pool->spares;
    auto last_use = block.last_use;
    if (const auto rest = block.bytes - bytes; rest > 0) {
        auto size = make_entry<Sizes>(rest, at->first + bytes);
        all.blocks.emplace_hint(std::next(at), at->first + bytes,
                                Block{block.range, rest, false, block.last_use, {}});
        spares.insert(std::move(size));
        last_use.done = nullptr; // the rest has it
    }
    block.size = spares.extract({block.bytes, at->first});
    block.bytes = bytes;
    give_event(last_use);
    block.last_use = {};
    block.is_live = true;
    if (block.range->live++ == 0) --block.range->pool->unused_ranges;
    return at->first;
}

/// Whether both are done, or become so in one stream's order, or the smaller one can do without being had by
/// others meanwhile.
bool may_join(const Pools& all, const Block& left, const Block& right) noexcept
    GPU_SLEEP_REQUIRES(all.mutex) {
    constexpr Bytes k_little = 4;
    const auto& one = left.last_use;
    const auto& other = right.last_use;
    if (left.range != right.range || left.is_live || right.is_live || all.is_held(one) || all.is_held(other))
        return false;
    if (!one.done && !other.done) return true;
    const auto is_little = [](const Block& done, const Block& pending) {
        return !done.last_use.done && pending.last_use.in_order && done.bytes * k_little <= pending.bytes;
    };
    if (!one.done || !other.done) return is_little(left, right) || is_little(right, left);
    return one.in_order && other.in_order && one.freed_in == other.freed_in;
}

/// The last use of two that are joined: events of one stream are done in order.
LastUse later(LastUse one, LastUse other) noexcept {
    if (!one.done || (other.done && other.free_call > one.free_call)) std::swap(one, other);
    one.free_call = std::max(one.free_call, other.free_call);
    give_event(other);
    return one;
}

void join(Pools& all, Blocks::iterator left, Blocks::iterator right) noexcept GPU_SLEEP_REQUIRES(all.mutex) {
    auto& block = left->second;
    auto& spares = block.range->pool->spares;
    auto size = spares.extract({block.bytes, left->first});
    spares.erase({right->second.bytes, right->first});
    block.last_use = later(block.last_use, right->second.last_use);
    block.bytes += right->second.bytes;
    size.value() = {block.bytes, left->first};
    spares.insert(std::move(size));
    all.blocks.erase(right);
}

/// Joins neighbours that became done one by one: where a pool would have to grow otherwise, and so often that
/// each free pays for a few looks.
void join_done(Pools& all, ProgramMemory& memory, Pool& pool) GPU_SLEEP_REQUIRES(all.mutex) {
    constexpr std::size_t k_looks = 16;
    if (pool.frees_since_join == 0 || pool.spares.size() > k_looks * pool.frees_since_join) return;
    pool.frees_since_join = 0;
    std::vector<CUdeviceptr> spares;
    for (const auto& [bytes, address] : pool.spares) spares.push_back(address);
    std::sort(spares.begin(), spares.end());
    for (const auto address : spares) {
        const auto at = all.blocks.find(address);
        static_cast<void>(note_if_done(all, memory, at->second.last_use));
        if (at != all.blocks.begin() && may_join(all, std::prev(at)->second, at->second))
            join(all, std::prev(at), at);
    }
}

/// Whether nobody uses anything of the range at `address` any more.
bool is_idle(Pools& all, ProgramMemory& memory, CUdeviceptr address, const Range& range)
    GPU_SLEEP_REQUIRES(all.mutex) {
    auto at = all.blocks.find(address);
    for (; at != all.blocks.end() && at->second.range == &range; ++at)
        if (!note_if_done(all, memory, at->second.last_use)) return false;
    return true;
}

} // namespace

Bytes figure_of_driver(ProgramMemory& memory, const Pool& pool, CUmemPool_attribute attribute) noexcept {
    cuuint64_t value = 0;
    const auto get = memory.api().cuMemPoolGetAttribute;
    const bool may_ask = get && pool.is_mixed && !pool.is_gone;
    return may_ask && get(pool.handle, attribute, &value) == CUDA_SUCCESS ? value : 0;
}

Bytes reserved_in_all(ProgramMemory& memory, const Pool& pool) noexcept {
    return pool.reserved + figure_of_driver(memory, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
}

void note_peaks(ProgramMemory& memory, Pool& pool) noexcept {
    const auto used = pool.used + figure_of_driver(memory, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    pool.used_high = std::max(pool.used_high, used);
    pool.reserved_high = std::max(pool.reserved_high, reserved_in_all(memory, pool));
}

std::optional<LastUse> last_use_in(Pools& all, ProgramMemory& memory, const StreamKey& key) {
    auto* const event = take_event(memory.api(), key.context);
    if (!event) return std::nullopt;
    LastUse last_use{key, key.stream != CU_STREAM_PER_THREAD, event, ++all.free_calls};
    if (memory.api().cuEventRecord(event, key.stream) == CUDA_SUCCESS) return last_use;
    give_event(last_use);
    return std::nullopt;
}

std::optional<CUdeviceptr> take_spare(Pools& all, ProgramMemory& memory, Pool& pool,
                                      const BlockRequest& request, bool is_any) {
    const auto most = is_any ? ~Bytes{0} : most_range(request.bytes);
    auto fit = find_fit(all, memory, pool, request, most, false);
    const bool may_ask = books().captures.count() == 0;
    if (fit == all.blocks.end() && may_ask) fit = find_fit(all, memory, pool, request, most, true);
    if (fit == all.blocks.end() && may_ask) {
        join_done(all, memory, pool);
        fit = find_fit(all, memory, pool, request, most, false);
    }
    return fit == all.blocks.end() ? std::nullopt : std::optional(take_front(all, fit, request.bytes));
}

Result<CUdeviceptr> take_new(Pools& all, ProgramMemory& memory, const std::shared_ptr<Pool>& pool,
                             const BlockRequest& request) GPU_SLEEP_REQUIRES(all.mutex) {
    const auto bytes = round_up(request.bytes, k_least_range);
    // Memory for the records is taken first: once there is a range, nothing may fail.
    auto size = make_entry<Sizes>(bytes, 0);
    auto range = make_entry<Ranges>(0, Range{pool, bytes, request.tag});
    // Any stream may use the rest of the range. It is joined with whatever this stream frees.
    const LastUse none{request.key, request.key.stream != CU_STREAM_PER_THREAD};
    auto block = make_entry<Blocks>(0, Block{&range.mapped(), bytes, false, none, {}});
    const auto address = memory.allocate(pool->device, request.tag, bytes);
    if (!address) return address.error();
    range.key() = block.key() = *address;
    size.value() = {bytes, *address};
    all.ranges.insert(std::move(range));
    pool->spares.insert(std::move(size));
    const auto at = all.blocks.insert(std::move(block)).position;
    ++pool->unused_ranges; // until its first block is given out
    pool->reserved += bytes;
    return take_front(all, at, request.bytes);
}

void make_spare(Pools& all, ProgramMemory& memory, Blocks::iterator at, const LastUse& last_use) noexcept {
    auto& block = at->second;
    auto& pool = *block.range->pool;
    if (pool.number != 0) memory.unshare(at->first);
    block.is_live = false;
    block.last_use = last_use;
    block.size.value() = {block.bytes, at->first};
    pool.spares.insert(std::move(block.size));
    if (--block.range->live == 0) ++pool.unused_ranges;
    ++pool.frees_since_join;
    if (const auto next = std::next(at); next != all.blocks.end() && may_join(all, block, next->second))
        join(all, at, next);
    if (at != all.blocks.begin() && may_join(all, std::prev(at)->second, block)) join(all, std::prev(at), at);
    if (pool.reserved > pool.threshold || pool.is_gone) all.has_excess = true;
}

bool is_excess(ProgramMemory& memory, const Range& range) noexcept {
    const auto& pool = *range.pool;
    return pool.is_gone || reserved_in_all(memory, pool) > pool.threshold;
}

void give_back_idle(Pools& all, ProgramMemory& memory, const std::function<bool(const Range&)>& wanted) {
    for (auto next = all.ranges.begin(); next != all.ranges.end();) {
        const auto here = next++;
        const auto& [address, range] = *here;
        if (range.live != 0 || !wanted(range) || !is_idle(all, memory, address, range)) continue;
        auto& pool = *range.pool;
        for (auto at = all.blocks.find(address); at != all.blocks.end() && at->second.range == &range;) {
            pool.spares.erase({at->second.bytes, at->first});
            at = all.blocks.erase(at);
        }
        --pool.unused_ranges;
        pool.reserved -= range.bytes;
        const auto taken = all.ranges.extract(here);
        give_range(memory, taken.key());
    }
}

} // namespace gpu_sleep::agent::intercepted
