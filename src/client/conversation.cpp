// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sending, receiving, and the ends of waiting.

#include "client/conversation.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "base/sockets.hpp"

namespace gpu_sleep::client {
namespace {

Error lost(std::string_view when) {
    return make_error(ErrorCode::connection_lost, "the connection to the agent was lost {}", when);
}

/// How long an agent may take to say that it has heard of a withdrawal.
constexpr Milliseconds k_farewell{1'000};

/// How much may lie in a socket that an agent has written to before it learns that it is given up. Who has
/// written more goes on writing, perhaps faster than anybody reads.
constexpr std::size_t k_max_unread = std::size_t{1} << 20;

/// Why the agent's words cannot be read: that is no fault of the command line's, and does not say how the
/// process stands.
Error garbled(Error error) {
    if (error.code == ErrorCode::invalid_argument) error.code = ErrorCode::connection_lost;
    return error;
}

Error unknown(const std::string& reason) {
    return make_error(ErrorCode::outcome_unknown, "it was too late to cancel; {}",
                      reason.empty() ? "the command stopped waiting for it" : reason);
}

} // namespace

const Error* error_of(const Answer& answer) noexcept {
    const auto* const failure = std::get_if<model::Failure>(&answer);
    return failure ? &failure->error : std::get_if<Error>(&answer);
}

std::string refusal_in(const Answer& answer) {
    if (const auto* const error = error_of(answer)) return error->message;
    const auto& report = std::get<model::Report>(answer);
    const bool changes =
        report.changed || std::ranges::any_of(report.devices, [](const model::DeviceReport& device) {
            return device.released + device.kept + device.dropped + device.relocated > 0;
        });
    // If nothing came of it, the first note says why.
    return !report.refusal.empty() || changes || report.notes.empty() ? report.refusal : report.notes.front();
}

std::optional<model::Report> report_in(std::string_view bytes) {
    protocol::FrameReader reader;
    reader.append(std::as_bytes(std::span(bytes)));
    const auto frame = reader.next();
    if (!frame || !*frame) return {};
    auto reply = protocol::decode_reply(**frame);
    auto* const report = reply ? std::get_if<model::Report>(&*reply) : nullptr;
    return report ? std::optional(std::move(*report)) : std::nullopt;
}

Conversation::Conversation(Question question, bool goes_together)
    : question_(std::move(question)), start_(Clock::now()), timeout_(question_.timeout, start_),
      is_joint_(goes_together) {
    if (!is_joint_) begin();
    auto bytes = protocol::encode(*question_.request);
    if (bytes)
        unsent_ = *std::move(bytes);
    else
        answer_ = std::move(bytes).error();
}

void Conversation::start() noexcept {
    start_ = Clock::now();
    timeout_ = AnswerTimeout(question_.timeout, start_);
}

void Conversation::begin() {
    start();
    is_begun_ = true;
    if (!question_.connect || (question_.socket && !is_joint_)) return;
    auto socket = question_.connect();
    if (socket)
        question_.socket = *std::move(socket);
    else
        answer_ = std::move(socket).error();
}

Clock::time_point Conversation::next_time() const noexcept {
    if (!is_begun_) return Clock::time_point::max();
    if (is_withdrawn_ && !is_past_return()) return withdrawn_until_;
    return std::min(timeout_.end(), next_look());
}

pollfd Conversation::interest() const noexcept {
    const auto events = static_cast<short>(unsent_.empty() ? POLLIN : POLLIN | POLLOUT);
    return {is_over() || !is_begun_ ? -1 : question_.socket.get(), events, 0};
}

std::vector<model::Progress> Conversation::advance() {
    std::vector<model::Progress> told;
    if (!unsent_.empty()) send();
    if (!is_over()) static_cast<void>(receive(told));
    return told;
}

void Conversation::say(model::Directive directive) {
    if (is_over()) return;
    const auto bytes = protocol::encode(protocol::Request(directive));
    if (!bytes) return; // it is a few bytes long
    unsent_.insert(unsent_.end(), bytes->begin(), bytes->end());
    using Kind = model::Directive::Kind;
    if (directive.kind == Kind::commit)
        timeout_.send_past_return(Clock::now());
    else if (directive.kind != Kind::hold_on)
        timeout_.resume(Clock::now());
    send();
}

void Conversation::withdraw(std::optional<Error> why) {
    timeout_.forget_calls();
    if (is_over() || is_past_return()) return;
    is_withdrawn_ = true;
    why_withdrawn_ = std::move(why);
    if (!is_begun_) {
        answer_ = withdrawn();
        return;
    }
    withdrawn_until_ = Clock::now() + k_farewell;
    unsent_.clear();
    shut();
}

void Conversation::keep_time() {
    const auto now = Clock::now();
    if (now < next_time()) return;
    if (is_withdrawn_ && !is_past_return()) return give_up({});
    const bool is_stopped = question_.is_stopped();
    looked_ = now;
    if (!is_stopped && now < timeout_.end()) return;
    if (is_stopped) return give_up(make_error(ErrorCode::stopped, "it is stopped, and does not answer"));
    give_up(make_error(ErrorCode::timed_out, "{} has not answered for {}",
                       has_step_under_way() ? "the driver" : "the agent",
                       format_seconds(seconds_since(start_))));
}

void Conversation::give_up(const std::optional<Error>& why) {
    if (has_step_under_way()) {
        answer_ = unanswered(why);
        return call_->close_after(std::move(question_.socket)); // the agent is to look afterwards
    }
    std::vector<model::Progress> unheard;
    const bool was_past_return = is_past_return();
    shut();
    for (const auto limit = received_ + k_max_unread; !is_over() && received_ < limit;)
        if (!receive(unheard)) break;
    if (!is_over() && is_past_return() && !was_past_return) return; // just so: it is worth waiting for
    ::shutdown(question_.socket.get(), SHUT_RDWR);
    while (!is_over() && receive(unheard)) {
    }
    if (!has_last_word_) answer_ = unanswered(why);
}

void Conversation::begin_step() {
    timeout_.start_call(Clock::now());
    log_event(fmt::format("waits while the driver does step {} of the deep sleep", steps_done_ + 1));
    auto call = BackgroundCall::start(question_.deep_steps[steps_done_]);
    if (call) {
        call_ = *std::move(call);
        return;
    }
    call.error().message = fmt::format("it is asleep, but not deeply: {}", call.error().message);
    end_steps(std::move(call).error());
}

pollfd Conversation::interest_in_step() const noexcept {
    return {has_step_under_way() ? call_->end_fd() : -1, POLLIN, 0};
}

void Conversation::note_end_of_step() {
    auto result = call_->result();
    if (!result) return;
    call_.reset();
    ++steps_done_;
    if (!*result || steps_done_ == question_.deep_steps.size())
        end_steps(*std::move(result));
    else
        timeout_.hold();
}

void Conversation::log_event(std::string_view what) const noexcept {
    if (!log::enabled(log::Severity::debug) ||
        std::holds_alternative<model::StatusRequest>(*question_.request))
        return;
    ignoring_errors([&] {
        const auto peer = peer_of(question_.socket.get());
        log::debug("process {} {}, after {}", peer ? peer->pid : 0, what,
                   format_seconds(seconds_since(start_)));
    });
}

void Conversation::shut() noexcept {
    is_shut_ = true;
    ::shutdown(question_.socket.get(), SHUT_WR);
}

void Conversation::end_steps(Result<void> deep) {
    deep_ = std::move(deep);
    shut();
    timeout_.end_call(Clock::now());
}

void Conversation::send() {
    if (!std::exchange(is_sent_, true)) {
        start(); // others may have been connected since it began
        log_event("is asked");
    }
    const auto sent = ::send(question_.socket.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (sent >= 0)
        unsent_.erase(unsent_.begin(), unsent_.begin() + sent);
    else if (errno == EPIPE || errno == ECONNRESET)
        unsent_.clear(); // it may have said why before it closed
    else if (errno != EINTR && errno != EAGAIN)
        end(lost("while sending"));
}

bool Conversation::receive(std::vector<model::Progress>& told) {
    std::array<std::byte, 16384> buffer;
    const auto got = ::recv(question_.socket.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return errno == EINTR;
    if (got <= 0) {
        end(lost("before it had answered"));
        return false;
    }
    received_ += static_cast<std::size_t>(got);
    reader_.append(std::span(buffer).first(static_cast<std::size_t>(got)));
    while (!is_over()) {
        auto frame = reader_.next();
        if (!frame)
            end(garbled(std::move(frame).error()));
        else if (!frame->has_value())
            break;
        else
            accept(**frame, told);
    }
    return true;
}

void Conversation::accept(const protocol::FrameReader::Frame& frame, std::vector<model::Progress>& told) {
    auto reply = protocol::decode_reply(frame);
    if (reply && !std::holds_alternative<model::Progress>(*reply)) log_event("has answered");
    if (!reply) {
        end(garbled(std::move(reply).error()));
    } else if (auto* report = std::get_if<model::Report>(&*reply)) {
        if (deep_ && !*deep_)
            answer_ = model::Failure{deep_->error(), report->state};
        else
            answer_ = std::move(*report);
        has_last_word_ = true;
    } else if (auto* failure = std::get_if<model::Failure>(&*reply)) {
        if (why_withdrawn_ && failure->error.code == ErrorCode::cancelled) failure->error = withdrawn();
        answer_ = std::move(*failure);
        has_last_word_ = true;
    } else if (auto* progress = std::get_if<model::Progress>(&*reply);
               progress && !std::holds_alternative<model::StatusRequest>(*question_.request)) {
        hear(*progress);
        told.push_back(*progress);
    }
}

void Conversation::hear(const model::Progress& progress) {
    using Phase = model::Progress::Phase;
    timeout_.hear(progress, Clock::now());
    if (const auto now = std::pair(progress.phase, progress.in_call); std::exchange(heard_, now) != now)
        log_event(fmt::format("is in phase {}{}", to_string(progress.phase),
                              progress.in_call ? ", in a call of the system or the driver" : ""));
    // Only whoever is owed a word before the point of no return is waited for until it is said.
    const bool waits_for_word = progress.phase == Phase::drained || progress.phase == Phase::ready;
    if (waits_for_word && is_joint_ && !is_past_return()) timeout_.hold();
    if (progress.phase != Phase::deep || std::exchange(is_in_phase_deep_, true)) return;
    if (question_.deep_steps.empty())
        end_steps({});
    else if (is_shut_)
        end_steps(make_error(ErrorCode::driver_failed,
                             "deep sleep cancelled: it is asleep, but its CUDA context is still on the GPU"));
    else
        timeout_.hold();
}

void Conversation::end(Error error) {
    answer_ = is_past_return() ? unknown(error.message) : is_withdrawn_ ? withdrawn() : std::move(error);
}

Clock::time_point Conversation::next_look() const noexcept {
    constexpr Milliseconds k_between{1'000};
    return std::max(timeout_.end_if_stopped(), looked_ + k_between);
}

Error Conversation::unanswered(const std::optional<Error>& why) const {
    if (is_past_return()) return unknown(why ? why->message : std::string());
    return why ? *why : withdrawn();
}

Error Conversation::withdrawn() const {
    return why_withdrawn_ ? *why_withdrawn_ : make_error(ErrorCode::cancelled, "the request was withdrawn");
}

} // namespace gpu_sleep::client
