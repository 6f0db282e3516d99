// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Every option of every command, as --help-all lists them, with every kind of value that it cannot take, and
// some that it can; and what does not go together.

#include "support/host.hpp"

#include <regex>

using namespace gpu_sleep::test;

namespace {

/// What an option takes.
struct Kind {
    Arguments good;
    Arguments bad;
    bool may_repeat = false;
    Arguments needs = {}; ///< other arguments, for it to make sense
};

const std::string k_beyond_64_bits = "18446744073709551616";
const std::string k_beyond_all = "1" + std::string(30, '0');
const std::string k_garbage = "\x9B\x1B]0;\xFF\n";

const Arguments k_never = {k_garbage, " ", "--"};

Kind kind(Arguments good, const Arguments& bad, Arguments needs = {}, bool may_repeat = false) {
    return {std::move(good), with(k_never, bad), may_repeat, std::move(needs)};
}
Kind choice(const std::string& words) {
    std::istringstream stream(words);
    Arguments good;
    for (std::string word; std::getline(stream, word, '|');) good.push_back(word);
    return kind(std::move(good), {"x", words, "WAIT", "wait "});
}
Kind directory(Arguments needs) {
    return {{"/nonexistent", "here", std::string(300, 'd')}, {}, false, std::move(needs)};
}

/// What is told by the name of the value, or by the option, or by it and its command. What a time and a size
/// may be besides is for unit/units_test.cpp.
const std::map<std::string, Kind>& kinds() {
    const Kind duration = kind({"0", "250ms", "1.5h"}, {"-1s", "x", "1GiB"});
    const Kind size = kind({"0", "64KiB", "1.5GB"}, {"-1", "x", "1s"});
    const Kind file{{}, {"/nonexistent", "/", k_garbage, std::string(300, 'f')}};
    const Kind name{{"a", "a b", "gr\xC3\xBC\xC3\x9F"},
                    {k_garbage, "1", k_beyond_all, "a\n", "a\xE2\x80\xAE", std::string(65, 'n')}};
    const auto with_needs = [](Kind some, Arguments needs) {
        some.needs = std::move(needs);
        return some;
    };
    static const std::map<std::string, Kind> s_kinds = {
        {"", {}}, // a flag
        {"DURATION", duration},
        {"INTERVAL", duration},
        {"SIZE", size},
        {"TIME", with_needs(kind({"00:00", "22:30"}, {"24:00", "x", "22", "1h"}), {"--history"})},
        {"gpu-sleep --bytes", with_needs(size, {"--live"})},
        {"TAG[,TAG...]",
         {{"a", "a,b", "a,a", std::string(64, 't'), k_beyond_all},
          {k_garbage, " ", "a b", "a,b c", "gr\xC3\xBC", "a=b", std::string(65, 't')},
          true}},
        {"TAG", {{"a", std::string(64, 't')}, {k_garbage, " ", "a,b", "a b", std::string(65, 't')}}},
        {"NAME", name},
        {"GROUP", name},
        {"NAME|UID", kind({"0", "root", "65534"},
                          {"-1", "nobody-of-this-name", "1x", "1s", k_beyond_64_bits, k_beyond_all})},
        {"STORE|TAG=STORE,...", kind({"host", "a=host", "host,a=host", "a=host,b=host"},
                                     {"x", "=", "=host", "a=", "a=x", "a b=host", "host,host",
                                      "a=host,a=host", std::string(65, 't') + "=host"},
                                     {}, true)},
        {"SIZE|TAG=SIZE,...",
         {{"0", "4GiB", "a=4GiB", "1B,a=0,b=1.5GB"},
          {"x", "=1B", "a=", "a=x", "a=-1B", "a b=1B", "1B,1B", "a=1B,a=2B", "1"},
          true}},
        {"--keep-files", {{}, {}, false, {"--spill", "/nonexistent"}}},
        {"gpu-run --idle", kind({"1s", "250ms"}, {"0", "0s", "x", "15m:host", "15m,4h:file"})},
        {"gpu-run --deep", {{}, {}, false, {"--idle", "1h"}}},
        {"gpu-run --store",
         kind({"host", "a=host", "host,a=host"}, {"x", "=host", "a=", "a=x"}, {"--idle", "1h"}, true)},
        {"gpu-run --dir", directory({"--idle", "1h", "--store", "file"})},
        {"--root", {{}, {"/nonexistent"}}}, // which is refused for a user
        {"--config", file},
        {"--http-token", file},
        {"--rules", kind({"any", "min=64MiB,tag=a;capture=0"}, {"x", "min=", "tag=a b", "any;"})},
        {"ADDRESS",
         {{"0"},
          {k_garbage, " ", "x", "-1", "65536", ":80", "::1", "host:80", "unix:a", std::string(300, '/')}}},
        {"--min-awake", with_needs(duration, {"--make-room"})},
        {"gpu-run --wait", with_needs(duration, {"--need", "1B"})},
        {"gpu-reclaim --wait", with_needs(duration, {"--need", "1B"})},
        {"--stop-grace", with_needs(duration, {"--on-stop", "sleep"})},
        {"gpu-run --need", kind({"0", "1B", "64KiB", "1MB"}, {"-1", "x", "1s"})}, // the GPU has so much
        {"--gpu", kind({"0", "7", "GPU-51302d51-0000", "MIG-1"},
                       {"-1", "a b", "GPU_1", "/", std::string(65, 'G')}, {"--need", "1GiB"})},
        {"gpu-wake --gpu",
         kind({"0=1", "0=1,1=0", "GPU-a=GPU-b"}, {"x", "=", "=1", "0=", "0=1=2", "0=1,x"}, {}, true)},
        {"--prometheus", {{"-", "/nonexistent/x"}, {}}},
        {"--dir", directory({"--store", "file"})},
        {"gpu-doctor --dir", directory({})}, // which looks at it
        {"gpu-doctor --timeout", kind({"1s", "250ms"}, {"0", "0s", "x"})},
        {"--spill", directory({})},
        {"--extent",
         kind({"0", "1", "18446744073709551615"}, {"-1", "x", "1x", "1.5", "0x1", " 1", k_beyond_64_bits})},
        {"--output", {{"/nonexistent/x", std::string(300, 'f')}, {}}},
        {"--report", {{"/nonexistent/x", std::string(300, 'f')}, {}}},
    };
    return s_kinds;
}

/// A command or subcommand, with the arguments that make it do nothing and say so.
struct Command {
    Arguments words;
    Arguments rest;
    int status = 0; ///< of that

    [[nodiscard]] Output run_with(const Arguments& options) const {
        Launch launch{{command_file(words.front())}, environment_for_others()};
        launch.command.insert(launch.command.end(), words.begin() + 1, words.end());
        launch.command = with(with(std::move(launch.command), options), rest);
        return run(launch);
    }
};

/// It is not built where libmicrohttpd is missing.
bool has_door() {
    return std::filesystem::exists(command_file("gpu-sleep-http"));
}

/// What the tests below run: a new command needs a line here.
std::vector<Command> all_commands(const std::string& place) {
    constexpr auto k_nobody = "999999999"; // beyond any pid
    std::vector<Command> all{{{"gpu-ps"}, {k_nobody}, 3},
                             {{"gpu-sleep"}, {k_nobody}, 3},
                             {{"gpu-wake"}, {k_nobody}, 3},
                             {{"gpu-switch"}, {k_nobody}, 3},
                             {{"gpu-reclaim"}, {k_nobody}, 3},
                             {{"gpu-inhibit"}, {k_nobody}, 3},
                             {{"gpu-doctor"}, {k_nobody}, 3},
                             {{"gpu-run"}, {"--", "true"}, 0},
                             {{"gpu-enable"}, {"user", "--show"}, 0},
                             {{"gpu-snapshot", "ls"}, {place}, 0},
                             {{"gpu-snapshot", "verify"}, {place}, 0},
                             {{"gpu-snapshot", "clean"}, {place}, 0},
                             {{"gpu-snapshot", "extract"}, {place + "/none"}, 1}};
    if (has_door()) all.push_back({{"gpu-sleep-http"}, {k_nobody}, 3});
    return all;
}

/// What a command prints for `option`, such as its help.
std::string printed(const Command& command, const std::string& option) {
    Launch launch{{command_file(command.words.front())}};
    launch.command.insert(launch.command.end(), command.words.begin() + 1, command.words.end());
    launch.command.push_back(option);
    return run(launch).out;
}

/// The long options in the help of a command, and the names of their values.
std::map<std::string, std::string> options_of(const Command& command,
                                              const std::string& help_option = "--help-all") {
    std::istringstream help(printed(command, help_option));
    const std::regex option(R"~(^  (?:-[a-z], )?(--[a-z-]+)(?: (\S+)|\[=(\S+)\])?(?:  .*)?$)~");
    std::map<std::string, std::string> names;
    std::smatch match;
    for (std::string line; std::getline(help, line);)
        if (std::regex_match(line, match, option)) names[match[1]] = match.str(2) + match.str(3);
    return names;
}

/// What `command` cannot do without.
Arguments needs_of(const Command& command) {
    if (command.words.front() == "gpu-sleep-http") return {"--http", "0"};
    return command.words.back() == "extract" ? Arguments{"--extent", "0", "--output", "/nonexistent/x"}
                                             : Arguments{};
}

/// What an option of `command` takes.
Kind kind_of(const Command& command, const std::string& option, const std::string& value) {
    for (const auto& key : {command.words.back() + ' ' + option, option, value})
        if (const auto found = kinds().find(key); found != kinds().end()) return found->second;
    REQUIRE(value.find('|') != std::string::npos); // else say above what it takes
    return choice(value);
}

/// What an option of `command` cannot do without, but for itself.
Arguments needs_of(const Command& command, const std::string& option, Arguments needs) {
    if (command.words.front() == "gpu-sleep-http" && option != "--http")
        needs = with(needs, needs_of(command));
    if (command.words.back() != "extract") return needs;
    if (option != "--extent") needs = with(needs, {"--extent", "0"});
    if (option != "--output") needs = with(needs, {"--output", "/nonexistent/x"});
    return needs;
}

/// Ends with status 2 and one plain sentence that names the option and begins with the command.
void check_refused(const Output& output, const Command& command, const std::string& option) {
    INFO(output.err);
    CHECK(output.status == 2);
    CHECK(output.out.empty());
    CHECK(output.err.starts_with(command.words.front() + ": "));
    CHECK(std::count(output.err.begin(), output.err.end(), '\n') == 1);
    CHECK_THAT(output.err, mentions(option));
    CHECK_THAT(output.err, mentions("see " + command.words.front() + " --help"));
    for (const auto* const foreign :
         {"Could not", "required but", "At Most", "Expected", "not convert", "excludes"})
        CHECK_THAT(output.err, !mentions(foreign));
}

void check_done(const Output& output, int status) {
    INFO(output.err);
    CHECK(output.status == status);
}

void check_flag(const Command& command, const std::string& option, const Arguments& needs, int status) {
    check_done(command.run_with(with(needs, {option})), status);
    check_done(command.run_with(with(needs, {option, option})), status);
    check_refused(command.run_with(with(needs, {option + "=1"})), command, option);
}

/// All values of a kind are for the first option that takes it; for the others, which are read by the same
/// code, the first good one and the last bad one, which tells the kind from others.
void check_values(const Command& command, const std::string& option, const Kind& kind,
                  const Arguments& needs) {
    static std::set<Arguments> s_tried;
    const bool is_first = s_tried.insert(kind.bad).second;
    const auto some = [&](const Arguments& values, std::size_t one) {
        return is_first || values.empty() ? values : Arguments{values[one]};
    };
    const bool is_optional = option == "--watch" || option == "--prometheus";
    const auto given = [&](const std::string& value) {
        return is_optional ? Arguments{option + "=" + value} : Arguments{option, value};
    };
    for (const auto& value : some(kind.good, 0))
        check_done(command.run_with(with(needs, given(value))), command.status);
    for (const auto& value : some(kind.bad, kind.bad.size() - 1)) {
        INFO(value);
        check_refused(command.run_with(with(needs, given(value))), command, option);
    }
    for (const auto* const nothing : {"=", "=,"})
        if (is_first) check_refused(command.run_with(with(needs, {option + nothing})), command, option);
    if (!is_optional) check_refused(command.run_with(with(needs, {option, ""})), command, option);
    auto bare = command;
    bare.rest.clear();
    if (!is_optional) check_refused(bare.run_with({option}), command, option);
    const std::string value = kind.good.empty() ? "/nonexistent" : kind.good.front();
    const auto twice = command.run_with(with(needs, with(given(value), given(value))));
    if (kind.may_repeat && option != "--store" && option != "--live-bytes")
        check_done(twice, command.status);
    else
        check_refused(twice, command, option);
}

} // namespace

TEST_CASE("Options: each takes what it should, and refuses anything else in one sentence", "[options]") {
    const Scratch scratch;
    for (const auto& command : all_commands(scratch.path())) {
        const auto options = options_of(command);
        CHECK(options.contains("--help"));
        for (const auto& [option, value] : options) {
            INFO(command.words.front() << ' ' << command.words.back() << ' ' << option << ' ' << value);
            if (option.starts_with("--http") && !has_door()) continue;
            const auto kind = kind_of(command, option, value);
            const auto needs = needs_of(command, option, kind.needs);
            const std::map<std::string, int> ends{
                {"--help", 0}, {"--help-all", 0}, {"--version", 0}, {"--await", 2}, {"--off", 2}};
            auto asked = command;
            if (option == "--group" && command.words.back() != "gpu-run")
                asked.rest.clear(); // in place of it
            if (kind.good.empty() && kind.bad.empty())
                check_flag(command, option, needs, ends.contains(option) ? ends.at(option) : command.status);
            else
                check_values(asked, option, kind, needs);
        }
    }
}

TEST_CASE("Options: a help fits a terminal, and the short one shows the few that people use", "[options]") {
    constexpr std::size_t k_columns = 80, k_options = 8;
    constexpr std::ptrdiff_t k_lines = 25;
    auto commands = all_commands("");
    commands.push_back({{"gpu-snapshot"}, {}});
    for (const auto& command : commands) {
        INFO(command.words.front() << ' ' << command.words.back());
        const auto help = printed(command, "--help");
        const bool has_subcommands = command.rest.empty() && command.words.front() == "gpu-snapshot";
        const auto* const more = has_subcommands ? "gpu-snapshot ls --help. " : " --help-all. ";
        CHECK(std::count(help.begin(), help.end(), '\n') <= k_lines);
        CHECK_THAT(help, mentions("Usage: " + command.words.front()) && mentions(more));
        std::istringstream lines(help + printed(command, "--help-all"));
        for (std::string line; std::getline(lines, line);) {
            INFO(line);
            CHECK(line.size() <= k_columns);
        }
        CHECK_THAT(printed(command, "--help-all"), !mentions(":\n\n")); // a heading with nothing below
        const auto few = options_of(command, "--help");
        const auto all = options_of(command);
        CHECK(few.size() <= k_options);
        for (const auto& [option, value] : few) CHECK(all.contains(option));
        const auto version =
            command.words.front() + " " GPU_SLEEP_VERSION " (protocol 8, snapshot format 2)\n";
        if (command.words.size() == 1) CHECK(printed(command, "--version") == version);
    }
}

TEST_CASE("Options: every command is tried", "[options]") {
    std::set<std::string> tried;
    for (const auto& command : all_commands("")) tried.insert(command.words.front());
    for (const auto& file :
         std::filesystem::directory_iterator(std::filesystem::path(command_file("gpu-ps")).parent_path())) {
        const auto name = file.path().filename().string();
        if (name.starts_with("gpu-")) CHECK(tried.contains(name));
    }
    std::string listed = run({{command_file("gpu-snapshot")}}).err;
    for (const std::string word :
         {"ls", "verify", "clean", "extract",
          "gpu-snapshot: a subcommand is missing: , ,  or ; see gpu-snapshot --help\n"}) {
        const auto at = listed.find(word);
        REQUIRE(at != std::string::npos);
        listed.erase(at, word.size());
    }
    CHECK(listed.empty());
}

TEST_CASE("Options: what is not there, too much or too little is named", "[options]") {
    const Scratch scratch;
    for (const auto& command : all_commands(scratch.path())) {
        const bool extracts = command.words.back() == "extract";
        const bool cleans = command.words.back() == "clean";
        const auto needs = needs_of(command);
        check_refused(command.run_with(with(needs, {"--frobnicate=3"})), command, "no option --frobnicate");
        auto changed = command;
        if (command.words.front() != "gpu-run") {
            const std::set<std::string> taking_several{"gpu-sleep", "gpu-wake", "gpu-inhibit"};
            changed.rest = {command.rest.front(), "surplus"};
            if (!taking_several.contains(command.words.front()))
                check_refused(changed.run_with(needs), command, "'surplus'");
            changed.rest = {""};
            const auto* const word = command.words.front() == "gpu-enable"     ? "user|machine"
                                     : command.words.front() != "gpu-snapshot" ? "PID"
                                     : extracts                                ? "SNAPSHOT"
                                     : cleans                                  ? "DIRECTORY"
                                                                               : "PATH";
            check_refused(changed.run_with(needs), command, word);
        }
        changed.rest.clear();
        const std::set<std::string> asking_all{"gpu-ps", "gpu-reclaim", "gpu-doctor"};
        const bool may_ask_all = asking_all.contains(command.words.front());
        if (!may_ask_all) check_refused(changed.run_with(needs), command, "is missing");
        if (!needs.empty()) check_refused(command.run_with({}), command, "is missing");
    }
}

TEST_CASE("Options: what does not go together is wrong usage, and the sentence names it", "[options]") {
    struct Mistake {
        Arguments words;
        std::string named;
    };
    const std::string k_nobody = "999999999";
    for (const auto& [words, named] : std::vector<Mistake>{
             {{"gpu-sleep", "--tree"}, "PID is missing"},
             {{"gpu-sleep", k_nobody, "--tag", "a"}, "no option --tag (did you mean --tags?)"},
             {{"gpu-sleep", "--hlep"}, "no option --hlep (did you mean --help?)"},
             {{"gpu-sleep", k_nobody, "--group", "g"}, "--group"},
             {{"gpu-sleep", "--group", "471"}, "gpu-ps --long shows the groups"},
             {{"gpu-sleep", "--tree", "--group", "g"}, "--tree and --group"},
             {{"gpu-sleep", k_nobody, "1", "--tree"}, "--tree"},
             {{"gpu-sleep", k_nobody, "--tree", "--engine", "driver"}, "--engine driver"},
             {{"gpu-sleep", k_nobody, "--engine", "driver", "--level", "2"}, "--engine driver"},
             {{"gpu-sleep", k_nobody, "--engine", "auto", "--tags", "a"}, "--engine auto"},
             {{"gpu-sleep", k_nobody, "--deep", "--engine", "driver"}, "--engine driver"},
             {{"gpu-sleep", k_nobody, "--deep", "--tags", "a"}, "--tags"},
             {{"gpu-sleep", k_nobody, "--deep", "--gate", "checked"}, "--gate checked"},
             {{"gpu-sleep", k_nobody, "--level", "0", "--deep"}, "level 0"},
             {{"gpu-sleep", k_nobody, "--level", "0", "--tags", "a"}, "level 0"},
             {{"gpu-sleep", "--all", "--group", "g"}, "--all"},
             {{"gpu-sleep", "--all", "--tree"}, "--all"},
             {{"gpu-sleep", "--all", "--engine", "driver"}, "--engine driver"},
             {{"gpu-sleep", k_nobody, "--keep", "a", "--discard", "a"}, "kept and discarded"},
             {{"gpu-sleep", k_nobody, "--store", "file"}, "--dir"},
             {{"gpu-sleep", k_nobody, "--store", "host", "--dir", "/tmp"}, "--dir"},
             {{"gpu-sleep", k_nobody, "--keep-files"}, "--keep-files"},
             {{"gpu-sleep", k_nobody, "--bytes", "1GiB"}, "--live"},
             {{"gpu-sleep", k_nobody, "--live", "--level", "2"}, "--live"},
             {{"gpu-wake", "--tree"}, "PID is missing"},
             {{"gpu-wake", k_nobody, "--tree", "--make-room"}, "--make-room"},
             {{"gpu-wake", k_nobody, "--tree", "--gpu", "0=1"}, "--gpu"},
             {{"gpu-wake", k_nobody, "1", "--gpu", "0=1"}, "--gpu"},
             {{"gpu-ps", "--prometheus", "--watch"}, "--prometheus"},
             {{"gpu-reclaim", "--why", "--need", "1GiB"}, "--why"},
             {{"gpu-reclaim", "--idle", "1h", "--engine", "driver"}, "--engine"},
             {{"gpu-reclaim", "--wait", "1s"}, "--need"},
             {{"gpu-inhibit"}, "PID"},
             {{"gpu-inhibit", "--"}, "PID"},
             {{"gpu-inhibit", "--all", "--", "true"}, "COMMAND"},
             {{"gpu-inhibit", "1", "--", "true"}, "COMMAND"},
             {{"gpu-inhibit", "--release", "--", "true"}, "--release"},
             {{"gpu-inhibit", "--user", "root", "--", "true"}, "--user"},
             {{"gpu-inhibit", "--release", "--for", "1h", "1"}, "--for"},
             {{"gpu-run", "--touch-limit", "5s", "--on-touch", "wait", "true"}, "--on-touch wake"},
             {{"gpu-run", "--wait", "1s", "true"}, "--need"},
             {{"gpu-run", "--stop-grace", "5s", "true"}, "--on-stop sleep"},
             {{"gpu-run", "--stop-grace", "5s", "--on-stop", "stop", "true"}, "--on-stop sleep"},
             {{"gpu-run", "--deep", "true"}, "--idle"},
             {{"gpu-run", "--dir", "/tmp", "true"}, "--idle"},
             {{"gpu-run", "--idle", "1h", "--store", "file", "true"}, "--dir"},
             {{"gpu-run", "--idle", "1h", "--no-capture", "true"}, "--no-capture"},
             {{"gpu-run", "--no-capture", "--tag", "a", "true"}, "--no-capture"},
             {{"gpu-run", "--no-capture", "--rules", "any", "true"}, "--no-capture"}}) {
        check_refused(Command{words, {}}.run_with({}), {words, {}}, named);
    }
}

TEST_CASE("Options: a number that is no pid is nobody's", "[options]") {
    for (const auto* const command : {"gpu-ps", "gpu-sleep", "gpu-wake", "gpu-reclaim", "gpu-doctor"})
        for (const auto& word : {std::string("0"), std::string("-1"), k_beyond_64_bits, k_beyond_all,
                                 std::string("1s"), k_garbage}) {
            const auto needs = needs_of({{command}, {}});
            const auto ask = [&] { return run({with(with({command_file(command)}, needs), {"--", word})}); };
            auto output = ask();
            // Another test's process may begin another program just as it is asked for its name.
            for (int i = 0; i < 5 && output.err.find("cannot be asked") != std::string::npos; ++i)
                output = ask();
            INFO(output.err);
            CHECK(output.status == 3);
            CHECK_THAT(output.err, mentions("there is no process"));
        }
}
