// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading files of others, and keeping what they say.

#include "control/history.hpp"

#include "base/files.hpp"
#include "protocol/messages.hpp"

#include <ctime>

namespace gpu_sleep::control {
namespace {

constexpr std::size_t k_most_kept = 64 * k_mib;

/// Adds the events of a file that `owner` alone can write to, if it has at most `most` bytes. In the one that
/// root keeps, each line says whose it is. Returns the bytes that were read.
std::size_t add_events(int directory, const char* name, uid_t owner, bool is_kept, std::size_t most,
                       std::vector<model::Event>& events) {
    const auto file = open_file(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat status {};
    if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != owner ||
        (status.st_mode & (S_IWGRP | S_IWOTH)) != 0 || status.st_nlink != 1)
        return 0;
    const auto text = read_open_file(file.get(), most);
    std::string_view left = text ? *text : std::string_view();
    while (const auto line = take_line(left))
        if (auto event = protocol::parse_event(*line)) {
            const auto uid = is_kept ? event->uid : owner;
            if (event->asker_uid != 0) event->asker_uid = uid; // nobody but he and root may ask
            event->uid = uid;
            events.push_back(*std::move(event));
        }
    return text ? text->size() : 0;
}

} // namespace

std::vector<model::Event> read_history(const std::vector<Process>& processes, const HistoryPlaces& places) {
    std::vector<model::Event> events;
    // A user may have many directories, and many users.
    constexpr std::size_t k_most_of_a_user = 4 * model::k_max_history;
    std::map<uid_t, std::size_t> read_of;
    std::size_t read = 0;
    const auto add_agents = [&](int directory, uid_t owner) {
        for (const auto* const name : {model::k_history, model::k_old_history}) {
            const auto left = std::min(k_most_of_a_user - read_of[owner], k_most_kept - read);
            const auto bytes = add_events(directory, name, owner, false,
                                          std::min<std::size_t>(left, 2 * model::k_max_history), events);
            read_of[owner] += bytes;
            read += bytes;
        }
    };
    const auto own = ::geteuid();
    const auto tmp = open_file(AT_FDCWD, places.tmp.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (const auto found = find_agent_directories(tmp.get()))
        for (const auto& [owner, names] : found->names)
            for (const auto& name : names)
                if (own == 0 || own == owner)
                    add_agents(open_private_directory(tmp.get(), name, owner).get(), owner);
    Finder finder;
    for (const auto& process : processes)
        if (const auto socket = finder.socket_of(process)) add_agents(socket->directory.get(), process.uid);
    if (own == 0)
        add_events(AT_FDCWD, (places.kept / model::k_history).c_str(), own, true, 2 * k_most_kept, events);
    std::ranges::sort(events);
    events.erase(std::unique(events.begin(), events.end()), events.end());
    return events;
}

Result<void> keep_history(const std::vector<model::Event>& events, double now, const HistoryPlaces& places) {
    constexpr double k_longest = 30 * 24 * 3'600;
    constexpr std::size_t k_most_of_a_user = 20'000;
    std::map<std::uint32_t, std::size_t> counts;
    std::vector<std::string> lines;
    std::size_t bytes = 0;
    for (auto event = events.rbegin(); event != events.rend(); ++event) // the last first
        if (event->time <= now && event->time >= now - k_longest &&
            ++counts[event->uid] <= k_most_of_a_user &&
            (bytes += lines.emplace_back(protocol::line_of(*event)).size()) > k_most_kept)
            break;
    if (lines.empty()) return {};
    if (::mkdir(places.kept.c_str(), S_IRWXU) != 0 && errno != EEXIST)
        return file_error(errno, "mkdir", places.kept);
    auto directory = open_file(AT_FDCWD, places.kept.c_str(), O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC);
    if (!directory) return file_error(errno, "open", places.kept);
    auto file = GPU_SLEEP_TRY(
        WholeFile::replace(std::move(directory), model::k_history, places.kept / model::k_history));
    for (auto line = lines.rbegin(); line != lines.rend(); ++line) GPU_SLEEP_TRY(file.write(*line));
    return file.commit(false);
}

Result<double> parse_since(const std::string& text, double now) {
    const auto seconds = static_cast<std::time_t>(now);
    std::tm time{};
    ::localtime_r(&seconds, &time);
    const char* const end = ::strptime(text.c_str(), "%H:%M", &time);
    if (!end || *end != '\0')
        return make_error(ErrorCode::invalid_argument, "'{}' is not a time of the day such as 22:00", text);
    time.tm_sec = 0;
    for (;; --time.tm_mday) {
        time.tm_isdst = -1;
        auto tried = time;
        if (const auto since = std::mktime(&tried); since <= seconds) return static_cast<double>(since);
    }
}

double now_of_history() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

} // namespace gpu_sleep::control
