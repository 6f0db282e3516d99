// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The line for a GPU, which processes stand in. A program of its own: it forks.

#include "client/gpu_queue.hpp"
#include "support/child.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::client;

namespace {

constexpr const char* k_gpu = "GPU-51302d51";

/// A directory with the line of a GPU.
struct Place {
    test::Scratch scratch;
    UniqueFd directory{::open(scratch.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    [[nodiscard]] GpuQueue line() const { return test::need(GpuQueue::open(directory.get(), k_gpu)); }
};

/// Another process in the line, which has done `first`.
struct Other : test::Child {
    Other(const Place& place, const std::function<bool(GpuQueue&)>& first)
        : Child([&] {
              auto& line = *new auto(GpuQueue::open(place.directory.get(), k_gpu)); // the child's to its end
              return line && first(*line);
          }) {}
};

bool takes_lock(GpuQueue& line) {
    return line.lock();
}
bool takes_place(GpuQueue& line) {
    return static_cast<bool>(line.stand());
}

/// Sets `room` aside on `line`, unless too little is left of `free`. Nothing: others are in the way.
std::optional<bool> take_room(GpuQueue& line, Bytes room, Bytes free) {
    const auto of_others = begin_counting({&line});
    if (!of_others) return std::nullopt;
    const bool is_enough = of_others->at(k_gpu) + room <= free;
    const auto is_set = end_counting({&line}, *of_others,
                                     is_enough ? Result<BytesByGpu>(BytesByGpu{{k_gpu, room}})
                                               : make_error(ErrorCode::out_of_device_memory, "too little"));
    if (!is_set) return false;
    return *is_set ? std::optional(true) : std::nullopt;
}
bool takes_most(GpuQueue& line) {
    return take_room(line, 60 * k_gib, 80 * k_gib) == true;
}

} // namespace

TEST_CASE("GPU line: the lock is one process's, and ends with it", "[gpu_line]") {
    const Place place;
    auto line = place.line();
    CHECK(line.holder() == 0);
    Other other(place, takes_lock);
    CHECK_FALSE(line.lock());
    CHECK(line.holder() == other.pid());
    other.kill();
    CHECK(line.lock());
    CHECK(line.lock());
    line.unlock();
    Other next(place, takes_lock);
}

TEST_CASE("GPU line: what cannot be asked about counts as locked", "[gpu_line]") {
    const LockedFile file(UniqueFd(::open("/", O_PATH | O_CLOEXEC))); // no file to lock
    const auto lock = test::need(file.find_lock(LockedFile::Holder::process, 3, 4));
    CHECK(lock.l_start == 3);
    CHECK(lock.l_len == 4);
    CHECK(lock.l_pid == 0);
}

TEST_CASE("GPU line: places are in the order of their taking, and end with their processes", "[gpu_line]") {
    const Place place;
    Other first(place, takes_place);
    Other second(place, takes_place);
    auto line = place.line();
    CHECK(line.before() == 2);
    REQUIRE(line.stand());
    CHECK(line.before() == 2);
    Other later(place, takes_place);
    CHECK(line.before() == 2);
    second.kill();
    CHECK(line.before() == 1);
    first.kill();
    CHECK(line.before() == 0);
    line.leave();
    CHECK_FALSE(line.stands());
    CHECK(line.before() == 1);
    REQUIRE(line.stand()); // at the end
    CHECK(line.before() == 1);
}

TEST_CASE("GPU line: a child of fork() has neither place nor lock", "[gpu_line]") {
    const Place place;
    auto line = place.line();
    REQUIRE(line.stand());
    REQUIRE(line.lock());
    const test::Child child([] { return true; });
    line.leave();
    line.unlock();
    {
        const Other other(place, takes_lock);
        const Other behind(place, [](GpuQueue& its) { return its.before() == 0; });
    }
}

TEST_CASE("GPU line: several set room aside while they live; nobody has the lock meanwhile", "[gpu_line]") {
    const Place place;
    auto line = place.line();
    {
        Other first(place, takes_most);
        CHECK(line.before() == 0); // room is no place
        CHECK_FALSE(line.lock());
        CHECK(take_room(line, 30 * k_gib, 80 * k_gib) == std::nullopt); // it may be there soon
        CHECK(take_room(line, 10 * k_gib, 80 * k_gib) == true);
        const Other second(place,
                           [](GpuQueue& its) { return take_room(its, 9 * k_gib, 80 * k_gib) == true; });
        const Other third(place, [](GpuQueue& its) { return !take_room(its, 2 * k_gib, 80 * k_gib); });
        line.give_room_back();
        first.kill();
        CHECK_FALSE(line.lock()); // of the second
    }
    CHECK(take_room(line, 90 * k_gib, 80 * k_gib) == false); // nobody else has any
    CHECK(line.lock());
    CHECK(takes_most(line)); // who has the lock has it still when the room is given back
    line.give_room_back();
    const Other late(place, [](GpuQueue& its) { return !its.lock() && !begin_counting({&its}); });
    line.unlock();
    const Other last(place, takes_most);
}

TEST_CASE("GPU line: four have room at a time", "[gpu_line]") {
    const Place place;
    auto line = place.line();
    const auto takes_some = [](GpuQueue& its) { return take_room(its, 2 * k_gib, 80 * k_gib) == true; };
    const Other first(place, takes_some);
    const Other second(place, takes_some);
    const Other third(place, takes_some);
    {
        const Other fourth(place, takes_some);
        CHECK(take_room(line, k_gib, 80 * k_gib) == std::nullopt);
    }
    CHECK(take_room(line, k_gib, 80 * k_gib) == true);
}

TEST_CASE("GPU line: while one counts no other does", "[gpu_line]") {
    const Place place;
    auto line = place.line();
    REQUIRE(begin_counting({&line}));
    CHECK(line.holds());
    CHECK_FALSE(line.is_shared()); // by others
    {
        const Other other(place, [](GpuQueue& its) { return !its.lock() && its.is_shared(); });
    }
    {
        const Other other(place, [](GpuQueue& its) { return !begin_counting({&its}); });
    }
    CHECK(end_counting({&line}, {}, make_error(ErrorCode::driver_failed, "not known")).error().code ==
          ErrorCode::driver_failed);
    CHECK_FALSE(line.holds());
    const Other other(place, takes_most);
}

TEST_CASE("GPU line: the file is found missing, and is no link", "[gpu_line]") {
    const Place place;
    auto line = place.line();
    CHECK(line.is_in_place(place.directory.get()));
    const auto file = place.scratch.file(std::string("room-") + k_gpu);
    struct stat status = {};
    REQUIRE(::stat(file.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777U) == 0600U);
    REQUIRE(::unlink(file.c_str()) == 0);
    CHECK_FALSE(line.is_in_place(place.directory.get()));
    REQUIRE(::symlink("/dev/null", file.c_str()) == 0);
    CHECK_FALSE(GpuQueue::open(place.directory.get(), k_gpu));
    CHECK_FALSE(GpuQueue::open(place.directory.get(), ""));
    CHECK_FALSE(GpuQueue::open(place.directory.get(), "../x"));
}

TEST_CASE("GPU line: root makes the file for the owner of the directory", "[gpu_line]") {
    constexpr uid_t k_nobody = 65534;
    if (::geteuid() != 0) return test::skip_without_right("act for another user");
    const Place place;
    REQUIRE(::fchown(place.directory.get(), k_nobody, k_nobody) == 0);
    const auto line = place.line();
    struct stat status = {};
    REQUIRE(::stat(place.scratch.file(std::string("room-") + k_gpu).c_str(), &status) == 0);
    CHECK(status.st_uid == k_nobody);
    CHECK((status.st_mode & 0777U) == 0600U);
}
