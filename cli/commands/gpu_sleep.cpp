// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-sleep: puts a process to sleep.

#include "base/text.hpp"
#include "cli/command_run.hpp"
#include "cli/show/render.hpp"

using namespace gpu_sleep;

namespace {

using control::Engine;

constexpr const char* k_program = "gpu-sleep";
constexpr const char* k_examples =
    "  gpu-sleep 4242                            keep contents in host memory\n"
    "  gpu-sleep 4711 4712 train.py              several, by pid or name\n"
    "  gpu-sleep 4242 --on-touch wake            until it uses the GPU again\n"
    "  gpu-sleep 4242 --engine driver            a process without an agent\n";

/// The options as they were typed.
struct Typed {
    control::Selection whom;
    Engine engine = Engine::agent;
    model::SleepRequest sleep;
    bool releases = false;
    bool runs_on = false;
    std::optional<Bytes> live_bytes;
    std::optional<Milliseconds> idle;
    std::optional<Milliseconds> timeout;
    cli::TypedStores stores;
    bool accepts_losses = false;
    cli::OutputOptions output;
};

usage::Table table_of(Typed& typed) {
    auto& whom = typed.whom;
    auto& request = typed.sleep;
    const auto set_engine = [&typed](const std::string& word) {
        typed.engine = word == "auto" ? Engine::automatic : word == "driver" ? Engine::driver : Engine::agent;
    };
    return {
        k_program,
        "Frees the GPU memory of a process that keeps running; gpu-wake brings it back.",
        {"[OPTION]... PID...", "[OPTION]... --all|--group GROUP"},
        {{"Which processes",
          {cli::targets_row(whom.words), cli::all_row(whom.takes_several), usage::brief(cli::tree_row(whom)),
           cli::group_row(whom), cli::user_row(whom.user)}},
         {"What sleeps",
          {usage::brief({"--tags", cli::tags(request.tags),
                         "Put only these tags to sleep. All GPU work then waits, unless you add --gate "
                         "checked"}),
           usage::brief(cli::level_row(request.level)),
           {"--keep", cli::tags(request.keep), "Keep the contents of these tags, whatever their policy"},
           {"--discard", cli::tags(request.discard),
            "Drop the contents of these tags, whatever their policy"},
           {"--require-refill", usage::flag(request.require_refill),
            "Fail, and change nothing, if the sleep would drop a tag that the program cannot refill"},
           {"--yes", usage::flag(typed.accepts_losses),
            "Do not ask or warn before dropping contents that the program cannot refill"},
           {"--live", usage::flag(typed.runs_on),
            "Move GPU memory to host memory while the program keeps running, but slower"},
           {"--bytes", usage::size(typed.live_bytes),
            "With --live: how much to have in host memory (default: all)"},
           usage::brief({"--deep", usage::flag(request.deep), "Also free memory that the CUDA driver holds"}),
           usage::brief({"--engine", usage::choice("agent|driver|auto", set_engine),
                         "driver: for a process without an agent, but slower"})}},
         {"Where contents go",
          {cli::store_row(typed.stores),
           usage::brief(cli::dir_row(typed.stores)),
           {"--spill", usage::path("DIR", typed.stores.spill),
            "If host memory is too small, keep the rest in files in DIR"},
           {"--codec",
            usage::choice("auto|raw", [&request](const std::string& word) { request.raw = word == "raw"; }),
            "In host memory, keep contents smaller where that pays (auto, the default) or as they are (raw)"},
           {"--keep-files", usage::flag(request.keep_files),
            "Do not delete the files when the process wakes or ends"}}},
         {"While it sleeps",
          {usage::brief(cli::on_touch_row(request.on_touch, "")), cli::gate_row(request.gate),
           cli::touch_limit_row(request.touch_limit)}},
         {"How it goes to sleep",
          {{"--idle", usage::duration(typed.idle),
            "Set a timer: sleep after this long without GPU work (0s: remove the timer)"},
           usage::brief(cli::dry_run_row(request.dry_run)),
           {"--timeout", usage::duration(typed.timeout),
            "Give up if GPU memory is not released within this time (default: 30 s, not counting copying)"},
           {"--ignore-inhibitors", usage::flag(request.ignore_inhibitors),
            "Sleep even if gpu-inhibit or the program refuses sleeps"},
           {"--force", usage::flag(request.force),
            "Sleep even if the process uses the GPU in a way that the agent cannot see"}}},
         {"Output", {cli::json_row(typed.output.json), cli::quiet_row(typed.output.quiet)}},
         {"For tests and repair",
          {{"--copy-all", usage::flag(request.copy_all),
            "Also copy contents that have not changed since the last sleep"},
           {"--check", usage::flag(request.check_copies),
            "Before releasing GPU memory, compare its contents with the copies in host memory"},
           {"--release-retained", usage::flag(typed.releases),
            "Put nothing to sleep; free host memory that is retained for the next sleep"}}}},
        k_examples,
        cli::k_exit_statuses};
}

/// Whether anything is asked for besides that it sleeps.
bool asks_for_more(model::SleepRequest request) {
    request.dry_run = false;
    return request != model::SleepRequest();
}

/// Whether more is asked for than what is told to a timer.
bool asks_for_more_than_timer(const Typed& typed) {
    auto rest = typed.sleep;
    static_cast<model::Placement&>(rest) = {};
    rest.deep = false;
    rest.on_touch.reset();
    return rest != model::SleepRequest() || typed.timeout || typed.releases || typed.runs_on ||
           typed.whom.is_joint() || typed.engine != Engine::agent;
}

/// The line about the timer of the process.
std::string render_timer(const control::Process& process, const model::Report& report) {
    const auto note = std::ranges::find_if(
        report.notes, [](const auto& each) { return each.starts_with("it sleeps after "); });
    return fmt::format("{} {}: {}\n", process.pid, cli::label(process, report),
                       note == report.notes.end() ? "no timer puts it to sleep" : printable(*note));
}

/// Whether more is asked for than what is told to a move to host memory, too.
bool asks_for_sleep(model::SleepRequest request) {
    request.tags.clear();
    request.force = request.ignore_inhibitors = false;
    return asks_for_more(std::move(request));
}

/// Returns the problem of options that are each valid alone, or nothing.
std::string problem(const Typed& typed) {
    const auto& request = typed.sleep;
    const bool is_by_agent = typed.engine == Engine::agent;
    if (const auto tag = std::ranges::find_first_of(request.keep, request.discard); tag != request.keep.end())
        return fmt::format("--keep and --discard: the tag '{}' cannot be both kept and discarded", *tag);
    if (!is_by_agent && (asks_for_more(request) || typed.releases || typed.runs_on))
        return "--engine driver and --engine auto put all of a process to sleep, in host memory, and cannot "
               "be used with options that ask for anything else";
    if (request.deep && (!request.tags.empty() || request.gate == model::GateMode::checked))
        return "--deep puts all of a process to sleep, and lets none of its work pass: it cannot be used "
               "with --tags or --gate checked";
    if (typed.releases && asks_for_more(request))
        return "--release-retained puts nothing to sleep, and cannot be used with the options of a sleep";
    if (typed.runs_on && (typed.releases || asks_for_sleep(request)))
        return "--live puts nothing to sleep, and cannot be used with the options of a sleep";
    if (typed.idle && asks_for_more_than_timer(typed))
        return "--idle sets a timer: of the options for sleeps, it takes only --deep, --on-touch and those "
               "for "
               "contents";
    if (typed.live_bytes && !typed.runs_on) return "--bytes can be used only with --live";
    if (const auto possible = model::check_pause(request); !possible) return possible.error().message;
    if (auto text = cli::touch_problem(request.on_touch, request.touch_limit); !text.empty()) return text;
    if (!is_by_agent && typed.whom.is_joint())
        return "--engine driver and --engine auto are for single processes, without --tree or --group";
    if (!is_by_agent && typed.whom.words.empty())
        return "PID is missing: --engine driver and --engine auto need it";
    return {};
}

/// The request that was typed, of an operation that sleeps or of one that does not.
protocol::Request request_of(const Typed& typed) {
    auto sleep = typed.sleep;
    sleep.bounds_all = typed.timeout.has_value();
    sleep.timeout = typed.timeout.value_or(sleep.timeout);
    sleep.joint = typed.whom.is_joint();
    const model::Terms& terms = sleep;
    if (typed.releases) return model::ReleaseRequest{terms};
    if (!typed.runs_on) return sleep;
    return model::LiveRequest{terms, sleep.tags, typed.live_bytes.value_or(model::k_all_bytes), sleep.force,
                              sleep.ignore_inhibitors};
}

} // namespace

int main(int argc, char** argv) {
    Typed typed;
    if (const auto status = cli::parse(table_of(typed), argc, argv)) return *status;
    auto text = cli::selection_problem(typed.whom);
    if (text.empty()) text = cli::read_stores(typed.stores, typed.sleep);
    if (text.empty()) text = problem(typed);
    if (!text.empty()) return cli::usage_error(k_program, text, typed.output.json);
    if (typed.idle) {
        const model::Placement& placement = typed.sleep;
        const model::TimerRequest timer{placement, *typed.idle, typed.sleep.deep, typed.sleep.on_touch};
        return cli::tell_selected(k_program, typed.whom, timer, typed.output, render_timer);
    }
    return cli::run(k_program, {typed.whom, request_of(typed), typed.engine}, typed.output,
                    typed.accepts_losses);
}
