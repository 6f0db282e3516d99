// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Making and keeping the socket.

#include "server/endpoint.hpp"

#include "base/files.hpp"
#include "base/process.hpp"
#include "base/sockets.hpp"
#include "common/settings.hpp"
#include "model/history.hpp"

#include <sys/random.h>

#include <cstring>

namespace gpu_sleep::agent::server {
namespace {

constexpr const char* k_tmp = "/tmp";

/// A directory beneath /tmp.
struct Place {
    UniqueFd directory;
    std::string name;
    bool is_spare = false; ///< its name is not the fixed one
};

/// Makes a directory that its owner may use even where the program's umask says otherwise. Returns an errno
/// or 0.
int make_private_directory(int tmp, const std::string& name) {
    if (::mkdirat(tmp, name.c_str(), S_IRWXU) != 0) return errno;
    const UniqueFd made(open_file(tmp, name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat status {};
    if (made && ::fstat(made.get(), &status) == 0 && status.st_uid == ::geteuid() &&
        (status.st_mode & S_IRWXU) != S_IRWXU)
        ::chmod(fmt::format("/proc/self/fd/{}", made.get()).c_str(), S_IRWXU);
    return 0;
}

/// The directory of the fixed name, made if it is missing. Empty where somebody else has taken that.
Result<UniqueFd> open_fixed(int tmp, const std::string& name) {
    if (const int failure = make_private_directory(tmp, name); failure != 0 && failure != EEXIST)
        return errno_error(ErrorCode::io_failed, failure, "mkdir", fmt::format("{}/{}", k_tmp, name));
    auto directory = open_private_directory(tmp, name, ::geteuid());
    const bool is_taken = errno == ELOOP || errno == ENOTDIR || errno == EACCES || errno == EPERM;
    if (!directory && !is_taken)
        return errno_error(ErrorCode::io_failed, errno, "open", fmt::format("{}/{}", k_tmp, name));
    return directory;
}

/// One that follows `fixed` in the order of names: that of another process of this user, or a new one.
Result<Place> open_spare(int tmp, const std::string& fixed) {
    const auto user = ::geteuid();
    auto found = GPU_SLEEP_TRY(find_agent_directories(tmp));
    for (auto& name : found.names[user]) {
        auto shared = name.starts_with(fixed + '.') ? open_private_directory(tmp, name, user) : UniqueFd();
        if (shared) return Place{std::move(shared), std::move(name), true};
    }
    std::uint64_t random = 0;
    if (::getrandom(&random, sizeof random, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof random))
        return errno_error(ErrorCode::io_failed, errno, "getrandom", "cannot name a directory");
    auto name = fmt::format("{}.{:016x}", fixed, random);
    if (const int failure = make_private_directory(tmp, name); failure != 0)
        return errno_error(ErrorCode::io_failed, failure, "mkdir", fmt::format("{}/{}", k_tmp, name));
    auto made = open_private_directory(tmp, name, user);
    if (!made) {
        const int failure = errno;
        ::unlinkat(tmp, name.c_str(), AT_REMOVEDIR); // each try makes another
        return errno_error(ErrorCode::io_failed, failure, "open", fmt::format("{}/{}", k_tmp, name));
    }
    return Place{std::move(made), std::move(name), true};
}

/// Somebody may have taken the fixed name first, out of malice or by accident. What follows it cannot be
/// guessed beforehand.
Result<Place> open_place() {
    const UniqueFd tmp(open_file(AT_FDCWD, k_tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!tmp) return errno_error(ErrorCode::io_failed, errno, "open", k_tmp);
    auto fixed = agent_directory(::geteuid()).substr(std::strlen(k_tmp) + 1);
    auto directory = GPU_SLEEP_TRY(open_fixed(tmp.get(), fixed));
    if (directory) return Place{std::move(directory), std::move(fixed)};
    return open_spare(tmp.get(), fixed);
}

Result<UniqueFd> new_socket(const std::string& path) {
    auto socket = opened([&] { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
    if (!socket) return errno_error(ErrorCode::io_failed, errno, "socket", path);
    return socket;
}

/// Whether a socket of this process, other than `own` and `spare`, listens at `path`. Where /proc cannot be
/// read, none is found.
bool is_another_here(const std::string& path, int own, int spare) {
    const UniqueFd descriptors(open_file(AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const auto names = names_in(descriptors.get(), k_max_entries);
    if (!names) return false;
    return std::any_of(names->begin(), names->end(), [&](const std::string& name) {
        const int fd = parse_number<int>(name).value_or(-1);
        sockaddr_un address{};
        socklen_t size = sizeof address;
        int listens = 0;
        socklen_t listens_size = sizeof listens;
        return fd != own && fd != spare &&
               ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
               address.sun_family == AF_UNIX &&
               std::strncmp(path.c_str(), address.sun_path, sizeof address.sun_path) == 0 &&
               ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &listens_size) == 0 && listens != 0;
    });
}

/// Whether nobody listens on the socket at `path`, which is named after `owner`, or it is gone. That no such
/// process is seen proves nothing: where pid namespaces share a /tmp, it may live in another one.
bool is_stale(const std::string& path, const ProcessIdentity& owner) {
    const auto started = start_time_of(owner.pid);
    if (started && *started == owner.start_time) return false; // it may be about to listen
    const auto address = unix_address(path);
    const auto socket = new_socket(path);
    return address && socket && connect_unix(socket->get(), *address) != 0 &&
           (errno == ECONNREFUSED || errno == ENOENT);
}

void remove_stale_sockets(int directory, const std::string& path) {
    const auto names = names_in(directory, k_max_entries);
    if (!names) return;
    for (const auto& name : *names) {
        const auto socket = name.substr(0, name.rfind(k_state_suffix)); // a state may outlive its socket
        const auto owner = parse_agent_socket_name(socket);
        if (!owner || !is_stale(fmt::format("{}/{}", path, socket), *owner)) continue;
        ::unlinkat(directory, (socket + k_state_suffix).c_str(), 0);
        ::unlinkat(directory, name.c_str(), 0);
    }
}

} // namespace

Result<void> Endpoint::open() {
    constexpr int k_tries = 3; // a directory that was shared goes with the last socket in it
    for (int i = 1;; ++i) {
        auto opened = try_to_open();
        if (opened || opened.error().driver_status != ENOENT || i == k_tries) return opened;
    }
}

Result<void> Endpoint::try_to_open() {
    auto place = GPU_SLEEP_TRY(open_place());
    const int directory = place.directory.get();
    auto directory_path = fmt::format("{}/{}", k_tmp, place.name);
    remove_stale_sockets(directory, directory_path);
    const auto started = GPU_SLEEP_TRY(own_start_time());
    auto name = agent_socket_name(::getpid(), started);
    path_ = directory_path + "/" + name;

    const auto address = unix_address(path_);
    if (!address) return make_error(ErrorCode::io_failed, "{} is too long", path_);
    if (is_another_here(path_, socket_.get(), spare_.get()))
        return make_error(ErrorCode::refused, "another copy of the agent is at work in this process");
    auto socket = GPU_SLEEP_TRY(new_socket(path_));
    ::unlinkat(directory, name.c_str(), 0);
    if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0)
        return errno_error(ErrorCode::io_failed, errno, "bind", path_);
    if (::fchmodat(directory, name.c_str(), 0600, 0) != 0 || ::listen(socket.get(), SOMAXCONN) != 0)
        return errno_error(ErrorCode::io_failed, errno, "listen", path_);
    const auto file = FileIdentity::of(directory, name.c_str());
    if (!file) return errno_error(ErrorCode::io_failed, errno, "fstatat", path_);
    file_ = *file;
    spare_directory_ = place.is_spare ? std::move(directory_path) : std::string();
    {
        const MutexLock lock(mutex_);
        directory_ = HeldFile(std::move(place.directory));
        state_name_ = name + k_state_suffix;
        name_ = std::move(name);
        // A program that this process executed before may have left the file.
        if (!socket_) ::unlinkat(directory_.get(), state_name_.c_str(), 0);
    }
    spare_ = HeldFile(); // of the socket that was
    socket_ = HeldFile(std::move(socket));
    keep_spare();
    return {};
}

UniqueFd Endpoint::directory() {
    const MutexLock lock(mutex_);
    if (!directory_.is_held()) return {};
    return UniqueFd(::fcntl(directory_.get(), F_DUPFD_CLOEXEC, k_first_own_number));
}

void Endpoint::add_to_history(std::string_view lines) {
    const auto place = directory();
    auto file = LockedFile::open(place.get(), model::k_history);
    struct stat status {};
    if (!file || ::fstat(file->get(), &status) != 0) return;
    const bool is_full = static_cast<Bytes>(status.st_size) + lines.size() > model::k_max_history;
    // The lock has only one of several processes rename the file.
    if (is_full && file->lock() == LockedFile::Lock::taken && file->is_named(place.get(), model::k_history)) {
        ::renameat(place.get(), model::k_history, place.get(), model::k_old_history);
        file = LockedFile::open(place.get(), model::k_history);
    }
    if (!file || ::fcntl(file->get(), F_SETFL, O_APPEND) != 0) return;
    // One write: a short or failed one has nobody left to be told.
    [[maybe_unused]] const auto written = ::write(file->get(), lines.data(), lines.size());
}

void Endpoint::publish(std::string_view report) {
    UniqueFd directory;
    std::string name;
    {
        const MutexLock lock(mutex_);
        if (!directory_.is_held()) return;
        ::unlinkat(directory_.get(), state_name_.c_str(), 0); // none is better than an old one, if this fails
        directory.reset(::fcntl(directory_.get(), F_DUPFD_CLOEXEC, k_first_own_number));
        name = state_name_;
    }
    auto file = WholeFile::replace(std::move(directory), name, name);
    if (file && file->write(report)) static_cast<void>(file->commit(false));
}

void Endpoint::remove() const noexcept {
    if (socket_.get() < 0) return;
    if (directory_.is_held()) ::unlinkat(directory_.get(), state_name_.c_str(), 0);
    // The program may have another root directory by now.
    if (directory_.is_held())
        ::unlinkat(directory_.get(), name_.c_str(), 0);
    else
        ::unlink(path_.c_str());
    if (!spare_directory_.empty()) ::rmdir(spare_directory_.c_str()); // which stays if others are in it
}

void Endpoint::shut() noexcept {
    remove();
    {
        const MutexLock lock(mutex_);
        directory_ = HeldFile();
    }
    spare_ = HeldFile();
    socket_ = HeldFile();
}

UniqueFd Endpoint::accept() noexcept {
    constexpr int k_tries = 4; // the program's threads want what is given up, too
    for (int i = 1;; ++i) {
        auto connection = opened([&] { return ::accept4(fd(), nullptr, nullptr, SOCK_CLOEXEC); });
        if (connection || (errno != EMFILE && errno != ENFILE) || i == k_tries) return connection;
        spare_ = HeldFile();
    }
}

} // namespace gpu_sleep::agent::server
