// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-sleep-http: a door to a program for the controllers of model servers, which speak HTTP.

#include "base/files.hpp"
#include "cli/command_run.hpp"
#include "cli/http/door.hpp"
#include "cli/http/server.hpp"
#include "cli/show/output.hpp"

#include <fmt/format.h>

#include <sys/syscall.h>

using namespace gpu_sleep;

namespace {

namespace http = cli::http;
constexpr const char* k_name = "gpu-sleep-http";
constexpr const char* k_examples =
    "  gpu-sleep-http 4242 --http 8080           curl -X POST localhost:8080/sleep\n"
    "  gpu-sleep-http llama --http unix:/run/user/1000/llama\n"
    "  gpu-run --http 8080 -- python3 serve.py   the same, from its start to its end\n";
constexpr const char* k_exit_statuses = "0 the process has ended, or the server was told to end; 1 failed, "
                                        "2 wrong usage or an address that is taken, 3 no such process.";

struct ServeOptions {
    std::string target;
    control::Selection whom;
    http::DoorOptions door;
    std::optional<Milliseconds> wait, min_awake;
    bool make_room = false;
};

usage::Table table_of(ServeOptions& options) {
    return {k_name,
            "Puts a program to sleep and wakes it when controllers of model servers ask for that by HTTP.",
            {"[OPTION]... --http ADDRESS PID", "[OPTION]... --http ADDRESS --group GROUP"},
            {{"Which process",
              {usage::brief(cli::target_row(options.target)), usage::brief(cli::tree_row(options.whom)),
               cli::group_row(options.whom), cli::user_row(options.whom.user)}},
             {"Who may call, and where", http::rows(options.door)},
             {"When GPU memory is short",
              {usage::brief({"--wait", usage::duration(options.wait),
                             "How long a wake retries while GPU memory is short (default: 0 s)"}),
               {"--make-room", usage::flag(options.make_room),
                "If GPU memory is short, put the user's least recently used processes to sleep"},
               cli::min_awake_row(options.min_awake, "--make-room")}}},
            k_examples,
            k_exit_statuses};
}

std::string complete(ServeOptions& options) {
    if (!options.target.empty()) options.whom.words = {options.target};
    if (auto text = cli::selection_problem(options.whom); !text.empty()) return text;
    if (!options.door.address) return "--http is missing";
    if (options.min_awake && !options.make_room) return "--min-awake can be used only with --make-room";
    return http::complete(options.door);
}

/// The process whose end is that of the door: the one that was named by its pid.
Result<UniqueFd> open_process(const control::Selection& whom) {
    if (whom.words.empty() || !model::is_number(whom.words.front())) return UniqueFd();
    const auto process =
        GPU_SLEEP_TRY(control::find_process(control::Finder(), whom.words.front(), whom.user));
    UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
    if (!fd) return make_error(ErrorCode::no_process, "process {} has ended", control::title(process));
    return fd;
}

Result<void> run(ServeOptions& options) {
    auto& door = options.door;
    constexpr Milliseconds k_wait_for_room{10'000}; // as gpu-wake
    const auto wait = options.wait.value_or(options.make_room ? k_wait_for_room : Milliseconds(0));
    http::Backend backend(
        options.whom, {wait, options.make_room, options.min_awake.value_or(model::WakeRequest().min_awake)});
    const auto process = GPU_SLEEP_TRY(open_process(options.whom));
    if (!process) // else it may be about to use the GPU only
        if (const auto found = backend.ask(); !found) return found.error();
    control::raise_descriptor_limit();
    std::signal(SIGPIPE, SIG_IGN);
    cli::Signals signals;
    auto listener = GPU_SLEEP_TRY(http::listen_on(*door.address));
    const bool is_unix = door.address->is_unix();
    const http::Ends itself{door.address->endpoint, {door.address->endpoint.ip, 0}};
    if (!is_unix && door.token.empty() && !http::user_of(itself))
        return make_error(ErrorCode::io_failed,
                          "the kernel does not say which user calls, for it was built without inet_diag: use "
                          "a token, or a Unix socket");
    const auto owner =
        http::known_owner(::geteuid(), overflow_uid(), read_small_file("/proc/self/uid_map").value_or(""));
    const auto server = GPU_SLEEP_TRY(http::serve(
        std::move(listener), http::Admission(is_unix, owner, std::move(door.token)), std::move(backend)));
    static_cast<void>(cli::write_result(fmt::format("listening on {}\n", to_string(*door.address))));
    std::array<pollfd, 2> polled{pollfd{signals.fd(), POLLIN, 0}, pollfd{process.get(), POLLIN, 0}};
    while (!signals.has_come() && polled[1].revents == 0) ::poll(polled.data(), polled.size(), -1);
    http::remove_file(*door.address);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, SIG_IGN); // it ends already
    return {};
}

} // namespace

int main(int argc, char** argv) {
    ServeOptions options;
    if (const auto status = cli::parse(table_of(options), argc, argv)) return *status;
    if (const auto text = complete(options); !text.empty()) return cli::usage_error(k_name, text, false);
    const auto done = run(options);
    return cli::end_beside_driver(done ? exit_status::done : cli::tell_failure(k_name, {}, done.error()));
}
