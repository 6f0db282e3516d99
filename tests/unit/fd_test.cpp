// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The numbers of descriptors, and whose they are.

#include "base/fd.hpp"

#include "support/catch.hpp"
#include "support/failing_call.hpp"

#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

using namespace gpu_sleep;

namespace {

/// Runs `body` on a thread with descriptors of its own, none of which is standard input, output or error.
/// `body` makes no assertions.
void without_standard_streams(const std::function<void()>& body) {
    bool was_run = false;
    std::thread([&] {
        if (::unshare(CLONE_FILES) != 0) return;
        for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(number);
        was_run = true;
        body();
    }).join();
    REQUIRE(was_run);
}

/// How many of the three numbers are taken.
int taken() {
    int count = 0;
    for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
        if (::fcntl(number, F_GETFD) >= 0) ++count;
    return count;
}

} // namespace

TEST_CASE("Descriptors: a number of the standard streams is given back for one above", "[fd]") {
    const test::Scratch scratch;
    std::array<int, 4> numbers{};
    int flags = -1;
    int left = -1;
    without_standard_streams([&] {
        const UniqueFd made(::open("/dev/null", O_RDWR));
        UniqueFd set;
        set.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        const auto written = open_file(AT_FDCWD, scratch.file("written").c_str(),
                                       O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
        const auto socket = opened([] { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); });
        numbers = {made.get(), set.get(), written.get(), socket.get()};
        flags = ::fcntl(made.get(), F_GETFD);
        left = taken();
    });
    for (const int number : numbers) CHECK(number >= k_first_own_number);
    CHECK(flags == FD_CLOEXEC);
    CHECK(left == 0);
}

TEST_CASE("Descriptors: what can be written to never has a number of the standard streams", "[fd]") {
    std::array<int, 3> during{}; // the number, how writing to 2 fails, and how many are taken
    int before = -1;
    int error = 0;
    without_standard_streams([&] {
        static_cast<void>(opened([&] {
            during[0] = ::open("/dev/null", O_RDWR | O_CLOEXEC);
            during[1] = ::write(STDERR_FILENO, "x", 1) < 0 ? errno : 0;
            during[2] = taken();
            static_cast<void>(opened([] { return -1; })); // of another thread: it ends first
            before = taken();
            return during[0];
        }));
        static_cast<void>(opened([] {
            errno = EAGAIN;
            return -1;
        }));
        error = errno;
    });
    CHECK(during[0] >= k_first_own_number);
    CHECK(during[1] == EBADF);
    CHECK(during[2] == k_first_own_number);
    CHECK(before == k_first_own_number);
    CHECK(error == EAGAIN);
}

TEST_CASE("Descriptors: a file that the program puts among the standard streams stays there", "[fd]") {
    int flags = -1;
    int left = -1;
    without_standard_streams([&] {
        const auto file = opened([] {
            const int made = ::open("/dev/null", O_RDWR | O_CLOEXEC);
            ::dup2(made, STDOUT_FILENO);
            return made;
        });
        flags = ::fcntl(STDOUT_FILENO, F_GETFL) & O_ACCMODE;
        left = taken();
        const UniqueFd one_of_the_path(::open("/", O_PATH | O_CLOEXEC));
    });
    CHECK(flags == O_RDWR);
    CHECK(left == 1);
}

TEST_CASE("Descriptors: a path that the program holds among the standard streams stays there", "[fd]") {
    int left = -1;
    without_standard_streams([&] {
        if (::open("/", O_PATH | O_CLOEXEC) != STDIN_FILENO) return;
        static_cast<void>(opened([] { return -1; }));
        left = taken();
    });
    CHECK(left == 1);
}

TEST_CASE("Descriptors: a child of fork() finds the standard streams as free as they were", "[fd]") {
    int status = -1;
    without_standard_streams([&] {
        static_cast<void>(opened([&] {
            const auto child = ::fork();
            if (child == 0) {
                StandardNumbers::leave_in_child();
                ::_exit(taken());
            }
            ::waitpid(child, &status, 0);
            return -1;
        }));
    });
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("Descriptors: where no number is left, nothing stays open, and errno says why", "[fd]") {
    int number = 0;
    int error = 0;
    int left = -1;
    without_standard_streams([&] {
        while (::open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) { // as many as there may be
        }
        ::close(STDIN_FILENO);
        const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        error = errno;
        number = file.get();
        left = taken();
    });
    CHECK(number == -1);
    CHECK(error == EMFILE);
    CHECK(left == 2);
}

TEST_CASE("Descriptors: one whose identity others share is not taken for another of them", "[fd]") {
    auto held = HeldFile::marked(UniqueFd(::eventfd(0, EFD_CLOEXEC)));
    const UniqueFd another(::eventfd(0, EFD_CLOEXEC));
    REQUIRE(held);
    CHECK(held.is_held());
    if (FileIdentity::of(another.get()) != held.identity())
        return test::skip("here each event has an identity of its own");
    const int number = held.get();
    auto moved = std::move(held);
    CHECK(moved.is_held());
    REQUIRE(::dup2(another.get(), number) == number); // as a program that knows nothing of ours
    CHECK_FALSE(moved.is_held());
    moved = HeldFile();
    CHECK(::close(number) == 0);
}

TEST_CASE("Descriptors: only a number that is closed, or another file's, is not ours", "[fd]") {
    HeldFile file(open_file(AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC));
    const int number = file.get();
    bool is_held = false;
    bool is_held_if_never_known = false;
    bool was_let_go = false;
    const bool was_run = test::with_failing_calls(
        {{SYS_newfstatat, EIO, {}, static_cast<std::uint32_t>(number)}, {SYS_fstat, EIO}}, [&] {
            is_held = file.is_held();
            HeldFile unknown{UniqueFd(file.get())};
            is_held_if_never_known = unknown.is_held();
            unknown = HeldFile();
            was_let_go = ::fcntl(number, F_GETFD) < 0;
        });
    if (!was_run) return;
    CHECK(is_held);
    CHECK(is_held_if_never_known);
    CHECK(was_let_go);
    CHECK_FALSE(file.is_held());
}
