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
        registry.contexts.add(Contexts::make_record(), context, 0);
        registry.contexts.give_event(context, k_event);
        registry.allocations.add({.address = address, .bytes = 1, .context = context});
        registry.allocations.add({.address = address + 1, .bytes = 1, .context = context, .pool = k_pool});
        registry.allocations.add(
            {.address = address + 2, .bytes = 1, .context = context, .is_virtual = true});
        registry.deferred.add(Allocations::make_record({.address = address + 3, .context = context}));
        registry.residual.add(address, {1, "managed", "moves", 0, context});
        registry.residual.add(address + 4, ResidualRecords::OfDriver{1, {"small", context, 0, nullptr}});
        {
            const MutexLock lock(registry.objects.mutex);
            registry.objects.all[{Object::stream, address}] = {context};
            registry.objects.all[{Object::shared_pool, address}] = {context};
        }
        static_cast<void>(registry.captures.note({k_stream, context, address}, context, true));
        const MutexLock lock(registry.pools.mutex);
        registry.pools.pending_frees.push_back({address, {{context, k_stream}, true, k_event}});
    }
}

struct Counts {
    std::size_t contexts, allocations, deferred, captures, objects, held;
    std::uint64_t residual;
    friend bool operator==(const Counts&, const Counts&) = default;
};

Counts counts_of(Registry& registry) {
    Counts counts{};
    counts.contexts = registry.contexts.made_on(std::nullopt).size();
    counts.allocations = registry.allocations.all([](const Allocation&) { return true; }).size();
    counts.captures = registry.captures.count();
    auto deferred = registry.deferred.take_all();
    counts.deferred = deferred.allocations.size();
    registry.deferred.add(deferred);
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
    Registry one;
    Registry other;
    fill(one);
    fill(other);
    const auto all = counts_of(other);
    CHECK(all == Counts{2, 6, 2, 2, 4, 0, 4});
    const bool is_primary = GENERATE(false, true);
    auto departed = one.take(k_context, is_primary);
    CHECK(counts_of(one) == Counts{1, is_primary ? 4U : 5U, 1, 1, 3, 1, 2});
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

TEST_CASE("Registry: a green context hands its events and its memory on to its primary one", "[registry]") {
    Contexts contexts;
    const auto green = handle<CUgreenCtx>(0x6000);
    contexts.prepare_hold(0);
    contexts.add(Contexts::make_green(), green, {k_context, k_other, 0});
    CHECK(contexts.owner_of_memory_in(k_context) == k_other);
    CHECK(contexts.holds(0));
    CHECK(contexts.take_event(k_context) == nullptr); // from here on it has a record
    contexts.give_event(k_context, k_event);
    auto record = contexts.take(green);
    REQUIRE(record);
    test::t_allocations_left = 0;
    contexts.hand_events_on(record.mapped());
    CHECK(std::exchange(test::t_allocations_left, -1) == 0);
    CHECK(contexts.take_event(k_other) == k_event);
    const auto letting_go = contexts.let_go(0);
    CHECK(letting_go.was_held);
    CHECK(letting_go.is_last);
    CHECK_FALSE(contexts.let_go(0).was_held);
    CHECK_FALSE(contexts.let_go_of_one(0));
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
