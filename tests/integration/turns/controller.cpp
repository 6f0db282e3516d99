// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Making room by gpu-sleep and gpu-wake.

#include "controller.hpp"

namespace gpu_sleep::test {
namespace {

Output command(const char* name, const Server& server) {
    return run({{command_file(name), std::to_string(server.pid()), "--quiet"}});
}

} // namespace

Controller::Controller(const TurnOptions& options, const std::deque<Server>& servers, Findings& findings)
    : options_(options), servers_(servers), findings_(findings), thread_([this] { run(); }) {}

Controller::~Controller() {
    {
        const std::lock_guard lock(mutex_);
        stops_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void Controller::enqueue(unsigned server) {
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back(server);
    }
    changed_.notify_all();
}

void Controller::forget(unsigned server) {
    {
        const std::lock_guard lock(mutex_);
        std::erase(queue_, server);
    }
    changed_.notify_all();
}

bool Controller::still_waits(unsigned server) {
    const std::lock_guard lock(mutex_);
    return !stops_ && !queue_.empty() && queue_.front() == server;
}

void Controller::run() {
    std::unique_lock lock(mutex_);
    while (!stops_) {
        if (queue_.empty()) {
            changed_.wait(lock);
            continue;
        }
        const auto first = queue_.front();
        lock.unlock();
        serve(first);
        lock.lock();
    }
}

void Controller::serve(unsigned server) {
    constexpr Milliseconds k_moment{5};
    while (still_waits(server)) {
        try {
            make_room(servers_[server]);
        } catch (const ProcessFailure& failure) {
            findings_.failed(failure.what());
            return;
        }
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, k_moment);
    }
}

void Controller::make_room(const Server& server) {
    const auto states = states_of(servers_);
    if (states[server.number()] == "awake") return;
    std::vector<const Server*> awake;
    for (const auto& each : servers_)
        if (!states[each.number()].empty() && states[each.number()] != "asleep" && &each != &server)
            awake.push_back(&each);
    std::sort(awake.begin(), awake.end(), [](const Server* a, const Server* b) {
        return std::pair(a->is_busy(), a->last_asked()) < std::pair(b->is_busy(), b->last_asked());
    });
    for (auto kept = awake.size(); kept >= options_.room_for && !awake.empty(); awake.erase(awake.begin())) {
        if (awake.front()->is_busy()) break; // all others are, too
        if (command("gpu-sleep", *awake.front()).status != 0) continue;
        ++findings_.room_made;
        --kept;
    }
    command("gpu-wake", server); // which may meet others on their way: it is tried again
}

} // namespace gpu_sleep::test
