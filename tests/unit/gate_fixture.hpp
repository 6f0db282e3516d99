// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The gate under test, and threads that touch it or hold a pass while a test looks on.

#pragma once

#include "gate/gate.hpp"
#include "support/catch.hpp"

namespace gpu_sleep::test {

inline constexpr Milliseconds k_patience{20'000};
inline constexpr Milliseconds k_moment{50}; ///< time enough for a thread to do what it must not

inline gate::Gate& the_gate() {
    return gate::Gate::instance();
}

inline bool goes_on() {
    return true;
}

inline Clock::time_point after(Milliseconds time) {
    return Clock::now() + time;
}

template <class Condition>
bool becomes_true(Condition&& is_so) {
    for (const auto deadline = after(k_patience); !is_so(); std::this_thread::sleep_for(Milliseconds(1)))
        if (Clock::now() >= deadline) return false;
    return true;
}

/// Each test begins and ends with the gate open.
class OpenGate : NotCopied {
public:
    OpenGate() { the_gate().open(); }
    ~OpenGate() {
        the_gate().set_waker({});
        the_gate().open();
    }
};

/// Addresses that a touch says it names.
class Names final : public gate::Inspector {
public:
    explicit Names(std::vector<gate::Named::Span> spans, bool known = true)
        : named_{std::move(spans), known} {}
    [[nodiscard]] gate::Named inspect() const override { return named_; }

private:
    gate::Named named_;
};

/// A thread that touches once, and stays inside until it is told to leave.
class Toucher : NotCopied {
public:
    enum class At : int { gate, inside, refused, gone };

    explicit Toucher(gate::Touch touch = gate::Touch::submits, const gate::Inspector* inspector = nullptr)
        : Toucher([touch, inspector](const Stay& stay) {
              const gate::Passage passage(touch, "cuTouch", inspector);
              return passage.admitted() && stay();
          }) {}
    ~Toucher() {
        if (!thread_.joinable()) return;
        may_leave_ = true;
        the_gate().open(); // a test may end with it closed
        thread_.join();
    }

    [[nodiscard]] bool comes_to(At at) const {
        return becomes_true([this, at] { return at_ == at; });
    }
    [[nodiscard]] bool is_inside() const { return at_ == At::inside; }
    [[nodiscard]] bool gets_in() const { return comes_to(At::inside); }
    [[nodiscard]] bool is_refused() const { return comes_to(At::refused); }
    [[nodiscard]] bool stays_out() const {
        std::this_thread::sleep_for(k_moment);
        return at_ == At::gate;
    }
    void leave() {
        may_leave_ = true;
        thread_.join();
        at_ = At::gone;
    }
    void let_leave() { may_leave_ = true; }

protected:
    /// Returns true once the thread is to leave.
    using Stay = std::function<bool()>;
    /// `call` stays where it is inside; it is refused where it returns false.
    explicit Toucher(std::function<bool(const Stay&)> call)
        : thread_([this, call = std::move(call)] {
              const auto stay = [this] {
                  at_ = At::inside;
                  while (!may_leave_) std::this_thread::sleep_for(Milliseconds(1));
                  return true;
              };
              if (!call(stay)) at_ = At::refused;
          }) {}

private:
    std::atomic<At> at_{At::gate};
    std::atomic<bool> may_leave_{false};
    std::thread thread_;
};

inline bool waits(std::uint64_t count) {
    return becomes_true([=] { return the_gate().waiting().held_now == count; });
}

/// One that is held, beside those that are held already.
class HeldToucher : public Toucher {
public:
    explicit HeldToucher(gate::Touch touch = gate::Touch::submits, const gate::Inspector* inspector = nullptr)
        : HeldToucher(the_gate().waiting().held_now, touch, inspector) {}

private:
    HeldToucher(std::uint64_t before, gate::Touch touch, const gate::Inspector* inspector)
        : Toucher(touch, inspector) {
        REQUIRE(waits(before + 1));
    }
};

/// A thread that holds a pass until it is told to end it.
class Holder : NotCopied {
public:
    Holder()
        : thread_([this] {
              const gate::Pass pass;
              number_ = pass.number();
              while (!may_end_) std::this_thread::sleep_for(Milliseconds(1));
          }) {
        REQUIRE(becomes_true([this] { return number_ != 0; }));
    }
    ~Holder() {
        if (thread_.joinable()) end();
    }

    [[nodiscard]] std::uint64_t number() const { return number_; }
    void end() {
        may_end_ = true;
        thread_.join();
    }

private:
    std::atomic<std::uint64_t> number_{0};
    std::atomic<bool> may_end_{false};
    std::thread thread_;
};

inline gate::HoldRule rule(model::OnTouch on_touch, std::optional<Milliseconds> limit = {}) {
    gate::HoldRule made;
    made.on_touch = on_touch;
    made.limit = limit;
    return made;
}

inline void fall_asleep(gate::HoldRule how) {
    REQUIRE(the_gate().close(after(k_patience), goes_on));
    the_gate().keep_shut(std::move(how));
}

/// Whether this thread's touch gets in, which it must do, or not do, at once. Not part of a function that is
/// inside itself: a call within a call is deeper in the stack.
[[gnu::noinline]] inline bool passes(gate::Touch touch, const gate::Inspector* inspector = nullptr) {
    return gate::Passage(touch, "cuTouch", inspector).admitted();
}

} // namespace gpu_sleep::test
