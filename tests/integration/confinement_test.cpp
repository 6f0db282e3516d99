// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Programs that shut themselves in, or are shut in: another root, another /tmp, names taken by strangers.

#include "empty_tmp.hpp"
#include "place.hpp"
#include "support/other_user.hpp"

#include <sys/syscall.h>

using namespace gpu_sleep::test;

namespace {

namespace fs = std::filesystem;

/// The host as root of a user namespace of its own, where it may do what it is told.
Launch as_root_of_namespace() {
    return {{"unshare", "--user", "--map-root-user", command_file("integration_host")}};
}

bool may_be_root() {
    if (run({{"unshare", "--user", "--map-root-user", "true"}}).status == 0) return true;
    skip_without_right("make namespaces");
    return false;
}

void check_cycle(Host& host) {
    host.sleep();
    host.wake_whole();
}

std::size_t agents_directories(const Host& host) {
    std::size_t found = 0;
    for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/root/tmp", host.pid())))
        found += entry.path().filename().native().starts_with("gpu-sleep");
    return found;
}

} // namespace

TEST_CASE("Confinement: directories' names that others took keep nobody from being found", "[confinement]") {
    if (!has_empty_tmp()) return;
    Host host(with_empty_tmp("mkdir -m 755 /tmp/gpu-sleep-0 && for i in 1 2 3 4 5 6 7 8 9; do "
                             "mkdir -m 755 /tmp/gpu-sleep-0.$i; done && exec \"$0\""));
    host.tell("alloc weights 4194304 0");
    check_cycle(host);
    CHECK(agents_directories(host) == 11);

    LoadedHost other(Launch{{"nsenter", "--target", std::to_string(host.pid()), "--user", "--mount",
                             "--preserve-credentials", command_file("integration_host")}});
    check_cycle(other);
    CHECK(agents_directories(host) == 11); // they share it
}

TEST_CASE("Confinement: a program that takes another root while it sleeps is woken", "[confinement]") {
    if (!may_be_root()) return;
    const Scratch jail;
    fs::permissions(jail.path(), fs::perms::owner_all);
    if (GENERATE(false, true)) fs::create_directory(jail.path() / "tmp");
    LoadedHost host(as_root_of_namespace());
    REQUIRE(host.command("gpu-sleep").status == 0);
    host.tell("chroot " + jail.path().string());
    CHECK(host.state() == "asleep");
    host.wake();
    for (const int delay : {0, 2'500}) {
        pause_for(Milliseconds(delay)); // by the second time the agent has looked after its socket
        // Beyond limits that it cannot see the kernel would kill it.
        const auto refused = ended(host.command("gpu-sleep"), 8);
        CHECK_THAT(refused.err, mentions("limits that cannot be read: No such file or directory"));
        REQUIRE(host.command("gpu-sleep", {"--store", "file", "--dir", "/sleep"}).status == 0);
        host.wake_whole();
    }
}

TEST_CASE("Confinement: files are named in the root that the program has by then", "[confinement]") {
    if (!may_be_root()) return;
    const Scratch jail;
    const Place before;
    LoadedHost host(as_root_of_namespace());
    REQUIRE(host.command("gpu-sleep", before.store()).status == 0);
    host.tell("chroot " + jail.path().string());
    host.wake_whole();
    CHECK(before.files().empty());

    REQUIRE(host.command("gpu-sleep", {"--store", "file", "--dir", "/sleep"}).status == 0);
    CHECK_FALSE(fs::is_empty(jail.path() / "sleep"));
    host.wake_whole();
    CHECK(fs::is_empty(jail.path() / "sleep"));
}

TEST_CASE("Confinement: a directory that is not writable is not taken for another's", "[confinement]") {
    if (!has_empty_tmp()) return;
    LoadedHost host(with_empty_tmp("mkdir /tmp/ro && mount -t tmpfs -o ro none /tmp/ro && exec \"$0\""));
    for (const std::string directory : {"/tmp/ro", "/tmp/ro/sleep"}) {
        const auto refused = ended(host.command("gpu-sleep", {"--store", "file", "--dir", directory}), 5);
        CHECK_THAT(refused.err, mentions(directory));
        CHECK_THAT(refused.err, !mentions("owner"));
    }
    CHECK_THAT(host.command("gpu-sleep", {"--store", "file", "--dir", "/tmp/ro/sleep"}).err,
               mentions("Read-only file system"));
    check_cycle(host);
}

TEST_CASE("Confinement: a program that becomes another user while in files is woken", "[confinement]") {
    if (::geteuid() != 0) return skip_without_right("become another user");
    const Place place;
    LoadedHost host;
    REQUIRE(host.command("gpu-sleep", place.store()).status == 0);
    REQUIRE(place.files().size() == 1);
    host.tell(fmt::format("become {} {}", k_one_user, k_one_user));
    CHECK(becomes_true([&] { return host.command("gpu-ps").status == 0; })); // as that user's
    const auto woken = ended(host.command("gpu-wake"));
    CHECK(host.tell("check_all") == "intact");
    REQUIRE(place.files().size() == 1);
    CHECK_THAT(woken.out, mentions(place.files().front().string() + " is empty but stays"));
    CHECK(becomes_true([&] { return fs::file_size(place.files().front()) == 0; }));

    CHECK(becomes_true([&] { // once the process has closed it
        return run({{command_file("gpu-snapshot"), "clean", place.path()}}).status == 0 &&
               place.files().empty();
    }));
    check_cycle(host);
}

TEST_CASE("Confinement: a first thread with another /tmp while it sleeps is woken", "[confinement]") {
    if (!may_be_root()) return;
    LoadedHost host(as_root_of_namespace());
    REQUIRE(host.command("gpu-sleep").status == 0);
    host.tell("own_tmp");
    CHECK(host.command("gpu-wake").status == 0);
    pause_for(Milliseconds(2'500));
    check_cycle(host);
}

TEST_CASE("Confinement: a filter that kills for calls that are not needed kills nobody", "[confinement]") {
    const Place place;
    Host host;
    for (const auto call : {SYS_unshare, SYS_io_uring_setup}) host.tell(fmt::format("forbid {} 0", call));
    host.tell("alloc weights 4194304 0");
    check_cycle(host);
    REQUIRE(host.command("gpu-sleep", place.store()).status == 0);
    host.wake_whole();
}

TEST_CASE("Confinement: a filter of calls leaves the program awake or asleep, and whole", "[confinement]") {
    const auto call = GENERATE(SYS_membarrier, SYS_mkdirat, SYS_unlinkat, SYS_renameat2, SYS_flock,
                               SYS_ftruncate, SYS_fsync, SYS_getrandom, SYS_madvise, SYS_pwrite64);
    const bool in_files = GENERATE(false, true);
    INFO("call " << call << (in_files ? ", in files" : ""));
    const Place place;
    LoadedHost host;
    host.tell(fmt::format("forbid {} {}", call, EPERM));
    const auto slept = host.command("gpu-sleep", in_files ? place.store() : Arguments());
    INFO(slept.err);
    const bool is_asleep = slept.status == 0;
    CHECK((slept.err.empty() || !is_asleep));
    CHECK(host.tell("asleep") == (is_asleep ? "4194304" : "0"));
    const bool is_awake = !is_asleep || host.command("gpu-wake").status == 0;
    CHECK(host.tell("asleep") == (is_awake ? "0" : "4194304"));
    if (is_awake)
        host.check_whole();
    else
        CHECK(host.tell("faults") == "0");
}
