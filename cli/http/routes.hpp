// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The routes of model servers that the door answers on, as one table; what a request to one of them asks for;
// and what that comes to for a program. Nothing is asked or answered here.

#pragma once

#include "model/model.hpp"

namespace gpu_sleep::cli::http {

inline constexpr int k_ok = 200;
inline constexpr int k_bad_request = 400;
inline constexpr int k_unauthorized = 401;
inline constexpr int k_forbidden = 403;
inline constexpr int k_not_found = 404;
inline constexpr int k_wrong_method = 405;
inline constexpr int k_conflict = 409; ///< the same request may do another time
inline constexpr int k_too_large = 413;
inline constexpr int k_internal = 500;
inline constexpr int k_unavailable = 503;
inline constexpr int k_timed_out = 504;
inline constexpr int k_no_storage = 507;

struct Answer {
    int status = k_ok;
    std::string body;
    std::string_view type = "application/json";
};

/// In the JSON form of the commands; the status is that of the error's exit status, and the advice that of
/// its code, where none is given.
[[nodiscard]] Answer answer_of(const Error& error);
[[nodiscard]] Answer answer_of(int status, const Error& error, std::string_view advice = {});

/// What a request has done, and in which of the servers' words it is answered.
enum class Action : std::uint8_t {
    live,
    measure,
    sleep,         ///< what was done, in bytes and seconds, and how each process stands
    wake,          ///< as for a sleep
    call,          ///< {"results": [...]}, what callbacks replied, and how each process stands
    is_sleeping,   ///< {"is_sleeping": true}
    is_paused,     ///< {"is_paused": true}
    memory_status, ///< {"state": "parked", "parked_tags": ["kv_cache"]}
};

/// Such requests are carried out one after another.
[[nodiscard]] constexpr bool is_change(Action action) noexcept {
    return action == Action::sleep || action == Action::wake || action == Action::call;
}

/// The tags of one server.
struct Dialect {
    std::string_view server;
    std::vector<std::string_view> tags; ///< the first is that of the weights
    std::string_view success = "ok";    ///< as Dynamo's and SGLang's clients like it
    bool needs_tags = false;            ///< where `tags` are given, there must be some
};

struct Route {
    std::string_view path;
    std::string_view methods; ///< as in the header Allow: "GET, POST"
    Action action;
    const Dialect* dialect;
    /// Of a sleep, unless the request names one. A route of a pause, or of its end, has this level whatever
    /// the request says, and takes no tags.
    model::Level level = model::Level::keep;
    /// The callback that it is for; empty: the body's `method` names it.
    std::string_view callback{};

    [[nodiscard]] bool is_pause() const noexcept { return level == model::Level::pause; }
};

[[nodiscard]] std::span<const Route> all_routes();
/// Null if there is none of that path.
[[nodiscard]] const Route* find_route(std::string_view path) noexcept;
[[nodiscard]] bool takes(const Route& route, std::string_view method);

/// Names and values, in their order.
using Query = std::vector<std::pair<std::string, std::string>>;

/// What a request asks for.
struct Wish {
    model::Level level = model::Level::keep; ///< of a wake `pause` if it only ends one
    std::vector<std::string> tags{};         ///< the dialect's, each once; empty for all
    bool aborts = false;                     ///< a sleep, by the callback of k_abort
    model::CallRequest call{};               ///< where the route is for one
    bool is_optional = false;                ///< the call, of what there may be no callback for
};

/// The callback that ends what a program has in flight.
inline constexpr std::string_view k_abort = "abort";

/// Reads the query, and what it does not name from the body, a JSON object or nothing, or from the object
/// `options` in it: `level` of a sleep; `tags`, repeated, by commas, or as a list; `mode`. Ignores what else
/// there is, but gives a callback the
/// body, or else the query as JSON. Errors: invalid_argument (a value that cannot be, level 2 by another
/// method than POST, or a tag that the dialect has not).
[[nodiscard]] Result<Wish> read_wish(const Route& route, std::string_view method, const Query& query,
                                     std::string_view body);

/// What a program calls the weights of a dialect: as the dialect does where it has such a tag, or "weights".
[[nodiscard]] std::string_view weights_of(const Dialect& dialect, const std::vector<model::Report>& reports);

/// What is asked of the program.
struct Plan {
    std::vector<std::string> tags;        ///< empty for all; some processes may have none of them
    std::vector<std::string> dropped;     ///< of a sleep at level 2: what may be
    std::vector<std::string> kept;        ///< of one: the others, for nobody could fill them again
    std::vector<std::string> passed_over; ///< that were wished for, and the program has not
    bool takes_all = false;               ///< though tags were wished for
    bool is_nothing = false;              ///< nobody need be asked
};

/// `reports`: how the program's processes stand.
[[nodiscard]] Plan plan_of(const Route& route, const Wish& wish, const std::vector<model::Report>& reports);

} // namespace gpu_sleep::cli::http
