// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The books of two processes, side by side: what goes with a context, and comes back.

#include "registry/registry.hpp"

#include "support/catch.hpp"
#include "support/failing_new.hpp"

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
        registry.allocations.add(
            {.address = address + 2, .bytes = 1, .is_virtual = true, .context = context});
        Later::Items freed;
        freed.allocations[address + 3] = {.address = address + 3, .context = context};
        freed.allocations[address + 5] = {.address = address + 5, .done = k_event, .freed_in = context};
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
        registry.pools.blocks[address].last_use = {{context, k_stream}, true, k_event};
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
    counts.later = later.allocations.size();
    registry.later.add(later);
    registry.pools.for_each_use([&](const LastUse& use) { counts.held += use.is_held; });
    std::vector<Residual> sums;
    registry.residual.add_to(sums);
    for (const auto& row : sums) counts.residual += row.count;
    const MutexLock lock(registry.objects.mutex);
    counts.objects = registry.objects.all.size();
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
    auto departed = one.take(k_context, is_primary);
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
        one.pools.let_go_of_uses_in(k_context, true);
        fill(one);
        CHECK(counts_of(one) == all);
        one.pools.for_each_use([](const LastUse& use) { CHECK_FALSE(use.is_held); });
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
    Later::Items freed;
    freed.allocations[2] = {.address = 2, .done = k_event, .freed_in = k_context};
    registry.later.add(freed);
    CHECK(registry.captures.note({k_stream, nullptr, 0}, k_context, true) != 0);
    test::t_allocations_left = 0;
    const auto captures = registry.hand_on(found);
    CHECK(std::exchange(test::t_allocations_left, -1) == 0);
    CHECK(captures.size() == 1);
    CHECK(contexts.take_event(k_other) == k_event);
    CHECK(registry.allocations.find(1)->context == k_other);
    CHECK(registry.later.take([](const Allocation&) { return true; }).allocations.at(2).freed_in == k_other);
    const auto letting_go = contexts.let_go(0);
    CHECK(letting_go.was_held);
    CHECK(letting_go.is_last);
    CHECK_FALSE(contexts.let_go(0).was_held);
    CHECK(contexts.let_go(0, false).is_last);
}

TEST_CASE("Registry: why memory behind a handle of the program's stays", "[registry]") {
    constexpr auto k_partial = "mapped in part, or without access for its own device";
    constexpr Bytes k_bytes = 4;
    Handle handle{.bytes = k_bytes, .mappings = {1}};
    handle.properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
    const Mapping whole{.bytes = k_bytes, .access = 2};
    struct Row {
        const char* reason;
        void (*change)(Handle&, Mapping&);
    };
    const auto row =
        GENERATE_COPY(Row{nullptr, [](Handle&, Mapping&) {}},
                      Row{nullptr, [](Handle&, Mapping& mapping) { mapping.access = 3; }},
                      Row{k_partial, [](Handle&, Mapping& mapping) { mapping.access = 1; }},
                      Row{k_partial, [](Handle&, Mapping& mapping) { mapping.has_other_access = true; }},
                      Row{k_partial, [](Handle&, Mapping& mapping) { mapping.offset = 2; }},
                      Row{k_partial, [](Handle&, Mapping& mapping) { mapping.bytes = 2; }},
                      Row{k_partial, [](Handle& of, Mapping&) { of.mappings.push_back(2); }},
                      Row{k_exported, [](Handle& of, Mapping&) { of.stay_reason = k_exported; }});
    auto mapping = whole;
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
    std::thread ender([&] { const Contexts::Alone alone(contexts); });
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
