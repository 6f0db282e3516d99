// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A thread that calls torch.cuda.empty_cache with Python's lock, and how long a sleep waits for it.

#include "torch/torch_trim.hpp"

#include "base/log.hpp"
#include "base/threads.hpp"
#include "common/park.h"
#include "gate/gate.hpp"
#include "intercepted/contexts.hpp"
#include "interpreter_lock/python_lock.hpp"

#include <atomic>
#include <future>

namespace gpu_sleep::agent::torch {
namespace {

/// Something that is done unless it is given up before: who does it and who waits for it agree on which.
/// Thread-safe.
class CacheRequest {
public:
    /// It begins. False: nobody wants it any more.
    [[nodiscard]] bool begin() noexcept { return leave_for(State::begun); }
    /// Nobody wants it any more. False: it has begun.
    [[nodiscard]] bool give_up() noexcept { return leave_for(State::given_up); }

private:
    enum class State : std::uint8_t { wanted, begun, given_up };
    bool leave_for(State next) noexcept {
        auto before = State::wanted;
        return state_.compare_exchange_strong(before, next) || before == next;
    }
    std::atomic<State> state_{State::wanted};
};

void call_empty_cache(const interpreter_lock::Functions& python, CacheRequest& request) {
    auto* const modules = python.get_module_dict();
    auto* const torch = modules ? python.dict_get(modules, "torch.cuda") : nullptr;
    // Given up: by now memory may sleep.
    if (!torch || !intercepted::enter_primary_context() || !request.begin()) return;
    auto* const done = python.call_method(torch, "empty_cache", nullptr);
    if (done)
        python.decrement(done);
    else
        python.clear_error();
}

/// Asks PyTorch's caching allocator, if Python has loaded it, to give back the blocks that nobody uses. Takes
/// Python's lock, so it may take long; then it does not ask if `request` was given up. Passes the gate
/// meanwhile: it holds the allocator's mutex, which others wait for. Source: torch.cuda.empty_cache.
void empty_torch_cache(CacheRequest& request) noexcept {
    const auto* found = interpreter_lock::functions();
    if (!found || !found->ensure || !found->release || !found->get_module_dict || !found->dict_get ||
        !found->call_method || !found->decrement || !found->clear_error || !found->is_initialized())
        return;
    struct Call {
        const interpreter_lock::Functions& python;
        CacheRequest& request;
    };
    const auto with_lock = [](void* argument) {
        const auto& call = *static_cast<const Call*>(argument);
        const int state = call.python.ensure();
        call_empty_cache(call.python, call.request);
        call.python.release(state);
    };
    const gate::Exemption exempt;
    Call call{*found, request};
    gpu_sleep_call_or_park(with_lock, &call, nullptr);
}

} // namespace

struct TorchTrim::Work {
    CacheRequest request;
    std::promise<void> end;
    std::future<void> ended = end.get_future();
};

std::shared_ptr<TorchTrim::Work> TorchTrim::start() {
    auto work = std::make_shared<Work>();
    auto thread = start_quiet_thread("gpu-sleep-trim", [work] {
        empty_torch_cache(work->request);
        work->end.set_value();
    });
    if (!thread) return nullptr;
    thread->detach();
    return work;
}

Result<void> TorchTrim::run(Clock::time_point deadline, const std::function<bool()>& keep_going) {
    constexpr Milliseconds k_patience{2'000}; ///< until it begins
    constexpr Milliseconds k_look{10};
    if (!begun_ && !interpreter_lock::functions()) return {}; // a program without Python
    const auto last_begin = Clock::now() + k_patience;
    const auto work = begun_ ? std::exchange(begun_, nullptr) : start();
    while (work && work->ended.wait_for(k_look) != std::future_status::ready) {
        const auto now = Clock::now();
        const bool goes_on = keep_going();
        if (goes_on && now < deadline && now < last_begin) continue;
        const bool has_begun = !work->request.give_up();
        if (has_begun && goes_on && now < deadline) continue;
        if (has_begun) begun_ = work;
        if (!goes_on) return make_error(ErrorCode::cancelled, "the request was withdrawn");
        if (has_begun)
            return make_error(ErrorCode::timed_out,
                              "PyTorch was giving back its unused memory, and did not finish in time");
        log::warning("Python was busy, so any unused memory that PyTorch holds is kept too");
        return {};
    }
    return {};
}

} // namespace gpu_sleep::agent::torch
