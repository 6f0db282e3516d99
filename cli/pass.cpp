// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What is told of a pass.

#include "cli/pass.hpp"

#include "base/exit_status.hpp"
#include "cli/show/json.hpp"
#include "cli/show/output.hpp"
#include "cli/show/render.hpp"
#include "cli/show/render_lines.hpp"
#include "cli/signals.hpp"
#include "control/gpus.hpp"

#include <variant>

namespace gpu_sleep::cli {

namespace policy = control::policy;

namespace {

/// Says what came of it. Returns the exit status.
int tell(const PassOptions& options, const policy::Passed& passed) {
    const auto& [outcomes, errors, failure] = passed;
    const bool is_told = !options.output.json && !options.output.quiet; // on standard output, in words
    control::GpuNumbers numbers;
    std::string text;
    int status = exit_status::done;
    for (const auto& outcome : outcomes) {
        print_error(render_failure(options.program, "put {} to sleep", outcome));
        const auto* const report = std::get_if<model::Report>(&outcome.answer);
        if (report && is_told && (does_something(*report) || !options.request.whom.is_for_all()))
            text += render_operation(outcome.process, numbers.in(*report));
        status = worse_of(status, exit_status_of(outcome));
    }
    for (const auto& error : errors) {
        print_error(fmt::format("{}: {}\n", options.program, error.message));
        status = worse_of(status, traits(error.code).exit_status);
    }
    if (failure) {
        print_error(render_error(options.program, "", *failure));
        status = traits(failure->code).exit_status;
    }
    const auto* const error = failure ? &*failure : errors.empty() ? nullptr : &errors.front();
    if (options.output.json)
        text = (error ? to_json(options.program, outcomes, *error, status)
                      : to_json(options.program, outcomes)) +
               '\n';
    else if (is_told && text.empty() && status == exit_status::done)
        text = "nothing to do\n";
    else if (is_told)
        text += render_total(outcomes);
    return print_result(options.program, text, status);
}

} // namespace

int run_pass(const PassOptions& options) {
    control::raise_descriptor_limit();
    auto policies = load_policies(options.program, options.sources);
    if (!policies) return tell_failure(options.program, options.output, policies.error());
    const auto passed = pass(options.request, *policies);
    tell_complaints(options.program, *policies);
    if (passed) return end_beside_driver(tell(options, *passed));
    return tell_failure(options.program, options.output, passed.error());
}

} // namespace gpu_sleep::cli
