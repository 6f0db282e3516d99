// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The socket's place in the file system: the user's directory, the process's own name, nothing left behind.

#pragma once

#include "base/fd.hpp"
#include "common/lock_order.hpp"

namespace gpu_sleep::agent::server {

/// A listening socket in the user's agent directory. Used by one thread, but for the functions that say so.
class Endpoint {
public:
    /// Makes the directory if need be (private, owned by this user, not a link; when somebody else took its
    /// name, one whose name nobody can guess beforehand), removes sockets there on which nobody listens any
    /// more, binds and listens. Errors: io_failed, refused (another copy of the agent, from another file, has
    /// the socket of this process).
    [[nodiscard]] Result<void> open();

    [[nodiscard]] int fd() const noexcept { return socket_.get(); }
    [[nodiscard]] const std::string& path() const noexcept { return path_; }

    /// Whether that is still the socket: programs close descriptors that they know nothing of, and use the
    /// numbers again. Async-signal-safe.
    [[nodiscard]] bool is_held() const noexcept { return socket_.is_held(); }
    /// Whether it is, and the file that names the socket is still there: /tmp is cleaned by others.
    [[nodiscard]] bool is_in_place() const {
        return is_held() && FileIdentity::of(AT_FDCWD, path_.c_str()) == file_;
    }

    /// For commands that get no answer: writes `report` to the file beside the socket, where they find all or
    /// none of it. Errors are ignored. Thread-safe. May throw for want of memory.
    void publish(std::string_view report);

    /// Appends whole lines to the user's history, beside the socket; one that is full becomes the old one.
    /// Errors are ignored. May throw for want of memory.
    void add_to_history(std::string_view lines);

    /// Accepts the next connection in line. Where the process has no descriptors left, a spare one is given
    /// up for it. Empty, with errno set as by accept(2), when there is none, or no room for it.
    [[nodiscard]] UniqueFd accept() noexcept;
    [[nodiscard]] bool has_spare() const noexcept { return spare_.get() >= 0; }
    /// Has a spare descriptor again, if one can be had.
    void keep_spare() noexcept {
        if (is_held() && !spare_.is_held())
            spare_ = HeldFile(UniqueFd(::fcntl(fd(), F_DUPFD_CLOEXEC, k_first_own_number)));
    }

    /// Removes the file, and the directory if its name is not the fixed one and it is empty now. At the end
    /// of the process; async-signal-safe.
    void remove() const noexcept;
    /// The same, and stops listening: nobody is there to answer.
    void shut() noexcept;
    /// Closes the descriptors in a child. Async-signal-safe.
    void close_in_child() const noexcept {
        for (const auto* each : {&socket_, &spare_, &directory_})
            if (each->is_held()) ::close(each->get());
    }

private:
    [[nodiscard]] Result<void> try_to_open();
    /// The socket's, once more; empty where the program has closed it.
    [[nodiscard]] UniqueFd directory();

    HeldFile socket_;
    HeldFile spare_; ///< the same socket once more: who waits at the gate may hold all other descriptors
    Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost); ///< of the next three, for publish()
    HeldFile directory_;                                          ///< the socket's
    std::string name_;                                            ///< of the socket in it
    std::string state_name_;                                      ///< of the file beside it
    std::string path_;
    std::string spare_directory_; ///< the socket's, if its name is not the fixed one
    FileIdentity file_;           ///< that we made
};

} // namespace gpu_sleep::agent::server
