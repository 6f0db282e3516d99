// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Children of fork() that a test compares itself with, or that hold something until they are killed.

#pragma once

#include "support/catch.hpp"

#include <sys/wait.h>

namespace gpu_sleep::test {

/// Whether `body` is true in a child, which has 20 s for it.
template <class Body>
[[nodiscard]] bool holds_in_child(Body&& body) {
    const auto child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::alarm(20);
        ::_exit(body() ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return status == 0;
}

/// A child that has done `first`, which must be true, once this is made, and lives until it is killed.
class Child : NotCopied {
public:
    template <class First>
    explicit Child(First&& first) {
        std::array<int, 2> ends{};
        REQUIRE(::pipe(ends.data()) == 0);
        pid_ = ::fork();
        REQUIRE(pid_ >= 0);
        if (pid_ == 0) {
            const char done = first() ? 'y' : 'n';
            static_cast<void>(!::write(ends[1], &done, 1));
            for (;;) ::pause();
        }
        ::close(ends[1]); // so that a child that dies is noticed
        char done = 'n';
        CHECK(::read(ends[0], &done, 1) == 1);
        CHECK(done == 'y');
        ::close(ends[0]);
    }
    ~Child() { kill(); }
    void kill() {
        if (pid_ <= 0) return;
        ::kill(pid_, SIGKILL);
        ::waitpid(std::exchange(pid_, 0), nullptr, 0);
    }
    [[nodiscard]] pid_t pid() const noexcept { return pid_; }

private:
    pid_t pid_ = 0;
};

} // namespace gpu_sleep::test
