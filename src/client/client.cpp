// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sockets of this user, and asking agents.

#include "client/client.hpp"

#include "base/sockets.hpp"

namespace gpu_sleep::client {

Result<Neighbours> Neighbours::open() {
    constexpr std::string_view k_tmp = "/tmp/";
    const auto user = ::geteuid();
    auto path = agent_directory(user);
    const UniqueFd tmp(open_file(AT_FDCWD, k_tmp.data(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!tmp) return errno_error(ErrorCode::io_failed, errno, "open", "/tmp");
    auto directory = open_private_directory(tmp.get(), path.substr(k_tmp.size()), user);
    if (!directory) return errno_error(ErrorCode::io_failed, errno, "open", path);
    return Neighbours(std::move(directory), std::move(path));
}

Result<std::vector<ProcessIdentity>> Neighbours::list() const {
    const auto names = GPU_SLEEP_TRY(names_in(directory_.get(), k_max_entries));
    const auto start_time = own_start_time();
    const ProcessIdentity self{::getpid(), start_time ? *start_time : 0};
    std::vector<ProcessIdentity> all;
    for (const auto& name : names)
        if (const auto process = parse_agent_socket_name(name); process && *process != self)
            all.push_back(*process);
    return all;
}

Result<UniqueFd> Neighbours::connect(const ProcessIdentity& process) const {
    const auto path = fmt::format("{}/{}", path_, agent_socket_name(process.pid, process.start_time));
    const auto address = unix_address(path);
    if (!address) return make_error(ErrorCode::io_failed, "{} is too long", path);
    auto socket = opened([&] { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
    if (!socket) return errno_error(ErrorCode::io_failed, errno, "socket", path);
    if (connect_unix(socket.get(), *address) != 0) {
        if (errno == EAGAIN)
            return make_error(ErrorCode::timed_out, "process {} does not accept connections", process.pid);
        return errno_error(ErrorCode::no_agent, errno, "connect", path);
    }
    const auto peer = peer_of(socket.get());
    if (!peer || peer->uid != ::geteuid())
        return make_error(ErrorCode::no_agent, "process {} has no agent here", process.pid);
    return socket;
}

Conversations::Conversations(std::vector<Question> questions, Interruptions* interruptions,
                             const Joint* joint)
    : interruptions_(interruptions), joint_(joint) {
    add(std::move(questions));
    if (!joint) return;
    together_.emplace(all_.size(), joint->is_sleep, joint->end);
    coordinate();
}

void Conversations::add(std::vector<Question> questions) {
    all_.reserve(all_.size() + questions.size());
    for (auto& question : questions) all_.push_back({Conversation(std::move(question), joint_ != nullptr)});
}

bool Conversations::are_over() const {
    return std::ranges::all_of(all_, [](const Followed& each) { return each.conversation.is_over(); });
}

std::optional<Event> Conversations::next(Clock::time_point until) {
    for (tell(); events_.empty(); tell()) {
        if (are_over() || Clock::now() >= until) return std::nullopt;
        begin_deep_steps();
        step(until);
    }
    auto event = std::move(events_.front());
    events_.pop_front();
    return event;
}

void Conversations::step(Clock::time_point until) {
    std::vector<pollfd> polled{{interruptions_ ? interruptions_->fd() : -1, POLLIN, 0}};
    auto next_time = until;
    for (const auto& [conversation, told, warned] : all_) {
        polled.push_back(conversation.interest());
        polled.push_back(conversation.interest_in_step());
        if (!conversation.is_over()) next_time = std::min(next_time, conversation.next_time());
    }
    if (together_ && !is_withdrawn_) next_time = std::min(next_time, together_->next_time(Clock::now()));
    if (::poll(polled.data(), polled.size(), milliseconds_until(next_time)) < 0) return;
    if (polled[0].revents != 0) interrupt();
    for (std::size_t i = 0; i < all_.size(); ++i) {
        auto& conversation = all_[i].conversation;
        if (polled[2 * i + 2].revents != 0) conversation.note_end_of_step();
        if (!conversation.is_over() && polled[2 * i + 1].revents != 0)
            for (const auto& progress : conversation.advance()) {
                if (together_) together_->hear(i, progress, Clock::now());
                events_.push_back({i, progress});
            }
        if (!conversation.is_over()) conversation.keep_time();
    }
    if (together_ && !is_withdrawn_) coordinate();
}

/// Has the driver go on with those that wait for that, side by side. Of those that go together none takes
/// its next step before all have taken the one before it, or will not: the driver is to lock all of a
/// job's processes before it checkpoints any.
void Conversations::begin_deep_steps() {
    constexpr std::ptrdiff_t k_most = 64; // threads, which do nothing but wait
    auto under_way = std::ranges::count_if(
        all_, [](const Followed& each) { return each.conversation.has_step_under_way(); });
    for (auto& each : all_) {
        if (under_way == k_most) return;
        if (!each.conversation.awaits_step() || is_early(each.conversation.steps_done())) continue;
        each.conversation.begin_step();
        ++under_way;
    }
}

bool Conversations::is_early(std::size_t step) const {
    return together_ && std::ranges::any_of(all_, [=](const Followed& each) {
               return each.conversation.is_before_step(step);
           });
}

/// Has those that go together go on, or back.
void Conversations::coordinate() {
    for (std::size_t i = 0; i < all_.size(); ++i) note_end(i);
    while (const auto next = together_->next_to_ask()) {
        all_[*next].conversation.begin();
        note_end(*next);
    }
    for (const auto& [member, directive] : together_->due(Clock::now()))
        all_[member].conversation.say(directive);
    if (const auto why = together_->why_not(Clock::now())) return go_back(*why);
    if (!together_->all_are_ready()) return;
    if (auto consent = joint_->consent(); !consent) return withdraw(consent.error());
    // The looking may have taken its time.
    if (const auto why = together_->why_not(Clock::now())) return go_back(*why);
    for (const auto member : together_->commit())
        all_[member].conversation.say({model::Directive::Kind::commit});
}

void Conversations::note_end(std::size_t member) {
    const auto& conversation = all_[member].conversation;
    if (conversation.is_over()) together_->end(member, conversation.has_failed());
}

void Conversations::go_back(Together::Why why) {
    using Why = Together::Why;
    const auto back = make_error(ErrorCode::cancelled, "undone, because another process could not go on");
    const auto late = make_error(ErrorCode::timed_out, "it was not ready in time");
    if (why == Why::command_was_stopped)
        return withdraw(make_error(ErrorCode::timed_out, "the command was stopped for too long"));
    for (std::size_t i = 0; i < all_.size(); ++i)
        all_[i].conversation.withdraw(why == Why::late && together_->is_behind(i) ? late : back);
    is_withdrawn_ = true;
}

void Conversations::withdraw(const std::optional<Error>& why) {
    for (auto& each : all_) each.conversation.withdraw(why);
    is_withdrawn_ = true;
}

void Conversations::interrupt() {
    interruptions_->has_come();
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
void Conversations::tell() {
    for (std::size_t i = 0; i < all_.size(); ++i) {
        auto& [conversation, has_told_end, has_told_past_return] = all_[i];
        if (conversation.is_over()) {
            if (!std::exchange(has_told_end, true)) events_.push_back({i, conversation.take_answer()});
        } else if (is_interrupted_ && conversation.is_past_return()) {
            if (!std::exchange(has_told_past_return, true)) events_.push_back({i, PastReturn()});
        }
    }
}

std::vector<Answer> ask_all(std::vector<Question> questions, Interruptions* interruptions,
                            const Joint* joint) {
    std::vector<Answer> answers(questions.size());
    Conversations conversations(std::move(questions), interruptions, joint);
    while (auto event = conversations.next())
        if (auto* const answer = std::get_if<Answer>(&event->what))
            answers[event->question] = std::move(*answer);
    return answers;
}

} // namespace gpu_sleep::client
