// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Claims near a limit that several share, and away from it.

#include "store/host_budget.hpp"

#include "support/result_printing.hpp"

#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>

using namespace gpu_sleep;
using store::Headroom;
using store::HostBudget;

namespace {

/// A limit that several share, and the file that all of them see.
struct Limit {
    Limit() { std::ofstream(file) << "max\n"; }
    [[nodiscard]] HostBudget::Options options(Bytes headroom) const {
        HostBudget::Options made;
        made.directory.clear();
        made.reserve = k_mib;
        made.turn_patience = std::chrono::hours(1);
        made.headroom = [shared = file, headroom] { return Headroom{headroom, "a test", shared}; };
        return made;
    }
    test::Scratch scratch;
    std::string file = scratch.file("memory.max");
};

Result<store::HostClaim> claim(HostBudget& budget, Bytes bytes, const std::function<Result<void>()>& look,
                               Bytes ahead = 0) {
    return budget.claim(
        bytes, {&budget, Milliseconds(0)}, [] { return "some"; }, look, ahead);
}

/// Makes a claim that gives up as soon as it would have to wait.
auto claim_at_once(HostBudget& budget, Bytes bytes = k_mib, Bytes ahead = 0) {
    return claim(
        budget, bytes, [] { return make_error(ErrorCode::cancelled, "it would wait"); }, ahead);
}

Result<void> go_on() {
    return {};
}

bool can_be_locked(const std::string& file) {
    const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
    return ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
}

} // namespace

TEST_CASE("Host claims: near the limit there is one at a time, and away from it any number", "[host_claim]") {
    const Limit limit;
    HostBudget near(limit.options(k_gib));
    HostBudget neighbour(limit.options(k_gib));
    HostBudget away(limit.options(2 * HostBudget::k_turn_threshold));
    {
        const auto first = claim_at_once(near);
        REQUIRE(first);
        CHECK_FALSE(can_be_locked(limit.file));
        CHECK(claim_at_once(near).error().code == ErrorCode::cancelled);
        CHECK(claim_at_once(neighbour).error().code == ErrorCode::cancelled);
        CHECK(claim_at_once(away));
        std::thread other([&] { CHECK(claim_at_once(away)); });
        other.join();
    }
    CHECK(can_be_locked(limit.file));
    CHECK(claim_at_once(neighbour));
    const auto first = claim_at_once(away);
    REQUIRE(first);
    CHECK(can_be_locked(limit.file)); // it was not touched
}

TEST_CASE("Host claims: with plenty of headroom more is claimed ahead, and counts untaken", "[host_claim]") {
    const Limit limit;
    Bytes headroom = 0;
    auto options = limit.options(0);
    options.headroom = [&] { return Headroom{headroom, "a test", limit.file}; };
    HostBudget budget(options);
    const auto claim_ahead = [&] { return claim_at_once(budget, k_mib, 3 * k_mib); };
    headroom = HostBudget::k_plenty + 2 * k_mib - 1; // the claim, and the reserve
    CHECK(claim_ahead()->bytes() == k_mib);
    ++headroom;
    auto ahead = test::need(claim_ahead());
    CHECK(ahead.bytes() == 4 * k_mib);
    headroom = 5 * k_mib; // beside what is claimed there is room for the reserve
    CHECK(claim_at_once(budget).error().code == ErrorCode::out_of_host_memory);
    ahead.note_taken(k_mib);
    CHECK(ahead.bytes() == 3 * k_mib);
    CHECK(claim_at_once(budget));
}

TEST_CASE("Host claims: where limits cannot be read there is memory for the least buffers alone",
          "[host_claim]") {
    const Limit limit;
    auto options = limit.options(0);
    options.headroom = [] { return Headroom{0, "a test", {}, true}; };
    HostBudget budget(options);
    for (const bool least : {false, true}) {
        const auto made = budget.claim(
            k_mib, {&budget, Milliseconds(0), least}, [] { return "some"; }, go_on, k_gib);
        CHECK(made.has_value() == least);
        if (made) CHECK(made->bytes() == k_mib);
    }
}

TEST_CASE("Host claims: a turn that is waited for comes when it is free", "[host_claim]") {
    const Limit limit;
    HostBudget claims(limit.options(k_gib));
    std::atomic<bool> waits{false};
    std::atomic<bool> has_it{false};
    std::thread other;
    {
        const auto first = claim_at_once(claims);
        REQUIRE(first);
        other = std::thread([&] {
            const auto second = claim(claims, k_mib, [&] {
                waits = true;
                return go_on();
            });
            has_it = second.has_value();
        });
        while (!waits) std::this_thread::yield();
        CHECK_FALSE(has_it);
    }
    other.join();
    CHECK(has_it);
}

TEST_CASE("Host claims: turns that never come, and files without locks, are done without", "[host_claim]") {
    const Limit limit;
    auto options = limit.options(k_gib);
    options.turn_patience = Milliseconds(50);
    const UniqueFd holder(::open(limit.file.c_str(), O_RDONLY | O_CLOEXEC));
    SECTION("somebody keeps it for ever") {
        REQUIRE(::flock(holder.get(), LOCK_EX | LOCK_NB) == 0);
    }
    SECTION("there is no such file") {
        options.headroom = [&] { return Headroom{k_gib, "a test", limit.scratch.path() / "none"}; };
    }
    SECTION("nothing is known of one") {
        options.headroom = [] { return Headroom{k_gib, "a test"}; };
    }
    HostBudget claims(options);
    const auto start = Clock::now();
    const auto first = claim(claims, k_mib, go_on);
    REQUIRE(first);
    CHECK(seconds_since(start) < 30);
    CHECK(claim_at_once(claims)); // and nobody waits a second time
}

TEST_CASE("Host claims: there are turns again once the one who kept it has let go", "[host_claim]") {
    const Limit limit;
    auto options = limit.options(k_gib);
    options.turn_patience = Milliseconds(0);
    HostBudget claims(options);
    {
        const UniqueFd holder(::open(limit.file.c_str(), O_RDONLY | O_CLOEXEC));
        REQUIRE(::flock(holder.get(), LOCK_EX | LOCK_NB) == 0);
        REQUIRE(claim(claims, k_mib, go_on));
    }
    const auto first = claim_at_once(claims);
    REQUIRE(first);
    CHECK_FALSE(can_be_locked(limit.file));
}

TEST_CASE("Host claims: a shortage does not keep the turn", "[host_claim]") {
    const Limit limit;
    HostBudget claims(limit.options(4 * k_mib));
    CHECK(claim_at_once(claims, 4 * k_mib).error().code == ErrorCode::out_of_host_memory);
    CHECK(can_be_locked(limit.file));
    CHECK(claim_at_once(claims, 3 * k_mib));
}

TEST_CASE("Host claims: processes together keep within the headroom", "[host_claim]") {
    constexpr Bytes k_piece = k_mib;
    constexpr Bytes k_capacity = 40 * k_piece;
    const Limit limit;
    void* const page = ::mmap(nullptr, sizeof(std::atomic<Bytes>), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(page != MAP_FAILED);
    auto& taken = *new (page) std::atomic<Bytes>(0);
    auto options = limit.options(0);
    options.reserve = 0;
    options.headroom = [&] {
        const auto before = taken.load();
        std::this_thread::sleep_for(Milliseconds(2)); // gives others the time to claim the same
        return Headroom{k_capacity - std::min(k_capacity, before), "a test", limit.file};
    };
    std::vector<pid_t> children;
    for (int i = 0; i < 6; ++i) {
        const auto child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            HostBudget claims(options);
            for (;;) {
                const auto made = claim(claims, k_piece, go_on);
                if (!made) ::_exit(0);
                taken += k_piece;
            }
        }
        children.push_back(child);
    }
    for (const auto child : children) ::waitpid(child, nullptr, 0);
    CHECK(taken == k_capacity);
    ::munmap(page, sizeof(std::atomic<Bytes>));
}
