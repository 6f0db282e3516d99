// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The account of host memory: sums over processes, and what becomes of the part of one that ends.

#include "store/host_account.hpp"

#include "support/child.hpp"
#include "support/descriptors.hpp"
#include "support/overlay.hpp"
#include "support/small_disk.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::store;
using namespace gpu_sleep::test;

namespace {

/// Another process, which takes `bytes`.
struct Taker : Child {
    Taker(const std::string& directory, Bytes bytes)
        : Child([&] { return (new HostAccount(directory))->take(bytes).has_value(); }) {}
};

/// What is left of `limit` to somebody new.
Bytes one_more_sees(const std::string& directory, Bytes limit) {
    HostAccount account(directory);
    account.limit(limit);
    return account.room()->bytes;
}

template <class Condition>
bool becomes_false(Condition&& is_so) {
    for (int i = 0; i < 500 && is_so(); ++i) std::this_thread::sleep_for(Milliseconds(10));
    return !is_so();
}

} // namespace

TEST_CASE("Host account: without a limit anything may be taken, and is counted as well", "[host_account]") {
    const Scratch scratch;
    HostAccount one(scratch.path());
    HostAccount other(scratch.path());
    CHECK_FALSE(one.room());
    CHECK(one.take(1000));
    other.limit(1500);
    CHECK(other.room()->bytes == 500);
    CHECK_FALSE(other.take(501));
    CHECK(other.take(500));
    CHECK(other.room()->bytes == 0);
    CHECK_FALSE(other.room()->is_exceeded);
    other.limit(1499);
    CHECK(other.room()->is_exceeded);
    one.give(1000);
    CHECK(other.room()->bytes == 999);
}

TEST_CASE("Host account: a refusal says who holds what, and takes nothing", "[host_account]") {
    const Scratch scratch;
    HostAccount account(scratch.path());
    account.limit(3 * k_gib);
    REQUIRE(account.take(2 * k_gib));
    const auto refused = account.take(2 * k_gib);
    CHECK(refused.error().code == ErrorCode::out_of_host_memory);
    CHECK(refused.error().message == "not enough host memory to keep the contents: 2.00 GiB more are needed, "
                                     "and this user's processes already hold "
                                     "2.00 GiB of the 3.00 GiB allowed to them");
    CHECK(account.room()->bytes == k_gib);
}

TEST_CASE("Host account: the part of a process that was killed does not count", "[host_account]") {
    const Scratch scratch;
    std::optional<Overlay> overlay;
    if (GENERATE(false, true) && !overlay.emplace(scratch.path()))
        return skip("no overlay can be mounted here");
    HostAccount account(scratch.path());
    account.limit(100);
    {
        Taker first(scratch.path(), 30);
        Taker second(scratch.path(), 20);
        CHECK(account.room()->bytes == 50);
        first.kill();
        CHECK(account.room()->bytes == 80);
        Taker third(scratch.path(), 5); // in the place of the first
        CHECK(account.room()->bytes == 75);
        third.kill();
        HostAccount refused(scratch.path()); // in the same place
        refused.limit(10);
        CHECK_FALSE(refused.take(20));
        CHECK(account.room()->bytes == 80);
    }
    CHECK(account.room()->bytes == 100);
}

TEST_CASE("Host account: a child of fork() has none of its parent's part, nor touches it", "[host_account]") {
    const Scratch scratch;
    HostAccount account(scratch.path());
    account.limit(100);
    REQUIRE(account.take(40));
    CHECK(holds_in_child([&] {
        account.give(40);
        return account.room()->bytes == 60 && account.take(10).has_value() && account.room()->bytes == 50;
    }));
    CHECK(account.room()->bytes == 60);
}

TEST_CASE("Host account: a child of fork() does not wait for what its parent is amid", "[host_account]") {
    const Scratch scratch;
    HostAccount account(scratch.path());
    REQUIRE(account.take(1));
    const LockedFile file(UniqueFd(::open(scratch.file("host-memory").c_str(), O_RDWR | O_CLOEXEC)));
    constexpr off_t k_turn_at = off_t{1} << 40;
    REQUIRE(file.lock(LockedFile::Holder::descriptor, k_turn_at, 1) == LockedFile::Lock::taken);
    bool is_taken = false;
    std::jthread taking([&] { is_taken = account.take(1).has_value(); });
    std::this_thread::sleep_for(Milliseconds(50)); // it waits for the turn
    const Child child([&] {
        ::alarm(20);
        account.begin_anew_in_child();
        account.limit(100);
        return true;
    });
    file.unlock(LockedFile::Holder::descriptor, k_turn_at, 1);
    taking.join();
    CHECK(is_taken);
    CHECK_FALSE(file.find_lock(LockedFile::Holder::descriptor, k_turn_at, 1)); // nor does the child keep it
}

TEST_CASE("Host account: a descriptor closed on an overlay counts once it takes more", "[host_account]") {
    const Scratch scratch;
    const Overlay overlay(scratch.path());
    if (!overlay) return skip("no overlay can be mounted here");
    const auto close_all = [&] {
        for (const int number : descriptors_in(scratch.path())) ::close(number);
    };
    HostAccount account(scratch.path());
    REQUIRE(account.take(10));
    CHECK(one_more_sees(scratch.path(), 100) == 90);
    close_all();
    CHECK(one_more_sees(scratch.path(), 100) == 100);
    const UniqueFd programs(::open("/dev/null", O_RDONLY | O_CLOEXEC)); // the account's next gets that number
    REQUIRE(account.take(20));
    CHECK(one_more_sees(scratch.path(), 100) == 70);
    close_all();
    const Taker other(scratch.path(), 7); // in its place
    account.give(5);
    CHECK(one_more_sees(scratch.path(), 100) == 93);
}

TEST_CASE("Host account: a file that was removed is begun anew", "[host_account]") {
    const Scratch scratch;
    HostAccount one(scratch.path());
    HostAccount other(scratch.path());
    REQUIRE(one.take(10));
    other.limit(100);
    CHECK(other.room()->bytes == 90);
    for (const auto& file : std::filesystem::directory_iterator(scratch.path()))
        std::filesystem::remove(file);
    CHECK(other.room()->bytes == 100);
    REQUIRE(other.take(5)); // where the first one was
    one.give(1);
    one.note_spare(1);
    CHECK(one_more_sees(scratch.path(), 100) == 95);
    one.limit(100);
    CHECK(one.room()->bytes == 86);
    CHECK(one_more_sees(scratch.path(), 100) == 95);
    one.stay_counted();
    CHECK(one_more_sees(scratch.path(), 100) == 86);
    REQUIRE(one.take(10));
    CHECK(other.room()->bytes == 76);
}

TEST_CASE("Host account: within a limit nothing is taken that others cannot see", "[host_account]") {
    const SmallDisk disk("size=64k");
    if (!disk) return skip_without_right("mount a file system");
    HostAccount limited(disk.path());
    HostAccount unlimited(disk.path());
    limited.limit(100);
    std::ofstream(disk.path() / "filler") << std::string(64 * k_kib, 'x');
    const auto refused = limited.take(10);
    CHECK(error_of(refused).code == ErrorCode::out_of_host_memory);
    CHECK_THAT(refused.error().message, mentions("host-memory") && mentions("No space left on device"));
    CHECK(limited.room()->bytes == 100);
    CHECK(unlimited.take(10));
    std::filesystem::remove(disk.path() / "filler");
    CHECK(limited.take(10));
    CHECK(one_more_sees(disk.path(), 100) == 90);
}

TEST_CASE("Host account: where there is no private directory, a process counts itself", "[host_account]") {
    const Scratch scratch;
    HostAccount nowhere(scratch.file("none"));
    nowhere.limit(10);
    CHECK(nowhere.take(6));
    CHECK_FALSE(nowhere.take(6));
    std::filesystem::permissions(scratch.path(), std::filesystem::perms::all);
    HostAccount open(scratch.path());
    open.limit(10);
    CHECK(open.take(6));
    CHECK(std::filesystem::is_empty(scratch.path())); // nothing is written where others may be
}

TEST_CASE("Host account: who is short has others give back what they can do without", "[host_account]") {
    const Scratch scratch;
    HostAccount short_of(scratch.path());
    HostAccount retainer(scratch.path());
    short_of.limit(100);
    REQUIRE(retainer.take(80));
    int looks = 0;
    const auto look = [&]() -> Result<void> {
        if (++looks == 1) CHECK(retainer.is_wanted());
        if (looks == 2) retainer.give(30);
        return {};
    };
    CHECK(short_of.await(50, Milliseconds(10'000), look));
    CHECK(looks == 0); // nobody can do without anything
    CHECK_FALSE(retainer.is_wanted());
    retainer.note_spare(30);
    CHECK(short_of.room()->spare == 30);
    CHECK(short_of.await(20, Milliseconds(10'000), look));
    CHECK(looks == 0); // there is room
    CHECK(short_of.await(50, Milliseconds(10'000), look));
    CHECK(looks == 2);
    CHECK(short_of.take(50));
    CHECK(short_of.await(50, Milliseconds(50), look)); // in vain
    CHECK(looks > 2);
    const auto withdraw = []() -> Result<void> { return make_error(ErrorCode::cancelled, "withdrawn"); };
    CHECK(short_of.await(50, Milliseconds(10'000), withdraw).error().code == ErrorCode::cancelled);
    CHECK(becomes_false([&] { return retainer.is_wanted(); }));
    retainer.limit(99);
    CHECK(retainer.is_wanted()); // they hold 100
}

TEST_CASE("Host account: shares go along with what they are for", "[host_account]") {
    const Scratch scratch;
    HostAccount account(scratch.path());
    account.limit(100);
    HostShare one;
    REQUIRE(one.take(account, 60));
    {
        HostShare other;
        other.absorb(one, 40);
        CHECK(one.bytes() == 20);
        CHECK(account.room()->bytes == 40);
        other.give(10);
        CHECK(account.room()->bytes == 50);
        CHECK_FALSE(other.take(account, 51));
    }
    CHECK(account.room()->bytes == 80);
    one.give(1000);
    CHECK(account.room()->bytes == 100);
}
