// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One look at all connections, a few times a second while there are any.

#include "cli/http/connections.hpp"

#include <sys/socket.h>

#include <algorithm>

namespace gpu_sleep::cli::http {

Connection* Connections::add(int socket, bool is_known, Milliseconds limit) {
    const std::lock_guard guard(mutex_);
    all_.push_back({socket, is_known, !is_known, Clock::now() + limit});
    const auto is_stranger = [](const Connection& each) { return each.is_stranger; };
    if (!is_known &&
        static_cast<std::size_t>(std::count_if(all_.begin(), all_.end(), is_stranger)) > most_strangers_) {
        auto& oldest = *std::find_if(all_.begin(), all_.end(), is_stranger);
        oldest.is_stranger = false; // the library is about to close it
        ::shutdown(oldest.socket, SHUT_RDWR);
    }
    changed_.notify_one();
    return &all_.back();
}

void Connections::remove(Connection* connection) {
    const std::lock_guard guard(mutex_);
    std::erase_if(all_, [=](const Connection& each) { return &each == connection; });
}

void Connections::admit(Connection& connection) {
    const std::lock_guard guard(mutex_);
    connection.is_stranger = false;
}

void Connections::limit(Connection& connection, std::optional<Milliseconds> time) {
    const std::lock_guard guard(mutex_);
    connection.deadline = time ? Clock::now() + *time : Clock::time_point::max();
}

void Connections::run(const std::stop_token& stop) {
    constexpr Milliseconds k_between{200};
    std::unique_lock guard(mutex_);
    while (changed_.wait(guard, stop, [&] { return !all_.empty(); })) {
        changed_.wait_for(guard, stop, k_between, [] { return false; });
        if (stop.stop_requested()) return;
        const auto now = Clock::now();
        for (auto& each : all_) {
            if (each.deadline > now) continue;
            ::shutdown(each.socket, SHUT_RDWR); // the library sees its end, and closes it
            each.deadline = Clock::time_point::max();
        }
    }
}

} // namespace gpu_sleep::cli::http
