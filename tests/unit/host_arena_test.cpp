// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Arenas and their preparation: what the kernel was made to give, when, and that all of it is returned.

#include "store/host_arena.hpp"

#include "store/arena_preparer.hpp"
#include "support/catch.hpp"
#include "support/failing_call.hpp"
#include "support/fake_pinner.hpp"
#include "support/mapping.hpp"
#include "support/result_printing.hpp"
#include "support/skip.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

using namespace gpu_sleep;
using store::ArenaPreparer;
using store::Headroom;
using store::HostArena;
using test::FakePinner;

namespace {

using Arenas = std::vector<std::unique_ptr<HostArena>>;

constexpr std::uint32_t k_populate_write = 23; // MADV_POPULATE_WRITE, which older C libraries do not name

std::unique_ptr<HostArena> make_arena(Bytes bytes, store::Pinner* pinner = nullptr) {
    auto arena = HostArena::create(bytes, pinner);
    REQUIRE(arena);
    return *std::move(arena);
}

Arenas make_arenas(std::size_t count, Bytes bytes, store::Pinner* pinner = nullptr) {
    Arenas arenas;
    for (std::size_t i = 0; i < count; ++i) arenas.push_back(make_arena(bytes, pinner));
    return arenas;
}

std::unique_ptr<ArenaPreparer> start(const Arenas& arenas, ArenaPreparer::Options options) {
    std::vector<HostArena*> pointers;
    for (const auto& arena : arenas) pointers.push_back(arena.get());
    auto preparer = ArenaPreparer::start(std::move(pointers), std::move(options));
    REQUIRE(preparer);
    return *std::move(preparer);
}

ArenaPreparer::Options with_headroom(std::function<Headroom()> headroom, unsigned threads = 6) {
    ArenaPreparer::Options options;
    options.threads = threads;
    options.headroom = std::move(headroom);
    options.patience = Milliseconds(0);
    return options;
}

Headroom plenty() {
    return {std::numeric_limits<Bytes>::max(), "nothing"};
}

/// More than any test takes, and too little for claims to be made ahead.
Headroom enough() {
    return {store::HostClaims::k_plenty, "nothing"};
}

Bytes populated(const Arenas& arenas) {
    Bytes sum = 0;
    for (const auto& arena : arenas) sum += arena->populated_bytes();
    return sum;
}

bool has_flag(const test::Mapping& mapping, const std::string& flag) {
    return mapping.flags.find(' ' + flag + ' ') != std::string::npos;
}

/// Prepares 1 MiB on a thread for which `calls` fail. Nothing where the system does not allow that.
std::optional<Result<void>> prepare_under(std::initializer_list<test::FailingCall> calls) {
    const auto arena = make_arena(k_mib);
    Result<void> result;
    const bool was_run = test::with_failing_calls(calls, [&] {
        auto preparer = ArenaPreparer::start({arena.get()}, with_headroom(plenty));
        result = preparer ? (*preparer)->wait(*arena, 0) : Result<void>(preparer.error());
    });
    if (!was_run) {
        test::skip_without_right("filter its system calls");
        return std::nullopt;
    }
    CHECK(test::is_populated(arena->piece(0)) == result.has_value());
    return result;
}

} // namespace

TEST_CASE("Host arena: reserves, and takes no memory yet", "[host_arena]") {
    const auto arena = make_arena(64 * k_gib + 1);
    CHECK(arena->bytes() == 64 * k_gib + 1);
    CHECK(arena->piece_count() == 2049);
    CHECK(arena->piece(0).data() == arena->data());
    CHECK(arena->piece(0).size() == HostArena::k_piece_bytes);
    CHECK(arena->piece(2048).data() == arena->data() + 64 * k_gib);
    CHECK(arena->piece(2048).size() == 1);
    CHECK(reinterpret_cast<Bytes>(arena->data()) % (2 * k_mib) == 0);
    CHECK(arena->populated_bytes() == 0);
    CHECK(test::mapping_at(arena->data())->resident == 0);
}

TEST_CASE("Host arena: impossible sizes are refused", "[host_arena]") {
    CHECK(HostArena::create(0, nullptr).error().code == ErrorCode::invalid_argument);
    for (const auto bytes : {Bytes{1} << 60, std::numeric_limits<Bytes>::max()})
        CHECK(HostArena::create(bytes, nullptr).error().code == ErrorCode::out_of_host_memory);
}

TEST_CASE("Host arena: returns all its address space", "[host_arena]") {
    const auto before = test::address_space_bytes();
    for (int i = 0; i < 16; ++i) CHECK(make_arenas(4, 3 * k_mib + 1).size() == 4);
    CHECK(test::address_space_bytes() < before + 2 * k_mib);
}

TEST_CASE("Host arena: is left out of children and core dumps, and takes huge pages", "[host_arena]") {
    const auto arena = make_arena(8 * k_mib);
    const auto mapping = test::mapping_at(arena->data());
    REQUIRE(mapping);
    CHECK(has_flag(*mapping, "dc"));
    CHECK(has_flag(*mapping, "dd"));
    CHECK(has_flag(*mapping, "nr"));
    if (::access("/sys/kernel/mm/transparent_hugepage", F_OK) == 0) CHECK(has_flag(*mapping, "hg"));
}

TEST_CASE("Host arena: takes whole pages, not whole huge pages", "[host_arena]") {
    const auto bytes = GENERATE(Bytes{1}, 4 * k_kib, 4 * k_kib + 1, 64 * k_kib, 2 * k_mib - 1, 2 * k_mib,
                                2 * k_mib + 1, 3 * k_mib, HostArena::k_piece_bytes + 1);
    Arenas arenas;
    arenas.push_back(make_arena(bytes));
    const auto& arena = *arenas.front();
    const auto preparer = start(arenas, with_headroom(plenty));
    for (std::size_t i = 0; i < arena.piece_count(); ++i) {
        REQUIRE(preparer->wait(arena, i));
        CHECK(test::is_populated(arena.piece(i)));
        CHECK_FALSE(arena.is_pinned(i));
    }
    CHECK(arena.populated_bytes() == bytes);
    const auto whole = round_up(bytes, static_cast<Bytes>(::sysconf(_SC_PAGESIZE)));
    const auto mapping = test::mapping_at(arena.data());
    REQUIRE(mapping);
    CHECK(mapping->size == whole);
    CHECK(mapping->resident == whole);
}

TEST_CASE("Host arena: pieces are populated, then pinned, and unpinned at the end", "[host_arena]") {
    FakePinner pinner;
    auto arenas = make_arenas(3, HostArena::k_piece_bytes / 16, &pinner);
    {
        const auto preparer = start(arenas, with_headroom(plenty));
        for (const auto& arena : arenas) {
            REQUIRE(preparer->wait(*arena, 0));
            CHECK(arena->is_pinned(0));
        }
    }
    CHECK(pinner.was_populated);
    CHECK(pinner.pinned == 3 * HostArena::k_piece_bytes / 16);
    auto* const first = arenas.front()->data();
    arenas.clear();
    CHECK(pinner.pinned == 0);
    CHECK_FALSE(test::is_mapped(first));
}

TEST_CASE("Host arena: memory that cannot be pinned is used all the same", "[host_arena]") {
    FakePinner pinner;
    pinner.fails = true;
    const auto arenas = make_arenas(3, k_mib, &pinner);
    const auto preparer = start(arenas, with_headroom(plenty));
    for (const auto& arena : arenas) {
        REQUIRE(preparer->wait(*arena, 0));
        CHECK_FALSE(arena->is_pinned(0));
        CHECK(test::is_populated(arena->piece(0)));
    }
}

TEST_CASE("Host arena: all of it is unpinned at once, but for what the driver holds, and pinned again",
          "[host_arena]") {
    FakePinner pinner;
    Arenas arenas;
    arenas.push_back(make_arena(3 * HostArena::k_piece_bytes, &pinner));
    auto& arena = *arenas.front();
    {
        const auto preparer = start(arenas, with_headroom(plenty));
        for (std::size_t piece = 0; piece < 3; ++piece) REQUIRE(preparer->wait(arena, piece));
    }
    REQUIRE(pinner.pinned == arena.bytes());
    pinner.stuck = arena.piece(1).data();
    arena.unpin_all();
    CHECK(pinner.pinned == HostArena::k_piece_bytes);
    CHECK_FALSE(arena.is_pinned(0));
    CHECK(arena.is_pinned(1));
    CHECK(arena.has_untried());
    pinner.stuck = nullptr;
    while (arena.pin_next()) {
    }
    CHECK(pinner.pinned == arena.bytes());
    CHECK_FALSE(arena.has_untried());
}

TEST_CASE("Host arena: a piece that cannot be unpinned stays mapped, the others go", "[host_arena]") {
    FakePinner pinner;
    Arenas arenas;
    arenas.push_back(make_arena(HostArena::k_piece_bytes + k_mib, &pinner));
    auto* const first = arenas.front()->piece(0).data();
    const auto second = arenas.front()->piece(1);
    pinner.stuck = second.data();
    {
        const auto preparer = start(arenas, with_headroom(plenty));
        REQUIRE(preparer->wait(*arenas.front(), 0));
        REQUIRE(preparer->wait(*arenas.front(), 1));
    }
    arenas.clear();
    CHECK(pinner.pinned == second.size());
    CHECK_FALSE(test::is_mapped(first));
    CHECK(test::is_mapped(second.data()));
    REQUIRE(::munmap(second.data(), second.size()) == 0);
}

TEST_CASE("Host arena: a stock grows by pieces that are ready, and arenas take them", "[host_arena]") {
    constexpr auto k_piece = HostArena::k_piece_bytes;
    FakePinner pinner;
    auto stock = HostArena::create_stock(&pinner);
    CHECK(stock->bytes() == 0);
    for (int i = 0; i < 3; ++i) REQUIRE(stock->grow());
    CHECK(stock->bytes() == 3 * k_piece);
    CHECK(stock->populated_bytes() == 3 * k_piece);
    CHECK(pinner.pinned == 3 * k_piece);

    Arenas arenas;
    arenas.push_back(*HostArena::create(2 * k_piece + 5, &pinner, stock.get()));
    const auto& arena = *arenas.front();
    CHECK(stock->piece_count() == 1);
    CHECK(stock->bytes() == k_piece);
    CHECK(arena.populated_bytes() == 2 * k_piece);
    REQUIRE(arena.piece_count() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
        CHECK(arena.is_ready(i) == (i < 2));
        CHECK(arena.at(i * k_piece + 3) == arena.piece(i).data() + 3);
    }
    {
        const auto preparer = start(arenas, with_headroom(plenty));
        for (std::size_t i = 0; i < 3; ++i) REQUIRE(preparer->wait(arena, i));
    }
    CHECK(pinner.pinned == 3 * k_piece + 5);
    CHECK(arena.populated_bytes() == 2 * k_piece + 5);

    std::vector<std::byte*> addresses{stock->data()};
    for (std::size_t i = 0; i < 3; ++i) addresses.push_back(arena.piece(i).data());
    arenas.clear();
    CHECK(pinner.pinned == k_piece);
    CHECK(test::is_populated(stock->piece(0)));
    stock.reset();
    CHECK(pinner.pinned == 0);
    for (auto* const address : addresses) CHECK_FALSE(test::is_mapped(address));
}

TEST_CASE("Host arena: all of it may come from a stock, and none of it", "[host_arena]") {
    constexpr auto k_piece = HostArena::k_piece_bytes;
    auto stock = HostArena::create_stock(nullptr);
    REQUIRE(stock->grow());
    const auto small = HostArena::create(k_piece - 1, nullptr, stock.get());
    REQUIRE(small);
    CHECK_FALSE((*small)->is_ready(0));
    CHECK(stock->piece_count() == 1);
    Arenas arenas;
    arenas.push_back(*HostArena::create(k_piece, nullptr, stock.get()));
    CHECK(stock->piece_count() == 0);
    const auto preparer = start(arenas, with_headroom([] { return Headroom{0, "a test"}; }));
    CHECK(preparer->wait(*arenas.front(), 0));
}

TEST_CASE("Host arena: a stock takes pieces of another", "[host_arena]") {
    constexpr auto k_piece = HostArena::k_piece_bytes;
    FakePinner pinner;
    const auto first = HostArena::create_stock(&pinner);
    auto second = HostArena::create_stock(&pinner);
    for (auto* const stock : {first.get(), second.get(), second.get()}) REQUIRE(stock->grow());
    auto* const last = second->piece(1).data();
    first->absorb(*second, 1);
    CHECK(first->bytes() == 2 * k_piece);
    CHECK(first->populated_bytes() == 2 * k_piece);
    CHECK(first->piece(1).data() == last);
    CHECK(first->is_pinned(1));
    CHECK(second->bytes() == k_piece);
    second.reset();
    CHECK(pinner.pinned == 2 * k_piece);
    CHECK(test::is_populated(first->piece(1)));
}

TEST_CASE("Host arena: a stock that cannot grow stays as it is", "[host_arena]") {
    FakePinner pinner;
    auto stock = HostArena::create_stock(&pinner);
    REQUIRE(stock->grow());
    Result<void> grown;
    const bool was_run =
        test::with_failing_calls({{__NR_madvise, ENOMEM, k_populate_write}}, [&] { grown = stock->grow(); });
    if (!was_run) return test::skip_without_right("filter its system calls");
    REQUIRE_FALSE(grown);
    CHECK(grown.error().code == ErrorCode::out_of_host_memory);
    CHECK(stock->bytes() == HostArena::k_piece_bytes);
    CHECK(pinner.pinned == HostArena::k_piece_bytes);
    CHECK(stock->grow());
}

TEST_CASE("Host arena: populating falls back to touching pages on older kernels", "[host_arena]") {
    const auto result = prepare_under({{__NR_madvise, EINVAL, k_populate_write}});
    if (result) CHECK(*result);
}

TEST_CASE("Host arena: a kernel that gives no pages is an error that names its reason", "[host_arena]") {
    const auto reason = GENERATE(ENOMEM, EFAULT, EHWPOISON, EAGAIN, EINTR);
    const auto result = prepare_under({{__NR_madvise, static_cast<std::uint32_t>(reason), k_populate_write}});
    if (!result) return;
    REQUIRE_FALSE(*result);
    CHECK(result->error().code == ErrorCode::out_of_host_memory);
    CHECK(result->error().driver_status == reason);
    CHECK(result->error().where == "madvise");
}

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
    const auto preparer = start(arenas, std::move(options));
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
    const auto preparer = start({}, with_headroom(plenty));
    CHECK(preparer->wait(*arena, 0).error().code == ErrorCode::internal);
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

TEST_CASE("Arena preparer: where there is plenty of memory, it is looked at once for several pieces",
          "[host_arena]") {
    constexpr auto k_piece = HostArena::k_piece_bytes;
    const bool has_plenty = GENERATE(true, false);
    const auto arenas = make_arenas(12, k_piece);
    std::atomic<int> asked{0};
    auto options = with_headroom(
        [&] {
            ++asked;
            return has_plenty ? plenty() : enough();
        },
        1);
    {
        const auto preparer = start(arenas, std::move(options));
        for (const auto& arena : arenas) REQUIRE(preparer->wait(*arena, 0));
    }
    CHECK(asked == (has_plenty ? 2 : 12));
    // Nothing is claimed any more.
    store::ClaimOptions exact;
    exact.reserve = 0;
    exact.patience = Milliseconds(0);
    exact.headroom = [] { return Headroom{k_mib, "a test"}; };
    CHECK(store::HostClaims(exact).make(
        k_mib, [] { return "some"; }, [](Milliseconds) { return true; }));
}

TEST_CASE("Arena preparer: the reserve is left to others", "[host_arena]") {
    const auto missing = GENERATE(Bytes{0}, Bytes{1});
    const auto arenas = make_arenas(1, k_mib);
    auto options = with_headroom([=] { return Headroom{3 * k_mib - missing, "a test"}; });
    options.reserve = 2 * k_mib;
    const auto preparer = start(arenas, std::move(options));
    CHECK(preparer->wait(*arenas.front(), 0).has_value() == (missing == 0));
}

TEST_CASE("Arena preparer: a piece waits for headroom that comes in time", "[host_arena]") {
    const auto arenas = make_arenas(2, k_mib);
    std::atomic<int> asked{0};
    auto options = with_headroom([&] { return asked++ < 3 ? Headroom{0, "a test"} : plenty(); });
    options.patience = std::chrono::hours(1);
    const auto preparer = start(arenas, std::move(options));
    for (const auto& arena : arenas) CHECK(preparer->wait(*arena, 0));
}

TEST_CASE("Arena preparer: all preparers together keep within the headroom", "[host_arena]") {
    constexpr Bytes k_bytes = k_mib;
    constexpr std::size_t k_count = 24;
    constexpr Bytes k_capacity = (2 * k_count - 1) * k_bytes; // for all pieces but one
    const auto first = make_arenas(k_count, k_bytes);
    const auto second = make_arenas(k_count, k_bytes);
    auto options = with_headroom([&] {
        const auto taken = populated(first) + populated(second);
        std::this_thread::sleep_for(Milliseconds(1)); // gives others the time to claim the same
        return Headroom{k_capacity > taken ? k_capacity - taken : 0, "a test"};
    });
    options.reserve = 0;
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
    const auto preparer = start(arenas, std::move(options));
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
    const auto preparer = start(arenas, std::move(options));
    int heard = 0;
    const auto ended = preparer->wait(*arenas.front(), 0, [&]() -> Result<void> {
        if (++heard < 3) return {};
        return make_error(ErrorCode::timed_out, "a test");
    });
    REQUIRE_FALSE(ended);
    CHECK(ended.error().code == ErrorCode::timed_out);
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
