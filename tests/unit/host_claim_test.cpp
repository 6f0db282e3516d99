// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Claims near a limit that several share, and away from it.

#include "store/host_memory.hpp"

#include "base/fd.hpp"
#include "support/result_printing.hpp"

#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <new>

using namespace gpu_sleep;
using store::ClaimOptions;
using store::Headroom;
using store::HostClaims;

namespace {

/// A limit that several share, and the file that all of them see.
struct Limit {
    Limit() { std::ofstream(file) << "max\n"; }
    [[nodiscard]] ClaimOptions options(Bytes headroom) const {
        ClaimOptions made;
        made.reserve = k_mib;
        made.patience = Milliseconds(0);
        made.turn_patience = std::chrono::hours(1);
        made.headroom = [shared = file, headroom] { return Headroom{headroom, "a test", shared}; };
        return made;
    }
    test::Scratch scratch;
    std::string file = scratch.file("memory.max");
};

std::string some() {
    return "some";
}

/// Makes a claim that gives up as soon as it would have to wait.
auto claim_at_once(HostClaims& claims, Bytes bytes = k_mib) {
    return claims.make(bytes, some, [](Milliseconds) { return true; });
}

bool can_be_locked(const std::string& file) {
    const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
    return ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
}

} // namespace

TEST_CASE("Host claims: near the limit there is one at a time, and away from it any number", "[host_claim]") {
    const Limit limit;
    HostClaims near(limit.options(k_gib));
    HostClaims neighbour(limit.options(k_gib));
    HostClaims away(limit.options(2 * HostClaims::k_turn_threshold));
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

TEST_CASE("Host claims: with plenty of headroom more is claimed ahead, and counts until it is taken",
          "[host_claim]") {
    const Limit limit;
    const auto claim = [](HostClaims& claims) {
        return claims.make(
            k_mib, some, [](Milliseconds) { return true; }, 3 * k_mib);
    };
    HostClaims plenty(limit.options(HostClaims::k_plenty + 2 * k_mib)); // the claim, and the reserve
    HostClaims enough(limit.options(HostClaims::k_plenty + 2 * k_mib - 1));
    CHECK(claim(enough)->bytes() == k_mib);
    auto ahead = claim(plenty);
    REQUIRE(ahead);
    CHECK(ahead->bytes() == 4 * k_mib);
    HostClaims exact(limit.options(5 * k_mib)); // beside what is claimed there is room for the reserve
    CHECK(claim_at_once(exact).error().code == ErrorCode::out_of_host_memory);
    ahead->note_taken(k_mib);
    CHECK(ahead->bytes() == 3 * k_mib);
    CHECK(claim_at_once(exact));
}

TEST_CASE("Host claims: a turn that is waited for comes when it is free", "[host_claim]") {
    const Limit limit;
    HostClaims claims(limit.options(k_gib));
    std::atomic<bool> waits{false};
    std::atomic<bool> has_it{false};
    std::thread other;
    {
        const auto first = claim_at_once(claims);
        REQUIRE(first);
        other = std::thread([&] {
            const auto second = claims.make(k_mib, some, [&](Milliseconds time) {
                waits = true;
                std::this_thread::sleep_for(time);
                return false;
            });
            has_it = second.has_value();
        });
        while (!waits) std::this_thread::yield();
        CHECK_FALSE(has_it);
    }
    other.join();
    CHECK(has_it);
}

TEST_CASE("Host claims: a turn that never comes, and a file that cannot be locked, are done without",
          "[host_claim]") {
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
    HostClaims claims(options);
    const auto start = Clock::now();
    const auto first = claims.make(k_mib, some, [](Milliseconds time) {
        std::this_thread::sleep_for(time);
        return false;
    });
    REQUIRE(first);
    CHECK(seconds_since(start) < 30);
    CHECK(claim_at_once(claims)); // and nobody waits a second time
}

TEST_CASE("Host claims: a shortage does not keep the turn", "[host_claim]") {
    const Limit limit;
    HostClaims claims(limit.options(4 * k_mib));
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
            HostClaims claims(options);
            for (;;) {
                const auto claim = claims.make(k_piece, some, [](Milliseconds time) {
                    std::this_thread::sleep_for(time);
                    return false;
                });
                if (!claim) ::_exit(0);
                taken += k_piece;
            }
        }
        children.push_back(child);
    }
    for (const auto child : children) ::waitpid(child, nullptr, 0);
    CHECK(taken == k_capacity);
    ::munmap(page, sizeof(std::atomic<Bytes>));
}
