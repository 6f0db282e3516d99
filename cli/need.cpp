// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Makes room on GPUs, and prints which processes sleep for it, or why there is too little.

#include "cli/need.hpp"

#include "base/text.hpp"
#include "cli/command_run.hpp"
#include "cli/show/json.hpp"
#include "cli/show/output.hpp"
#include "cli/show/render.hpp"
#include "client/room.hpp"
#include "control/gpus.hpp"

#include <cmath>
#include <cstdlib>

namespace gpu_sleep::cli {
namespace {

constexpr const char* k_program = "gpu-reclaim";

/// Has the wait for `need` be explained on standard error, once it has taken a moment.
void say_once(const std::string& program, control::Need& need) {
    need.waits = [program, bytes = need.bytes, since = Clock::now(), is_told = false](
                     const driver::Gpu& gpu, std::string_view why, Clock::time_point until) mutable {
        if (is_told || Clock::now() - since < control::k_silence) return;
        is_told = true;
        print_error(fmt::format("{}: waits at most {} for {} on GPU {}: {}\n", program, seconds_until(until),
                                format_bytes(bytes), gpu.index, printable(why)));
    };
}

std::string words(const control::Need& need, const control::Made& done) {
    std::string text;
    control::GpuNumbers numbers;
    for (const auto& outcome : done.outcomes)
        if (const auto* const report = std::get_if<model::Report>(&outcome.answer))
            text += render_operation(outcome.process, numbers.in(*report));
    text += render_total(done.outcomes);
    if (!done.error)
        text += fmt::format("GPU {}{} {} of {} free\n", done.room.gpu.index,
                            need.request.dry_run && !done.outcomes.empty() ? " now has" : " has",
                            format_bytes(done.room.gpu.free), format_bytes(done.room.gpu.total));
    return text;
}

/// Prints why processes did not sleep, and what is missing. Returns the exit status.
int print_errors(const std::string& program, const control::Need& need, const control::Made& done) {
    for (const auto& outcome : done.outcomes)
        print_error(render_failure(program, "put {} to sleep", outcome));
    if (!done.error) return exit_status::done;
    constexpr double k_least = 10; // who follows the advice is to have room then, also on a busy machine
    constexpr double k_margin = 5;
    const bool is_too_little = done.error->code == ErrorCode::out_of_device_memory;
    const auto purpose =
        fmt::format("{} {} on GPU {}", is_too_little ? "free" : "find out whether there is room for",
                    format_bytes(need.bytes), done.room.gpu.index);
    if (need.bytes > done.room.gpu.total) {
        print_error(fmt::format("{}: cannot {}: {}; ask for less\n", program, purpose, done.error->message));
    } else if (done.wait.value_or(0) > 0) {
        const bool was_given = program != k_program && // which reads it from files
                               need.request.min_awake != model::WakeRequest().min_awake;
        print_error(fmt::format("{}: cannot {}: {}; wait with --wait {:.0f}s{}\n", program, purpose,
                                done.error->message, std::max(k_least, std::ceil(*done.wait) + k_margin),
                                was_given ? ", or give --min-awake 0s" : ""));
    } else {
        print_error(render_error(program, purpose, *done.error));
    }
    return traits(done.error->code).exit_status;
}

} // namespace

usage::Row wait_row(std::optional<Milliseconds>& wait, std::string_view standard) {
    return {"--wait", usage::duration(wait),
            fmt::format("With --need: retry this long while too little memory can be freed (default: {})",
                        standard)};
}

int run_need(control::Need need, const OutputOptions& output) {
    control::raise_descriptor_limit();
    if (!output.quiet) say_once(k_program, need);
    const auto done = make_room(need);
    // Of all that is chosen, only a GPU can be a wrong word: a PID or a name is found or is not.
    if (!done && done.error().code == ErrorCode::invalid_argument)
        return usage_error(k_program, "--gpu: " + done.error().message, output.json);
    if (!done) return tell_failure(k_program, output, done.error());
    const int status = print_errors(k_program, need, *done);
    std::string text;
    if (output.json)
        text = to_json(k_program, done->outcomes, done->room, done->error) + '\n';
    else if (!output.quiet)
        text = words(need, *done);
    return print_result(k_program, text, status);
}

int make_room_for_command(const std::string& program, const std::string& whom, Bytes bytes,
                          Milliseconds min_awake, std::optional<Milliseconds> wait) {
    const auto failed = [](int status) {
        return status == exit_status::usage ? status : exit_status::failed_awake;
    };
    const auto gpus =
        control::visible_gpus(std::getenv("CUDA_VISIBLE_DEVICES"), std::getenv("CUDA_DEVICE_ORDER"));
    if (!gpus) return failed(tell_failure(program, {}, gpus.error()));
    control::Need need;
    need.bytes = bytes;
    need.until = Clock::now() + wait.value_or(Milliseconds(0));
    if (!wait) need.for_time = model::WakeRequest().min_awake;
    say_once(program, need);
    need.request = client::room_request(min_awake);
    need.request.asker = "room for " + whom;
    const auto make_all = [&](bool dry_run) {
        need.request.dry_run = dry_run;
        for (const auto& gpu : *gpus) {
            need.gpu = gpu.uuid;
            const auto done = make_room(need);
            if (!done) return tell_failure(program, {}, done.error());
            if (!dry_run && !done->outcomes.empty()) print_error(words(need, *done));
            if (const int status = print_errors(program, need, *done); status != exit_status::done)
                return status;
        }
        return exit_status::done;
    };
    // Nobody sleeps for a command that one of several GPUs has no room for.
    int status = gpus->size() > 1 ? make_all(true) : exit_status::done;
    if (status == exit_status::done) status = make_all(false);
    return status == exit_status::done ? status : failed(status);
}

} // namespace gpu_sleep::cli
