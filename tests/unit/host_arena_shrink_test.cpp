// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Giving back what is dead of an arena: which pages go, which stay pinned, and that the rest is untouched.

#include "support/fake_pinner.hpp"
#include "unit/arenas.hpp"

using namespace gpu_sleep;
using store::ArenaPreparer;
using store::HostArena;
using test::FakePinner;

namespace {

using Needed = std::vector<Span>;

constexpr Bytes k_huge = 2 * k_mib;
constexpr std::byte k_content{0x5a};

/// An arena that is ready and full.
struct Full {
    explicit Full(Bytes bytes) {
        auto made = test::need(HostArena::create(bytes, &pinner));
        arena = std::move(made);
        ArenaPreparer::Options options;
        options.budget = &test::budget_of(test::plenty);
        const auto preparer = test::need(ArenaPreparer::start({arena.get()}, options));
        for (std::size_t i = 0; i < arena->piece_count(); ++i) REQUIRE(preparer->wait(*arena, i));
        std::fill_n(arena->data(), bytes, k_content);
    }

    [[nodiscard]] std::span<std::byte> part(Bytes offset, Bytes bytes) const {
        return {arena->data() + offset, bytes};
    }
    [[nodiscard]] bool is_intact(Bytes offset, Bytes bytes) const {
        const auto memory = part(offset, bytes);
        return test::is_populated(memory) &&
               std::all_of(memory.begin(), memory.end(), [](std::byte each) { return each == k_content; });
    }
    [[nodiscard]] Bytes resident() const { return test::mapping_at(arena->data())->resident; }

    FakePinner pinner;
    std::unique_ptr<HostArena> arena;
};

} // namespace

TEST_CASE("Host arena: what is dead goes by huge pages, and the rest stays pinned", "[host_arena]") {
    Full full(10 * k_mib);
    const Needed needed{{3 * k_mib, 1}, {8 * k_mib, 256}};
    CHECK(full.arena->shrink(0, needed) == 6 * k_mib);
    CHECK(full.resident() == 2 * k_huge);
    CHECK(full.is_intact(2 * k_mib, k_huge));
    CHECK(full.is_intact(8 * k_mib, k_huge));
    CHECK(full.arena->is_pinned(0));
    CHECK(full.pinner.pinned == 2 * k_huge);
    CHECK(full.pinner.was_populated);

    CHECK(full.arena->shrink(0, {needed.data() + 1, 1}) == k_huge);
    CHECK(full.resident() == k_huge);
    CHECK(full.is_intact(8 * k_mib, k_huge));
    CHECK(full.pinner.pinned == k_huge);

    auto* const data = full.arena->data();
    full.arena.reset();
    CHECK(full.pinner.pinned == 0);
    CHECK_FALSE(test::is_mapped(data));
    CHECK_FALSE(test::is_mapped(data + 8 * k_mib));
}

TEST_CASE("Host arena: what was unpinned stays so when it is shrunk", "[host_arena]") {
    Full full(10 * k_mib);
    REQUIRE(full.arena->unpin_all());
    const Needed needed{{3 * k_mib, 1}};
    CHECK(full.arena->shrink(0, needed) == 8 * k_mib);
    CHECK(full.pinner.pinned == 0);
    CHECK_FALSE(full.arena->pin_next());
    CHECK(full.pinner.pinned == k_huge);
}

TEST_CASE("Host arena: a piece of which nothing is needed goes whole", "[host_arena]") {
    const auto bytes = GENERATE(Bytes{1}, 4 * k_kib + 1, 2 * k_mib, 5 * k_mib + 4 * k_kib + 1);
    Full full(bytes);
    CHECK(full.arena->shrink(0, {}) == bytes);
    CHECK(full.resident() == 0);
    CHECK(full.pinner.pinned == 0);
    CHECK(full.arena->shrink(0, {}) == 0);
}

TEST_CASE("Host arena: a piece of which no huge page is dead is left as it is", "[host_arena]") {
    Full full(4 * k_mib + 5);
    const Needed needed{{k_huge - 1, 1}, {k_huge, 1}, {4 * k_mib + 4, 1}};
    const auto pinned = full.pinner.order;
    CHECK(full.arena->shrink(0, needed) == 0);
    CHECK(full.pinner.order == pinned);
    CHECK(full.is_intact(0, 4 * k_mib + 5));
}

TEST_CASE("Host arena: each piece is shrunk alone, with what lies in it of a longer part", "[host_arena]") {
    constexpr auto k_piece = HostArena::k_piece_bytes;
    Full full(k_piece + 4 * k_mib);
    const Needed needed{{k_piece - 3 * k_mib, 4 * k_mib}};
    CHECK(full.arena->shrink(1, needed) == 2 * k_mib);
    CHECK(full.pinner.pinned == k_piece + 2 * k_mib);
    CHECK(full.arena->shrink(0, needed) == k_piece - 4 * k_mib);
    CHECK(full.is_intact(k_piece - 4 * k_mib, 6 * k_mib));
    CHECK(full.resident() == 6 * k_mib);
    CHECK(full.pinner.pinned == 6 * k_mib);
}

TEST_CASE("Host arena: what the driver does not let go stays, with all that is in it", "[host_arena]") {
    Full full(8 * k_mib);
    full.pinner.stuck = full.arena->data();
    CHECK(full.arena->shrink(0, {}) == 0);
    CHECK(full.is_intact(0, 8 * k_mib));
    CHECK(full.arena->is_pinned(0));

    full.pinner.stuck = nullptr; // of two parts, one
    const Needed needed{{0, 1}, {6 * k_mib, 1}};
    CHECK(full.arena->shrink(0, needed) == 4 * k_mib);
    auto* const data = full.arena->data();
    full.pinner.stuck = data + 6 * k_mib;
    CHECK(full.arena->shrink(0, {}) == k_huge);
    CHECK(full.is_intact(6 * k_mib, k_huge));
    CHECK(full.pinner.pinned == k_huge);
    full.arena.reset();
    CHECK_FALSE(test::is_mapped(data));
    CHECK_FALSE(test::is_mapped(data + 4 * k_mib));
    REQUIRE(test::is_mapped(data + 6 * k_mib));
    REQUIRE(::munmap(data + 6 * k_mib, k_huge) == 0);
}

TEST_CASE("Host arena: what cannot be pinned again is kept unpinned", "[host_arena]") {
    Full full(8 * k_mib);
    full.pinner.fails = true;
    const Needed needed{{0, 1}, {6 * k_mib, 1}};
    CHECK(full.arena->shrink(0, needed) == 4 * k_mib);
    CHECK_FALSE(full.arena->is_pinned(0));
    CHECK(full.pinner.pinned == 0);
    CHECK(full.is_intact(0, k_huge));
    CHECK(full.is_intact(6 * k_mib, k_huge));
    full.pinner.fails = false;
    CHECK(full.arena->shrink(0, {needed.data(), 1}) == k_huge);
    CHECK(full.resident() == k_huge);
}

TEST_CASE("Host arena: memory that the program has locked goes, too", "[host_arena]") {
    Full full(4 * k_mib);
    if (::mlock(full.arena->data(), 4 * k_mib) != 0) return test::skip_without_right("lock memory");
    const Needed needed{{0, 1}};
    CHECK(full.arena->shrink(0, needed) == k_huge);
    CHECK(full.resident() == k_huge);
    CHECK(full.is_intact(0, k_huge));
}

TEST_CASE("Host arena: what is out of reach can be shrunk, and stays out of reach", "[host_arena]") {
    constexpr auto k_piece = HostArena::k_piece_bytes;
    Full full(2 * k_piece);
    full.arena->protect();
    std::array<int, 2> pipe{};
    REQUIRE(::pipe(pipe.data()) == 0);
    const auto is_out_of_reach = [&](Bytes offset) { // as the kernel finds it, without a fault
        return ::write(pipe[1], full.arena->data() + offset, 1) == -1 && errno == EFAULT;
    };
    CHECK(is_out_of_reach(0));
    const Needed needed{{3 * k_mib, 1}};
    CHECK(full.arena->shrink(0, needed) == k_piece - k_huge);
    CHECK(full.arena->shrink(1, {}) == k_piece);
    CHECK(full.pinner.pinned == k_huge);
    CHECK(is_out_of_reach(3 * k_mib));
    CHECK(is_out_of_reach(2 * k_piece - 1));
    REQUIRE(full.arena->unprotect());
    CHECK_FALSE(is_out_of_reach(3 * k_mib));
    for (const int end : pipe) ::close(end);
    CHECK(full.is_intact(2 * k_mib, k_huge));
    CHECK(full.resident() == k_huge);
}

TEST_CASE("Host arena: pieces that lie apart go out of reach, and come back", "[host_arena]") {
    constexpr auto k_piece = HostArena::k_piece_bytes;
    FakePinner pinner;
    const auto stock = HostArena::create_stock(&pinner);
    REQUIRE(test::grow(*stock, &pinner));
    const std::unique_ptr<void, void (*)(void*)> between( // so that the next piece cannot follow
        ::mmap(nullptr, k_huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
        [](void* memory) { ::munmap(memory, k_huge); });
    REQUIRE(test::grow(*stock, &pinner));
    const auto arena = test::need(HostArena::create(2 * k_piece + 1, &pinner, stock.get()));
    const auto is_writable = [&](Bytes offset) {
        std::array<int, 2> pipe{};
        REQUIRE(::pipe(pipe.data()) == 0);
        const bool is_reached = ::write(pipe[1], arena->at(offset), 1) == 1;
        for (const int end : pipe) ::close(end);
        return is_reached;
    };
    for (int i = 0; i < 2; ++i) {
        arena->protect();
        for (const Bytes offset : {Bytes{0}, k_piece, 2 * k_piece}) CHECK_FALSE(is_writable(offset));
        REQUIRE(arena->unprotect());
        for (const Bytes offset : {Bytes{0}, k_piece, 2 * k_piece}) CHECK(is_writable(offset));
    }
}
