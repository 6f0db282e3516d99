// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which freed blocks a pool gives out again: to which stream, for which size, and what captures and contexts
// have to do with it.

#include "pool_probe.hpp"

#include <array>

namespace pool_rules {
namespace {

constexpr auto k_follow = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
constexpr auto k_opportunistic = CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC;
constexpr auto k_internal = CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;

/// Where a stream is that a block was freed in when another stream wants one.
enum class Situation : int { ahead, waited_for, there, synchronised };
constexpr std::array k_situations = {"is not there", "is not there, and the other waits for it", "is there",
                                     "was synchronised"};

void in_another_stream(const Probe& probe, CUevent freed, int switches, Situation situation) {
    const auto& pool = probe.own;
    pool.clear();
    pool.allow(k_follow, (switches & 1) != 0);
    pool.allow(k_opportunistic, (switches & 2) != 0);
    pool.allow(k_internal, (switches & 4) != 0);
    const auto first = pool.take(k_chunk, probe.a);
    CHECKED(cuStreamSynchronize(probe.a));
    const auto held = probe.flags->hold(probe.a);
    probe.free_in(probe.a, {first});
    CHECKED(cuEventRecord(freed, probe.a));
    if (situation == Situation::waited_for) CHECKED(cuStreamWaitEvent(probe.b, freed, 0));
    if (situation >= Situation::there) probe.flags->open(held);
    if (situation >= Situation::there) probe.get_there(probe.a);
    if (situation == Situation::synchronised) CHECKED(cuStreamSynchronize(probe.a));
    const auto before = pool.reserved();
    const auto second = pool.take(k_chunk, probe.b);
    const bool grows = pool.reserved() > before;
    const auto mark = probe.flags->mark(probe.b);
    std::printf("  events %s, opportunistic %s, internal %s; the stream %s: grows: %s, runs: %s\n",
                yes_or_no(switches & 1), yes_or_no(switches & 2), yes_or_no(switches & 4),
                k_situations[static_cast<std::size_t>(situation)], yes_or_no(grows),
                yes_or_no(probe.flags->gets_there(mark)));
    probe.flags->open(held);
    probe.free_in(probe.b, {second});
}

void streams(const Probe& probe) {
    title("a block freed in one stream, for another");
    probe.own.keep(k_all);
    CUevent freed = nullptr;
    CHECKED(cuEventCreate(&freed, CU_EVENT_DISABLE_TIMING));
    for (int switches = 0; switches < 8; ++switches)
        for (const auto situation :
             {Situation::ahead, Situation::waited_for, Situation::there, Situation::synchronised})
            in_another_stream(probe, freed, switches, situation);
    probe.own.clear();
}

/// Says whether the pool had to grow for the blocks.
void take_again(const Pool& pool, const char* situation, const std::vector<std::size_t>& sizes,
                CUstream stream, std::vector<CUdeviceptr>& blocks) {
    const auto before = pool.reserved();
    for (const auto bytes : sizes) blocks.push_back(pool.take(bytes, stream));
    std::printf("  %s: grows: %s\n", situation, yes_or_no(pool.reserved() > before));
}

void sizes(const Probe& probe) {
    title("freed blocks for other sizes");
    const auto& pool = probe.own;
    pool.keep(k_all);
    std::vector<CUdeviceptr> blocks;
    const auto free_all = [&](bool is_synchronised) {
        probe.free_in(probe.a, blocks);
        blocks.clear();
        if (is_synchronised) CHECKED(cuStreamSynchronize(probe.a));
        if (!is_synchronised) probe.get_there(probe.a);
    };
    for (const bool is_synchronised : {false, true}) {
        pool.clear();
        title(is_synchronised ? " synchronised each time"
                              : " in one stream that gets there, not synchronised");
        blocks = pool.take_many(1, 33 * k_mib, probe.a);
        free_all(is_synchronised);
        take_again(pool, "5M, 5M and 20M after 33M", {5 * k_mib, 5 * k_mib, 20 * k_mib}, probe.a, blocks);
        free_all(is_synchronised);
        take_again(pool, "33M after those", {33 * k_mib}, probe.a, blocks);
        free_all(is_synchronised);
        take_again(pool, "34M after 33M", {34 * k_mib}, probe.a, blocks);
        free_all(is_synchronised);
        take_again(pool, "20M and 1100 after those", {20 * k_mib, 1100}, probe.a, blocks);
        free_all(is_synchronised);
        CHECKED(cuCtxSynchronize());
        pool.trim(0);
        blocks = pool.take_many(8, k_chunk, probe.a);
        free_all(is_synchronised);
        take_again(pool, "64M and 128M after eight of 32M", {64 * k_mib, 128 * k_mib}, probe.a, blocks);
        free_all(is_synchronised);
        take_again(pool, "eight of 32M after those", std::vector<std::size_t>(8, k_chunk), probe.a, blocks);
        free_all(is_synchronised);
    }
    pool.clear();
    pool.keep(0);
}

void in_one_stream(const Probe& probe) {
    title("a block freed in a stream that is held, for the same stream");
    probe.own.clear();
    const auto first = probe.own.take(k_chunk, probe.a);
    const auto held = probe.flags->hold(probe.a);
    probe.free_in(probe.a, {first});
    const auto second = probe.own.take(k_chunk, probe.a);
    std::printf("  at the same address: %s\n", yes_or_no(first == second));
    probe.own.show("allocated", true);
    probe.flags->open(held);
    probe.free_in(probe.a, {second});
    probe.own.clear();
}

void most_bytes(const Probe& probe) {
    title("a pool of at most 64M");
    const auto pool = Pool::make(64 * k_mib);
    pool.keep(k_all);
    auto blocks = pool.take_many(1, 64 * k_mib, probe.a);
    pool.show("64M allocated", true);
    static_cast<void>(pool.take(1, probe.a));
    pool.show("one more byte asked for", true);
    for (const bool is_allowed : {false, true}) {
        pool.allow(k_internal, is_allowed);
        CHECKED(cuStreamSynchronize(probe.a));
        const auto held = probe.flags->hold(probe.a);
        probe.free_in(probe.a, blocks);
        blocks = pool.take_many(1, 64 * k_mib, probe.b);
        const auto mark = probe.flags->mark(probe.b);
        std::printf(
            "  freed in a stream that is not there, internal dependencies %s: there is memory: %s, it runs: "
            "%s\n",
            yes_or_no(is_allowed), yes_or_no(blocks[0] != 0), yes_or_no(probe.flags->gets_there(mark)));
        probe.flags->open(held);
        CHECKED(cuCtxSynchronize());
        if (blocks[0] == 0) blocks = pool.take_many(1, 64 * k_mib, probe.a);
    }
    probe.free_in(probe.a, blocks);
    CHECKED(cuStreamSynchronize(probe.a));
    CHECKED(cuMemPoolDestroy(pool.handle()));
}

void captures(const Probe& probe) {
    title("captures");
    const auto& pool = probe.of_device;
    pool.clear();
    const auto live = pool.take(k_chunk, probe.b);
    CHECKED(cuStreamSynchronize(probe.b));
    CHECKED(cuStreamBeginCapture(probe.a, CU_STREAM_CAPTURE_MODE_RELAXED));
    const auto captured = pool.take(k_chunk, probe.a);
    pool.show("a block allocated in a capture", true);
    probe.free_in(probe.a, {captured});
    pool.show("and freed in it", true);
    const auto block = pool.take(k_chunk, probe.b);
    pool.show("one allocated in another stream", true);
    probe.free_in(probe.b, {block});
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    CHECKED(cuStreamEndCapture(probe.a, &graph));
    CHECKED(cuStreamSynchronize(probe.b));
    pool.show("and freed, the capture ended, synchronised", true);
    CHECKED(cuGraphInstantiate(&exec, graph, 0));
    CHECKED(cuGraphLaunch(exec, probe.a));
    CHECKED(cuStreamSynchronize(probe.a));
    pool.show("the graph launched", true);
    CHECKED(cuGraphExecDestroy(exec));
    CHECKED(cuGraphDestroy(graph));
    CHECKED(cuDeviceGraphMemTrim(probe.device));
    CHECKED(cuStreamBeginCapture(probe.a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    cuuint64_t used = 0;
    std::printf(
        "  asked for a figure while a capture of its thread forbids unsafe calls: %s\n",
        in_words(cuMemPoolGetAttribute(pool.handle(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used)).c_str());
    std::printf("  and that capture ends: %s\n", in_words(cuStreamEndCapture(probe.a, &graph)).c_str());
    if (graph) CHECKED(cuGraphDestroy(graph));
    probe.free_in(probe.b, {live});
    pool.clear();
}

void contexts(const Probe& probe) {
    title("contexts");
    const auto& pool = probe.of_device;
    CUcontext other = nullptr;
    CHECKED(cuCtxCreate(&other, nullptr, 0, probe.device));
    CUstream stream = nullptr;
    CHECKED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    const auto block = pool.take(k_chunk, stream);
    probe.free_in(stream, {pool.take(k_chunk, stream)});
    pool.show("two blocks of a context, one freed", true);
    CHECKED(cuCtxDestroy(other));
    CHECKED(cuCtxSetCurrent(probe.context));
    pool.show("the context destroyed", true);
    CHECKED(cuCtxSynchronize());
    pool.show("synchronised", true);
    probe.free_in(probe.a, {block});
    CHECKED(cuStreamSynchronize(probe.a));
    pool.show("the other freed", true);
}

} // namespace

void ask_about_reuse(const Probe& probe) {
    in_one_stream(probe);
    streams(probe);
    sizes(probe);
    most_bytes(probe);
    captures(probe);
    contexts(probe);
}

} // namespace pool_rules
