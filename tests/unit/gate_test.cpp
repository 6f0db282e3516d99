// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The gate alone: who gets in, who is held, who is let through. Passes are in gate_pass_test.cpp.

#include "gate_fixture.hpp"
#include "support/broken_error.hpp"

#include <csetjmp>
#include <numeric>
#include <sys/mman.h>
#include <ucontext.h>

using namespace gpu_sleep::test;
using gate::Gate;
using gate::Named;
using gate::Passage;
using gate::Touch;
using model::OnTouch;

namespace {

constexpr auto k_touches = {Touch::submits,  Touch::shares, Touch::takes,
                            Touch::captures, Touch::nests,  Touch::ends};

thread_local sigjmp_buf t_back;

/// Leaves a call for `back` as a signal's handler does that abandons what its thread was doing.
template <class Call, class... Arguments>
[[gnu::noinline]] void jump_out_of(sigjmp_buf& back, Arguments... arguments) {
    const Call call(arguments...);
    siglongjmp(back, 1);
}

/// Calls it deep in the stack, so that all that comes afterwards is above it.
template <class Body>
[[gnu::noinline]] void deep_in_the_stack(const Body& body) {
    std::array<char, 1 << 14> space; // not written
    asm volatile("" : : "r"(space.data()) : "memory");
    body();
    asm volatile("" : : "r"(space.data()) : "memory");
}

/// Handles SIGUSR1 while it lives, and leaves errno as it was.
class Handler : NotCopied {
public:
    explicit Handler(void (*handler)(int), int flags = 0) {
        struct sigaction action {};
        s_handler = handler;
        action.sa_handler = [](int signal) {
            const int errno_before = errno;
            s_handler(signal);
            errno = errno_before;
        };
        action.sa_flags = flags;
        REQUIRE(::sigaction(SIGUSR1, &action, &before_) == 0);
    }
    ~Handler() { ::sigaction(SIGUSR1, &before_, nullptr); }

private:
    static inline void (*s_handler)(int);
    struct sigaction before_ {};
};

} // namespace

TEST_CASE_METHOD(OpenGate, "Gate: open, it holds nothing") {
    const auto held = the_gate().waiting().held_ever;
    for (const auto touch : k_touches) CHECK(passes(touch));
    CHECK(the_gate().phase() == Gate::Phase::open);
    CHECK(the_gate().waiting().held_ever == held);
}

TEST_CASE_METHOD(OpenGate, "Gate: closing waits for those inside") {
    Toucher inside;
    REQUIRE(inside.gets_in());
    std::atomic<bool> is_closed{false};
    std::thread closer([&] { is_closed = static_cast<bool>(the_gate().close(after(k_patience), goes_on)); });
    std::this_thread::sleep_for(k_moment);
    CHECK_FALSE(is_closed);
    inside.leave();
    closer.join();
    CHECK(is_closed);
}

TEST_CASE_METHOD(OpenGate, "Gate: closing that is late or withdrawn leaves it as it was") {
    Toucher inside;
    REQUIRE(inside.gets_in());
    CHECK(error_of(the_gate().close(after(k_moment), goes_on)).code == ErrorCode::timed_out);
    CHECK(error_of(the_gate().close(after(k_patience), [] { return false; })).code == ErrorCode::cancelled);
    CHECK(the_gate().phase() == Gate::Phase::open);
    CHECK(passes(Touch::submits));
}

TEST_CASE_METHOD(OpenGate, "Gate: draining, it lets one touch through when asked, the oldest first") {
    REQUIRE(the_gate().close(after(k_patience), goes_on));
    CHECK_FALSE(the_gate().release_oldest());
    HeldToucher first;
    HeldToucher second(Touch::takes);
    CHECK(first.stays_out());
    CHECK(second.stays_out());

    REQUIRE(the_gate().release_oldest());
    CHECK(first.gets_in());
    CHECK(second.stays_out());
    CHECK_FALSE(the_gate().wait_empty(after(k_moment), goes_on));
    first.leave();
    CHECK(the_gate().wait_empty(after(k_patience), goes_on));
    REQUIRE(the_gate().release_oldest());
    CHECK(second.gets_in());
    CHECK_FALSE(the_gate().release_oldest());
}

TEST_CASE_METHOD(OpenGate, "Gate: whoever was let through counts as inside, however late it enters") {
    for (int i = 0; i < 100; ++i) {
        REQUIRE(the_gate().close(after(k_patience), goes_on));
        HeldToucher toucher;
        REQUIRE(the_gate().release_oldest());
        toucher.let_leave();
        REQUIRE(the_gate().wait_empty(after(k_patience), goes_on));
        REQUIRE(the_gate().waiting().held_now == 0); // it has been inside, and left
        the_gate().open();
    }
}

TEST_CASE_METHOD(OpenGate, "Gate: whoever was let through and comes too late is held like the others") {
    REQUIRE(the_gate().close(after(k_patience), goes_on));
    HeldToucher toucher;
    REQUIRE(the_gate().release_oldest());
    the_gate().keep_shut(rule(OnTouch::wait));
    if (!toucher.stays_out()) return; // it was quick, as it may be
    REQUIRE(the_gate().close(after(k_patience), goes_on));
    CHECK(toucher.stays_out()); // once let through, once held: not let through for ever
}

TEST_CASE_METHOD(OpenGate, "Gate: draining, it lets nobody through who waits because of a pause") {
    auto paused = rule(OnTouch::wait);
    paused.paused = true;
    fall_asleep(paused);
    HeldToucher toucher;
    REQUIRE(the_gate().close(after(k_patience), goes_on));
    the_gate().release_oldest();
    CHECK(toucher.stays_out());
    CHECK(the_gate().releasable() == 0);
    the_gate().open();
    CHECK(toucher.gets_in());
    toucher.leave();
    REQUIRE(the_gate().close(after(k_patience), goes_on));
    HeldToucher later;
    REQUIRE(the_gate().release_oldest());
    CHECK(later.gets_in()); // the pause is over
}

TEST_CASE_METHOD(OpenGate, "Gate: it can hold captures alone") {
    the_gate().hold_captures();
    HeldToucher capture(Touch::captures);
    for (const auto touch : {Touch::submits, Touch::shares, Touch::takes, Touch::nests, Touch::ends})
        CHECK(passes(touch));
    CHECK(capture.stays_out());
    the_gate().open();
    CHECK(capture.gets_in());
}

TEST_CASE_METHOD(OpenGate, "Gate: asleep, touches wait until it opens") {
    std::atomic<int> wakes{0};
    the_gate().set_waker([&] { ++wakes; });
    const auto held = the_gate().waiting().held_ever;
    fall_asleep(rule(OnTouch::wait, Milliseconds(1)));
    Toucher submits, takes(Touch::takes), captures(Touch::captures);
    REQUIRE(waits(3));
    CHECK(submits.stays_out());
    CHECK(passes(Touch::ends));
    const auto waiting = the_gate().waiting();
    CHECK(waiting.held_ever == held + 3);
    CHECK(waiting.last == "cuTouch");
    the_gate().open();
    CHECK(submits.gets_in());
    CHECK(takes.gets_in());
    CHECK(captures.gets_in());
    CHECK(the_gate().waiting().held_now == 0);
    CHECK(wakes == 0);
}

TEST_CASE_METHOD(OpenGate, "Gate: asleep, touches go on without a wake once all that slept was freed") {
    auto how = rule(OnTouch::wait);
    how.sleeping = {{1'000, 2'000}, {3'000, 6'000}};
    fall_asleep(std::move(how));
    HeldToucher waiting;
    the_gate().forget({1'000, 2'000});
    the_gate().forget({4'000, 5'000}); // out of the middle
    CHECK(waiting.stays_out());        // some of it still sleeps
    the_gate().forget({3'000, 4'000});
    the_gate().forget({5'000, 6'000});
    CHECK(waiting.gets_in());
    CHECK(the_gate().phase() == Gate::Phase::open);
    CHECK(Gate::is_open());
}

TEST_CASE_METHOD(OpenGate, "Gate: paused, touches wait although nothing sleeps any more") {
    auto how = rule(OnTouch::wait);
    how.sleeping = {{1'000, 2'000}};
    how.paused = true;
    fall_asleep(std::move(how));
    HeldToucher waiting;
    the_gate().forget({1'000, 2'000});
    CHECK(waiting.stays_out());
    the_gate().open();
    CHECK(waiting.gets_in());
}

TEST_CASE_METHOD(OpenGate, "Gate: what is held is told that the gate opens, long before it looks again") {
    bool is_told = false;
    for (int tries = 0; !is_told && tries < 5; ++tries) { // a busy machine may be late
        fall_asleep(rule(OnTouch::wait));
        const HeldToucher toucher;
        CHECK(toucher.stays_out());
        const auto start = Clock::now();
        the_gate().open();
        CHECK(toucher.gets_in());
        is_told = Clock::now() - start < Milliseconds(700);
    }
    CHECK(is_told);
}

TEST_CASE_METHOD(OpenGate, "Gate: asleep, touches ask to be woken, not more than once a second") {
    std::atomic<int> wakes{0};
    the_gate().set_waker([&] { ++wakes; });
    fall_asleep(rule(OnTouch::wake));
    Toucher first, second;
    REQUIRE(becomes_true([&] { return wakes == 1; }));
    std::this_thread::sleep_for(Milliseconds(300));
    CHECK(wakes == 1);
    REQUIRE(becomes_true([&] { return wakes == 2; })); // still asleep: asks again
    the_gate().open();
    CHECK(first.gets_in());
    CHECK(second.gets_in());
}

TEST_CASE_METHOD(OpenGate, "Gate: a touch asks at once, however shortly before the last sleep ended by one") {
    the_gate().set_waker([] {});
    for (int i = 0; i < 3; ++i) {
        fall_asleep(rule(OnTouch::wake));
        std::atomic<bool> is_asked{false};
        the_gate().set_waker([&] { is_asked = true; });
        const auto start = Clock::now();
        Toucher touch;
        REQUIRE(becomes_true([&] { return is_asked.load(); }));
        CHECK(Clock::now() - start < Milliseconds(700));
        the_gate().set_waker([] {});
        the_gate().open();
        CHECK(touch.gets_in());
    }
}

TEST_CASE_METHOD(OpenGate, "Gate: a touch that asked to be woken waits no longer than its limit") {
    the_gate().set_waker([] { the_gate().wake_refused(); });
    fall_asleep(rule(OnTouch::wake, Milliseconds(200)));
    const auto start = Clock::now();
    CHECK_FALSE(passes(Touch::submits));
    const auto took = Clock::now() - start;
    CHECK(took >= Milliseconds(200));
    CHECK(took < std::chrono::seconds(8));
    CHECK(the_gate().waiting().held_now == 0);
}

TEST_CASE_METHOD(OpenGate, "Gate: a touch with little time asks in it, though another has just asked") {
    std::atomic<int> wakes{0};
    the_gate().set_waker([&] {
        ++wakes;
        the_gate().wake_refused();
    });
    fall_asleep(rule(OnTouch::wake, Milliseconds(200)));
    for (int touches = 1; touches <= 3; ++touches) {
        CHECK_FALSE(passes(Touch::submits));
        CHECK(wakes >= touches);
        CHECK(wakes <= 3 * touches);
    }
}

TEST_CASE_METHOD(OpenGate, "Gate: a touch with no time has the wake that it asks for, and no other") {
    std::atomic<int> wakes{0};
    const auto limit = GENERATE(Milliseconds(0), Milliseconds(1));
    SECTION("which comes, if late") {
        the_gate().set_waker([&] { ++wakes; });
        fall_asleep(rule(OnTouch::wake, limit));
        const Toucher touch;
        REQUIRE(becomes_true([&] { return wakes > 0; }));
        CHECK(touch.stays_out());
        the_gate().open();
        CHECK(touch.gets_in());
    }
    SECTION("which is refused") {
        the_gate().set_waker([&] {
            ++wakes;
            the_gate().wake_refused();
        });
        fall_asleep(rule(OnTouch::wake, limit));
        CHECK_FALSE(passes(Touch::submits));
        CHECK(wakes == 1);
    }
}

TEST_CASE_METHOD(OpenGate, "Gate: a touch asks at once after a wake that nobody wanted any more") {
    std::atomic<int> wakes{0};
    the_gate().set_waker([&] { ++wakes; });
    fall_asleep(rule(OnTouch::wake, std::nullopt));
    const auto start = Clock::now();
    Toucher touch;
    REQUIRE(becomes_true([&] { return wakes == 1; }));
    the_gate().wake_cancelled();
    REQUIRE(becomes_true([&] { return wakes == 2; }));
    CHECK(Clock::now() - start < Milliseconds(700));
    the_gate().open();
    CHECK(touch.gets_in());
}

TEST_CASE_METHOD(OpenGate, "Gate: asleep, touches fail where that was chosen") {
    fall_asleep(rule(OnTouch::fail));
    for (const auto touch : k_touches) CHECK(passes(touch) == (touch == Touch::ends));
    Toucher refused;
    CHECK(refused.is_refused());
    the_gate().open();
    CHECK(passes(Touch::submits));
}

TEST_CASE_METHOD(OpenGate, "Gate: a refused touch counts as outside") {
    fall_asleep(rule(OnTouch::fail));
    CHECK_FALSE(passes(Touch::submits));
    std::thread([] { CHECK(the_gate().close(after(k_patience), goes_on)); }).join();
}

TEST_CASE_METHOD(OpenGate, "Gate: a thread that is cancelled while it waits ends when its call is done") {
    const Handler tests([](int) { ::pthread_testcancel(); });
    REQUIRE(the_gate().close(after(k_patience), goes_on));
    std::atomic<bool> is_through{false};
    pthread_t thread{};
    const auto body = [](void* through) -> void* {
        {
            const Passage passage(Touch::submits, "cuMemcpyDtoH");
            ::pthread_testcancel(); // in the driver
            *static_cast<std::atomic<bool>*>(through) = true;
        }
        for (;;) ::pause(); // where it may be cancelled
    };
    REQUIRE(::pthread_create(&thread, nullptr, body, &is_through) == 0);
    REQUIRE(becomes_true([] { return the_gate().waiting().held_now == 1; }));
    REQUIRE(::pthread_cancel(thread) == 0);
    REQUIRE(::pthread_kill(thread, SIGUSR1) == 0); // whose handler, as most, might be where it is cancelled
    std::this_thread::sleep_for(k_moment);
    CHECK(the_gate().waiting().held_now == 1);
    the_gate().open();
    void* result = nullptr;
    REQUIRE(::pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
    CHECK(is_through);
}

TEST_CASE_METHOD(OpenGate, "Gate: a call that was left by a jump is not waited for once its thread calls") {
    const bool asks = GENERATE(false, true);
    std::atomic<bool> is_out{false}, may_call{false}, has_called{false};
    const bool goes_deeper = GENERATE(false, true);
    std::atomic<bool> may_go_on{false}, is_through{false};
    std::thread thread([&] {
        if (sigsetjmp(t_back, 0) == 0) {
            if (asks)
                deep_in_the_stack([] { jump_out_of<gate::Question>(t_back, "cuAsk"); });
            else
                deep_in_the_stack([] { jump_out_of<Passage>(t_back, Touch::submits, "cuTouch"); });
        }
        is_out = true;
        while (!may_call) std::this_thread::sleep_for(Milliseconds(1));
        const auto calls = [&] {
            static_cast<void>(asks ? gate::Question("cuAsk").admitted() : passes(Touch::submits));
        };
        if (goes_deeper)
            deep_in_the_stack([&] {
                std::array<unsigned char, 1 << 14> space; // over what was left
                space.fill(0xff);
                asm volatile("" : : "r"(space.data()) : "memory");
                calls();
            });
        else
            calls();
        has_called = true;
        while (!may_go_on) std::this_thread::sleep_for(Milliseconds(1));
        static_cast<void>(asks ? gate::Question("cuAsk").admitted() : passes(Touch::submits));
        is_through = true;
    });
    const auto shuts = [&](Milliseconds time) {
        return asks ? the_gate().go_deep(rule(OnTouch::wait), after(time), goes_on).has_value()
                    : the_gate().close(after(time), goes_on).has_value();
    };
    REQUIRE(becomes_true([&] { return is_out.load(); }));
    CHECK_FALSE(shuts(k_moment)); // nobody can tell
    the_gate().leave_deep();
    the_gate().open();
    may_call = true;
    REQUIRE(becomes_true([&] { return has_called.load(); }));
    CHECK(shuts(k_patience));
    may_go_on = true;
    CHECK(waits(1)); // it is outside, so that its next call is held
    CHECK_FALSE(is_through);
    the_gate().leave_deep();
    the_gate().open();
    thread.join();
    CHECK(the_gate().close(after(k_patience), goes_on));
}

TEST_CASE_METHOD(OpenGate, "Gate: a thread may jump away from it while it waits") {
    const Handler jumps([](int) { siglongjmp(t_back, 1); });
    fall_asleep(rule(OnTouch::wait));
    std::atomic<bool> is_out{false}, may_go_on{false};
    std::thread thread([&] {
        if (sigsetjmp(t_back, 1) == 0) static_cast<void>(passes(Touch::submits));
        is_out = true;
        while (!may_go_on) std::this_thread::sleep_for(Milliseconds(1));
        CHECK(passes(Touch::submits));
    });
    REQUIRE(waits(1));
    std::this_thread::sleep_for(k_moment);
    REQUIRE(::pthread_kill(thread.native_handle(), SIGUSR1) == 0);
    REQUIRE(becomes_true([&] { return is_out.load(); }));
    if (GENERATE(false, true)) {
        the_gate().open(); // which nobody is there to see
        CHECK(waits(0));
        fall_asleep(rule(OnTouch::wait));
    }
    may_go_on = true;
    CHECK(waits(1));
    std::this_thread::sleep_for(k_moment);
    CHECK(the_gate().waiting().held_now == 1);
    the_gate().open();
    thread.join();
    CHECK(waits(0));
    CHECK(the_gate().close(after(k_patience), goes_on));
}

TEST_CASE_METHOD(OpenGate, "Gate: a handler may call while its thread is held, which counts afterwards") {
    static std::atomic<int> s_calls{0};
    s_calls = 0;
    const Handler calls([](int) {
        ++s_calls;
        static_cast<void>(passes(Touch::submits));
    });
    fall_asleep(rule(OnTouch::wait));
    std::atomic<bool> is_inside{false}, may_leave{false};
    std::thread thread([&] {
        const Passage passage(Touch::submits, "cuTouch");
        CHECK(passes(Touch::submits));
        is_inside = true;
        while (!may_leave) std::this_thread::sleep_for(Milliseconds(1));
    });
    REQUIRE(waits(1));
    REQUIRE(::pthread_kill(thread.native_handle(), SIGUSR1) == 0);
    REQUIRE(waits(2));
    the_gate().open();
    REQUIRE(becomes_true([&] { return is_inside.load(); }));
    CHECK(s_calls == 1);
    CHECK_FALSE(the_gate().close(after(k_moment), goes_on));
    may_leave = true;
    CHECK(the_gate().close(after(k_patience), goes_on));
    the_gate().open();
    thread.join();
}

TEST_CASE_METHOD(OpenGate, "Gate: a held call keeps its place, whatever a handler has called meanwhile") {
    static thread_local sigjmp_buf t_in_handler;
    static std::atomic<bool> s_has_called;
    static bool s_jumps;
    s_has_called = false;
    s_jumps = GENERATE(false, true);
    const Handler calls([](int) {
        if (!s_jumps)
            static_cast<void>(passes(Touch::ends)); // which nothing holds now
        else if (sigsetjmp(t_in_handler, 0) == 0)
            jump_out_of<Passage>(t_in_handler, Touch::ends, "cuTouch");
        s_has_called = true;
    });
    fall_asleep(rule(OnTouch::wait));
    std::atomic<bool> is_inside{false}, may_jump{false}, is_through{false};
    std::thread thread([&] {
        if (sigsetjmp(t_back, 0) == 0)
            deep_in_the_stack([&] {
                const Passage passage(Touch::submits, "cuTouch");
                CHECK(passes(Touch::submits));
                is_inside = true;
                while (!may_jump) std::this_thread::sleep_for(Milliseconds(1));
                siglongjmp(t_back, 1);
            });
        CHECK(passes(Touch::submits));
        is_through = true;
    });
    REQUIRE(waits(1));
    REQUIRE(::pthread_kill(thread.native_handle(), SIGUSR1) == 0);
    REQUIRE(becomes_true([] { return s_has_called.load(); }));
    the_gate().open();
    REQUIRE(becomes_true([&] { return is_inside.load(); }));
    CHECK_FALSE(the_gate().close(after(k_moment), goes_on)); // the call within it was no later one
    may_jump = true;
    REQUIRE(becomes_true([&] { return is_through.load(); }));
    CHECK(the_gate().close(after(k_patience), goes_on));
    the_gate().open();
    thread.join();
}

TEST_CASE_METHOD(OpenGate, "Gate: who jumps away from it leaves nothing of the stack in its list") {
    const Handler jumps([](int) { siglongjmp(t_back, 1); });
    fall_asleep(rule(OnTouch::wait));
    std::atomic<int> jumped{0};
    std::thread thread([&] {
        if (sigsetjmp(t_back, 1) == 0) static_cast<void>(passes(Touch::submits));
        if (++jumped == 1) deep_in_the_stack([] { static_cast<void>(passes(Touch::submits)); });
        deep_in_the_stack([] {
            std::array<unsigned char, 1 << 13> space;
            space.fill(0xff);
            asm volatile("" : : "r"(space.data()) : "memory");
        });
        CHECK(passes(Touch::submits));
    });
    for (std::uint64_t i = 1; i <= 2; ++i) {
        REQUIRE(waits(i));
        std::this_thread::sleep_for(k_moment);
        REQUIRE(::pthread_kill(thread.native_handle(), SIGUSR1) == 0);
    }
    REQUIRE(becomes_true([&] { return jumped == 2; }));
    std::this_thread::sleep_for(k_moment);
    the_gate().open();
    thread.join();
    CHECK(waits(0));
    fall_asleep(rule(OnTouch::wait));
}

TEST_CASE_METHOD(OpenGate, "Gate: who has jumped away is not waited for, when released or ended") {
    const Handler jumps([](int) { siglongjmp(t_back, 1); });
    fall_asleep(rule(OnTouch::wait));
    std::atomic<bool> is_out{false}, may_end{false};
    std::thread thread([&] {
        if (sigsetjmp(t_back, 1) == 0) static_cast<void>(passes(Touch::submits));
        is_out = true;
        while (!may_end) std::this_thread::sleep_for(Milliseconds(1));
    });
    REQUIRE(waits(1));
    REQUIRE(::pthread_kill(thread.native_handle(), SIGUSR1) == 0);
    REQUIRE(becomes_true([&] { return is_out.load(); }));
    REQUIRE(the_gate().close(after(k_patience), goes_on));
    REQUIRE(the_gate().release_oldest());
    CHECK(the_gate().wait_empty(after(k_patience), goes_on));
    CHECK(the_gate().releasable() == 0);
    the_gate().keep_shut(rule(OnTouch::wait));
    CHECK(the_gate().close(after(k_moment), goes_on));
    may_end = true;
    thread.join();
    CHECK(the_gate().waiting().held_now == 0);
}

TEST_CASE_METHOD(OpenGate, "Gate: a call on another stack within a call leaves that counted") {
    constexpr std::size_t k_half = std::size_t{1} << 18;
    static ucontext_t s_within, s_after;
    static bool s_handles;
    s_handles = GENERATE(false, true);
    void* const memory =
        ::mmap(nullptr, 2 * k_half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    static void* s_upper;
    s_upper = static_cast<char*>(memory) + k_half;
    const Handler calls([](int) { static_cast<void>(passes(Touch::submits)); }, SA_ONSTACK);
    static std::atomic<bool> s_is_inside, s_may_leave;
    s_is_inside = s_may_leave = false;
    const auto body = [](void*) -> void* {
        std::array<char, 1 << 16> above; // a stack of handlers in the thread's own, above the call
        asm volatile("" : : "r"(above.data()) : "memory");
        deep_in_the_stack([&] {
            const Passage passage(Touch::submits, "cuTouch");
            if (s_handles) {
                const stack_t handlers{above.data(), 0, above.size()};
                CHECK(::sigaltstack(&handlers, nullptr) == 0);
                CHECK(::raise(SIGUSR1) == 0);
                const stack_t none{nullptr, SS_DISABLE, 0};
                CHECK(::sigaltstack(&none, nullptr) == 0);
            } else {
                ::getcontext(&s_within);
                s_within.uc_stack = {s_upper, 0, k_half};
                s_within.uc_link = &s_after;
                ::makecontext(
                    &s_within, [] { static_cast<void>(passes(Touch::submits)); }, 0);
                ::swapcontext(&s_after, &s_within);
            }
            s_is_inside = true;
            while (!s_may_leave) std::this_thread::sleep_for(Milliseconds(1));
        });
        return nullptr;
    };
    pthread_attr_t lower;
    pthread_attr_init(&lower);
    REQUIRE(::pthread_attr_setstack(&lower, memory, k_half) == 0);
    pthread_t thread{};
    REQUIRE(::pthread_create(&thread, &lower, body, nullptr) == 0);
    pthread_attr_destroy(&lower);
    REQUIRE(becomes_true([] { return s_is_inside.load(); }));
    CHECK_FALSE(the_gate().close(after(k_moment), goes_on));
    s_may_leave = true;
    CHECK(the_gate().close(after(k_patience), goes_on));
    ::pthread_join(thread, nullptr);
    ::munmap(memory, 2 * k_half);
}

TEST_CASE_METHOD(OpenGate, "Gate: nobody is inside while it is closed") {
    constexpr int k_threads = 8;
    constexpr int k_passes = 100'000;
    constexpr int k_closings = 200;
    // Plain stores and loads: a locked instruction inside would order what the gate has to order.
    struct alignas(64) Place {
        std::atomic<bool> is_inside{false};
        std::atomic<int> passes{0};
    };
    std::array<Place, k_threads> places;
    std::atomic<bool> is_closed{false}, is_over{false};
    std::atomic<int> met_closed{0}, refused{0};
    std::vector<std::thread> threads;
    for (auto& place : places)
        threads.emplace_back([&] {
            for (int i = 0; i < k_passes || !is_over.load(std::memory_order_relaxed); ++i) {
                const Passage passage(Touch::submits, "cuTouch");
                place.is_inside.store(true, std::memory_order_relaxed);
                if (!passage.admitted()) ++refused;
                if (is_closed.load(std::memory_order_relaxed)) ++met_closed;
                place.is_inside.store(false, std::memory_order_relaxed);
                place.passes.store(i + 1, std::memory_order_relaxed);
            }
        });
    const auto passes_of_all = [&] {
        return std::accumulate(places.begin(), places.end(), 0LL, [](long long sum, const Place& place) {
            return sum + place.passes.load(std::memory_order_relaxed);
        });
    };
    int closings = 0, found_inside = 0;
    for (; closings < k_closings; ++closings) {
        const auto before = passes_of_all();
        if (!becomes_true([&] { return passes_of_all() > before + k_threads; })) break;
        if (!the_gate().close(after(k_patience), goes_on)) break;
        is_closed = true;
        for (int look = 0; look < 100; ++look)
            found_inside +=
                static_cast<int>(std::count_if(places.begin(), places.end(), [](const Place& place) {
                    return place.is_inside.load(std::memory_order_relaxed);
                }));
        is_closed = false;
        the_gate().open();
    }
    is_over = true;
    for (auto& thread : threads) thread.join();
    CHECK(closings == k_closings);
    CHECK(found_inside == 0);
    CHECK(met_closed == 0);
    CHECK(refused == 0);
}

TEST_CASE_METHOD(OpenGate, "Gate: a touch that waits says so, and holds nobody up where nobody reads it") {
    const PipeAsError pipe;
    const bool is_full = GENERATE(false, true);
    if (is_full) pipe.fill();
    fall_asleep(rule(OnTouch::wait));
    HeldToucher toucher;
    std::this_thread::sleep_for(Milliseconds(3'500)); // it says so after three seconds
    CHECK((pipe.read().find("cuTouch waits") != std::string::npos) == !is_full);
    the_gate().open();
    CHECK(toucher.gets_in());
    toucher.leave();
}
