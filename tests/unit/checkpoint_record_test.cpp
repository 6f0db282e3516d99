// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Notes of processes that the driver has checkpointed, and whose turn it is to come back. In a program that
// forks.

#include "control/checkpoint_record.hpp"

#include "client/gpu_queue.hpp"
#include "support/other_user.hpp"

#include <sys/resource.h>

using namespace gpu_sleep::control;
using namespace gpu_sleep::test;

namespace {

constexpr Milliseconds k_moment{50};
const client::BytesByGpu k_needs{{"GPU-51302d52", 5 * k_gib}};

Process process_of(uid_t user) {
    Process process;
    process.pid = ::getpid();
    process.start_time = *start_time_of(::getpid());
    process.uid = user;
    return process;
}

/// Sets room aside on a GPU that has room for one, as long as `lines` live.
bool has_room(const CheckpointRecord& record, std::vector<client::GpuQueue>& lines) {
    lines = client::open_queues(record.directory(), k_needs);
    const auto of_others = client::begin_counting({&lines.front()});
    if (!of_others) return false;
    const auto room = of_others->begin()->second == 0
                          ? Result<client::BytesByGpu>(k_needs)
                          : make_error(ErrorCode::out_of_device_memory, "another has it");
    const auto done = client::end_counting({&lines.front()}, *of_others, room);
    return done && *done;
}

/// What processes of this user leave in /tmp.
struct OwnersPlace : NotCopied {
    std::string path = agent_directory(k_one_user);
    OwnersPlace() { std::filesystem::remove_all(path); }
    ~OwnersPlace() { std::filesystem::remove_all(path); }
};

} // namespace

TEST_CASE("Checkpoint record: root and the owner have one record, and one line", "[checkpoint_record]") {
    if (::geteuid() != 0) return skip_without_right("act as another user");
    const OwnersPlace place;
    const auto process = process_of(k_one_user);
    auto other = process;
    other.pid = 1;
    const auto is_late = [](const auto& done) { return !done && done.error().code == ErrorCode::timed_out; };
    const auto comes_back = [&] {
        auto record = CheckpointRecord::open(other, k_moment);
        std::vector<client::GpuQueue> lines;
        return record && has_room(*record, lines);
    };
    {
        auto record = need(CheckpointRecord::open(process, k_moment));
        REQUIRE(record.write({k_needs}));
        std::vector<client::GpuQueue> lines;
        REQUIRE(has_room(record, lines));
        CHECK(as_user(k_one_user, [&] { return is_late(CheckpointRecord::open(process, k_moment)); }));
        CHECK(as_user(k_one_user, [&] { return CheckpointRecord::open(other, k_moment) && !comes_back(); }));
    }
    CHECK(as_user(k_one_user, comes_back));
    CHECK(recorded_processes().contains(process.pid));
    CHECK(has_record(process));
    auto another = process;
    another.uid = k_other_user;
    CHECK_FALSE(has_record(another));
    CHECK(recorded_of(process).needs == k_needs);
    CHECK_FALSE(recorded_of(process).is_lost);
    CHECK(as_user(k_one_user, [&] {
        const auto record = CheckpointRecord::open(process, k_moment);
        return record && record->read().needs == k_needs && record->write({.is_lost = true});
    }));
    CHECK(recorded_of(process).is_lost);
    CHECK_FALSE(as_user(k_other_user, [&] { return CheckpointRecord::open(process, k_moment).has_value(); }));
    CHECK_FALSE(as_user(k_other_user, [&] { return recorded_processes().contains(process.pid); }));
}

TEST_CASE("Checkpoint record: what cannot be written changes or leaves nothing", "[checkpoint_record]") {
    const auto record = need(CheckpointRecord::open(process_of(::geteuid()), k_moment));
    REQUIRE(record.write({k_needs, true}));
    REQUIRE(record.write({k_needs})); // shorter
    CHECK_FALSE(record.read().is_lost);
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
    for (const auto most : {rlim_t{0}, rlim_t{24}}) { // the second amid a line
        const rlimit limit{most, before.rlim_max};
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
        const auto written = record.write({.is_lost = true});
        ::setrlimit(RLIMIT_FSIZE, &before);
        CHECK_FALSE(written);
        CHECK(record.read().needs == (most == 0 ? k_needs : client::BytesByGpu()));
    }
    std::signal(SIGXFSZ, handler);
    record.remove();
}

TEST_CASE("Checkpoint record: root uses nothing that the owner has put in its place", "[checkpoint_record]") {
    if (::geteuid() != 0) return skip_without_right("act as another user");
    const OwnersPlace place;
    const auto process = process_of(k_one_user);
    REQUIRE(as_user(k_one_user, [&] { return ::mkdir(place.path.c_str(), S_IRWXU) == 0; }));
    const auto kept = place.path + "-kept"; // in the same file system
    std::ofstream(kept) << "as it was";
    const auto name =
        fmt::format("{}/{}-{}-{}.checkpoint", place.path, process.pid, process.start_time, pid_namespace());
    SECTION("another name of a file") {
        REQUIRE(::link(kept.c_str(), name.c_str()) == 0);
    }
    SECTION("a link to it") {
        REQUIRE(::symlink(kept.c_str(), name.c_str()) == 0);
    }
    SECTION("a pipe, at which nobody waits") {
        REQUIRE(::mkfifo(name.c_str(), S_IRWXU) == 0);
        REQUIRE(::chown(name.c_str(), k_one_user, k_one_user) == 0);
    }
    const auto refused = CheckpointRecord::open(process, k_moment);
    CHECK((!refused && refused.error().code == ErrorCode::io_failed));
    struct stat status = {};
    CHECK((::stat(kept.c_str(), &status) == 0 && status.st_uid == 0 && status.st_size == 9));
    std::filesystem::remove(kept);
}
