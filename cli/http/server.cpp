// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// libmicrohttpd's part: a connection waits, suspended, while a lane works on its request.

#include "cli/http/server.hpp"

#include <fmt/ranges.h>
#include <microhttpd.h>

#include <sys/eventfd.h>

namespace gpu_sleep::cli::http {
namespace {

constexpr unsigned k_most_connections = 512;
constexpr std::size_t k_most_strangers = k_most_connections / 2; ///< who have yet to send a token
constexpr std::size_t k_most_changes = k_most_connections / 4;   ///< that wait, so that probes find a place
constexpr std::size_t k_most_headers = 16 * k_kib; ///< of a connection, and what else the library keeps of it
constexpr std::size_t k_longest_body = 64 * k_kib;
constexpr Milliseconds k_for_headers{2'000};
constexpr Milliseconds k_for_answers{1'000}; ///< that are on their way when the server ends
constexpr Milliseconds k_for_rest{5'000};    ///< for a body, an answer, the headers of another request

Answer refusal(int status, ErrorCode code, std::string_view message, std::string_view advice = {}) {
    return answer_of(status, make_error(code, "{}", message), advice);
}

std::string known_routes() {
    std::vector<std::string_view> paths;
    for (const auto& route : all_routes()) paths.push_back(route.path);
    return fmt::format("it has {}", fmt::join(paths, ", "));
}

Answer ending() {
    return refusal(k_unavailable, ErrorCode::cancelled, "the HTTP server is about to end");
}

std::string_view header(MHD_Connection* connection, const char* name) {
    const auto* const value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
    return value ? value : "";
}

/// Whether two readers of a request's headers could differ about where it ends, or whom it is for: what a
/// proxy takes for the rest of a body would be another request here. Source: RFC 9112,
/// sections 3.2, 5.1 and 6.3.
bool is_ambiguous(MHD_Connection* connection) {
    struct {
        int hosts = 0, lengths = 0, codings = 0;
        bool is_chunked = true, has_space = false;
    } found;
    MHD_get_connection_values(
        connection, MHD_HEADER_KIND,
        [](void* counts, MHD_ValueKind, const char* name, const char* value) {
            auto& its = *static_cast<decltype(found)*>(counts);
            its.has_space |= std::string_view(name).find_first_of(" \t") != std::string_view::npos;
            its.hosts += is_same(name, MHD_HTTP_HEADER_HOST);
            its.lengths += is_same(name, MHD_HTTP_HEADER_CONTENT_LENGTH);
            if (!is_same(name, MHD_HTTP_HEADER_TRANSFER_ENCODING)) return MHD_YES;
            ++its.codings;
            its.is_chunked = is_same(value ? value : "", "chunked");
            return MHD_YES;
        },
        &found);
    return found.hosts > 1 || found.lengths + found.codings > 1 || !found.is_chunked || found.has_space;
}

Query query_of(MHD_Connection* connection) {
    Query query;
    MHD_get_connection_values_n(
        connection, MHD_GET_ARGUMENT_KIND,
        [](void* all, MHD_ValueKind, const char* name, std::size_t name_size, const char* value,
           std::size_t value_size) {
            static_cast<Query*>(all)->emplace_back(std::string(name, name_size),
                                                   std::string(value ? value : "", value ? value_size : 0));
            return MHD_YES;
        },
        &query);
    return query;
}

Connection& context_of(MHD_Connection* connection) {
    const auto* const info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return *static_cast<Connection*>(info->socket_context);
}

Ends ends_of(int socket) {
    const auto read = [=](auto get) {
        sockaddr_storage address{};
        socklen_t length = sizeof(address);
        auto* const pointer = reinterpret_cast<sockaddr*>(&address);
        return get(socket, pointer, &length) == 0 ? endpoint_of(pointer) : Endpoint();
    };
    return {read(::getpeername), read(::getsockname)};
}

/// What ends the requests of a door that ends.
class Withdrawal : public control::Interruptions {
public:
    Withdrawal() : Interruptions(UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {}
    void raise() noexcept {
        has_come_ = true;
        ::eventfd_write(fd(), 1);
    }
    bool has_come() noexcept override {
        eventfd_t count = 0;
        ::eventfd_read(fd(), &count);
        return has_come_;
    }

private:
    std::atomic<bool> has_come_ = false;
};

/// One request on its way.
struct Exchange {
    const Route* route = nullptr;
    bool is_admitted = false;     ///< else its connection ends with it: strangers hold none
    std::string body;             ///< of one that is too long, more than k_longest_body
    std::optional<Answer> answer; ///< once a lane has found it
};

class Door {
public:
    Door(Admission admission, Backend backend)
        : admission_(std::move(admission)), backend_(std::move(backend)) {}
    ~Door() {
        withdrawal_.raise();
        if (!daemon_) return;
        const UniqueFd listener(MHD_quiesce_daemon(daemon_));
        for (auto* lane : {&probes_, &looks_, &measures_, &changes_}) lane->close();
        const auto end = Clock::now() + k_for_answers;
        while (exchanges_ > 0 && Clock::now() < end) std::this_thread::sleep_for(Milliseconds(5));
        MHD_stop_daemon(daemon_); // which may have no suspended connections
    }

    Result<void> listen(UniqueFd listener) {
        // By epoll it would wait for more after exactly 128 events, before it looks at those. Source:
        // MHD_epoll() of 0.9.75.
        constexpr unsigned k_flags = MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
        daemon_ = MHD_start_daemon(k_flags, 0, nullptr, nullptr, answer, this, MHD_OPTION_LISTEN_SOCKET,
                                   listener.get(), MHD_OPTION_CONNECTION_LIMIT, k_most_connections,
                                   MHD_OPTION_CONNECTION_MEMORY_LIMIT, k_most_headers,
                                   MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_NOTIFY_CONNECTION, noticed,
                                   this, MHD_OPTION_NOTIFY_COMPLETED, completed, this, MHD_OPTION_END);
        if (!daemon_) return make_error(ErrorCode::io_failed, "libmicrohttpd cannot serve the socket");
        static_cast<void>(listener.release()); // the library closes it
        return {};
    }

private:
    static void noticed(void* door, MHD_Connection* connection, void** context,
                        MHD_ConnectionNotificationCode what) {
        auto& self = *static_cast<Door*>(door);
        auto& connections = self.connections_;
        if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
            if (*context) connections.remove(static_cast<Connection*>(*context));
            return;
        }
        const auto* const info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        const int socket = info->connect_fd;
        *context = connections.add(socket, self.admission_.knows(ends_of(socket)), k_for_headers);
    }

    static void completed(void* door, MHD_Connection* connection, void** exchange,
                          MHD_RequestTerminationCode /*how*/) {
        auto& self = *static_cast<Door*>(door);
        if (*exchange) --self.exchanges_;
        delete static_cast<Exchange*>(std::exchange(*exchange, nullptr));
        self.connections_.limit(context_of(connection), k_for_rest);
    }

    /// The library calls it once the headers are whole, for each part of the body, after the body, and once
    /// the connection is resumed.
    static MHD_Result answer(void* door, MHD_Connection* connection, const char* url, const char* method,
                             const char* /*version*/, const char* upload, std::size_t* upload_size,
                             void** exchange) {
        auto& self = *static_cast<Door*>(door);
        if (!*exchange) {
            auto* const begun = new Exchange;
            *exchange = begun;
            ++self.exchanges_;
            self.connections_.limit(context_of(connection), k_for_rest);
            auto refused = self.refuse(connection, method, url, *begun);
            return refused ? self.reply(connection, *begun, *std::move(refused)) : MHD_YES;
        }
        auto& its = *static_cast<Exchange*>(*exchange);
        if (*upload_size > 0) {
            if (its.body.size() <= k_longest_body) its.body.append(upload, *upload_size);
            *upload_size = 0;
            return MHD_YES;
        }
        return its.answer ? self.reply(connection, its, *its.answer) : self.serve(connection, method, its);
    }

    /// What needs nothing but the headers.
    std::optional<Answer> refuse(MHD_Connection* connection, std::string_view method, std::string_view path,
                                 Exchange& exchange) {
        const Headers headers{header(connection, MHD_HTTP_HEADER_HOST),
                              header(connection, MHD_HTTP_HEADER_AUTHORIZATION),
                              MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Origin") != nullptr,
                              header(connection, "Sec-Fetch-Site")};
        if (is_ambiguous(connection))
            return refusal(k_bad_request, ErrorCode::invalid_argument,
                           "it is ambiguous where this request ends",
                           "send one Host, and one Content-Length or Transfer-Encoding: chunked");
        exchange.route = find_route(path);
        auto refused = admission_.check(context_of(connection).is_known, headers);
        exchange.is_admitted = !refused;
        if (exchange.is_admitted) connections_.admit(context_of(connection));
        // Probes can send no token. To pages it tells nothing all the same.
        if (exchange.route && exchange.route->action == Action::live)
            refused = admission_.check(true, headers);
        if (refused) return refused;
        if (!exchange.route)
            return refusal(k_not_found, ErrorCode::invalid_argument, "there is no such route",
                           known_routes());
        if (!takes(*exchange.route, method))
            return refusal(k_wrong_method, ErrorCode::invalid_argument,
                           "this route does not take this method",
                           fmt::format("{} takes {}", path, exchange.route->methods));
        return std::nullopt;
    }

    MHD_Result reply(MHD_Connection* connection, const Exchange& exchange, Answer answer) {
        connections_.limit(context_of(connection), k_for_rest);
        auto* const response =
            MHD_create_response_from_buffer(answer.body.size(), answer.body.data(), MHD_RESPMEM_MUST_COPY);
        if (!response) return MHD_NO;
        const auto add = [&](const char* name, const std::string& value) {
            MHD_add_response_header(response, name, value.c_str());
        };
        add(MHD_HTTP_HEADER_CONTENT_TYPE, std::string(answer.type));
        add(MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
        if (answer.status == k_unauthorized) add(MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
        const bool is_unavailable = answer.status == k_unavailable;
        if (is_unavailable || !exchange.is_admitted) add(MHD_HTTP_HEADER_CONNECTION, "close");
        if (is_unavailable) add(MHD_HTTP_HEADER_RETRY_AFTER, "1");
        if (answer.status == k_wrong_method) add(MHD_HTTP_HEADER_ALLOW, std::string(exchange.route->methods));
        const auto queued = MHD_queue_response(connection, static_cast<unsigned>(answer.status), response);
        MHD_destroy_response(response);
        return queued;
    }

    /// Answers at once what takes no time, and has a lane do the rest.
    MHD_Result serve(MHD_Connection* connection, std::string_view method, Exchange& exchange) {
        const auto& route = *exchange.route;
        if (exchange.body.size() > k_longest_body)
            return reply(connection, exchange,
                         refusal(k_too_large, ErrorCode::invalid_argument,
                                 fmt::format("a body has at most {} bytes", k_longest_body)));
        Result<Wish> wish = Wish();
        if (is_change(route.action)) wish = read_wish(route, method, query_of(connection), exchange.body);
        if (!wish) return reply(connection, exchange, answer_of(k_bad_request, wish.error()));
        if (is_change(route.action) && waiting_changes_ >= k_most_changes)
            return reply(connection, exchange,
                         refusal(k_unavailable, ErrorCode::refused, "too many requests wait for their turn",
                                 "send the request again later"));
        connections_.limit(context_of(connection), std::nullopt);
        MHD_suspend_connection(connection); // first: the lane may be quick
        const auto add = [connection, &exchange](Lane& lane, auto work) {
            return lane.add([connection, &exchange, work = std::move(work)] {
                exchange.answer = work();
                MHD_resume_connection(connection);
            });
        };
        if (is_change(route.action)           ? add_change(connection, exchange, *std::move(wish))
            : route.action == Action::measure ? add(measures_, [this] { return backend_.measure(); })
            : route.action == Action::live    ? add(probes_, [this] { return backend_.probe(); })
                                              : add_look(connection, exchange))
            return MHD_YES;
        exchange.answer = ending();
        MHD_resume_connection(connection);
        return MHD_YES;
    }

    using Askers = std::vector<std::pair<MHD_Connection*, Exchange*>>;

    /// A sleep, a wake or a call that waits for its turn, or runs.
    struct Change {
        const Route& route;
        Wish wish;
        Askers askers;
    };

    /// Whether both ask for the same sleep or wake. Each callback runs as often as it is asked for.
    static bool is_same_change(const Change& one, const Change& other) {
        const auto asked = [](const Change& each) {
            return std::tie(each.route.path, each.wish.level, each.wish.tags, each.wish.aborts);
        };
        return one.route.action != Action::call && asked(one) == asked(other);
    }

    /// If the newest change that waits is the same, it answers this request, too.
    bool add_change(MHD_Connection* connection, Exchange& exchange, Wish wish) {
        const auto change = std::make_shared<Change>(Change{*exchange.route, std::move(wish), {}});
        const std::lock_guard guard(waiting_);
        if (!newest_change_ || !is_same_change(*newest_change_, *change)) {
            if (!changes_.add([this, change] { carry_out(change); })) return false;
            newest_change_ = change;
        }
        newest_change_->askers.emplace_back(connection, &exchange);
        ++waiting_changes_;
        return true;
    }

    void carry_out(const std::shared_ptr<Change>& change) {
        {
            const std::lock_guard guard(waiting_);
            if (newest_change_ == change) newest_change_.reset(); // nobody is added any more
        }
        const auto answer =
            withdrawal_.has_come() ? ending() : backend_.change(change->route, change->wish, withdrawal_);
        waiting_changes_ -= change->askers.size();
        resume(change->askers, [&](const Route& /*route*/) -> const Answer& { return answer; });
    }

    /// Has each be given its answer.
    template <class AnswerTo>
    static void resume(const Askers& askers, AnswerTo&& answer_to) {
        for (const auto& [connection, exchange] : askers) {
            exchange->answer = answer_to(*exchange->route);
            MHD_resume_connection(connection);
        }
    }

    bool add_look(MHD_Connection* connection, Exchange& exchange) {
        const std::lock_guard guard(waiting_);
        if (waiting_looks_.empty() && !looks_.add([this] { look(); })) return false;
        waiting_looks_.emplace_back(connection, &exchange);
        return true;
    }

    /// Asks once how the program stands, and answers all that wait to know.
    void look() {
        Askers looks;
        {
            const std::lock_guard guard(waiting_);
            looks.swap(waiting_looks_);
        }
        const auto outcomes = backend_.ask();
        resume(looks, [&](const Route& route) { return Backend::look(route, outcomes); });
    }

    const Admission admission_;
    const Backend backend_;
    std::mutex waiting_; ///< of what follows
    Askers waiting_looks_;
    std::shared_ptr<Change> newest_change_;        ///< that has not begun
    std::atomic<std::size_t> waiting_changes_ = 0; ///< requests, also of the change that runs
    std::atomic<int> exchanges_ = 0;               ///< begun, and not answered to the end
    Withdrawal withdrawal_;
    Connections connections_{k_most_strangers};
    MHD_Daemon* daemon_ = nullptr;
    // The last, for their jobs use the others.
    Lane probes_, looks_, measures_, changes_;
};

} // namespace

Result<std::shared_ptr<void>> serve(UniqueFd listener, Admission admission, Backend backend) {
    auto door = std::make_shared<Door>(std::move(admission), std::move(backend));
    GPU_SLEEP_TRY(door->listen(std::move(listener)));
    return std::shared_ptr<void>(std::move(door));
}

} // namespace gpu_sleep::cli::http
