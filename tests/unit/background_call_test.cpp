// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Calls beside a poll loop: their end, their result, and those that nobody waits for.

#include "base/threads.hpp"

#include "base/units.hpp"
#include "support/catch.hpp"

#include <poll.h>

#include <stdexcept>

using namespace gpu_sleep;

namespace {

bool ends(const BackgroundCall& call, int milliseconds) {
    pollfd polled{call.end_fd(), POLLIN, 0};
    return ::poll(&polled, 1, milliseconds) == 1;
}

} // namespace

TEST_CASE("Background call: its end can be polled for, and it has a result then", "[background_call]") {
    std::promise<void> go_on;
    const auto call = BackgroundCall::start([&]() -> Result<void> {
        go_on.get_future().wait();
        return make_error(ErrorCode::driver_failed, "as it was to");
    });
    REQUIRE(call);
    CHECK_FALSE(ends(*call, 50));
    CHECK_FALSE(call->result());
    CHECK(BackgroundCall::is_any_under_way());
    go_on.set_value();
    REQUIRE(ends(*call, 10'000));
    CHECK_FALSE(BackgroundCall::is_any_under_way());
    CHECK(test::need(call->result()).error().message == "as it was to");
}

TEST_CASE("Background call: an exception is an error", "[background_call]") {
    const auto call = BackgroundCall::start([]() -> Result<void> { throw std::runtime_error("no"); });
    REQUIRE(call);
    REQUIRE(ends(*call, 10'000));
    CHECK(call->result()->error().code == ErrorCode::internal);
}

TEST_CASE("Background call: one that nobody waits for goes on by itself", "[background_call]") {
    std::promise<void> go_on, has_gone_on;
    {
        const auto call = BackgroundCall::start([&]() -> Result<void> {
            go_on.get_future().wait();
            has_gone_on.set_value();
            return {};
        });
        REQUIRE(call);
    }
    CHECK(BackgroundCall::is_any_under_way());
    go_on.set_value();
    has_gone_on.get_future().wait();
    const auto deadline = Clock::now() + Milliseconds(10'000);
    while (BackgroundCall::is_any_under_way() && Clock::now() < deadline) std::this_thread::yield();
    CHECK_FALSE(BackgroundCall::is_any_under_way());
}
