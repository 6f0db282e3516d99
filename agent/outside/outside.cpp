// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Starting a program that no wait() of the host finds, and talking to it.

#include "outside/outside.hpp"

#include "base/log.hpp"
#include "base/process.hpp"
#include "base/symbols.hpp"
#include "client/answer_timeout.hpp"
#include "common/named_tracer.hpp"
#include "model/environment.hpp"

#include <dlfcn.h>
#include <link.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstdlib>
#include <ctime>
#include <sstream>
#include <thread>

namespace gpu_sleep::agent::outside {
namespace {

constexpr std::size_t k_stack_bytes = 64 * k_kib;
constexpr std::string_view k_last_line = "end";
/// After the lock's own time: the program waits for it no longer than that.
constexpr Milliseconds k_grace{1'000};

/// Data for the process that shares this one's memory. Its thread stands still until `has_begun`, so that
/// none uses its errno beside it.
struct Launch {
    const char* program;
    int file; ///< the same, unless the program has given the number to another
    FileIdentity identity;
    char* const* arguments;
    char* const* environment;
    int socket;
    std::byte* stack_end; ///< of the program's process
    pid_t pid;            ///< of the program
    volatile int has_begun;
};

/// A kernel without this call closes none.
void close_all_but(int one, int other) {
    const auto [low, high] = std::minmax(one, other);
    if (low > 0) ::syscall(SYS_close_range, 0U, static_cast<unsigned>(low) - 1, 0U);
    if (high > low + 1) ::syscall(SYS_close_range, low + 1U, high - 1U, 0U);
    ::syscall(SYS_close_range, high + 1U, ~0U, 0U);
}

/// In the program's process, until it is another program. Calls nothing that locks.
int become_program(void* argument) {
    const auto& launch = *static_cast<const Launch*>(argument);
    // Where the program has closed its standard descriptors, these may be among them. The others go first,
    // for the program may have no number left.
    constexpr int k_file = 3;
    close_all_but(launch.socket, launch.file);
    const int socket = ::fcntl(launch.socket, F_DUPFD, k_file + 1);
    const int nothing = ::open("/dev/null", O_RDWR);
    const int file = ::fcntl(launch.file, F_DUPFD, k_file + 1);
    const bool is_ready = ::dup2(socket, 0) == 0 && ::dup2(socket, 1) == 1 && ::dup2(nothing, 2) == 2;
    const bool has_file =
        ::dup3(file, k_file, O_CLOEXEC) == k_file && FileIdentity::of(k_file) == launch.identity;
    // A kernel without this call leaves it the descriptors that the program has not marked.
    ::syscall(SYS_close_range, has_file ? k_file + 1U : k_file, ~0U, 0U);
    if (is_ready && has_file) // glibc has a function for it since 2.34
        ::syscall(SYS_execveat, k_file, "", launch.arguments, launch.environment, AT_EMPTY_PATH);
    if (is_ready) ::execve(launch.program, launch.arguments, launch.environment);
    ::_exit(EXIT_FAILURE);
}

/// In the process between, which stays the parent of the program until that has ended. An orphan would be
/// given to the init process, or to a subreaper, which may be this program. Its system calls do not fail.
int attend_program(void* argument) {
    auto& launch = *static_cast<Launch*>(argument);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL); // or it would keep the memory of a process that is gone
    // The default, or no child might be left to wait for; whoever wraps sigaction() would note it of the
    // program.
    const std::array<unsigned long, 4> k_default{};
    ::syscall(SYS_rt_sigaction, SIGCHLD, k_default.data(), nullptr, sizeof(std::uint64_t));
    const pid_t pid = ::clone(become_program, launch.stack_end, CLONE_VM | CLONE_VFORK | SIGCHLD, argument);
    launch.pid = pid;
    launch.has_begun = 1;
    ::syscall(SYS_futex, &launch.has_begun, FUTEX_WAKE, 1);
    int status = 0;
    if (pid > 0) ::syscall(SYS_wait4, pid, &status, 0, nullptr); // waitpid() may be cancelled with the thread
    ::_exit(EXIT_SUCCESS);
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
    std::vector<char*> pointers;
    pointers.reserve(texts.size() + 1);
    for (const auto& text : texts) pointers.push_back(const_cast<char*>(text.c_str())); // it is only read
    pointers.push_back(nullptr);
    return pointers;
}

} // namespace

/// The process between. It sends no signal at its end, so nobody's wait() finds it but ours; a program would
/// be found, for execve() makes an ordinary child of whoever calls it. Move-only.
class Attendant {
public:
    /// Starts it, and the program.
    [[nodiscard]] static std::optional<Attendant> start(Launch& launch) {
        constexpr int k_no_signal = 0;
        Attendant attendant;
        launch.stack_end = attendant.stacks_.get() + k_stack_bytes;
        attendant.pid_ = ::clone(attend_program, attendant.stacks_.get() + 2 * k_stack_bytes,
                                 CLONE_VM | CLONE_FILES | k_no_signal, &launch);
        if (attendant.pid_ < 0) return {};
        constexpr timespec k_moment{0, 100'000'000};
        while (launch.has_begun == 0) {
            ::syscall(SYS_futex, &launch.has_begun, FUTEX_WAIT, 0, &k_moment);
            if (launch.has_begun == 0 && attendant.ends_within(Milliseconds(0))) return {}; // it was killed
        }
        if (launch.pid > 0) return attendant;
        attendant.ends_within(k_patience);
        return {};
    }
    Attendant(Attendant&& other) noexcept
        : stacks_(std::move(other.stacks_)), pid_(std::exchange(other.pid_, 0)) {}
    Attendant& operator=(Attendant&&) = delete;
    ~Attendant() {
        if (!ends_within(k_patience)) static_cast<void>(stacks_.release()); // it stands on them
    }

    /// Whether it has ended, the program before it.
    bool ends_within(Milliseconds patience) {
        constexpr Milliseconds k_look{1};
        const auto deadline = Clock::now() + patience;
        while (pid_ > 0 && ::waitpid(pid_, nullptr, __WCLONE | WNOHANG) == 0) {
            if (Clock::now() >= deadline) return false;
            std::this_thread::sleep_for(k_look);
        }
        pid_ = 0;
        return true;
    }

private:
    static constexpr Milliseconds k_patience{2'000};

    Attendant() : stacks_(std::make_unique<std::byte[]>(2 * k_stack_bytes)) {}

    std::unique_ptr<std::byte[]> stacks_; ///< its own, and before it the program's
    pid_t pid_ = 0;                       ///< none: it was waited for
};

/// One run of the program. It has ended when this does.
class OutsideRun {
public:
    /// `words`: the program, which is `file`, and its arguments. Errors: no_driver.
    [[nodiscard]] static Result<OutsideRun> start(const HeldFile& file, const std::vector<std::string>& words,
                                                  const std::vector<std::string>& environment) {
        std::array<int, 2> ends{};
        auto ours = opened([&] {
            return ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0 ? ends[0] : -1;
        });
        if (!ours) return make_error(ErrorCode::no_driver, "the program has no descriptor left (ulimit -n)");
        const UniqueFd its(ends[1]);
        const auto arguments = pointers_to(words);
        const auto variables = pointers_to(environment);
        Launch launch{words.front().c_str(),
                      file.get(),
                      file.identity(),
                      arguments.data(),
                      variables.data(),
                      its.get(),
                      nullptr,
                      0,
                      0};
        auto attendant = Attendant::start(launch);
        if (!attendant)
            return make_error(ErrorCode::no_driver,
                              "no process can be started; its user or control group may "
                              "have reached its limit (ulimit -u, pids.max)");
        return OutsideRun(std::move(ours), *std::move(attendant), launch.pid);
    }
    OutsideRun(OutsideRun&&) noexcept = default;
    OutsideRun& operator=(OutsideRun&&) = delete;
    ~OutsideRun() {
        if (!socket_) return;
        if (socket_.is_held()) ::shutdown(socket_.get(), SHUT_WR); // nothing more is asked
        if (attendant_.ends_within(Milliseconds(500))) return;
        ::kill(pid_, SIGKILL); // it is there, for its end would be that of the attendant
        if (!attendant_.ends_within(Milliseconds(2'000)))
            log::warning("process {}, started for a deep sleep, does not end", pid_);
    }

    [[nodiscard]] pid_t pid() const noexcept { return pid_; }
    /// Lets it begin with what others have to be ready for.
    void let_go() const noexcept {
        if (socket_.is_held()) static_cast<void>(::send(socket_.get(), "\n", 1, MSG_NOSIGNAL));
    }

    /// The next line that it prints, if that comes in time.
    [[nodiscard]] std::optional<std::string> next_line(Clock::time_point deadline) {
        constexpr std::size_t k_most = 64 * k_kib;
        for (;;) {
            if (const auto end = text_.find('\n'); end != std::string::npos) {
                auto line = text_.substr(0, end);
                text_.erase(0, end + 1);
                return line;
            }
            const int left = milliseconds_until(deadline);
            has_ended_ |= !socket_.is_held(); // the program may have closed it since
            pollfd polled{socket_.get(), POLLIN, 0};
            if (left == 0 || has_ended_ || text_.size() >= k_most) return {};
            const int ready = ::poll(&polled, 1, left);
            if (ready < 0 && errno == EINTR) continue;
            if (ready <= 0) return {};
            std::array<char, 4096> buffer{};
            const auto got = ::read(socket_.get(), buffer.data(), buffer.size());
            has_ended_ = got <= 0;
            if (got > 0) text_.append(buffer.data(), static_cast<std::size_t>(got));
        }
    }
    /// The same, for as long as `goes_on`.
    [[nodiscard]] std::optional<std::string> next_line(Clock::time_point deadline,
                                                       const std::function<bool()>& goes_on) {
        constexpr Milliseconds k_between{100};
        while (!has_ended_ && Clock::now() < deadline && goes_on())
            if (auto line = next_line(std::min(deadline, Clock::now() + k_between))) return line;
        return {};
    }
    [[nodiscard]] bool has_ended() const noexcept { return has_ended_; }
    /// Whether it could run if it wanted to: it is neither stopped, nor without a processor, as far as is
    /// known.
    [[nodiscard]] bool can_run() const {
        return std::string_view("RTt").find(state_of(pid_)) == std::string_view::npos;
    }

private:
    OutsideRun(UniqueFd socket, Attendant attendant, pid_t pid) noexcept
        : socket_(std::move(socket)), attendant_(std::move(attendant)), pid_(pid) {}

    HeldFile socket_;
    Attendant attendant_;
    pid_t pid_;
    std::string text_; ///< not yet given out
    bool has_ended_ = false;
};

namespace {

Error unanswered(std::string_view why) {
    return make_error(ErrorCode::no_driver,
                      "the helper process cannot find out how much GPU memory is free: {}", why);
}

/// Reads its figures of all GPUs, if they come by `deadline` and while it `goes_on`; or says in `why` why
/// not.
std::optional<std::vector<OutsideGpu>> read_gpus(OutsideRun& run, Clock::time_point deadline,
                                                 const std::function<bool()>& goes_on, std::string& why) {
    std::vector<OutsideGpu> gpus;
    while (auto line = run.next_line(deadline, goes_on)) {
        if (*line == k_last_line) return gpus;
        std::istringstream words(*line);
        OutsideGpu gpu;
        if (words >> gpu.uuid >> gpu.total >> gpu.free >> gpu.used)
            gpus.push_back(std::move(gpu));
        else
            why = *std::move(line);
    }
    return {};
}

/// What would end this process if it started another that shares its memory; null: nothing.
const char* what_forbids_helper() {
    const auto is_its = [](dl_phdr_info* library, std::size_t, void*) {
        return std::string_view(library->dlpi_name).find("/vgpreload_core") != std::string_view::npos ? 1 : 0;
    };
    if (::dl_iterate_phdr(is_its, nullptr) != 0) return "valgrind";
    return find_symbol(RTLD_DEFAULT, "__tsan_init") ? "the thread sanitizer" : nullptr;
}

Error not_done(const OutsideRun& run, std::string_view step) {
    return make_error(ErrorCode::driver_failed, "the helper process that asks the driver to {} it {}", step,
                      run.has_ended() ? "has ended" : "is late");
}

} // namespace

Result<Outside> Outside::open() {
    if (has_call_filter()) return unanswered("a filter restricts the system calls of this process");
    if (const auto* const what = what_forbids_helper())
        return unanswered(fmt::format("{} would end this process if it started the helper", what));
    Dl_info library{};
    const auto* const here = reinterpret_cast<const void*>(&Outside::open);
    if (::dladdr(here, &library) == 0 || !library.dli_fname)
        return unanswered("the agent cannot find its own library's file");
    const std::unique_ptr<char, void (*)(void*)> path(::realpath(library.dli_fname, nullptr), &std::free);
    const std::string_view own = path ? path.get() : library.dli_fname;
    Outside outside;
    // Where gpu-enable loads the agent into all programs, it must not put this one to sleep. The first one of
    // a name counts.
    outside.environment_.push_back(fmt::format("{}=1", model::environment::k_disable));
    outside.program_ = std::string(own.substr(0, own.rfind('/') + 1)) + "gpu-sleep-outside";
    if (!outside.is_there()) return unanswered(outside.program_ + " is missing");
    outside.file_ = HeldFile(open_file(AT_FDCWD, outside.program_.c_str(), O_PATH | O_CLOEXEC));
    for (char** variable = ::environ; variable && *variable; ++variable)
        if (const std::string_view text = *variable;
            !text.starts_with("LD_PRELOAD=") && !text.starts_with("LD_AUDIT=")) // ours may be among them
            outside.environment_.emplace_back(text);
    return outside;
}

bool Outside::is_there() const noexcept {
    return ::access(program_.c_str(), X_OK) == 0;
}

OutsideLooks::OutsideLooks(const Outside& outside) noexcept : outside_(&outside) {}

OutsideLooks::~OutsideLooks() = default;

Result<std::vector<OutsideGpu>> OutsideLooks::look() {
    const auto deadline = Clock::now() + k_longest_look;
    int tenths_left = 50; // of a second, in which it can run
    const auto goes_on = [&] { return !run_->can_run() || tenths_left-- > 0; };
    std::string why = "the management library does not answer";
    for (bool is_wanted = true; is_wanted;) {
        const bool is_new = !run_;
        if (is_new) {
            auto run =
                OutsideRun::start(outside_->file_, {outside_->program_, "look", std::to_string(::getpid())},
                                  outside_->environment_);
            if (!run) return unanswered(run.error().message);
            run_ = std::make_unique<OutsideRun>(*std::move(run));
        }
        run_->let_go();
        if (auto gpus = read_gpus(*run_, deadline, goes_on, why)) return *std::move(gpus);
        is_wanted = !is_new && run_->has_ended();
        run_.reset();
    }
    const bool can_start = outside_->file_.is_held() || outside_->is_there();
    return unanswered(can_start ? why : outside_->program_ + " is missing");
}

Result<void> Outside::checkpoint(Clock::time_point deadline, const std::function<bool()>& goes_on) const {
    const int left = std::max(milliseconds_until(deadline), 1);
    auto run = OutsideRun::start(
        file_, {program_, "checkpoint", std::to_string(::getpid()), std::to_string(left)}, environment_);
    if (!run) return make_error(ErrorCode::driver_failed, "{}", run.error().message);
    const auto named = NamedTracer::name(run->pid());
    if (!named) // the driver says so, too
        log::debug("Yama may not let process {} trace this one: {}", run->pid(), named.error().message);
    run->let_go();
    auto line = run->next_line(deadline + k_grace, goes_on);
    if (!line) return not_done(*run, "lock");
    if (*line == "locked") {
        line = run->next_line(Clock::now() + client::AnswerTimeout::k_checkpoint, goes_on);
        if (!line) return not_done(*run, "checkpoint");
    }
    if (*line != k_last_line) return make_error(ErrorCode::driver_failed, "{}", *line);
    return {};
}

} // namespace gpu_sleep::agent::outside
