// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Making arenas ready: in which order, within what the host has room for, and how it ends.

#include "support/fake_pinner.hpp"
#include "unit/arenas.hpp"

#include <pthread.h>

using namespace gpu_sleep;
using store::Headroom;
using store::HostArena;
using namespace test;

namespace {

/// More than any test takes, and too little for claims to be made ahead.
Headroom enough() {
    return {store::HostBudget::k_plenty, "nothing"};
}

} // namespace

TEST_CASE("Arena preparer: without a single thread it cannot start", "[host_arena]") {
    const auto result = prepare_under({{__NR_clone3, EAGAIN}, {__NR_clone, EAGAIN}});
    if (!result) return;
    REQUIRE_FALSE(*result);
    CHECK(result->error().code == ErrorCode::out_of_threads);
}

TEST_CASE("Arena preparer: its threads have a name and take no signals", "[host_arena]") {
    std::array<char, 16> name{};
    sigset_t blocked;
    sigemptyset(&blocked);
    const auto arenas = make_arenas(1, k_mib);
    const auto preparer =
        start(arenas, with_headroom([&] {
                  // The name is set by the thread that started this one, perhaps a moment later.
                  while (::pthread_getname_np(::pthread_self(), name.data(), name.size()) == 0 &&
                         std::string_view(name.data()).substr(0, 9) != "gpu-sleep")
                      std::this_thread::yield();
                  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
                  return plenty();
              }));
    REQUIRE(preparer->wait(*arenas.front(), 0));
    CHECK(std::string(name.data()) == "gpu-sleep-fill");
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGUSR1, SIGPROF})
        CHECK(sigismember(&blocked, signal) == 1);
}

TEST_CASE("Arena preparer: one thread takes the pieces in the order of the arenas", "[host_arena]") {
    FakePinner pinner;
    const auto arenas = make_arenas(6, k_mib, &pinner);
    const auto preparer = start(arenas, with_headroom(plenty, GENERATE(0U, 1U)));
    for (std::size_t i = arenas.size(); i-- > 0;) REQUIRE(preparer->wait(*arenas[i], 0));
    REQUIRE(pinner.order.size() == arenas.size());
    for (std::size_t i = 0; i < arenas.size(); ++i) CHECK(pinner.order[i] == arenas[i]->data());
}

TEST_CASE("Arena preparer: a piece is ready while later ones still wait", "[host_arena]") {
    const auto arenas = make_arenas(3, k_mib);
    std::atomic<int> asked{0};
    auto options = with_headroom([&] { return asked++ == 0 ? enough() : Headroom{0, "a test"}; }, 1);
    options.patience = std::chrono::hours(1);
    const auto preparer = start(arenas, options);
    CHECK(preparer->wait(*arenas[0], 0));
    preparer->cancel();
    CHECK(preparer->wait(*arenas[0], 0));
    CHECK(preparer->wait(*arenas[1], 0).error().code == ErrorCode::cancelled);
    CHECK(preparer->wait(*arenas[2], 0).error().code == ErrorCode::cancelled);
}

TEST_CASE("Arena preparer: many threads may wait, in any order", "[host_arena]") {
    const auto arenas = make_arenas(16, k_mib);
    const auto preparer = start(arenas, with_headroom(plenty));
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 8; ++t)
        threads.emplace_back([&, t] {
            for (std::size_t i = 0; i < arenas.size(); ++i)
                if (preparer->wait(*arenas[(i * 5 + t) % arenas.size()], 0)) ++ready;
        });
    for (auto& thread : threads) thread.join();
    CHECK(ready == 8 * 16);
}

TEST_CASE("Arena preparer: nothing to prepare, and what it was not given", "[host_arena]") {
    const auto arena = make_arena(k_mib);
    CHECK(start({}, with_headroom(plenty))->wait(*arena, 0).error().code == ErrorCode::internal);
}

TEST_CASE("Arena preparer: a piece without headroom fails itself and all later ones", "[host_arena]") {
    static constexpr std::size_t k_count = 8;
    const auto failing = GENERATE(range(std::size_t{0}, k_count));
    FakePinner pinner;
    auto arenas = make_arenas(k_count, 2 * k_mib, &pinner);
    std::atomic<std::size_t> asked{0};
    const auto headroom = [&] { return asked++ < failing ? enough() : Headroom{k_mib, "a test"}; };
    auto preparer = start(arenas, with_headroom(headroom, 1));
    for (std::size_t i = 0; i < k_count; ++i) {
        const auto ready = preparer->wait(*arenas[i], 0);
        CHECK(ready.has_value() == (i < failing));
        if (!ready) CHECK(ready.error().code == ErrorCode::out_of_host_memory);
    }
    const auto message = preparer->wait(*arenas[failing], 0).error().message;
    for (const auto& part : {format_bytes((k_count - failing) * 2 * k_mib), format_bytes(256 * k_mib),
                             format_bytes(k_mib), std::string("a test")})
        CHECK(message.find(part) != std::string::npos);
    CHECK(populated(arenas) == failing * 2 * k_mib);

    std::vector<std::byte*> addresses;
    for (const auto& arena : arenas) addresses.push_back(arena->data());
    preparer.reset();
    arenas.clear();
    CHECK(pinner.pinned == 0);
    for (auto* address : addresses) CHECK_FALSE(test::is_mapped(address));
}

TEST_CASE("Arena preparer: where there is plenty of memory, one look is for several pieces", "[host_arena]") {
    constexpr auto k_piece = HostArena::k_piece_bytes;
    const bool has_plenty = GENERATE(true, false);
    const auto arenas = make_arenas(12, k_piece);
    std::atomic<int> asked{0};
    std::optional<Headroom> exact;
    const auto options = with_headroom(
        [&] {
            ++asked;
            return exact ? *exact : has_plenty ? plenty() : enough();
        },
        1);
    {
        const auto preparer = start(arenas, options);
        for (const auto& arena : arenas) REQUIRE(preparer->wait(*arena, 0));
    }
    CHECK(asked == (has_plenty ? 2 : 12));
    // Nothing is claimed any more.
    exact = Headroom{257 * k_mib, "a test"}; // with the reserve
    CHECK(options.budget->claim(
        k_mib, options, [] { return "some"; }, [] { return Result<void>(); }));
}

TEST_CASE("Arena preparer: the reserve is left to others", "[host_arena]") {
    const auto missing = GENERATE(Bytes{0}, Bytes{1});
    const auto arenas = make_arenas(1, k_mib);
    const auto options = with_headroom([=] { return Headroom{3 * k_mib - missing, "a test"}; }, 6, 2 * k_mib);
    CHECK(start(arenas, options)->wait(*arenas.front(), 0).has_value() == (missing == 0));
}

TEST_CASE("Arena preparer: a piece waits for headroom that comes in time", "[host_arena]") {
    const auto arenas = make_arenas(2, k_mib);
    std::atomic<int> asked{0};
    auto options = with_headroom([&] { return asked++ < 3 ? Headroom{0, "a test"} : plenty(); });
    options.patience = std::chrono::hours(1);
    const auto preparer = start(arenas, options);
    for (const auto& arena : arenas) CHECK(preparer->wait(*arena, 0));
}

TEST_CASE("Arena preparer: all preparers together keep within the headroom", "[host_arena]") {
    constexpr Bytes k_bytes = k_mib;
    constexpr std::size_t k_count = 24;
    constexpr Bytes k_capacity = (2 * k_count - 1) * k_bytes; // for all pieces but one
    const auto first = make_arenas(k_count, k_bytes);
    const auto second = make_arenas(k_count, k_bytes);
    auto options = with_headroom(
        [&] {
            const auto taken = populated(first) + populated(second);
            std::this_thread::sleep_for(Milliseconds(1)); // gives others the time to claim the same
            return Headroom{k_capacity > taken ? k_capacity - taken : 0, "a test"};
        },
        6, 0);
    options.patience = Milliseconds(100);
    {
        const auto one = start(first, options);
        const auto other = start(second, options);
        bool all_ready = true;
        for (std::size_t i = 0; i < k_count; ++i) {
            all_ready = one->wait(*first[i], 0) && all_ready;
            all_ready = other->wait(*second[i], 0) && all_ready;
        }
        CHECK_FALSE(all_ready);
    }
    CHECK(populated(first) + populated(second) == k_capacity);
}

TEST_CASE("Arena preparer: cancelling ends a wait, from any thread", "[host_arena]") {
    const auto arenas = make_arenas(4, k_mib);
    std::atomic<bool> is_asked{false};
    auto options = with_headroom([&] {
        is_asked = true;
        return Headroom{0, "a test"};
    });
    options.patience = std::chrono::hours(1);
    const auto preparer = start(arenas, options);
    std::thread canceller([&] {
        while (!is_asked) std::this_thread::yield();
        preparer->cancel();
    });
    CHECK(preparer->wait(*arenas[3], 0).error().code == ErrorCode::cancelled);
    canceller.join();
    CHECK(populated(arenas) == 0);
}

TEST_CASE("Arena preparer: who waits for a piece may listen, and end it", "[host_arena]") {
    const auto arenas = make_arenas(1, k_mib);
    auto options = with_headroom([] { return Headroom{0, "a test"}; });
    options.patience = std::chrono::hours(1);
    const auto preparer = start(arenas, options);
    int heard = 0;
    const auto ended = preparer->wait(*arenas.front(), 0, [&]() -> Result<void> {
        if (++heard < 3) return {};
        return make_error(ErrorCode::timed_out, "a test");
    });
    CHECK(error_of(ended).code == ErrorCode::timed_out);
    CHECK(heard == 3);
}

TEST_CASE("Arena preparer: destroyed in the middle, it leaves arenas that can be destroyed", "[host_arena]") {
    FakePinner pinner;
    for (int i = 0; i < 20; ++i) {
        auto arenas = make_arenas(8, k_mib, &pinner);
        auto preparer = start(arenas, with_headroom(plenty));
        if (i % 2 == 0) CHECK(preparer->wait(*arenas[static_cast<std::size_t>(i) % 8], 0));
        preparer.reset();
        const auto after = populated(arenas);
        CHECK(pinner.pinned == after);
        arenas.clear();
        CHECK(pinner.pinned == 0);
    }
}
