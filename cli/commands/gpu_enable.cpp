// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-enable: has every login load the agent, of this user or of all users, or containers, and takes that
// back.

#include "base/text.hpp"
#include "cli/login/environment.hpp"
#include "cli/options.hpp"
#include "cli/preload.hpp"
#include "cli/show/output.hpp"

using namespace gpu_sleep;

namespace {

namespace fs = std::filesystem;
constexpr const char* k_program = "gpu-enable";
constexpr const char* k_examples = "  gpu-enable user            programs of your later logins can sleep\n"
                                   "  gpu-enable user --off      undo that\n"
                                   "  sudo gpu-enable machine    the same for all users\n"
                                   "  sudo gpu-enable containers\n"
                                   "  podman run --device gpu-sleep.io/agent=all IMAGE\n"
                                   "                             programs of this container can sleep\n";
constexpr const char* k_exit_statuses =
    "0 done, 1 failed, 2 wrong usage, or a file that gpu-sleep did not write is in the way, 5 not permitted.";

struct EnableOptions {
    std::string whose; ///< "user", "machine", "containers", or empty for all
    bool off = false, show = false;
    std::string root; ///< empty for that of the machine
};

usage::Table table_of(EnableOptions& options) {
    const auto set_whose = [&options](const std::string& word) { options.whose = word; };
    auto whose = usage::choice("user|machine|containers", set_whose);
    whose.name.clear();
    return {k_program,
            "Loads the agent into programs of future logins or containers, so that they do not need gpu-run.",
            {"user|machine|containers [--off] [--root DIR]", "[user|machine|containers] --show [--root DIR]"},
            {{"Options",
              {usage::brief({"user|machine|containers", whose,
                             "user: your own logins. machine: the logins of all users (as root). containers: "
                             "those started with --device gpu-sleep.io/agent=all (as root)"}),
               usage::brief({"--off", usage::flag(options.off),
                             "Undo it: later logins or containers do not load the agent"}),
               usage::brief({"--show", usage::flag(options.show),
                             "Change nothing; list the files that load the agent"}),
               {"--root", usage::path("DIR", options.root),
                "Write the machine's files below DIR, for example the root of a system image"}}}},
            k_examples,
            k_exit_statuses};
}

int fail(const Error& error) {
    cli::print_error(fmt::format("{}: {}\n", k_program, printable(error.message)));
    return model::exit_status_of({error, model::State::awake});
}

/// `text`, as a shell reads it as one word.
std::string quoted(std::string text) {
    for (auto at = text.find('\''); at != std::string::npos; at = text.find('\'', at + 4))
        text.replace(at, 1, R"('\'')");
    return '\'' + text + '\'';
}

bool is_for_containers(const EnableOptions& options) {
    return options.whose == "containers";
}

cli::LoginScope login_of(const EnableOptions& options) {
    return {options.whose == "machine", options.root};
}

/// The line that undoes what was done, or is so.
std::string way_back(const EnableOptions& options, bool is_on) {
    auto line = fmt::format("undo: {} {}{}", k_program, options.whose, is_on ? " --off" : "");
    if (options.root != "/") line += " --root " + quoted(options.root);
    return line + '\n';
}

std::string listed(const std::vector<fs::path>& files) {
    std::string lines;
    for (const auto& file : files) lines += "  " + file.native() + '\n';
    return lines;
}

Result<std::vector<fs::path>> files_of(const EnableOptions& options) {
    return is_for_containers(options) ? cli::container_files(options.root)
                                      : cli::login_files(login_of(options));
}

int enable(const EnableOptions& options) {
    std::error_code failure;
    const auto commands = fs::read_symlink("/proc/self/exe", failure).parent_path();
    const auto library = cli::find_login(commands.native());
    if (!library) return fail(library.error());
    if (options.whose != "user" && options.root == "/") { // in an image the library is not this one
        if (const auto open = cli::check_open_to_all(*library); !open) return fail(open.error());
    }
    const auto files = is_for_containers(options) ? cli::enable_containers(options.root, commands, *library)
                                                  : cli::enable_login(login_of(options), *library);
    if (!files) return fail(files.error());
    std::string hints;
    if (options.whose == "machine")
        hints += "JupyterHub's kernels that are not listed, such as users' own, have no agent: begin "
                 "c.Spawner.cmd with \"gpu-run\", \"--\", then restart the hub and the users' servers\n";
    if (!fs::exists(fs::path(options.root) / fs::path(*library).relative_path(), failure))
        hints += fmt::format("{} lacks {}: install gpu-sleep there, too\n", options.root, *library);
    const auto* const last =
        options.root == "/" ? "programs that are already running have no agent until you restart them\n" : "";
    const auto* const since = is_for_containers(options)
                                  ? "enabled for containers started with --device gpu-sleep.io/agent=all"
                                  : "enabled from the next login on";
    return cli::print_result(k_program, fmt::format("{}, in these files:\n{}{}{}{}", since, listed(*files),
                                                    hints, way_back(options, true), last));
}

int disable(const EnableOptions& options) {
    const auto files = files_of(options);
    const auto disabled = !files                       ? files.error()
                          : is_for_containers(options) ? cli::disable_containers(options.root)
                                                       : cli::disable_login(login_of(options));
    if (!disabled) return fail(disabled.error());
    if (files->empty()) return cli::print_result(k_program, "it was not enabled\n");
    return cli::print_result(k_program,
                             fmt::format("disabled from the next {} on; removed from these files:\n{}{}",
                                         is_for_containers(options) ? "container" : "login", listed(*files),
                                         way_back(options, false)));
}

std::string shown(const EnableOptions& options) {
    const auto files = files_of(options);
    const auto head = options.whose + ": ";
    if (!files) return head + "not known: " + files.error().message + '\n';
    if (files->empty()) return head + "not enabled\n";
    return head + "enabled, in these files:\n" + listed(*files) + way_back(options, true);
}

} // namespace

int main(int argc, char** argv) {
    EnableOptions options;
    if (const auto status = cli::parse(table_of(options), argc, argv)) return *status;
    if (options.off && options.show)
        return cli::usage_error(k_program, "--off and --show cannot be used together", false);
    if (options.whose.empty() && !options.show)
        return cli::usage_error(k_program, "user|machine|containers is missing", false);
    if (options.whose == "user" && !options.root.empty())
        return cli::usage_error(k_program, "--root is for the machine's files", false);
    std::error_code failure;
    options.root =
        options.root.empty() ? fs::path("/") : (fs::absolute(options.root, failure) / "").lexically_normal();
    if (failure)
        return cli::usage_error(k_program, "--root is relative to a working directory that is gone", false);
    if (!fs::is_directory(options.root, failure))
        return cli::usage_error(
            k_program,
            fmt::format("--root: {}: {}; name a directory that exists", options.root, failure.message()),
            false);
    if (options.show) {
        std::string text;
        for (const std::string whose : {"user", "machine", "containers"})
            if (options.whose.empty() || options.whose == whose)
                text += shown({.whose = whose, .root = whose == "user" ? "/" : options.root});
        return cli::print_result(k_program, text);
    }
    const char* const off = options.off ? " --off" : "";
    if (options.whose != "user" && options.root == "/" && ::geteuid() != 0)
        return fail(make_error(ErrorCode::not_permitted,
                               "only root can do this: sudo {0} {1}{2}; for your own logins: {0} user{2}",
                               k_program, options.whose, off));
    return options.off ? disable(options) : enable(options);
}
