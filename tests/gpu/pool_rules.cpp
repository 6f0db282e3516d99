// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asks a driver how its memory pools behave, and prints what it found, one line each:
// agent/intercepted/POOLS.md says what the lines mean. With --exact the bytes reserved are printed as they
// are, otherwise by what anybody who keeps freed blocks has to hold.

#include "pool_probe.hpp"

#include <array>
#include <cstring>
#include <functional>

namespace pool_rules {
namespace {

void figures_of_sizes(const Probe& probe) {
    constexpr std::array<std::size_t, 12> k_sizes = {1,       512,         1100,       65536,
                                                     k_mib,   2 * k_mib,   2097153,    5 * k_mib,
                                                     k_chunk, k_chunk + 1, 33 * k_mib, 100 * k_mib};
    for (const auto* pool : {&probe.of_device, &probe.own}) {
        for (const auto bytes : k_sizes) {
            title("a block of " + size(bytes) + (pool == &probe.own ? ", own pool" : ", the device's pool"));
            pool->clear();
            auto held = probe.flags->hold(probe.a);
            const auto block = pool->take(bytes, probe.a);
            pool->show("allocated");
            probe.flags->open(held);
            probe.get_there(probe.a);
            pool->show("the stream got there");
            held = probe.flags->hold(probe.a);
            probe.free_in(probe.a, {block});
            pool->show("freed");
            probe.flags->open(held);
            probe.get_there(probe.a);
            pool->show("the stream got there");
            CHECKED(cuStreamSynchronize(probe.a));
            pool->show("synchronised");
        }
    }
}

void many_blocks(const Probe& probe) {
    title("blocks beside each other");
    for (const std::size_t bytes :
         {std::size_t{1}, 1100 * std::size_t{1024}, 5 * k_mib, 20 * k_mib, 40 * k_mib}) {
        probe.own.clear();
        const auto blocks = probe.own.take_many(6, bytes, probe.a);
        probe.own.show("six of " + size(bytes));
        probe.free_in(probe.a, {blocks[1], blocks[3]});
        CHECKED(cuStreamSynchronize(probe.a));
        probe.own.show("two freed, synchronised");
        probe.free_in(probe.a, {blocks[0], blocks[2], blocks[4], blocks[5]});
        CHECKED(cuStreamSynchronize(probe.a));
        probe.own.show("all freed, synchronised");
    }
}

struct Wait {
    const char* name;
    std::function<void(const Probe&, CUevent before, CUevent after)> run;
    bool while_held; ///< also asked while the stream is held back
};

const std::vector<Wait>& waits() {
    static const auto& all = *new std::vector<Wait>{
        {"nothing", [](const Probe&, CUevent, CUevent) {}, true},
        {"cuStreamQuery", [](const Probe& p, CUevent, CUevent) { CHECKED(cuStreamQuery(p.a)); }, false},
        {"cuStreamSynchronize", [](const Probe& p, CUevent, CUevent) { CHECKED(cuStreamSynchronize(p.a)); },
         false},
        {"cuStreamSynchronize of another stream",
         [](const Probe& p, CUevent, CUevent) { CHECKED(cuStreamSynchronize(p.b)); }, true},
        {"cuStreamSynchronize of the null stream",
         [](const Probe&, CUevent, CUevent) { CHECKED(cuStreamSynchronize(nullptr)); }, false},
        {"cuCtxSynchronize", [](const Probe&, CUevent, CUevent) { CHECKED(cuCtxSynchronize()); }, false},
        {"cuEventQuery", [](const Probe&, CUevent, CUevent after) { CHECKED(cuEventQuery(after)); }, false},
        {"cuEventSynchronize",
         [](const Probe&, CUevent, CUevent after) { CHECKED(cuEventSynchronize(after)); }, false},
        {"cuEventSynchronize of an event before the free",
         [](const Probe&, CUevent before, CUevent) { CHECKED(cuEventSynchronize(before)); }, true},
        {"cuStreamWaitEvent in another stream",
         [](const Probe& p, CUevent, CUevent after) { CHECKED(cuStreamWaitEvent(p.b, after, 0)); }, true},
        {"cuStreamWaitEvent in another stream, and cuStreamSynchronize of that",
         [](const Probe& p, CUevent, CUevent after) {
             CHECKED(cuStreamWaitEvent(p.b, after, 0));
             CHECKED(cuStreamSynchronize(p.b));
         },
         false},
        {"plain memory allocated and freed",
         [](const Probe&, CUevent, CUevent) {
             CUdeviceptr plain = 0;
             CHECKED(cuMemAlloc(&plain, 4 * k_mib));
             CHECKED(cuMemFree(plain));
         },
         false},
    };
    return all;
}

void given_back_when(const Probe& probe) {
    CUevent before = nullptr;
    CUevent after = nullptr;
    CHECKED(cuEventCreate(&before, CU_EVENT_DISABLE_TIMING));
    CHECKED(cuEventCreate(&after, CU_EVENT_DISABLE_TIMING));
    for (const auto* pool : {&probe.own, &probe.of_device}) {
        title(pool == &probe.own ? "given back when, own pool" : "given back when, the device's pool");
        for (const auto& wait : waits()) {
            for (const bool is_there : {true, false}) {
                if (!is_there && !wait.while_held) continue;
                pool->clear();
                const auto freed = pool->take(2 * k_chunk, probe.a);
                const auto live = pool->take(k_chunk, probe.a);
                CHECKED(cuEventRecord(before, probe.a));
                CHECKED(cuStreamSynchronize(probe.a));
                const auto held = probe.flags->hold(probe.a);
                probe.free_in(probe.a, {freed});
                CHECKED(cuEventRecord(after, probe.a));
                if (is_there) probe.flags->open(held);
                if (is_there) probe.get_there(probe.a);
                wait.run(probe, before, after);
                pool->show((is_there ? "the stream is there, " : "the stream is not there, ") +
                               std::string(wait.name),
                           true);
                probe.flags->open(held);
                probe.free_in(probe.a, {live});
            }
        }
        pool->clear();
    }
}

void other_streams(const Probe& probe) {
    title("in streams that wait for each other");
    CUstream blocking = nullptr;
    CHECKED(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    for (auto* const stream : {static_cast<CUstream>(nullptr), blocking}) {
        probe.own.clear();
        probe.free_in(stream, {probe.own.take(2 * k_chunk, stream)});
        CHECKED(cuStreamSynchronize(nullptr));
        probe.own.show(stream ? "blocking stream, the null stream synchronised"
                              : "null stream, it was synchronised",
                       true);
    }
    CHECKED(cuStreamDestroy(blocking));
    CUstream ends = nullptr;
    CHECKED(cuStreamCreate(&ends, CU_STREAM_NON_BLOCKING));
    probe.own.clear();
    probe.free_in(ends, {probe.own.take(2 * k_chunk, ends)});
    probe.get_there(ends);
    CHECKED(cuStreamDestroy(ends));
    probe.own.show("a stream that was destroyed", true);
    CHECKED(cuCtxSynchronize());
    probe.own.clear();
    probe.of_device.clear();
    const auto held = probe.flags->hold(probe.b);
    probe.free_in(probe.a, {probe.of_device.take(k_chunk, probe.a)});
    probe.free_in(probe.b, {probe.own.take(k_chunk, probe.b)});
    CHECKED(cuStreamSynchronize(probe.a));
    probe.of_device.show("two pools, one stream synchronised: that one's", true);
    probe.own.show("the other's, whose stream is held", true);
    probe.flags->open(held);
    CHECKED(cuStreamSynchronize(probe.b));
    probe.own.show("the other's, synchronised", true);
}

void thresholds(const Probe& probe) {
    for (const std::uint64_t threshold : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{40 * k_mib},
                                          std::uint64_t{100 * k_mib}, std::uint64_t{128 * k_mib}, k_all}) {
        title("release threshold " + size(threshold));
        probe.own.clear();
        probe.own.keep(threshold);
        for (const auto block : probe.own.take_many(6, k_chunk, probe.a)) {
            probe.free_in(probe.a, {block});
            CHECKED(cuStreamSynchronize(probe.a));
            probe.own.show("one more of six freed, synchronised", true);
        }
        probe.own.keep(0);
        probe.own.show("the threshold set to 0", true);
        CHECKED(cuStreamQuery(probe.a));
        probe.own.show("cuStreamQuery", true);
        CHECKED(cuStreamSynchronize(probe.a));
        probe.own.show("synchronised", true);
    }
}

void trims(const Probe& probe) {
    probe.own.keep(k_all);
    for (const std::size_t keep : {std::size_t{0}, std::size_t{1}, 33 * k_mib, 64 * k_mib, 65 * k_mib,
                                   100 * k_mib, 128 * k_mib, 500 * k_mib}) {
        title("trimmed to " + size(keep));
        probe.own.clear();
        const auto blocks = probe.own.take_many(6, k_chunk, probe.a);
        probe.free_in(probe.a, {blocks.begin(), blocks.end() - 1});
        CHECKED(cuStreamSynchronize(probe.a));
        probe.own.show("five of six freed, synchronised", true);
        probe.own.trim(keep);
        probe.own.show("trimmed", true);
        probe.free_in(probe.a, {blocks.back()});
    }
    title("trimmed before a synchronise");
    probe.own.clear();
    const auto block = probe.own.take(2 * k_chunk, probe.a);
    CHECKED(cuStreamSynchronize(probe.a));
    const auto held = probe.flags->hold(probe.a);
    probe.free_in(probe.a, {block});
    probe.own.trim(0);
    probe.own.show("the stream is not there", true);
    probe.flags->open(held);
    probe.get_there(probe.a);
    probe.own.trim(0);
    probe.own.show("the stream is there", true);
    CHECKED(cuStreamQuery(probe.a));
    probe.own.trim(0);
    probe.own.show("the stream was queried", true);
    CHECKED(cuStreamSynchronize(probe.a));
    probe.own.show("synchronised", true);
    probe.own.trim(0);
    probe.own.show("trimmed again", true);
    probe.own.keep(0);
}

void highs(const Probe& probe) {
    title("peaks");
    probe.own.clear();
    const auto first = probe.own.take(k_chunk, probe.a);
    const auto second = probe.own.take(2 * k_chunk, probe.a);
    probe.own.show("two blocks", true);
    probe.free_in(probe.a, {second});
    CHECKED(cuStreamSynchronize(probe.a));
    probe.own.show("one freed", true);
    probe.own.set(CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0);
    probe.own.show("that of the used reset", true);
    probe.own.set(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0);
    probe.own.show("that of the reserved reset", true);
    const auto third = probe.own.take(k_chunk, probe.a);
    probe.own.show("another block", true);
    probe.free_in(probe.a, {first, third});
}

void attributes(const Probe& probe) {
    title("attributes");
    for (const int number : {0, 5, 6, 7, 8, 9, 12}) {
        const auto attribute = static_cast<CUmemPool_attribute>(number);
        std::printf("  %d:", number);
        for (cuuint64_t value : {cuuint64_t{1}, cuuint64_t{0}}) {
            const auto status = cuMemPoolSetAttribute(probe.own.handle(), attribute, &value);
            std::printf(" set to %llu: %s,", static_cast<unsigned long long>(value),
                        in_words(status).c_str());
        }
        cuuint64_t value = 0;
        std::printf(" get: %s\n",
                    in_words(cuMemPoolGetAttribute(probe.own.handle(), attribute, &value)).c_str());
    }
    std::printf("  threshold %s\n", size(probe.own.get(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)).c_str());
    for (const int number : {1, 2, 3}) {
        int value = -1;
        CHECKED(cuMemPoolGetAttribute(probe.own.handle(), static_cast<CUmemPool_attribute>(number), &value));
        std::printf("  switch %d is %d", number, value);
        value = 2;
        CHECKED(cuMemPoolSetAttribute(probe.own.handle(), static_cast<CUmemPool_attribute>(number), &value));
        CHECKED(cuMemPoolGetAttribute(probe.own.handle(), static_cast<CUmemPool_attribute>(number), &value));
        std::printf(", set to 2 it is %d\n", value);
    }
    cuuint64_t value = 1;
    constexpr auto k_threshold = CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    std::printf("  no value to get: %s\n",
                in_words(cuMemPoolGetAttribute(probe.own.handle(), k_threshold, nullptr)).c_str());
    std::printf("  no pool: set %s, get %s, trim %s\n",
                in_words(cuMemPoolSetAttribute(nullptr, k_threshold, &value)).c_str(),
                in_words(cuMemPoolGetAttribute(nullptr, k_threshold, &value)).c_str(),
                in_words(cuMemPoolTrimTo(nullptr, 0)).c_str());
    std::printf("  the device's pool destroyed: %s\n",
                in_words(cuMemPoolDestroy(probe.of_device.handle())).c_str());
    CUdeviceptr nothing = 1;
    const auto status = cuMemAllocFromPoolAsync(&nothing, 0, probe.own.handle(), probe.a);
    std::printf("  nothing allocated: %s, at address %llu\n", in_words(status).c_str(),
                static_cast<unsigned long long>(nothing));
    const auto block = probe.own.take(k_mib, probe.a);
    probe.free_in(probe.a, {block});
    std::printf("  freed twice: %s\n", in_words(cuMemFreeAsync(block, probe.a)).c_str());
}

void freed_plainly(const Probe& probe) {
    for (const auto threshold : {std::uint64_t{0}, k_all}) {
        title("cuMemFree of a pool's memory, release threshold " + size(threshold));
        const auto pool = Pool::make();
        pool.keep(threshold);
        const auto live = pool.take(k_chunk, probe.a);
        const auto block = pool.take(2 * k_chunk, probe.a);
        CHECKED(cuStreamSynchronize(probe.a));
        CHECKED(cuMemFree(block));
        pool.show("freed", true);
        CHECKED(cuCtxSynchronize());
        pool.show("synchronised", true);
        const auto before = pool.reserved();
        const auto again = pool.take(2 * k_chunk, probe.b);
        std::printf("  it grows for the next block: %s\n", yes_or_no(pool.reserved() > before));
        probe.free_in(probe.b, {again, live});
        CHECKED(cuCtxSynchronize());
        pool.trim(0);
        std::printf("  reserved in the end: %s\n", size(pool.reserved()).c_str());
        CHECKED(cuMemPoolDestroy(pool.handle()));
    }
}

void pools_end(const Probe& probe) {
    title("a pool that is destroyed");
    const auto pool = Pool::make();
    pool.keep(k_all);
    const auto live = pool.take(k_chunk, probe.a);
    probe.free_in(probe.a, {pool.take(k_chunk, probe.a)});
    CHECKED(cuStreamSynchronize(probe.a));
    std::printf("  with a live block: %s\n", in_words(cuMemPoolDestroy(pool.handle())).c_str());
    std::printf("  it can be freed: %s\n", in_words(cuMemFreeAsync(live, probe.a)).c_str());
    std::printf("  synchronised: %s\n", in_words(cuStreamSynchronize(probe.a)).c_str());
    const auto current = Pool::make();
    CHECKED(cuDeviceSetMemPool(probe.device, current.handle()));
    CHECKED(cuMemPoolDestroy(current.handle()));
    CUmemoryPool now = nullptr;
    CHECKED(cuDeviceGetMemPool(&now, probe.device));
    std::printf("  the current one: the default one is current: %s\n",
                yes_or_no(now == probe.of_device.handle()));
}

} // namespace
} // namespace pool_rules

int main(int count, char** arguments) {
    using namespace pool_rules;
    g_is_exact = count > 1 && std::strcmp(arguments[1], "--exact") == 0;
    const Probe probe;
    title("at first");
    probe.of_device.show("the device's pool");
    figures_of_sizes(probe);
    many_blocks(probe);
    given_back_when(probe);
    other_streams(probe);
    thresholds(probe);
    trims(probe);
    highs(probe);
    attributes(probe);
    freed_plainly(probe);
    pools_end(probe);
    ask_about_reuse(probe);
    title("the end");
    return 0;
}
