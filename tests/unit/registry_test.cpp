// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The books of two processes, side by side: what goes with a context, and comes back.

#include "registry/registry.hpp"

#include "support/child.hpp"
#include "support/failing_new.hpp"

#include <latch>

using namespace gpu_sleep;
using namespace gpu_sleep::agent::registry;

namespace {

template <class Handle>
Handle handle(std::uintptr_t number) {
    return reinterpret_cast<Handle>(number);
}

const auto k_context = handle<CUcontext>(0x1000);
const auto k_other = handle<CUcontext>(0x2000);
const auto k_stream = handle<CUstream>(0x3000);
const auto k_event = handle<CUevent>(0x4000);
const auto k_pool = handle<CUmemoryPool>(0x5000);

/// Something of each kind in both contexts. Addresses begin with 1 in the first, and with 2 in the other.
void fill(Registry& registry) {
    for (const auto& [context, at] : {std::pair(k_context, 0x10), std::pair(k_other, 0x20)}) {
        const auto address = static_cast<CUdeviceptr>(at) << 32;
        registry.contexts.add(make_entry<Contexts::Records>(), context, 0);
        registry.contexts.give_event(context, k_event);
        registry.allocations.add({.address = address, .bytes = 1, .context = context});
        registry.allocations.add({.address = address + 1, .bytes = 1, .context = context, .pool = k_pool});
        registry.allocations.add({.address = address + 2, .bytes = 1, .is_virtual = true});
        Allocations::Taken freed;
        freed[address + 3] = {.address = address + 3, .context = context};
        freed[address + 5] = {.address = address + 5, .done = k_event, .freed_in = context};
        registry.later.add(freed);
        registry.residual.add(address, {1, "managed", "moves", 0, context});
        registry.residual.add(address + 4, {1, "plain", "small", 0, context});
        registry.residual.add(address + 6, {1, "pool", "small", 0, context, k_pool});
        {
            const MutexLock lock(registry.objects.mutex);
            registry.objects.all[{Object::stream, address}] = {context};
            registry.objects.all[{Object::shared_pool, address}] = {context};
        }
        static_cast<void>(registry.captures.note({k_stream, context, address}, context, true));
        const MutexLock lock(registry.pools.mutex);
        registry.pools.blocks[address + 7].last_use = {{context, k_stream}, true, k_event};
    }
}

struct Counts {
    std::size_t contexts, allocations, later, captures, objects, held;
    std::uint64_t residual;
    friend bool operator==(const Counts&, const Counts&) = default;
};

Counts counts_of(Registry& registry) {
    Counts counts{};
    counts.contexts = registry.contexts.made_on(std::nullopt).size();
    counts.allocations = registry.allocations.all([](const Allocation&) { return true; }).size();
    counts.captures = registry.captures.count();
    auto later = registry.later.take([](const Allocation&) { return true; });
    counts.later = later.size();
    registry.later.add(later);
    std::vector<Residual> sums;
    registry.residual.add_to(sums);
    for (const auto& row : sums) counts.residual += row.count;
    {
        const MutexLock lock(registry.objects.mutex);
        counts.objects = registry.objects.all.size();
    }
    const MutexLock lock(registry.pools.mutex);
    for (const auto& [address, block] : registry.pools.blocks)
        counts.held += registry.pools.is_held(block.last_use);
    return counts;
}

} // namespace

TEST_CASE("Registry: a context goes out of all books of one root alone", "[registry]") {
    Registry one, other;
    fill(one);
    fill(other);
    const auto all = counts_of(other);
    CHECK(all == Counts{2, 6, 4, 2, 4, 0, 6});
    const bool is_primary = GENERATE(false, true);
    test::t_allocations_left = 0;
    auto departed = one.take(k_context, is_primary);
    CHECK(std::exchange(test::t_allocations_left, -1) == 0);
    CHECK(counts_of(one) == Counts{1, is_primary ? 4U : 5U, 2, 1, 3, 1, is_primary ? 3U : 4U});
    CHECK(counts_of(other) == all);
    CHECK(departed.allocations.size() == (is_primary ? 2 : 1));
    CHECK(departed.record.mapped().events == std::vector{k_event});

    SECTION("it comes back without memory") {
        test::t_allocations_left = 0;
        one.put_back(std::move(departed));
        CHECK(std::exchange(test::t_allocations_left, -1) == 0);
        auto back = all;
        back.objects = 3; // a stream that is not in the table wakes the process
        CHECK(counts_of(one) == back);
        CHECK(one.contexts.take_event(k_context) == k_event);
    }
    SECTION("an event that was made meanwhile does not keep the others out") {
        CHECK(one.contexts.take_event(k_context) == nullptr);
        const auto made = handle<CUevent>(0x4001);
        one.contexts.give_event(k_context, made);
        one.put_back(std::move(departed));
        CHECK(one.contexts.made_on(0).size() == 2);
        CHECK(one.contexts.take_event(k_context) == made);
        CHECK(one.contexts.take_event(k_context) == k_event);
    }
    SECTION("it is gone, and its number is another's") {
        const auto freed_just_now = [&]() -> LastUse& {
            const MutexLock lock(one.pools.mutex);
            return one.pools.blocks[1].last_use;
        };
        freed_just_now() = {{k_context, k_stream}, true, k_event};
        test::t_allocations_left = 0;
        const auto due = one.gone(std::move(departed));
        CHECK(std::exchange(test::t_allocations_left, -1) == 0);
        CHECK(due.size() == (is_primary ? 4 : 3));
        for (const auto& [address, allocation] : due) CHECK_FALSE(allocation.done);
        CHECK(freed_just_now().done == nullptr);
        CHECK(one.allocations.all([](const Allocation& a) { return a.pool && a.context == k_context; })
                  .empty());
        fill(one);
        CHECK(counts_of(one) == all);
    }
}

TEST_CASE("Registry: a child of fork has books of its own, whoever held its parent's", "[registry]") {
    auto& parents = books();
    fill(parents);
    std::latch may_end(1);
    std::atomic<bool> is_held{false};
    std::thread holder([&] {
        const MutexLock lock(parents.pools.mutex);
        is_held = true;
        may_end.wait();
    });
    while (!is_held) std::this_thread::yield();
    CHECK(test::holds_in_child([] {
        begin_anew_in_child();
        if (g_books) return false;
        test::t_allocations_left = 0;
        auto& own = books();
        const bool are_made_without_memory = std::exchange(test::t_allocations_left, -1) == 0;
        fill(own);
        return are_made_without_memory && counts_of(own).contexts == 2;
    }));
    may_end.count_down();
    holder.join();
    CHECK(&books() == &parents);
    for (auto* const context : {k_context, k_other})
        static_cast<void>(parents.gone(parents.take(context, true)));
    const MutexLock lock(parents.pools.mutex);
    parents.pools.blocks.clear();
}

TEST_CASE("Registry: what freed memory waits for, and what an open capture holds", "[registry]") {
    struct Row {
        bool has_event, is_of_pool, is_import;
        WaitsFor waits;
        bool is_held; ///< while any capture is open
    };
    const auto row = GENERATE(
        Row{false, false, false, WaitsFor::captures_or_need, true},
        Row{false, true, false, WaitsFor::captures, true}, Row{false, false, true, WaitsFor::captures, true},
        Row{true, false, false, WaitsFor::stream, false}, Row{true, true, false, WaitsFor::stream, false});
    const Allocation freed{.address = 1,
                           .pool = row.is_of_pool ? k_pool : nullptr,
                           .is_import = row.is_import,
                           .done = row.has_event ? k_event : nullptr};
    CHECK(waits_for(freed) == row.waits);
    Later later;
    Allocations::Taken all{{freed.address, freed}};
    later.add(all);
    CHECK(later.may_wait_for_captures() == row.is_held);
    CHECK(later.take_for_captures().empty() != row.is_held);
}

TEST_CASE("Registry: what a free does", "[registry]") {
    const auto [call, freeing] = GENERATE(table<FreeCall, Freeing>({
        {{}, Freeing::at_once},
        {{.captures = true}, Freeing::once_captures_end},
        {{.is_in_order = true}, Freeing::in_order},
        {{.is_in_order = true, .captures = true}, Freeing::once_captures_end},
        {{.is_in_order = true, .has_context = false}, Freeing::refused},
        {{.is_in_order = true, .has_context = false, .captures = true}, Freeing::refused},
    }));
    CHECK(freeing_of(call) == freeing);
}

TEST_CASE("Registry: what a context takes with it", "[registry]") {
    struct Row {
        CUcontext context;
        CUmemoryPool pool;
        bool is_primary, dies;
    };
    for (const auto& row : {Row{k_context, nullptr, false, true}, Row{k_context, nullptr, true, true},
                            Row{k_context, k_pool, false, false}, Row{k_context, k_pool, true, true},
                            Row{k_other, nullptr, true, false}, Row{nullptr, k_pool, true, false}}) {
        CHECK(dies_with(Allocation{.context = row.context, .pool = row.pool}, k_context, row.is_primary) ==
              row.dies);
        CHECK(dies_with(ResidualRecord{.context = row.context, .pool = row.pool}, k_context,
                        row.is_primary) == row.dies);
    }
}

TEST_CASE("Registry: only an allocation of its own kind is taken at an address", "[registry]") {
    Registry registry;
    const auto [is_virtual, is_own] =
        GENERATE(table<bool, bool>({{false, false}, {true, false}, {true, true}}));
    registry.allocations.add({.address = 1, .bytes = 1, .is_virtual = is_virtual, .is_own = is_own});
    CHECK(registry.allocations.take(1, !is_virtual, is_own).empty());
    CHECK(registry.allocations.take(1, is_virtual, !is_own).empty());
    CHECK(registry.allocations.take(1, is_virtual, is_own).size() == 1);
}

TEST_CASE("Registry: a green context hands its events and its memory on to its primary one", "[registry]") {
    Registry registry;
    auto& contexts = registry.contexts;
    const auto green = handle<CUgreenCtx>(0x6000);
    contexts.add(make_entry<Contexts::Greens>(), green, {k_context, k_other, 0});
    CHECK(contexts.owner_of_memory_in(k_context) == k_other);
    CHECK(contexts.holds(0));
    CHECK(contexts.take_event(k_context) == nullptr); // from here on it has a record
    contexts.give_event(k_context, k_event);
    const auto found = test::need(contexts.find(green));
    registry.allocations.add({.address = 1, .bytes = 1, .context = k_context, .pool = k_pool});
    Allocations::Taken freed;
    freed[2] = {.address = 2, .done = k_event, .freed_in = k_context};
    registry.later.add(freed);
    CHECK(registry.captures.note({k_stream, nullptr, 0}, k_context, true) != 0);
    test::t_allocations_left = 0;
    const auto captures = registry.hand_on(found);
    CHECK(std::exchange(test::t_allocations_left, -1) == 0);
    CHECK(captures.size() == 1);
    CHECK(contexts.take_event(k_other) == k_event);
    CHECK(registry.allocations.find(1)->context == k_other);
    CHECK(registry.later.take([](const Allocation&) { return true; }).at(2).freed_in == k_other);
    const auto letting_go = contexts.let_go(0);
    CHECK(letting_go.was_held);
    CHECK(letting_go.is_last);
    CHECK_FALSE(contexts.let_go(0).was_held);
    CHECK(contexts.let_go(0, false).is_last);
}

TEST_CASE("Registry: why memory behind a handle of the program's stays", "[registry]") {
    constexpr auto k_partial = "mapped in part, or without access for its own device";
    constexpr Bytes k_bytes = 4;
    Mapping mapping{.bytes = k_bytes, .access = 2};
    Handle handle{.bytes = k_bytes, .mappings = {&mapping}};
    handle.properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
    struct Row {
        const char* reason;
        void (*change)(Handle&, Mapping&);
    };
    const auto row = GENERATE_COPY(
        Row{nullptr, [](Handle&, Mapping&) {}}, Row{nullptr, [](Handle&, Mapping& its) { its.access = 3; }},
        Row{k_partial, [](Handle&, Mapping& its) { its.access = 1; }},
        Row{k_partial, [](Handle&, Mapping& its) { its.has_other_access = true; }},
        Row{k_partial, [](Handle&, Mapping& its) { its.offset = 2; }},
        Row{k_partial, [](Handle&, Mapping& its) { its.bytes = 2; }},
        Row{k_partial, [](Handle& of, Mapping&) { of.mappings.push_back(nullptr); }},
        Row{k_exported, [](Handle& of, Mapping&) { of.stay_reason = k_exported; }});
    row.change(handle, mapping);
    CHECK(why_it_stays(handle, &mapping) == row.reason);
    CHECK_FALSE(why_it_stays(handle, nullptr) == nullptr);
}

TEST_CASE("Registry: why memory stays that cannot be made again as it was", "[registry]") {
    struct Row {
        const char* reason;
        CUmemAllocationProp properties;
    };
    CUmemAllocationProp tiles{}, compressed{}, other{}, descriptor{}, fabric{};
    tiles.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    compressed.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
    other.allocFlags.usage = 2;
    descriptor.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    fabric.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    for (const auto& [reason, properties] :
         {Row{"", {}}, Row{"", descriptor}, Row{"memory for sparse arrays", tiles},
          Row{"compressible memory", compressed}, Row{"created for a special use", other},
          Row{"created to be shared through the fabric", fabric}}) {
        const auto* const found = why_it_stays(properties);
        CHECK(std::string_view(found ? found : "") == reason);
    }
}

TEST_CASE("Registry: who ends a context goes before those who let it", "[registry]") {
    Contexts contexts;
    contexts.alive.lock_shared();
    std::thread ender([&] { contexts.alone([] {}); });
    while (!contexts.one_waits_to_end()) std::this_thread::yield();
    std::thread other([&] {
        contexts.let_end();
        const std::shared_lock stay(contexts.alive);
        CHECK_FALSE(contexts.one_waits_to_end());
    });
    contexts.alive.unlock_shared();
    ender.join();
    other.join();
}
