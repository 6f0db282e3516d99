// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Servers that do not all fit the GPU at a time, and their requests.

#pragma once

#include "support/process.hpp"

#include <atomic>
#include <deque>
#include <mutex>
#include <random>

namespace gpu_sleep::test {

/// What a run is like. Times are in milliseconds.
struct TurnOptions {
    unsigned servers = 8;
    unsigned room_for = 3;   ///< of them, at a time
    unsigned requests = 160; ///< of all together
    unsigned ranges = 4;     ///< of each server
    Bytes range_bytes = 2 * k_mib;
    bool by_requests = false; ///< the agents make room for requests; otherwise a controller does, by commands
    Milliseconds min_awake{0};
    Milliseconds pause{50}; ///< between two requests to one server, on average
    std::uint64_t seed = 1;
    bool is_calm = false; ///< nothing is killed, and nobody interferes
};

/// One of the servers, with the thread of its own that asks it. The others may look at it and kill it.
class Server {
public:
    Server(const TurnOptions& options, std::vector<std::string> environment, unsigned number);

    /// Starts its process, in place of one that has ended, and waits until it has its memory. False if it was
    /// killed, or found too little. Throws ProcessFailure for all else.
    [[nodiscard]] bool start();
    /// Asks it, and waits for the answer. Returns the seconds that it took, or nothing if the process was
    /// killed meanwhile. Throws ProcessFailure for a wrong answer, and for none.
    [[nodiscard]] std::optional<double> ask();
    /// Has it end by itself.
    void end();

    void kill();
    [[nodiscard]] pid_t pid() const { return pid_; }
    [[nodiscard]] unsigned number() const noexcept { return number_; }
    /// Whether a request to it is under way, and when the last one began.
    [[nodiscard]] bool is_busy() const { return busy_; }
    [[nodiscard]] Clock::time_point last_asked() const { return last_asked_; }

private:
    /// What starts a process of its.
    [[nodiscard]] std::vector<std::string> words() const;

    const TurnOptions& options_;
    std::vector<std::string> environment_;
    unsigned number_;
    unsigned starts_ = 0;
    std::mutex mutex_; ///< guards the signal and the end of the process
    std::optional<Process> process_;
    std::atomic<pid_t> pid_{0};
    std::atomic<bool> killed_{false};
    std::atomic<bool> busy_{false};
    std::atomic<Clock::time_point> last_asked_{Clock::time_point{}};
};

/// Numbers of one thread.
class Dice {
public:
    explicit Dice(std::uint64_t seed) : random_(seed) {}
    [[nodiscard]] unsigned below(unsigned count) { return static_cast<unsigned>(random_() % count); }
    [[nodiscard]] bool one_in(unsigned count) { return below(count) == 0; }
    /// Up to twice `mean`.
    [[nodiscard]] Milliseconds about(Milliseconds mean) {
        return Milliseconds(below(static_cast<unsigned>(2 * mean.count() + 1)));
    }

private:
    std::mt19937_64 random_;
};

/// What all threads tell. Thread-safe.
class Findings {
public:
    void waited(double seconds);
    void failed(const std::string& what);
    [[nodiscard]] bool has_failed() const;
    /// Seconds of the requests that were answered, in order.
    [[nodiscard]] std::vector<double> waits() const;
    [[nodiscard]] std::vector<std::string> failures() const;

    std::atomic<unsigned> killed{0};   ///< servers
    std::atomic<unsigned> ended{0};    ///< servers, by themselves
    std::atomic<unsigned> commands{0}; ///< that interfered
    std::atomic<unsigned> commands_killed{0};
    std::atomic<unsigned> passes{0};
    std::atomic<unsigned> reclaimed{0}; ///< sleeps by passes
    std::atomic<unsigned> room_made{0}; ///< sleeps by the controller

private:
    mutable std::mutex mutex_;
    std::vector<double> waits_;
    std::vector<std::string> failures_;
};

/// The state of each server's process, as gpu-ps says; empty for one that does not answer.
[[nodiscard]] std::vector<std::string> states_of(const std::deque<Server>& servers);

} // namespace gpu_sleep::test
