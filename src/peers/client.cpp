// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Conversations with agents.

#include "peers/client.hpp"

#include "peers/together.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <optional>
#include <utility>

namespace gpu_sleep::peers {
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

/// One question on its way: bytes still to send, bytes received so far, the answer once it is there.
class Conversation {
public:
    explicit Conversation(Question question)
        : question_(std::move(question)), start_(Clock::now()), timeout_(question_.timeout, start_) {
        auto bytes = protocol::encode(question_.request);
        if (bytes)
            unsent_ = *std::move(bytes);
        else
            answer_ = std::move(bytes).error();
    }

    /// Begins it, if it was not to begin at once.
    void begin() {
        start_ = Clock::now();
        timeout_ = AnswerTimeout(question_.timeout, start_);
        is_begun_ = true;
        if (!question_.connect) return;
        auto socket = question_.connect();
        if (socket)
            question_.socket = *std::move(socket);
        else
            answer_ = std::move(socket).error();
    }
    void put_off() noexcept { is_begun_ = false; }

    [[nodiscard]] bool is_over() const noexcept { return answer_.has_value(); }
    [[nodiscard]] bool is_past_return() const noexcept { return timeout_.is_past_return(); }
    [[nodiscard]] const Answer& answer() const noexcept { return *answer_; }
    [[nodiscard]] Answer take_answer() { return *std::move(answer_); }
    /// When to call keep_time().
    [[nodiscard]] Clock::time_point next_time() const noexcept {
        if (!is_begun_) return Clock::time_point::max();
        if (is_withdrawn_ && !is_past_return()) return withdrawn_until_;
        return std::min(timeout_.end(), next_look());
    }
    [[nodiscard]] pollfd interest() const noexcept {
        const auto events = static_cast<short>(unsent_.empty() ? POLLIN : POLLIN | POLLOUT);
        return {is_over() || !is_begun_ ? -1 : question_.socket.get(), events, 0};
    }

    /// Goes on after `interest` has come true.
    void advance(const std::function<void(const model::Progress&)>& on_progress) {
        if (!unsent_.empty()) send();
        if (!is_over()) static_cast<void>(receive(on_progress));
    }

    /// Says it to an agent whose request is joint.
    void say(model::Directive::Kind kind) {
        if (is_over()) return;
        const auto bytes = protocol::encode(protocol::Request(model::Directive{kind}));
        if (!bytes) return; // it is a few bytes long
        unsent_.insert(unsent_.end(), bytes->begin(), bytes->end());
        using Kind = model::Directive::Kind;
        if (kind == Kind::commit)
            timeout_.send_past_return(Clock::now());
        else if (kind != Kind::hold_on)
            timeout_.resume(Clock::now());
        send();
    }

    /// Withdraws the request, unless that is too late. `why` stands for its being withdrawn in the answer.
    void withdraw(std::optional<Error> why = {}) {
        if (is_over() || is_past_return()) return;
        is_withdrawn_ = true;
        why_withdrawn_ = std::move(why);
        if (!is_begun_) {
            answer_ = withdrawn();
            return;
        }
        withdrawn_until_ = Clock::now() + k_farewell;
        unsent_.clear();
        ::shutdown(question_.socket.get(), SHUT_WR);
    }

    /// Gives up when it is time to.
    void keep_time() {
        const auto now = Clock::now();
        if (now < next_time()) return;
        if (is_withdrawn_ && !is_past_return()) return give_up({});
        const bool is_stopped = question_.is_stopped();
        looked_ = now;
        if (!is_stopped && now < timeout_.end()) return;
        give_up(fmt::format("{} has not answered for {}", is_stopped ? "it is stopped, and" : "the agent",
                            format_seconds(seconds_since(start_))));
    }

    /// Stops waiting, for that `reason`. Nothing that the agent sends from here on arrives, nor can it be
    /// sent: if it has not passed the point of no return by now, it never will.
    void give_up(const std::string& reason) {
        const auto nobody = [](const model::Progress&) {};
        const bool was_past_return = is_past_return();
        ::shutdown(question_.socket.get(), SHUT_WR);
        for (const auto limit = received_ + k_max_unread; !is_over() && received_ < limit;)
            if (!receive(nobody)) break;
        if (!is_over() && is_past_return() && !was_past_return) return; // just so: it is worth waiting for
        ::shutdown(question_.socket.get(), SHUT_RDWR);
        while (!is_over() && receive(nobody)) {
        }
        if (!has_last_word_) answer_ = unanswered(reason);
    }

private:
    void send() {
        const auto sent = ::send(question_.socket.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
        if (sent >= 0)
            unsent_.erase(unsent_.begin(), unsent_.begin() + sent);
        else if (errno == EPIPE || errno == ECONNRESET)
            unsent_.clear(); // it may have said why before it closed
        else if (errno != EINTR && errno != EAGAIN)
            end(lost("while sending"));
    }

    /// Takes what has come. False when there was nothing.
    bool receive(const std::function<void(const model::Progress&)>& on_progress) {
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
                accept(**frame, on_progress);
        }
        return true;
    }

    void accept(const protocol::FrameReader::Frame& frame,
                const std::function<void(const model::Progress&)>& on_progress) {
        auto reply = protocol::decode_reply(frame);
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
        } else if (const auto* progress = std::get_if<model::Progress>(&*reply);
                   progress && !std::holds_alternative<model::StatusRequest>(question_.request)) {
            timeout_.hear(*progress, Clock::now());
            using Phase = model::Progress::Phase;
            if (progress->phase == Phase::drained || progress->phase == Phase::ready) timeout_.hold();
            on_progress(*progress);
            if (progress->phase == model::Progress::Phase::deep && !deep_) go_deep();
        }
    }

    /// The agent waits for it, and then for the end of what is sent to it.
    void go_deep() {
        deep_ = question_.go_deep();
        ::shutdown(question_.socket.get(), SHUT_WR);
        timeout_.hear({model::Progress::Phase::deep}, Clock::now()); // it has not been heard meanwhile
    }

    /// Ends without the agent's word on how it ended.
    void end(Error error) {
        answer_ = is_past_return() ? unknown(error.message) : is_withdrawn_ ? withdrawn() : std::move(error);
    }

    /// When to look whether the process is stopped.
    [[nodiscard]] Clock::time_point next_look() const noexcept {
        constexpr Milliseconds k_between{1'000};
        return std::max(timeout_.end_if_stopped(), looked_ + k_between);
    }

    [[nodiscard]] Error unanswered(const std::string& reason) const {
        if (is_past_return()) return unknown(reason);
        if (reason.empty()) return withdrawn();
        return make_error(ErrorCode::timed_out, "{}", reason);
    }
    [[nodiscard]] Error withdrawn() const {
        return why_withdrawn_ ? *why_withdrawn_
                              : make_error(ErrorCode::cancelled, "the request was withdrawn");
    }
    [[nodiscard]] static Error unknown(const std::string& reason) {
        return make_error(ErrorCode::outcome_unknown, "it is past the point of no return; {}",
                          reason.empty() ? "its end was not waited for" : reason);
    }

    Question question_;
    std::vector<std::byte> unsent_;
    protocol::FrameReader reader_;
    std::size_t received_ = 0; ///< bytes
    Clock::time_point start_;
    AnswerTimeout timeout_;
    Clock::time_point looked_{}; ///< at whether it is stopped
    bool is_begun_ = true;
    bool is_withdrawn_ = false;
    std::optional<Error> why_withdrawn_;
    Clock::time_point withdrawn_until_{};
    bool has_last_word_ = false;
    std::optional<Result<void>> deep_; ///< how the driver's part came out
    std::optional<Answer> answer_;
};

/// Milliseconds for poll, rounded up so that the deadline has passed afterwards.
int milliseconds_until(Clock::time_point deadline) {
    const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now()).count();
    return static_cast<int>(std::clamp<Milliseconds::rep>(left, 0, std::numeric_limits<int>::max()));
}

/// All questions of a command, driven by one poll loop.
class Conversations {
public:
    Conversations(std::vector<Question> questions, const Observer& observer, const Joint* joint = nullptr)
        : observer_(observer), joint_(joint) {
        all_.reserve(questions.size());
        for (auto& question : questions) all_.push_back({Conversation(std::move(question))});
        if (!joint) return;
        together_.emplace(all_.size(), joint->is_sleep, joint->end);
        for (auto& each : all_) each.conversation.put_off();
        coordinate();
    }

    [[nodiscard]] std::vector<Answer> run() {
        const auto is_open = [](const Followed& each) { return !each.conversation.is_over(); };
        for (tell(); std::any_of(all_.begin(), all_.end(), is_open); tell()) step();
        std::vector<Answer> answers;
        answers.reserve(all_.size());
        for (auto& each : all_) answers.push_back(each.conversation.take_answer());
        return answers;
    }

private:
    struct Followed {
        Conversation conversation;
        bool has_told_end = false;
        bool has_told_past_return = false;
    };

    void step() {
        std::vector<pollfd> polled{{observer_.interruptions, POLLIN, 0}};
        auto next_time = Clock::time_point::max();
        for (const auto& [conversation, told, warned] : all_) {
            polled.push_back(conversation.interest());
            if (!conversation.is_over()) next_time = std::min(next_time, conversation.next_time());
        }
        if (together_ && !is_withdrawn_) next_time = std::min(next_time, together_->next_time(Clock::now()));
        if (::poll(polled.data(), polled.size(), milliseconds_until(next_time)) < 0) return;
        if (polled[0].revents != 0) interrupt();
        for (std::size_t i = 0; i < all_.size(); ++i) {
            auto& conversation = all_[i].conversation;
            if (!conversation.is_over() && polled[i + 1].revents != 0)
                conversation.advance([&](const model::Progress& progress) {
                    if (together_) together_->hear(i, progress, Clock::now());
                    observer_.progress(i, progress);
                });
            if (!conversation.is_over()) conversation.keep_time();
        }
        if (together_ && !is_withdrawn_) coordinate();
    }

    /// Has those that go together go on, or back.
    void coordinate() {
        for (std::size_t i = 0; i < all_.size(); ++i) note_end(i);
        while (const auto next = together_->next_to_ask()) {
            all_[*next].conversation.begin();
            note_end(*next);
        }
        for (const auto& [member, kind] : together_->due(Clock::now())) all_[member].conversation.say(kind);
        if (const auto why = together_->why_not(Clock::now())) return go_back(*why);
        if (!together_->all_are_ready()) return;
        if (auto consent = joint_->consent(); !consent) return go_back(consent.error());
        // The looking may have taken its time.
        if (const auto why = together_->why_not(Clock::now())) return go_back(*why);
        for (const auto member : together_->commit())
            all_[member].conversation.say(model::Directive::Kind::commit);
    }

    void note_end(std::size_t member) {
        const auto& conversation = all_[member].conversation;
        if (conversation.is_over())
            together_->end(member, !std::holds_alternative<model::Report>(conversation.answer()));
    }

    void go_back(Together::Why why) {
        using Why = Together::Why;
        const auto back = make_error(ErrorCode::cancelled, "it went back with the others");
        const auto late = make_error(ErrorCode::timed_out, "it was not ready in time");
        if (why == Why::command_was_stopped)
            return go_back(make_error(ErrorCode::timed_out, "the command was stopped for too long"));
        for (std::size_t i = 0; i < all_.size(); ++i)
            all_[i].conversation.withdraw(why == Why::late && together_->is_behind(i) ? late : back);
        is_withdrawn_ = true;
    }
    void go_back(const Error& why) {
        for (auto& each : all_) each.conversation.withdraw(why);
        is_withdrawn_ = true;
    }

    void interrupt() {
        observer_.take_interruption();
        is_withdrawn_ = true;
        const bool is_first = !std::exchange(is_interrupted_, true);
        for (auto& [conversation, told, warned] : all_) {
            if (conversation.is_over()) continue;
            if (is_first)
                conversation.withdraw();
            else
                conversation.give_up({});
        }
    }

    /// Tells what has ended, and what an interruption comes too late for.
    void tell() {
        for (std::size_t i = 0; i < all_.size(); ++i) {
            auto& [conversation, has_told_end, has_told_past_return] = all_[i];
            if (conversation.is_over()) {
                if (!std::exchange(has_told_end, true)) observer_.answered(i, conversation.answer());
            } else if (is_interrupted_ && conversation.is_past_return()) {
                if (!std::exchange(has_told_past_return, true)) observer_.past_return(i);
            }
        }
    }

    const Observer& observer_;
    const Joint* joint_;
    std::optional<Together> together_; ///< where they go together
    std::vector<Followed> all_;
    bool is_withdrawn_ = false; ///< all that can be
    bool is_interrupted_ = false;
};

} // namespace

const Error* error_of(const Answer& answer) noexcept {
    const auto* const failure = std::get_if<model::Failure>(&answer);
    return failure ? &failure->error : std::get_if<Error>(&answer);
}

std::vector<Answer> ask_all(std::vector<Question> questions, const Observer& observer) {
    return Conversations(std::move(questions), observer).run();
}

std::vector<Answer> ask_together(std::vector<Question> questions, const Joint& joint,
                                 const Observer& observer) {
    return Conversations(std::move(questions), observer, &joint).run();
}

} // namespace gpu_sleep::peers
