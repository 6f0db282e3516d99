// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Conversations with agents, driven by one poll loop.

#include "cli/client.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <optional>

namespace gpu_sleep::cli {
namespace {

Error lost(std::string_view when) {
    return make_error(ErrorCode::connection_lost, "the connection to the agent was lost {}", when);
}

/// One question on its way: bytes still to send, bytes received so far, the answer once it is there.
class Conversation {
public:
    explicit Conversation(Question question)
        : question_(std::move(question)), deadline_(Clock::now() + question_.patience) {
        auto bytes = protocol::encode(question_.request);
        if (bytes)
            unsent_ = *std::move(bytes);
        else
            answer_ = std::move(bytes).error();
    }

    [[nodiscard]] bool is_over() const noexcept { return answer_.has_value(); }
    [[nodiscard]] Answer take_answer() { return *std::move(answer_); }
    [[nodiscard]] Clock::time_point deadline() const noexcept { return deadline_; }
    [[nodiscard]] pollfd interest() const noexcept {
        const auto events = static_cast<short>(unsent_.empty() ? POLLIN : POLLIN | POLLOUT);
        return {is_over() ? -1 : question_.socket.get(), events, 0};
    }

    /// Goes on after `interest` has come true.
    void advance(const std::function<void(const model::Progress&)>& on_progress) {
        if (!unsent_.empty()) send();
        if (!is_over()) receive(on_progress);
    }

    void give_up() {
        answer_ = make_error(ErrorCode::timed_out, "the agent has not answered for {}",
                             format_seconds(static_cast<double>(question_.patience.count()) / 1000));
    }

private:
    void send() {
        const auto sent = ::send(question_.socket.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
        if (sent >= 0)
            unsent_.erase(unsent_.begin(), unsent_.begin() + sent);
        else if (errno == EPIPE || errno == ECONNRESET)
            unsent_.clear(); // it may have said why before it closed
        else if (errno != EINTR && errno != EAGAIN)
            answer_ = lost("while sending");
    }

    void receive(const std::function<void(const model::Progress&)>& on_progress) {
        std::array<std::byte, 16384> buffer;
        const auto got = ::recv(question_.socket.get(), buffer.data(), buffer.size(), 0);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
        if (got <= 0) {
            answer_ = lost("before it had answered");
            return;
        }
        reader_.append(std::span(buffer).first(static_cast<std::size_t>(got)));
        while (!is_over()) {
            auto frame = reader_.next();
            if (!frame)
                answer_ = std::move(frame).error();
            else if (!frame->has_value())
                return;
            else
                accept(**frame, on_progress);
        }
    }

    void accept(const protocol::FrameReader::Frame& frame,
                const std::function<void(const model::Progress&)>& on_progress) {
        auto reply = protocol::decode_reply(frame);
        if (!reply) {
            answer_ = std::move(reply).error();
        } else if (auto* report = std::get_if<model::Report>(&*reply)) {
            answer_ = std::move(*report);
        } else if (auto* failure = std::get_if<model::Failure>(&*reply)) {
            answer_ = std::move(*failure);
        } else if (const auto* progress = std::get_if<model::Progress>(&*reply);
                   progress && !std::holds_alternative<model::StatusRequest>(question_.request)) {
            deadline_ = Clock::now() + question_.patience;
            on_progress(*progress);
        }
    }

    Question question_;
    std::vector<std::byte> unsent_;
    protocol::FrameReader reader_;
    Clock::time_point deadline_;
    std::optional<Answer> answer_;
};

/// Milliseconds for poll, rounded up so that the deadline has passed afterwards.
int milliseconds_until(Clock::time_point deadline) {
    const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now()).count();
    return static_cast<int>(std::clamp<Milliseconds::rep>(left, 0, std::numeric_limits<int>::max()));
}

} // namespace

std::vector<Answer> ask_all(std::vector<Question> questions, const ProgressSink& sink) {
    std::vector<Conversation> conversations;
    conversations.reserve(questions.size());
    for (auto& question : questions) conversations.emplace_back(std::move(question));

    for (;;) {
        std::vector<pollfd> polled;
        auto next_deadline = Clock::time_point::max();
        for (const auto& conversation : conversations) {
            polled.push_back(conversation.interest());
            if (!conversation.is_over()) next_deadline = std::min(next_deadline, conversation.deadline());
        }
        if (next_deadline == Clock::time_point::max()) break;
        if (::poll(polled.data(), polled.size(), milliseconds_until(next_deadline)) < 0) continue;
        for (std::size_t i = 0; i < conversations.size(); ++i) {
            auto& conversation = conversations[i];
            if (polled[i].revents != 0)
                conversation.advance([&](const model::Progress& progress) { sink(i, progress); });
            if (!conversation.is_over() && Clock::now() >= conversation.deadline()) conversation.give_up();
        }
    }

    std::vector<Answer> answers;
    answers.reserve(conversations.size());
    for (auto& conversation : conversations) answers.push_back(conversation.take_answer());
    return answers;
}

} // namespace gpu_sleep::cli
