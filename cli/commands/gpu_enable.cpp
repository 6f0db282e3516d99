// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-enable: has every login load the agent, of this user or of all users, and takes that back.

#include "base/text.hpp"
#include "cli/login/environment.hpp"
#include "cli/options.hpp"
#include "cli/preload.hpp"
#include "cli/show/output.hpp"
#include "model/report.hpp"

#include <unistd.h>

using namespace gpu_sleep;

namespace {

namespace fs = std::filesystem;
namespace usage = cli::usage;

constexpr const char* k_program = "gpu-enable";
constexpr const char* k_examples = "  gpu-enable user            programs of your later logins can sleep\n"
                                   "  gpu-enable user --off      undo that\n"
                                   "  sudo gpu-enable machine    the same for all users\n";
constexpr const char* k_exit_statuses =
    "0 done, 1 failed, 2 wrong usage, or a file that gpu-sleep did not write is in the way, 5 not permitted.";

struct EnableOptions {
    std::string whose; ///< "user", "machine", or empty for both
    bool off = false, show = false;
    std::string root; ///< empty for that of the machine
};

usage::Table table_of(EnableOptions& options) {
    const auto set_whose = [&options](const std::string& word) { options.whose = word; };
    auto whose = usage::choice("user|machine", set_whose);
    whose.name.clear();
    return {k_program,
            "Loads the agent into programs of future logins, so that they do not need gpu-run.",
            {"user|machine [--off] [--root DIR]", "[user|machine] --show [--root DIR]"},
            {{"Options",
              {usage::brief({"user|machine", whose,
                             "user: your own logins. machine: the "
                             "logins of all users (as root)"}),
               usage::brief({"--off", usage::flag(options.off),
                             "Undo it: later logins do not "
                             "load the agent"}),
               usage::brief({"--show", usage::flag(options.show),
                             "Change nothing; list the files that make logins load the agent"}),
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

/// The line that undoes what was done, or is so.
std::string way_back(const cli::LoginScope& scope, bool is_on) {
    auto line =
        fmt::format("undo: {} {}{}", k_program, scope.is_machine ? "machine" : "user", is_on ? " --off" : "");
    if (scope.root != "/") line += " --root " + quoted(scope.root.native());
    return line + '\n';
}

std::string listed(const std::vector<fs::path>& files) {
    std::string lines;
    for (const auto& file : files) lines += "  " + file.native() + '\n';
    return lines;
}

int enable(const cli::LoginScope& scope) {
    std::error_code failure;
    const auto self = fs::read_symlink("/proc/self/exe", failure);
    const auto library = cli::find_login(self.parent_path().native());
    if (!library) return fail(library.error());
    if (scope.is_machine && scope.root == "/") { // in an image the library is not this one
        if (const auto open = cli::check_open_to_all(*library); !open) return fail(open.error());
    }
    const auto files = cli::enable_login(scope, *library);
    if (!files) return fail(files.error());
    std::string hints;
    if (scope.is_machine)
        hints += "JupyterHub's kernels that are not listed, such as users' own, have no agent: begin "
                 "c.Spawner.cmd with \"gpu-run\", \"--\", then restart the hub and the users' servers\n";
    if (!fs::exists(scope.root / fs::path(*library).relative_path(), failure))
        hints += fmt::format("{} lacks {}: install gpu-sleep there, too\n", scope.root.native(), *library);
    const auto* const last =
        scope.root == "/" ? "programs that are already running have no agent until you restart them\n" : "";
    return cli::print_result(k_program, "enabled from the next login on, in these files:\n" + listed(*files) +
                                            hints + way_back(scope, true) + last);
}

int disable(const cli::LoginScope& scope) {
    const auto files = cli::login_files(scope);
    const auto disabled = files ? cli::disable_login(scope) : files.error();
    if (!disabled) return fail(disabled.error());
    if (files->empty()) return cli::print_result(k_program, "it was not enabled\n");
    return cli::print_result(k_program, "disabled from the next login on; removed from these files:\n" +
                                            listed(*files) + way_back(scope, false));
}

std::string shown(const cli::LoginScope& scope) {
    const auto files = cli::login_files(scope);
    const std::string head = scope.is_machine ? "machine: " : "user: ";
    if (!files) return head + "not known: " + files.error().message + '\n';
    if (files->empty()) return head + "not enabled\n";
    return head + "enabled, in these files:\n" + listed(*files) + way_back(scope, true);
}

} // namespace

int main(int argc, char** argv) {
    EnableOptions options;
    if (const auto status = cli::parse(table_of(options), argc, argv)) return *status;
    if (options.off && options.show)
        return cli::usage_error(k_program, "--off and --show cannot be used together", false);
    if (options.whose.empty() && !options.show)
        return cli::usage_error(k_program, "user|machine is missing", false);
    if (options.whose == "user" && !options.root.empty())
        return cli::usage_error(k_program, "--root is for the machine's files", false);
    std::error_code failure;
    const auto root =
        options.root.empty() ? fs::path("/") : (fs::absolute(options.root, failure) / "").lexically_normal();
    if (failure)
        return cli::usage_error(k_program, "--root is relative to a working directory that is gone", false);
    if (options.show) {
        std::string text;
        if (options.whose != "machine") text += shown({.is_machine = false});
        if (options.whose != "user") text += shown({.is_machine = true, .root = root});
        return cli::print_result(k_program, text);
    }
    const cli::LoginScope scope{options.whose == "machine", root};
    const char* const off = options.off ? " --off" : "";
    if (scope.is_machine && root == "/" && ::geteuid() != 0)
        return fail(make_error(ErrorCode::not_permitted,
                               "only root can do this: sudo {} machine{}; for your own logins: {} user{}",
                               k_program, off, k_program, off));
    return options.off ? disable(scope) : enable(scope);
}
