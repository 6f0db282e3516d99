// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Callbacks that are functions of the test. They run on a thread of the agent's, where nothing may be
// checked: what they find is for the test to look at afterwards.

#pragma once

#include "gpu_sleep/gpu_sleep.h"
#include "support/catch.hpp"

namespace gpu_sleep::test {

/// Registered until the end. Either function may be empty.
class Callbacks : NotCopied {
public:
    /// Called with the event, or with nothing; it returns a status, or nothing where it succeeds.
    class Function {
    public:
        Function() = default;
        template <class Body>
        Function(Body body)
            : call_([body](const gpu_sleep_event* event) mutable -> int {
                  const auto run = [&] {
                      if constexpr (std::is_invocable_v<Body, const gpu_sleep_event*>)
                          return body(event);
                      else
                          return body();
                  };
                  if constexpr (std::is_void_v<decltype(run())>)
                      return run(), 0;
                  else
                      return run();
              }) {}
        explicit operator bool() const { return static_cast<bool>(call_); }
        int operator()(const gpu_sleep_event* event) const { return call_(event); }

    private:
        std::function<int(const gpu_sleep_event*)> call_;
    };

    explicit Callbacks(Function before_sleep, Function after_wake = {}, std::uint32_t deadline_ms = 0)
        : before_sleep_(std::move(before_sleep)), after_wake_(std::move(after_wake)) {
        const gpu_sleep_callback before = [](const gpu_sleep_event* event, void* self) {
            return static_cast<Callbacks*>(self)->before_sleep_(event);
        };
        const gpu_sleep_callback after = [](const gpu_sleep_event* event, void* self) {
            return static_cast<Callbacks*>(self)->after_wake_(event);
        };
        REQUIRE(gpu_sleep_add_callback(before_sleep_ ? before : nullptr, after_wake_ ? after : nullptr, this,
                                       deadline_ms, &id_) == GPU_SLEEP_OK);
    }
    ~Callbacks() { gpu_sleep_remove_callback(id_); }

    [[nodiscard]] int id() const noexcept { return id_; }

private:
    Function before_sleep_, after_wake_;
    int id_ = 0;
};

} // namespace gpu_sleep::test
