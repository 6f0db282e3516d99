// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Spawning, pipes, and reading JSON.

#include "support/process.hpp"
#include "support/not_copied.hpp"

#include "base/files.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sstream>

namespace gpu_sleep::test {
namespace {

using Json = nlohmann::json;

struct Pipe {
    UniqueFd read, write;
};

Pipe make_pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw ProcessFailure("there is no pipe");
    return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

/// While it lives, a write to a program that has ended is an error and does not end this one.
class NoPipeSignal : NotCopied {
public:
    NoPipeSignal() noexcept {
        ::sigemptyset(&signal_);
        ::sigaddset(&signal_, SIGPIPE);
        ::pthread_sigmask(SIG_BLOCK, &signal_, &before_);
    }
    ~NoPipeSignal() {
        constexpr timespec k_now{};
        while (::sigtimedwait(&signal_, nullptr, &k_now) < 0 && errno == EINTR) {
        }
        ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }

private:
    sigset_t signal_{}, before_{};
};

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
    std::vector<char*> pointers;
    for (auto& text : texts) pointers.push_back(text.data());
    pointers.push_back(nullptr);
    return pointers;
}

std::vector<std::string> environment_of(const Launch& launch) {
    auto variables = launch.environment;
    const auto is_set = [&](const std::string& inherited) {
        const auto name = inherited.substr(0, inherited.find('=') + 1);
        return std::any_of(launch.environment.begin(), launch.environment.end(),
                           [&](const std::string& variable) { return variable.starts_with(name); });
    };
    for (char** inherited = ::environ; launch.inherits_environment && *inherited; ++inherited)
        if (!is_set(*inherited)) variables.emplace_back(*inherited);
    return variables;
}

constexpr int k_by_signal = 128; // and the signal's number

int status_from(int waited) {
    return WIFEXITED(waited) ? WEXITSTATUS(waited) : k_by_signal + WTERMSIG(waited);
}

std::string text_of(const Json* value) {
    if (!value) return "none";
    return value->is_string() ? value->get<std::string>() : value->dump();
}

const Json* at(const Json& document, const std::string& pointer) {
    const Json::json_pointer place(pointer);
    return document.contains(place) ? &document.at(place) : nullptr;
}

Json parsed(const Output& output) {
    auto document = Json::parse(output.out, nullptr, false);
    if (document.is_discarded())
        throw ProcessFailure(fmt::format("no JSON, status {}\n{}{}", output.status, output.out, output.err));
    const auto* const said = at(document, "/exit_status");
    if (said && output.status < k_by_signal && *said != output.status)
        throw ProcessFailure(
            fmt::format("status {}, and not as it says\n{}{}", output.status, output.out, output.err));
    return document;
}

} // namespace

double share_of_processors(std::string_view loadavg, unsigned processors) {
    constexpr unsigned k_fields_before = 3; // averages
    std::istringstream fields{std::string(loadavg)};
    std::string field;
    for (unsigned i = 0; i < k_fields_before; ++i) fields >> field;
    unsigned wanting = 0;
    return fields >> wanting && wanting > processors ? static_cast<double>(processors) / wanting : 1;
}

Milliseconds Patience::left() {
    const auto now = Clock::now();
    left_ -=
        (now - std::exchange(seen_, now)) * share_of_processors(read_small_file("/proc/loadavg").value_or(""),
                                                                std::thread::hardware_concurrency());
    return std::max(std::chrono::ceil<Milliseconds>(left_), Milliseconds(0));
}

std::string Output::json(const std::string& pointers, const std::string& prefix) const {
    const auto document = parsed(*this);
    std::istringstream each(pointers);
    std::string texts, pointer;
    while (each >> pointer) texts += text_of(at(document, prefix + pointer)) + ' ';
    return texts.substr(0, texts.size() - 1);
}

std::vector<std::string> Output::of_all(const std::string& pointer) const {
    std::vector<std::string> values;
    const auto document = parsed(*this);
    for (const auto& process : document.at("processes")) values.push_back(text_of(at(process, pointer)));
    return values;
}

std::string Output::tag(std::string_view name, const std::string& field) const {
    const auto document = parsed(*this);
    const auto* tags = at(document, "/processes/0/report/tags");
    if (!tags) return "none";
    const auto found =
        std::find_if(tags->begin(), tags->end(), [=](const Json& each) { return each.at("tag") == name; });
    return found == tags->end() ? "none" : text_of(at(*found, "/" + field));
}

Process::Process(const Launch& launch)
    : name_(launch.command.front()), patience_(launch.patience),
      errors_(::memfd_create("errors", MFD_CLOEXEC)) {
    if (!errors_) fail("has no file for its standard error");
    auto input = make_pipe();
    auto output = make_pipe();
    auto command = launch.command;
    auto environment = environment_of(launch);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, input.read.get(), STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, output.write.get(), STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, errors_.get(), STDERR_FILENO);
    const int failure = ::posix_spawnp(pid_.address(), command.front().c_str(), &actions, nullptr,
                                       pointers_to(command).data(), pointers_to(environment).data());
    ::posix_spawn_file_actions_destroy(&actions);
    if (failure != 0) fail(fmt::format("cannot be started: {}", std::strerror(failure)));
    input_ = std::move(input.write);
    output_ = std::move(output.read);
}

Process::~Process() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
}

void Process::fail(const std::string& what) const {
    throw ProcessFailure(fmt::format("{} {}; standard error: {}", name_, what, errors()));
}

void Process::send(const std::string& line) const {
    const auto text = line + '\n';
    const NoPipeSignal no_signal;
    const auto sent = ::write(input_.get(), text.data(), text.size());
    if (sent != static_cast<ssize_t>(text.size())) fail(fmt::format("does not read '{}'", line));
}

bool Process::read_more(Patience& patience) {
    constexpr Milliseconds k_look_again{1'000};
    pollfd readable{output_.get(), POLLIN, 0};
    for (int ready = 0; ready == 0;) {
        const auto left = patience.left();
        ready = ::poll(&readable, 1, static_cast<int>(std::min(left, k_look_again).count()));
        if (ready < 0 || (ready == 0 && left == Milliseconds(0))) fail("says nothing");
    }
    std::array<char, 4096> buffer;
    const auto got = ::read(output_.get(), buffer.data(), buffer.size());
    if (got < 0) fail("cannot be read");
    unread_.append(buffer.data(), static_cast<std::size_t>(got));
    return got > 0;
}

std::string Process::read_line() {
    Patience patience(patience_);
    for (;;) {
        const auto end = unread_.find('\n');
        if (end != std::string::npos) {
            auto line = unread_.substr(0, end);
            unread_.erase(0, end + 1);
            return line;
        }
        if (!read_more(patience)) fail("has ended, or closed its output");
    }
}

bool Process::has_output_within(Milliseconds limit) const {
    pollfd readable{output_.get(), POLLIN, 0};
    return !unread_.empty() || ::poll(&readable, 1, static_cast<int>(limit.count())) == 1;
}

void Process::signal(int number) const {
    if (::kill(pid_, number) != 0) fail("cannot be sent a signal");
    siginfo_t info{};
    if (number == SIGSTOP) ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT);
}

std::optional<int> Process::wait_for(Milliseconds limit) {
    int status = 0;
    if (!becomes_true([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, limit)) return std::nullopt;
    pid_ = 0;
    return status_from(status);
}

int Process::wait() {
    const auto status = wait_for(patience_);
    if (!status) fail("does not end");
    return *status;
}

Output Process::finish() {
    input_.reset();
    Patience patience(patience_);
    while (read_more(patience)) {
    }
    const int status = wait();
    const std::chrono::duration<double> time = Clock::now() - start_;
    return {status, std::exchange(unread_, {}), errors(), time.count()};
}

std::string Process::errors() const {
    std::string text;
    std::array<char, 4096> buffer;
    for (;;) {
        const auto got =
            ::pread(errors_.get(), buffer.data(), buffer.size(), static_cast<off_t>(text.size()));
        if (got <= 0) return text;
        text.append(buffer.data(), static_cast<std::size_t>(got));
    }
}

Output run(const Launch& launch) {
    return Process(launch).finish();
}

std::string command_file(std::string_view name) {
    const bool is_command = name.starts_with("gpu-");
    if (const char* const commands = std::getenv("GPU_SLEEP_TEST_COMMANDS"); commands && is_command)
        return std::filesystem::path(commands) / name;
    if (const char* const build = std::getenv("GPU_SLEEP_SANITIZED_BUILD"); build && !is_command)
        return std::filesystem::path(build) / "bin" / name;
    return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

std::string mount_empty_tmp() {
    const auto builds =
        std::filesystem::path(command_file("integration_host")).parent_path().parent_path().parent_path();
    if (!builds.native().starts_with("/tmp/")) return "mount -t tmpfs none /tmp";
    // The directory is opened first, and mount(8) does not resolve its link: by then the name leads nowhere.
    const auto quoted = "'" + builds.native() + "'";
    return "exec 9<" + quoted + " && mount -t tmpfs none /tmp && mkdir -p " + quoted +
           " && mount --no-canonicalize --bind /proc/self/fd/9 " + quoted + " && exec 9<&-";
}

void pause_for(Milliseconds time) {
    std::this_thread::sleep_for(time);
}

} // namespace gpu_sleep::test
