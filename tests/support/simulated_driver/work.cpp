// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Submitting work.

#include "support/simulated_driver/work.hpp"

#include "support/simulated_driver/captures.hpp"
#include "support/simulated_driver/faults.hpp"

#include <algorithm>
#include <thread>

namespace gpu_sleep::sim {
namespace {

/// Sleeps, but not once the stream is abandoned.
void delay(std::chrono::microseconds time, const std::atomic<bool>& cancelled) {
    constexpr std::chrono::microseconds k_step{1000};
    for (; time.count() > 0 && !cancelled; time -= k_step)
        std::this_thread::sleep_for(std::min(time, k_step));
}

void run(const Work& work, const Execution& execution) {
    delay(Faults::instance().delay_of(execution.entry), execution.cancelled);
    Faults::instance().await_file(execution.entry, execution.cancelled);
    if (execution.cancelled || execution.context.error() != CUDA_SUCCESS) return;
    if (const auto status = work.run(execution); status != CUDA_SUCCESS) execution.context.fail(status);
}

} // namespace

Execution execution_now(const Call& call, Stream& stream) {
    return {stream.context, call.entry, call.driver.space.now(), call.driver.host.now(), stream.abandoned()};
}

Ticket enqueue(Stream& stream, std::vector<Ticket> after, Stream::Task task) {
    const auto& context = stream.context;
    const auto wait_for_last = [&](const Stream& other) {
        if (auto ticket = other.last(); !ticket.done()) after.push_back(std::move(ticket));
    };
    if (stream.kind() == Stream::Kind::legacy) {
        for (const auto& other : context.streams)
            if (other->blocks_legacy()) wait_for_last(*other);
    } else if (stream.blocks_legacy() && context.legacy) {
        wait_for_last(*context.legacy);
    }
    return stream.submit(std::move(after), std::move(task));
}

CUresult submit(Call& call, Stream& stream, std::shared_ptr<const Work> work, Submitted* submitted) {
    SIM_TRY(refuse_implicit_dependency(call.driver, stream));
    if (stream.capture) {
        if (submitted) submitted->captured = true;
        return record(call.driver, stream, std::move(work));
    }
    // Before anything is taken for the work, and in those words: callers take back what they did for it.
    const auto started = without_exceptions([&] {
        stream.start();
        return CUDA_SUCCESS;
    });
    if (started != CUDA_SUCCESS) return started;
    SIM_TRY(work->prepare(call.driver, false));
    const auto execution = execution_now(call, stream);
    auto ticket = enqueue(stream, {}, [work = std::move(work), execution] { run(*work, execution); });
    if (submitted) submitted->ticket = std::move(ticket);
    return CUDA_SUCCESS;
}

} // namespace gpu_sleep::sim
