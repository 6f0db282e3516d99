// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Naming a tracer: on a kernel that is made up, and on the machine's own where that has Yama with scope 1.

#include "common/named_tracer.hpp"

#include "base/files.hpp"
#include "support/child.hpp"

#include <sys/prctl.h>
#include <sys/ptrace.h>

namespace gpu_sleep::agent {
namespace {

std::vector<pid_t> calls; ///< whom the made-up kernel was told of
int failure = 0;          ///< errno of its next answers, or 0

int note(pid_t tracer) noexcept {
    calls.push_back(tracer);
    errno = failure;
    return failure == 0 ? 0 : -1;
}

/// A kernel whose scope is `text`; without Yama if that is empty.
class MadeUpKernel {
public:
    explicit MadeUpKernel(const std::string& text) {
        calls.clear();
        failure = 0;
        if (!text.empty()) std::ofstream(scratch_.file("scope")) << text;
    }
    [[nodiscard]] NamedTracer::Kernel kernel() const { return {scratch_.file("scope"), note}; }

private:
    test::Scratch scratch_;
};

/// Whether a process that is no ancestor of `pid`, and has no privileges, may trace it.
bool may_be_traced(pid_t pid, uid_t user) {
    const auto tracer = ::fork();
    if (tracer == 0) {
        if (::geteuid() == 0 && ::setuid(user) != 0) ::_exit(2);
        ::_exit(::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0 ? 0 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(tracer, &status, 0) == tracer);
    REQUIRE(WIFEXITED(status));
    REQUIRE(WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status) == 0;
}

} // namespace

TEST_CASE("Named tracer: named for as long as it is there", "[named_tracer]") {
    const MadeUpKernel made_up("1\n");
    {
        auto tracer = test::need(NamedTracer::name(4242, made_up.kernel()));
        CHECK(tracer.is_set());
        CHECK(calls == std::vector<pid_t>{4242});
        NamedTracer moved(std::move(tracer));
        CHECK_FALSE(tracer.is_set());
        CHECK(moved.is_set());
        NamedTracer assigned;
        CHECK_FALSE(assigned.is_set());
        assigned = std::move(moved);
        auto& same = assigned;
        assigned = std::move(same);
        CHECK(assigned.is_set());
        CHECK(calls.size() == 1);
    }
    CHECK(calls == std::vector<pid_t>{4242, 0});
}

TEST_CASE("Named tracer: nothing is changed where that would change nothing", "[named_tracer]") {
    for (const std::string scope : {"", "0\n", "2\n", "3\n"}) {
        const MadeUpKernel made_up(scope);
        for (const pid_t tracer : {4242, 0}) {
            CHECK_FALSE(test::need(NamedTracer::name(tracer, made_up.kernel())).is_set());
        }
        CHECK(calls.empty());
    }
}

TEST_CASE("Named tracer: who cannot be named is refused, and nothing is taken back", "[named_tracer]") {
    const MadeUpKernel made_up("1\n");
    const auto code_of = [&](pid_t tracer) {
        return test::error_of(NamedTracer::name(tracer, made_up.kernel())).code;
    };
    CHECK(code_of(0) == ErrorCode::not_permitted);
    CHECK(code_of(-1) == ErrorCode::not_permitted); // to the kernel that is everybody
    CHECK(calls.empty());
    failure = EINVAL;
    CHECK(code_of(4242) == ErrorCode::no_process);
    failure = EPERM;
    CHECK(code_of(4242) == ErrorCode::io_failed);
    CHECK(calls.size() == 2);
}

TEST_CASE("Named tracer: the kernel lets it trace, and afterwards no longer", "[named_tracer]") {
    constexpr uid_t k_nobody = 65'534;
    if (read_small_file("/proc/sys/kernel/yama/ptrace_scope").value_or("") != "1\n")
        return test::skip("Yama with scope 1 is not here");
    for (const bool is_named : {false, true}) {
        const auto parent = ::getpid();
        const test::Child traced([&] {
            if (::geteuid() == 0 && ::setuid(k_nobody) != 0) return false;
            ::prctl(PR_SET_DUMPABLE, 1UL);
            return !is_named || (new auto(NamedTracer::name(parent)))->has_value(); // to its end
        });
        CHECK(may_be_traced(traced.pid(), k_nobody) == is_named); // by a child of who was named
    }
}

} // namespace gpu_sleep::agent
