// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Arenas: what the kernel was made to give, when, and that all of it is returned.

#include "support/fake_pinner.hpp"
#include "unit/arenas.hpp"

#include <sys/mman.h>

using namespace gpu_sleep;
using store::ArenaPreparer;
using store::Headroom;
using store::HostArena;
using namespace test;

namespace {

constexpr std::uint32_t k_populate_write = 23; // MADV_POPULATE_WRITE, which older C libraries do not name

bool has_flag(const test::Mapping& mapping, const std::string& flag) {
    return mapping.flags.find(' ' + flag + ' ') != std::string::npos;
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
    CHECK(test::mapping_at(arena->data())->resident == 0);
}

TEST_CASE("Host arena: takes no memory yet of a program that locks all that it maps", "[host_arena]") {
    if (::mlockall(MCL_FUTURE) != 0) return test::skip_without_right("lock memory");
    const auto made = HostArena::create(8 * k_mib, nullptr);
    ::munlockall();
    if (!made) return test::skip_without_right("lock memory"); // so much of it
    CHECK(test::mapping_at((*made)->data())->resident == 0);
    REQUIRE((*made)->make_ready());
    CHECK(test::is_populated((*made)->piece(0)));
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
    const auto mapping = need(test::mapping_at(arena->data()));
    CHECK(has_flag(mapping, "dc"));
    CHECK(has_flag(mapping, "dd"));
    CHECK(has_flag(mapping, "nr"));
    if (::access("/sys/kernel/mm/transparent_hugepage", F_OK) == 0) CHECK(has_flag(mapping, "hg"));
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
    const auto whole = round_up(bytes, static_cast<Bytes>(::sysconf(_SC_PAGESIZE)));
    const auto mapping = need(test::mapping_at(arena.data()));
    CHECK(mapping.size == whole);
    CHECK(mapping.resident == whole);
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

TEST_CASE("Host arena: all but what the driver holds is unpinned at once, and pinned again", "[host_arena]") {
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
    CHECK_FALSE(arena.unpin_all());
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
    for (int i = 0; i < 3; ++i) REQUIRE(grow(*stock, &pinner));
    CHECK(stock->bytes() == 3 * k_piece);
    CHECK(pinner.was_populated);
    CHECK(pinner.pinned == 3 * k_piece);

    Arenas arenas;
    arenas.push_back(*HostArena::create(2 * k_piece + 5, &pinner, stock.get()));
    const auto& arena = *arenas.front();
    CHECK(stock->piece_count() == 1);
    CHECK(stock->bytes() == k_piece);
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
    REQUIRE(grow(*stock, nullptr));
    const auto small = need(HostArena::create(k_piece - 1, nullptr, stock.get()));
    CHECK_FALSE(small->is_ready(0));
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
    for (auto* const stock : {first.get(), second.get(), second.get()}) REQUIRE(grow(*stock, &pinner));
    auto* const last = second->piece(1).data();
    first->absorb(*second, 1);
    CHECK(first->bytes() == 2 * k_piece);
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
    REQUIRE(grow(*stock, &pinner));
    Result<void> grown;
    const test::FailingCall no_page{__NR_madvise, ENOMEM, k_populate_write};
    if (!test::with_failing_calls({no_page}, [&] { grown = grow(*stock, &pinner); })) return;
    CHECK(test::error_of(grown).code == ErrorCode::out_of_host_memory);
    CHECK(stock->bytes() == HostArena::k_piece_bytes);
    CHECK(pinner.pinned == HostArena::k_piece_bytes);
    CHECK(grow(*stock, &pinner));
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
