// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-doctor: says what this machine, its driver and a process can and cannot do, why, and what to do about
// it.

#include "cli/doctor/diagnosis.hpp"
#include "cli/options.hpp"
#include "cli/show/json.hpp"
#include "cli/show/output.hpp"
#include "cli/show/render.hpp"

using namespace gpu_sleep;

namespace {

constexpr const char* k_program = "gpu-doctor";
constexpr const char* k_examples =
    "  gpu-doctor                     can processes of this machine be put to sleep?\n"
    "  gpu-doctor 4242                can this one, and what would it take?\n"
    "  gpu-doctor --measure           also how fast the link to each GPU is\n"
    "  gpu-doctor --dir /data/sleep   also whether files can go there\n"
    "  gpu-doctor 4242 --report FILE  something hangs: what to attach to a bug report\n";
constexpr const char* k_statuses =
    "0 if no line is bad; otherwise, for the first bad line: 1 cannot be put to sleep, 2 "
    "wrong usage, 3 no such process or no agent in it, 4 timed out, 5 not permitted, 6 damaged, 7 asleep and "
    "cannot wake, 8 not enough host memory or disk space.";

struct DoctorOptions {
    std::string target;
    std::optional<uid_t> user;
    std::string report;
    cli::OutputOptions output;
    doctor::MachineQuestions questions;
};

usage::Table table_of(DoctorOptions& options) {
    return {
        k_program,
        "Says what keeps processes of this machine, or one process, from sleeping, and what to do about it. "
        "Changes nothing.",
        {"[OPTION]... [PID]"},
        {{"Options",
          {cli::target_row(options.target),
           usage::brief({"--dir", usage::path("DIR", options.questions.directory),
                         "Also check that DIR can hold files, and how much space is free there"}),
           usage::brief({"--measure", usage::flag(options.questions.measures),
                         "Also measure the link to each GPU, with 0.5 GiB of its memory"}),
           usage::brief({"--report", usage::path("FILE", options.report),
                         "Also write FILE, to attach to a bug report; it has no names, paths or contents"}),
           usage::brief({"--timeout", usage::duration(options.questions.timeout),
                         fmt::format("How long each check may take (default: {} s)",
                                     options.questions.timeout.count() / 1000)}),
           usage::brief(cli::user_row(options.user)), usage::brief(cli::json_row(options.output.json)),
           usage::brief(
               {"-q,--quiet", usage::flag(options.output.quiet), "Print only findings that are bad"})}}},
        k_examples,
        k_statuses};
}

Result<void> write_report(const std::string& path, const doctor::Diagnosis& diagnosis) {
    std::error_code unknown;
    if (std::filesystem::exists(std::filesystem::symlink_status(path, unknown)))
        return make_error(ErrorCode::invalid_argument, "--report: there is a file {} already; name a new one",
                          path);
    auto file = GPU_SLEEP_TRY(WholeFile::create(path));
    GPU_SLEEP_TRY(file.write(cli::doctor::bug_report(diagnosis)));
    return file.commit();
}

int examine(const DoctorOptions& options) {
    control::raise_descriptor_limit();
    const auto diagnosis =
        doctor::diagnose(options.target, options.user, options.questions, cli::doctor::run_in_child);
    if (!diagnosis) return cli::tell_failure(k_program, options.output, diagnosis.error());
    if (!options.report.empty())
        if (const auto written = write_report(options.report, *diagnosis); !written)
            return cli::tell_failure(k_program, options.output, written.error());
    const auto text = options.output.json ? cli::doctor::to_json(*diagnosis) + '\n'
                                          : cli::doctor::render(*diagnosis, options.output.quiet);
    return cli::print_result(k_program, text, exit_status_of(*diagnosis));
}

} // namespace

int main(int argc, char** argv) {
    DoctorOptions options;
    if (const auto status = cli::parse(table_of(options), argc, argv)) return *status;
    if (options.questions.timeout.count() == 0)
        return cli::usage_error(k_program, "--timeout: the time must be more than 0, such as 10s",
                                options.output.json);
    return examine(options);
}
