// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-ps: lists the processes that can be put to sleep, and how they stand.

#include "base/text.hpp"
#include "cli/options.hpp"
#include "cli/show/json.hpp"
#include "cli/show/render.hpp"
#include "cli/show/terminal.hpp"
#include "control/dispatch.hpp"
#include "control/history.hpp"
#include "control/listing.hpp"
#include "doctor/diagnosis.hpp"

#include <ctime>

using namespace gpu_sleep;

namespace {

constexpr const char* k_examples =
    "  gpu-ps                         all processes that this user may put to sleep\n"
    "  gpu-ps --long                  the same with their tags and devices\n"
    "  gpu-ps 4242 --json             one of them, for a program to read\n"
    "  gpu-ps llama --watch --await   one of them, also before it starts\n";

constexpr const char* k_nobody = "no process that can sleep; start one with: gpu-run -- COMMAND\n";

constexpr Milliseconds k_timeout{5'000};
constexpr Milliseconds k_live_timeout{1'000}; // the table would stand still for longer

struct ListOptions {
    std::string target;
    std::optional<uid_t> user;
    cli::OutputOptions output;
    bool is_long = false; ///< with tags and devices also without a target
    std::optional<Milliseconds> timeout;
    std::string watch;           ///< the interval; empty to list once
    bool awaits = false;         ///< goes on while there is no such process
    std::string order;           ///< empty: as they come
    std::optional<pid_t> chosen; ///< by keys
    bool pids_alone = false;
    std::string metrics; ///< the file for metrics, or "-"; empty to list
    bool history = false;
    double since = 0; ///< of the history, in seconds since 1970
};

usage::Table table_of(ListOptions& options) {
    const auto parse_since = [](const std::string& text) {
        return control::parse_since(text, control::now_of_history());
    };
    const auto set_order = [&options](const std::string& word) { options.order = word; };
    return {
        "gpu-ps",
        "Lists the processes that gpu-sleep can put to sleep, and where their memory is.",
        {"[OPTION]... [PID]"},
        {{"Which processes",
          {cli::target_row(options.target),
           cli::user_row(options.user),
           {"--timeout", usage::duration(options.timeout),
            fmt::format("How long to wait for a process to answer (default: {} s)",
                        k_timeout.count() / 1000)}}},
         {"Display",
          {usage::brief({"--sort", usage::choice(cli::k_orders, set_order),
                         "Sort by GPU or host memory, idle time, pid or name (default: pid)"}),
           usage::brief(
               {"-l,--long", usage::flag(options.is_long), "Show the tags and devices of every process"}),
           usage::brief({"-q,--pids", usage::flag(options.pids_alone), "Print only pids, one in a line"}),
           usage::brief({"--watch", usage::with_default("INTERVAL", "2s", options.watch),
                         "Refresh every 2 s, or at another interval, as in --watch 1"}),
           {"--await", usage::flag(options.awaits), "With --watch and PID: wait for the process to start"},
           usage::brief(cli::json_row(options.output.json)),
           usage::brief({"--prometheus", usage::with_default("FILE", "-", options.metrics),
                         "Print metrics for Prometheus, or write them to FILE"}),
           usage::brief({"--history", usage::flag(options.history),
                         "Show past sleeps and wakes, and what they freed"}),
           usage::brief({"--since", usage::parsed("TIME", parse_since, options.since),
                         "With --history: since this time, such as 22:00"})}}},
        k_examples,
        "0 done, 1 failed, 2 wrong usage, 3 no such process or no agent in it, 4 no answer in time, 5 not "
        "permitted.",
        {},
        {{"--since", "--history"}},
        {{"--history", "--watch"}, {"--history", "--prometheus"}}};
}

std::string errors_in(const std::vector<control::Outcome>& outcomes) {
    std::string errors;
    for (const auto& outcome : outcomes) errors += cli::render_failure("gpu-ps", "ask {}", outcome);
    return errors;
}

/// How a listing ended.
struct Listed {
    int status = exit_status::done;
    bool is_lost = false;  ///< standard output takes no more
    bool is_empty = false; ///< of what was asked for by pid or name, nothing is there
};

bool is_all_absent(const std::vector<control::Outcome>& outcomes) {
    return std::ranges::all_of(outcomes, [](const control::Outcome& outcome) {
        const auto* error = std::get_if<Error>(&outcome.answer);
        return error && traits(error->code).exit_status == exit_status::no_process;
    });
}

/// Writes a listing of `status`.
Listed write(const std::string& text, int status, bool is_empty) {
    const auto done = cli::write_result(text);
    if (done) return {status, false, is_empty};
    const bool is_read = done.error().driver_status == EPIPE; // as far as somebody wanted
    if (!is_read) cli::print_error(cli::render_error("gpu-ps", "write the result", done.error()));
    return {is_read || status != exit_status::done ? status : traits(done.error().code).exit_status, true,
            is_empty};
}

/// A word behind --prometheus is the name of a process, also where somebody means its value.
Error explained(const ListOptions& options, Error error) {
    if (error.code != ErrorCode::no_process) return error;
    const bool is_file = options.target == "-" || options.target.find_first_of("./") != std::string::npos;
    if (!options.metrics.empty() && is_file)
        error.message += fmt::format(" (to write a file: --prometheus={})", options.target);
    return error;
}

/// Asks whoever is selected. Errors: those of control::list().
Result<std::vector<control::Outcome>> ask(const ListOptions& options) {
    auto outcomes = control::list(options.target, options.user, *options.timeout);
    return outcomes ? std::move(outcomes) : explained(options, std::move(outcomes).error());
}

/// Whether each process has one line, without its tags.
bool is_short(const ListOptions& options) noexcept {
    return options.target.empty() && !options.is_long;
}

/// Bytes per second of the fastest GPU's link, by NVML; 0 where NVML does not say, or nobody needs it.
double link_rate(const std::vector<control::Outcome>& outcomes) {
    double best = 0;
    const bool is_needed = std::ranges::any_of(outcomes, [](const auto& outcome) {
        const auto* const report = std::get_if<model::Report>(&outcome.answer);
        return report &&
               std::ranges::any_of(report->tags, [](const auto& tag) { return tag.host_backed != 0; });
    });
    if (!is_needed) return best;
    if (const auto setup = driver::look_at_setup())
        for (const auto& gpu : setup->gpus)
            best = std::max(best, doctor::pcie_bytes_per_second(gpu.max_link_generation, gpu.max_link_width));
    return best;
}

/// The GPUs, where NVML says.
std::vector<driver::Gpu> machine_gpus() {
    auto gpus = driver::look_at_gpus();
    return gpus ? *std::move(gpus) : std::vector<driver::Gpu>();
}

std::string pids_of(const std::vector<control::Outcome>& outcomes) {
    std::string text;
    for (const auto& outcome : outcomes) text += fmt::format("{}\n", outcome.process.pid);
    return text;
}

/// For people, `columns` wide where each process has one line. Of what was asked for by pid or name, all is
/// told.
std::string text_of(const ListOptions& options, const std::vector<control::Outcome>& outcomes,
                    std::size_t columns) {
    if (outcomes.empty()) return k_nobody;
    if (is_short(options)) return cli::render_live(outcomes, columns, machine_gpus(), options.chosen);
    if (options.target.empty()) return cli::render_listing(outcomes);
    return cli::render_listing(outcomes, cli::Detail::all, link_rate(outcomes));
}

/// Lists once.
Listed list(const ListOptions& options) {
    const int indent = options.watch.empty() ? 2 : -1;
    auto outcomes = ask(options);
    if (!outcomes) {
        cli::print_error(cli::render_error("gpu-ps", "", outcomes.error()));
        const auto text =
            options.output.json ? cli::to_json("gpu-ps", outcomes.error(), indent) + '\n' : std::string();
        const int status = traits(outcomes.error().code).exit_status;
        return write(text, status, status == exit_status::no_process);
    }
    if (!options.order.empty()) cli::sort(*outcomes, options.order);
    control::note_gpu_use(*outcomes);
    if (!options.output.json) control::GpuNumbers().put_into(*outcomes);
    const auto text = options.pids_alone    ? pids_of(*outcomes)
                      : options.output.json ? cli::to_json("gpu-ps", *outcomes, machine_gpus(), indent) + '\n'
                                            : text_of(options, *outcomes, cli::Screen::size().columns);
    const auto listed = write(text, control::exit_status_of(*outcomes), is_all_absent(*outcomes));
    cli::print_error(errors_in(*outcomes));
    return listed;
}

/// Makes `text` all that the file holds, with mode 0644. Whoever reads it finds the old text or the new one:
/// it is written again and again, and not flushed. Errors: invalid_argument (the name is that of something
/// else, such as a link or a device), not_permitted, out_of_disk, io_failed: the old file is as it was.
Result<void> replace_file(const std::filesystem::path& path, std::string_view text) {
    constexpr mode_t k_readable_by_all = S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH;
    struct stat status = {};
    if (::lstat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
        return make_error(ErrorCode::invalid_argument, "{} exists and is not a regular file", path.string());
    const auto parent = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
    UniqueFd directory(::open(parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!directory) return file_error(errno, "open", path);
    // Collectors read what ends in .prom, and its temporary name does not.
    auto file = GPU_SLEEP_TRY(WholeFile::replace(std::move(directory), path.filename().string(), path));
    GPU_SLEEP_TRY(file.write(text));
    if (::fchmod(file.fd(), k_readable_by_all) != 0) return file_error(errno, "fchmod", path);
    return file.commit(false);
}

/// Writes metrics once. Who does not answer is counted there.
int write_metrics(const ListOptions& options) {
    const auto outcomes = ask(options);
    auto written = outcomes ? Result<void>() : Result<void>(outcomes.error());
    if (outcomes) {
        const auto text = cli::render_metrics(*outcomes, machine_gpus(), std::time(nullptr));
        if (options.metrics == "-") return cli::print_result("gpu-ps", text);
        written = replace_file(options.metrics, text);
    }
    return written ? exit_status::done : cli::tell_failure("gpu-ps", {}, written.error());
}

/// Prints the history of the selected processes.
int show_history(const ListOptions& options) {
    auto events = control::read_history();
    const auto is_there = [](const model::Event& event) {
        const auto start = start_time_of(static_cast<pid_t>(event.pid));
        return start && *start == event.start_time;
    };
    std::erase_if(events, [&](const model::Event& event) {
        // The pid of one that lives may have been another's before.
        const auto is_of_pid = [&] {
            return options.target == std::to_string(event.pid) &&
                   (is_there(event) || !start_time_of(static_cast<pid_t>(event.pid)));
        };
        const bool is_it = options.target.empty() || options.target == event.name || is_of_pid();
        return !is_it || (options.user && *options.user != event.uid);
    });
    if (events.empty() && !options.target.empty())
        return cli::tell_failure(
            "gpu-ps", options.output,
            make_error(ErrorCode::no_process, "nothing is recorded of {}", options.target));
    const auto sum = model::gib_hours(events, options.since, control::now_of_history(), is_there);
    std::erase_if(events, [&](const model::Event& event) { return event.time < options.since; });
    return cli::print_result("gpu-ps", options.output.json ? cli::to_json("gpu-ps", events, sum)
                                                           : cli::render_history(events, sum));
}

/// Lists again and again, until the command is ended, or nobody reads any more, or there is nothing to list
/// of what was asked for.
int repeat(const ListOptions& options, Milliseconds interval) {
    for (;;) {
        const auto listed = list(options);
        const bool is_over = listed.is_empty && !options.target.empty() && !options.awaits;
        if (listed.is_lost || is_over) return listed.status;
        std::this_thread::sleep_for(interval);
    }
}

/// Text for a terminal with `columns`; for one process with its tags.
std::string live_text(const ListOptions& options, const Result<std::vector<control::Outcome>>& outcomes,
                      std::size_t columns) {
    if (!outcomes) return cli::render_error("gpu-ps", "", outcomes.error());
    const auto text = text_of(options, *outcomes, columns);
    return is_short(options) ? text : text + errors_in(*outcomes);
}

/// Has a process sleep or wake, or rehearse it.
Result<control::Outcome> have(pid_t pid, protocol::Request request) {
    control::Command command{.request = std::move(request)};
    command.whom.words = {std::to_string(pid)};
    auto dispatch = GPU_SLEEP_TRY(control::Dispatch::select(std::move(command)));
    control::Listener nobody;
    control::Interruptions none; // a signal ends the command, and so withdraws the request
    const auto outcomes = GPU_SLEEP_TRY(dispatch.carry_out(nobody, none));
    return outcomes.front();
}

/// Puts the chosen process to sleep ('s') or wakes it ('w'). `ask` gets the answer to a question, `tell`
/// shows a line. Returns what came of it.
std::string act(pid_t pid, char key, const std::function<bool(const std::string&)>& ask,
                const std::function<void(const std::string&)>& tell) {
    protocol::Request request = model::WakeRequest();
    if (key == 's') {
        model::SleepRequest sleep;
        sleep.dry_run = true;
        const auto would = have(pid, sleep);
        if (!would) return cli::render_error("gpu-ps", "", would.error());
        const auto* const report = std::get_if<model::Report>(&would->answer);
        if (!report) return cli::render_failure("gpu-ps", "put {} to sleep", *would);
        const auto drops = model::sum_of(report->devices, &model::DeviceReport::dropped);
        if (drops > 0 && !ask(fmt::format("{} drops {}: go on? [y/N]", pid, format_bytes(drops))))
            return "nothing was changed";
        sleep.dry_run = false;
        request = std::move(sleep);
    }
    tell(fmt::format("{} {} ...", key == 's' ? "putting to sleep" : "waking", pid));
    const auto done = have(pid, std::move(request));
    if (!done) return cli::render_error("gpu-ps", "", done.error());
    const auto* const report = std::get_if<model::Report>(&done->answer);
    const auto* const what = key == 's' ? "put {} to sleep" : "wake {}";
    return report ? cli::render_operation(done->process, *report)
                  : cli::render_failure("gpu-ps", what, *done);
}

/// The same on a terminal, in place, and at once after a change of its size. Obeys keys.
int watch(ListOptions& options, Milliseconds interval) {
    constexpr std::string_view k_keys = "\nq: quit  up, down: choose  s: sleep  w: wake\n";
    std::optional<cli::Screen> screen(std::in_place);
    control::GpuNumbers numbers;
    std::string said; ///< of what was done by a key
    for (;;) {
        auto outcomes = ask(options);
        if (outcomes) cli::sort(*outcomes, options.order.empty() ? "gpu" : options.order);
        if (outcomes && !is_short(options)) { // the table does not show it
            control::note_gpu_use(*outcomes);
            numbers.put_into(*outcomes);
        }
        const bool is_absent = outcomes
                                   ? is_all_absent(*outcomes)
                                   : traits(outcomes.error().code).exit_status == exit_status::no_process;
        if (is_absent && !options.target.empty() && !options.awaits) {
            screen.reset();
            return list(options).status;
        }
        const auto show = [&](std::string_view line) {
            const auto size = cli::Screen::size();
            auto text = live_text(options, outcomes, size.columns);
            const bool has_said = !line.empty();
            const auto room = size.lines - std::min<std::size_t>(size.lines, has_said ? 1 : 0);
            if (is_short(options) && outcomes) text = fmt::format("{}{}", cli::scrolled(text, room), k_keys);
            return screen->show(!has_said ? text
                                          : fmt::format("{}\n{}", take_line(line).value_or(line), text));
        };
        const auto ask = [&](const std::string& question) {
            screen->forget_keys();
            while (const auto shown = show(question)) {
                if (screen->wait_until(Clock::now() + k_live_timeout)) continue;
                if (const char key = screen->take_key()) return key == 'y' || key == 'Y';
            }
            return false;
        };
        const auto next = Clock::now() + interval;
        for (bool is_over = false; !is_over;) {
            const auto shown = show(said);
            if (!shown) return traits(shown.error().code).exit_status; // nobody is there to read why
            is_over = screen->wait_until(next);
            const char key = screen->take_key();
            if (key == 'q') return exit_status::done;
            if (key != 0) said.clear();
            if (!outcomes || !is_short(options)) continue;
            if (key == 'j' || key == 'k') options.chosen = cli::choose(*outcomes, options.chosen, key);
            if (key != 's' && key != 'w') continue;
            const auto tell = [&](const std::string& line) { static_cast<void>(show(line)); };
            said = options.chosen ? act(*options.chosen, key, ask, tell)
                                  : "choose a process first, by up and down";
            is_over = true;
        }
    }
}

/// Returns `word` with the unit that it may lack as the interval of --watch: up to 99 it is seconds, and a
/// pid above.
std::string interval_of(const std::string& word) {
    const bool is_seconds = word.size() <= 2 && word.find_first_not_of("0123456789") == std::string::npos;
    return is_seconds ? word + "s" : word;
}

} // namespace

int main(int argc, char** argv) {
    ListOptions options;
    std::vector<std::string> words(argv, argv + argc);
    for (std::size_t i = 1; i + 1 < words.size(); ++i)
        if (words[i] == "--watch" && parse_duration(interval_of(words[i + 1]))) {
            words[i] += "=" + words[i + 1];
            words.erase(words.begin() + static_cast<std::ptrdiff_t>(i + 1));
        }
    std::vector<const char*> arguments;
    arguments.reserve(words.size());
    for (const auto& word : words) arguments.push_back(word.c_str());
    if (const auto status = cli::parse(table_of(options), static_cast<int>(words.size()), arguments.data()))
        return *status;
    const bool is_live =
        !options.watch.empty() && !options.output.json && !options.pids_alone && cli::Screen::is_possible();
    if (!options.timeout) options.timeout = is_live ? k_live_timeout : k_timeout;
    control::raise_descriptor_limit();
    const auto refuse = [&](const std::string& problem) {
        return cli::usage_error("gpu-ps", problem, options.output.json);
    };
    if (options.pids_alone && (options.output.json || options.is_long || !options.metrics.empty()))
        return refuse("--pids cannot be used together with --json, --long or --prometheus");
    if (options.awaits && (options.watch.empty() || options.target.empty()))
        return refuse("--await can be used only with --watch and PID");
    if (!options.metrics.empty() && (options.output.json || !options.watch.empty()))
        return refuse("--prometheus cannot be used together with --json or --watch");
    if (options.history) return show_history(options);
    if (!options.metrics.empty()) return write_metrics(options);
    if (options.watch.empty()) return list(options).status;
    const auto interval = parse_duration(interval_of(options.watch));
    if (!interval) return refuse("--watch: " + interval.error().message);
    constexpr Milliseconds k_shortest{100};
    const auto pause = std::max(*interval, k_shortest);
    return is_live ? watch(options, pause) : repeat(options, pause);
}
