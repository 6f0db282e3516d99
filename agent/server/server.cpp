// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The two threads.

#include "server/server.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "base/threads.hpp"

#include <poll.h>
#include <sched.h>

#include <future>

namespace gpu_sleep::agent::server {
namespace {

constexpr std::size_t k_max_connections = 64;
constexpr Milliseconds k_request_limit{10'000}; ///< for a command to send its request
constexpr Milliseconds k_tick{2'000};           ///< how often the socket's file, and the agent, are looked at
constexpr Milliseconds k_shortage_pause{100};
constexpr Milliseconds k_look_at_jobs{100};
constexpr Milliseconds k_silence{1'000}; ///< after which a connection makes room where there is none

/// Has the calling thread stay where it is when the program takes another root directory: commands find the
/// socket by this thread's. Takes no lock of the loader's, which the thread that waits for it may have.
void keep_own_root() noexcept {
    if (::unshare(CLONE_FS) != 0) return;
    // Others may want to unmount where the program was started.
    [[maybe_unused]] const int moved = ::chdir("/");
}

} // namespace

Result<void> Server::start() {
    if (!is_operating_) { // not yet by an earlier start that failed
        auto operations = GPU_SLEEP_TRY(start_quiet_thread(k_work_thread, [this] { operate_for_ever(); }));
        operations.detach();
        is_operating_ = true;
    }
    if (auto opened = endpoint_.open(); !opened) {
        if (opened.error().code == ErrorCode::refused) return opened; // another copy has the process
        log::error("this process cannot be controlled from outside: {}", opened.error().message);
    }
    const bool stays = !has_call_filter(); // which might end the process for a call that can be done without
    const MutexLock lock(thread_mutex_);
    const auto* const name = is_renamed_ ? k_control_thread_renamed : k_control_thread;
    auto listening = guarded([this, stays, name] {
        return start_quiet_thread(name, [this, stays] {
            if (stays) keep_own_root();
            is_rooted_ = true;
            is_rooted_.notify_all();
            listen_for_ever();
        });
    });
    if (!listening) {
        endpoint_.shut(); // commands would wait for an answer
        return std::move(listening).error();
    }
    listener_ = listening->native_handle();
    listening->detach();
    is_rooted_.wait(false); // before the program can go on, and take another root directory
    return {};
}

void Server::show_renamed() {
    const MutexLock lock(thread_mutex_);
    const StandardNumbers filled; // as in start_quiet_thread()
    is_renamed_ = true;
    if (listener_) pthread_setname_np(*listener_, k_control_thread_renamed); // it ends with the process
}

Outcome Server::post(Operation operation, ProgressSink progress) {
    std::promise<Outcome> promise;
    auto outcome = promise.get_future();
    Job job{std::move(operation), std::move(progress),
            [&promise](Outcome done) { promise.set_value(std::move(done)); }, Asker::program};
    const bool is_limited = !std::holds_alternative<model::WakeRequest>(job.operation);
    const auto limit = job.since + model::terms_in(job.operation)->timeout;
    enqueue(std::move(job));
    // The listening thread may be waiting, and has no descriptor by which to tell it of this job's time.
    if (is_limited && outcome.wait_until(limit) == std::future_status::timeout) expire_jobs(true);
    return outcome.get();
}

void Server::submit_for_touch(model::WakeRequest request, std::function<bool()> is_wanted,
                              std::function<void(const Error&)> on_shortage,
                              std::function<void(const Outcome&)> done) {
    constexpr std::chrono::hours k_for_good{24 * 365};
    request.wait = k_for_good;
    enqueue({std::move(request),
             [is_wanted = std::move(is_wanted)](const model::Progress&) { return is_wanted(); },
             std::move(done), Asker::touch, std::move(on_shortage)});
}

void Server::submit_if_free(model::IdleSleepRequest request, std::function<void(const Outcome&)> done) {
    if (!has_jobs())
        enqueue(
            {std::move(request), [](const model::Progress&) { return true; }, std::move(done), Asker::timer});
}

void Server::remove_endpoint() noexcept {
    is_ending_ = true; // destructors may take their time, in which it is not to be made again
    if (thread_mutex_.try_lock()) {
        const MutexLock lock(thread_mutex_, std::adopt_lock);
        const StandardNumbers filled;
        if (listener_) pthread_setname_np(*listener_, k_control_thread_ending);
    }
    endpoint_.remove();
}

void Server::tidy_within(Milliseconds delay) noexcept {
    const auto time = Clock::now() + delay;
    {
        const MutexLock lock(mutex_);
        if (tidy_at_ && *tidy_at_ <= time) return;
        tidy_at_ = time;
    }
    job_added_.notify_one();
}

void Server::operate_for_ever() {
    for (bool is_tidy = true;;) {
        MutexLock lock(mutex_);
        const auto now = Clock::now();
        if (tidy_at_ && *tidy_at_ <= now) {
            tidy_at_.reset();
            is_tidy = false;
        }
        if (auto* const place = queue_.next(now)) {
            lock.unlock();
            operate(*place);
            is_tidy = false;
        } else if (!is_tidy) {
            lock.unlock();
            const auto is_more = guarded([&]() -> Result<bool> { return operations_.tidy(); });
            is_tidy = !is_more || !*is_more;
        } else if (const auto time =
                       std::min(queue_.next_time(), tidy_at_.value_or(Clock::time_point::max()));
                   time != Clock::time_point::max()) {
            job_added_.wait_until(mutex_, time);
        } else {
            job_added_.wait(mutex_);
        }
    }
}

void Server::operate(RequestQueue::Place& place) {
    auto& job = place.job();
    const auto begun = Clock::now();
    auto outcome = outcome_of(place);
    if (auto* const failed = std::get_if<model::Failure>(&outcome)) {
        if (job.on_shortage && failed->error.code == ErrorCode::out_of_device_memory)
            ignoring_errors([&] { job.on_shortage(failed->error); });
        const auto pause = operations_.pause_between_tries();
        const MutexLock lock(mutex_);
        if (queue_.waits(place, *failed, begun, Clock::now(), pause)) return;
    }
    MutexLock lock(mutex_);
    const auto done = queue_.leave(place, Clock::now());
    const bool makes_room = queue_.makes_room();
    lock.unlock();
    leave_line_unless(makes_room);
    operations_.ended(done, outcome); // before the state is shown, which has the counts, too
    const auto* const report = std::get_if<model::Report>(&outcome);
    show_state(!report || report->changed);
    answer(done, std::move(outcome));
}

void Server::show_state(bool may_have_changed) noexcept {
    const auto* const name = operations_.work_thread_name();
    if (name == std::exchange(work_thread_name_, name) && !may_have_changed) return;
    ignoring_errors([&] { // a filter might end the process for it
        if (has_call_filter()) return;
        ::pthread_setname_np(::pthread_self(), name);
        const auto report = protocol::encode_what_fits(status());
        if (!report) return;
        endpoint_.publish({reinterpret_cast<const char*>(report->data()), report->size()});
    });
}

void Server::record(const std::vector<model::Event>& events) noexcept {
    ignoring_errors([&] {
        std::string lines;
        for (const auto& event : events) lines += protocol::line_of(event);
        if (!lines.empty() && !has_call_filter()) endpoint_.add_to_history(lines); // as in show_state()
    });
}

Outcome Server::outcome_of(RequestQueue::Place& place) noexcept {
    auto& job = place.job();
    // The time that it has waited counts. A wake is not shortened: without time for callbacks, its tags would
    // get no refill.
    if (!std::holds_alternative<model::WakeRequest>(job.operation))
        model::terms_in(job.operation)->timeout = std::max(place.time_left(Clock::now()), Milliseconds(0));
    std::optional<Outcome> outcome;
    auto run = guarded([&]() -> Result<void> {
        if (place.has_waited() && !job.progress({model::Progress::Phase::waiting, 0, 0}))
            return make_error(ErrorCode::cancelled, "the request was withdrawn while waiting for GPU memory");
        outcome = operations_.run(job.operation,
                                  {job.progress, job.directives, job.asker, job.since, place.has_waited()});
        return {};
    });
    return run ? *std::move(outcome) : failure(std::move(run).error());
}

model::Report Server::status() {
    auto report = operations_.status();
    const MutexLock lock(mutex_);
    report.wakes_waiting = queue_.waiting(Clock::now(), operations_.place());
    if (const pid_t stopped = stopped_asker_)
        report.notes.push_back(fmt::format("process {}, which puts it to sleep deeply, is stopped: {}",
                                           stopped, how_to_go_on(stopped)));
    return report;
}

void Server::answer(const Job& job, Outcome outcome) noexcept {
    const auto answered = guarded([&] { job.answer(std::move(outcome)); });
    if (!answered) log::write(log::Severity::error, "no memory to answer a command");
}

void Server::expire_jobs(bool own_alone) {
    for (;;) {
        MutexLock lock(mutex_);
        auto late = queue_.take_late(Clock::now(), own_alone);
        const bool makes_room = queue_.makes_room();
        lock.unlock();
        if (!late) return;
        leave_line_unless(makes_room);
        auto because = guarded([]() -> Result<void> {
            return make_error(ErrorCode::timed_out,
                              "another sleep, wake or move of the process is still under way");
        });
        auto outcome = late->why ? Outcome(*std::move(late->why)) : failure(std::move(because).error());
        operations_.ended(late->job, outcome);
        answer(late->job, std::move(outcome));
    }
}

void Server::keep_in_place() {
    if (is_ending_ || endpoint_.is_in_place()) return;
    if (auto opened = endpoint_.open(); !opened) log::debug("no socket yet: {}", opened.error().message);
    if (is_ending_) endpoint_.remove(); // it has begun to end meanwhile
}

void Server::listen_for_ever() {
    auto next_look = Clock::now();
    for (;;) {
        const auto listened = guarded([&] { listen_once(next_look); });
        if (!listened) std::this_thread::sleep_for(k_shortage_pause);
    }
}

void Server::listen_once(Clock::time_point& next_look) {
    if (endpoint_.fd() >= 0 && !endpoint_.is_held()) keep_in_place();
    endpoint_.keep_spare();
    std::vector<pollfd> polled{
        {endpoint_.is_held() ? endpoint_.fd() : -1, POLLIN, 0}}; // a negative descriptor is passed over
    for (const auto& connection : connections_) polled.push_back({connection->fd(), POLLIN, 0});
    const auto to_look = std::chrono::ceil<Milliseconds>(next_look - Clock::now());
    const auto limit = std::clamp(to_look, Milliseconds(0), has_jobs() ? k_look_at_jobs : k_tick);
    const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(limit.count()));
    expire_jobs(false);
    const auto now = Clock::now();
    if (now >= next_look) {
        keep_in_place();
        next_look = now + std::min(k_tick, operations_.look());
    }
    for (std::size_t i = connections_.size(); i-- > 0;) {
        const bool has_input = ready > 0 && polled[i + 1].revents != 0;
        const auto stays = guarded([&]() -> Result<bool> {
            return has_input ? attend(connections_[i]) : now - connections_[i]->since() < k_request_limit;
        });
        if (!stays || !*stays) connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (ready > 0 && polled[0].revents != 0 && endpoint_.is_held()) accept_all();
}

void Server::make_room() {
    if (connections_.empty() || Clock::now() - connections_.front()->since() < k_silence)
        return std::this_thread::sleep_for(k_shortage_pause); // those in line stay there
    const auto silent = std::move(connections_.front());
    connections_.erase(connections_.begin());
    silent->answer(model::Failure{
        make_error(ErrorCode::timed_out,
                   "no request came in time, and the process has no descriptor left for other connections"),
        operations_.state()});
}

void Server::accept_all() {
    for (;;) {
        auto socket = endpoint_.accept();
        if (!socket) {
            if (errno == EINTR || errno == ECONNABORTED) continue;
            if (errno != EAGAIN && errno != EWOULDBLOCK) make_room();
            return;
        }
        // The connection that has been silent longest is closed: otherwise silent peers could keep everybody
        // out.
        if (connections_.size() >= k_max_connections) connections_.erase(connections_.begin());
        auto connection = Connection::adopt(std::move(socket));
        if (connection)
            connections_.push_back(*std::move(connection));
        else
            log::warning("refused: {}", connection.error().message);
        if (!endpoint_.has_spare()) return; // nor a descriptor for another: each in its turn
    }
}

bool Server::answer_at_once(Connection& connection, const protocol::Request& request) {
    const auto* const inhibition = std::get_if<model::InhibitRequest>(&request);
    if (inhibition) operations_.inhibit(*inhibition);
    const auto* const timer = std::get_if<model::TimerRequest>(&request);
    if (timer) operations_.set_timer(*timer);
    if (inhibition || timer || std::holds_alternative<model::StatusRequest>(request)) {
        connection.answer(status());
        return true;
    }
    if (const auto* wanted = std::get_if<model::SharedMemoryRequest>(&request)) {
        const auto given = operations_.share(*wanted, connection.peer());
        if (given)
            connection.answer(given->what, given->memory.get());
        else
            connection.answer(model::Failure{given.error(), model::State::awake});
        return true;
    }
    const auto* const idle = std::get_if<model::IdleSleepRequest>(&request);
    if (!idle || !has_jobs()) return false;
    auto report = status();
    report.operation = model::Operation::sleep;
    report.level = idle->sleep.level;
    report.dry_run = idle->sleep.dry_run;
    report.notes.emplace_back("another sleep, wake or move of it is under way");
    connection.answer(std::move(report));
    return true;
}

bool Server::attend(std::unique_ptr<Connection>& connection) {
    if (!connection->receive()) return false;
    auto request = connection->next();
    if (!request) {
        connection->answer(model::Failure{request.error(), operations_.state()});
        return false;
    }
    if (!request->has_value()) return true;
    if (connection->is_withdrawn()) return false; // this process was stopped when it was asked
    if (answer_at_once(*connection, **request)) return false;
    auto operation = std::visit(
        [](auto& wanted) -> std::optional<Operation> {
            if constexpr (std::is_constructible_v<Operation, decltype(wanted)>)
                return std::move(wanted);
            else
                return std::nullopt;
        },
        **request);
    if (!operation) {
        connection->answer(model::Failure{make_error(ErrorCode::internal, "this request is not an operation"),
                                          model::State::awake});
        return false;
    }
    const std::shared_ptr<Connection> asker = std::move(connection);
    Job job{*std::move(operation),
            [this, asker](const model::Progress& progress) {
                const bool goes_on = asker->tell(progress);
                stopped_asker_ = asker->stopped_peer();
                return goes_on;
            },
            [asker](Outcome outcome) {
                std::visit([&](auto& done) { asker->answer(protocol::Reply(std::move(done))); }, outcome);
            }};
    job.directives = [asker](Milliseconds patience) { return asker->hear(patience); };
    job.asker_uid = asker->uid();
    enqueue(std::move(job));
    return false;
}

} // namespace gpu_sleep::agent::server
