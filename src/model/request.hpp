// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Requests to a process: a sleep, a wake, a move, a release, its status, memory that it shares. Also the
// progress that is told while one runs.

#pragma once

#include "base/gpu_pair.hpp"
#include "base/units.hpp"
#include "model/terms.hpp"

#include <algorithm>
#include <map>
#include <type_traits>

namespace gpu_sleep::model {

/// The terms that every operation has.
struct Terms {
    bool dry_run = false;
    /// For callbacks and for draining the device, together; of a wake for callbacks, and, with `wait`, for
    /// the requests before it; of a release for its turn.
    Milliseconds timeout{30'000};
    bool bounds_all = false; ///< `timeout` includes all until the point of no return, also copying
    std::string asker{};     ///< who asks, for the history: "room for llama"; empty: a command
    friend bool operator==(const Terms&, const Terms&) = default;
};

/// Where a sleep keeps contents.
struct Placement {
    Store store = Store::host;    ///< of tags that `stores` does not name
    std::vector<TagStore> stores; ///< each tag once
    /// `store` was asked for by name: what sleeps and is kept in another store moves there. Tags of `stores`
    /// do so anyway.
    bool store_is_named = false;
    std::string directory;   ///< for files, absolute, as the process sees it; empty without a file store
    bool spill = false;      ///< use files if host memory is too small
    bool keep_files = false; ///< leave the files when the process wakes
    friend bool operator==(const Placement&, const Placement&) = default;
};

/// Whether it keeps anything in files, but for what spills.
[[nodiscard]] bool uses_files(const Placement& placement) noexcept;

/// Whether a request for `tags` means this one: without any it means every tag.
[[nodiscard]] inline bool means_tag(const std::vector<std::string>& tags, std::string_view tag) {
    return tags.empty() || std::find(tags.begin(), tags.end(), tag) != tags.end();
}

/// The tags that sleep, and what becomes of their contents. A pause has no choice.
struct Choice : Placement {
    std::vector<std::string> tags;    ///< empty means every tag
    std::vector<std::string> keep;    ///< tags treated as `preserve` by this request
    std::vector<std::string> discard; ///< tags treated as `discard` by this request
    bool require_refill = false;      ///< refuse when a tag that would be dropped has no declared refill
    bool copy_all = false;            ///< copy contents also where they are retained and have not changed
    /// Compare what is kept in host memory with what the GPU holds, before the GPU's memory is released.
    bool check_copies = false;
    bool raw = false; ///< what goes to host memory stays as the GPU holds it
    /// Once it sleeps, who asked has the driver take what is left of it on the GPU: Progress::Phase::deep.
    bool deep = false;
    friend bool operator==(const Choice&, const Choice&) = default;
};

/// Puts a process to sleep. Of what slept already, contents move to a store that is named, and `deep` has the
/// driver take the rest.
struct SleepRequest : Terms, Choice {
    Level level = Level::keep;
    /// Unset: the present value if something sleeps already, else the default of the process.
    std::optional<OnTouch> on_touch;
    std::optional<GateMode> gate; ///< unset: the same
    /// How long a touch that wakes the process may wait for GPU memory that is short; unset: no limit.
    std::optional<Milliseconds> touch_limit;
    bool force = false; ///< sleep although a library is loaded whose use of the GPU cannot be seen
    bool ignore_inhibitors = false; ///< sleep although sleeps are inhibited
    /// The host memory that all processes of this user may hold together for contents, from here on; the
    /// largest number is no limit. Unset: what the process was told last.
    std::optional<Bytes> host_budget;
    /// Sleep only if the last wake was so long ago; otherwise nothing changes, and the report says why.
    std::optional<Milliseconds> min_awake;
    /// One of several processes that sleep together: once drained, and once all is ready, it waits for a
    /// Directive, unless it is a dry run.
    bool joint = false;
    std::uint64_t party = 0;          ///< random; the same for those that go together
    bool ignore_unknown_tags = false; ///< pass over those of `tags` that the process has not
    /// Once it sleeps, who asked has the driver lock it (Progress::Phase::deep), for somebody who may have it
    /// checkpointed: until it wakes nothing of it is pinned, and its agent calls the driver no more by
    /// itself.
    bool for_lock = false;
    friend bool operator==(const SleepRequest&, const SleepRequest&) = default;
};

/// A sleep if the program has been idle for so long (Report::idle_seconds), and stays so until the point of
/// no return; otherwise nothing changes, and the report says why. Nothing waits for its turn. What sleeps
/// already stays as it is; but where a store is named, it moves there once it has been asleep or idle for so
/// long, and nothing waits for it.
struct IdleSleepRequest {
    SleepRequest sleep;
    Milliseconds only_if_idle{0};
    friend bool operator==(const IdleSleepRequest&, const IdleSleepRequest&) = default;
};

/// Puts nothing to sleep: gives back the host memory that is retained of what is awake.
struct ReleaseRequest : Terms {};

/// As many as there are.
inline constexpr Bytes k_all_bytes = std::numeric_limits<Bytes>::max();

/// Puts nothing to sleep: contents move to host memory at the same addresses, and the program goes on.
struct LiveRequest : Terms {
    std::vector<std::string> tags;  ///< empty means every tag
    Bytes bytes = k_all_bytes;      ///< that are there afterwards, of `tags`, with what was there before
    bool force = false;             ///< as for a sleep
    bool ignore_inhibitors = false; ///< likewise
};

/// Runs the callback that the program has registered by `name`; whether it has one, Report::changed says.
struct CallRequest : Terms {
    std::string name;
    std::string argument{}; ///< for the callback
};

/// Refuses a pause that asks for what one cannot do. Errors: invalid_argument.
[[nodiscard]] Result<void> check_pause(const SleepRequest& request);

/// Wakes a process.
struct WakeRequest : Terms {
    std::vector<std::string> tags; ///< empty means every tag
    Milliseconds wait{0}; ///< how long to try again when GPU memory is short; other requests run meanwhile
    /// Where GPU memory is short, put others of the same user to sleep, the least recently used first.
    bool make_room = false;
    Milliseconds min_awake{30'000}; ///< with `make_room`: leave alone who was woken less than so long ago
    bool minds_inhibitors = false;  ///< with `make_room`: do not wait where inhibitors alone prevent it
    bool joint = false; ///< one of several that wake together: once all is ready, it waits for a Directive
    std::uint64_t party = 0;   ///< as for a sleep
    bool with_sharers = false; ///< wake processes that sleep with memory that is shared with this one
    /// For a deep sleeper: the GPUs to which it comes back. Lists every GPU that the driver sees, with the
    /// one that takes its place; empty: where it was.
    std::vector<GpuPair> gpus{};
    /// How much of the memory that runs from host memory comes back to the GPU, once all tags are awake.
    Bytes live_bytes = k_all_bytes;
    bool ignore_unknown_tags = false; ///< as for a sleep; who has none of `tags` only ends a pause
    std::vector<std::uint64_t>
        members{}; ///< pids of those that wake together, as each sees its own; none: not known
};

/// The sleep that `request`, a variant, asks for, also one that is only for what is idle; null if it is
/// another verb.
template <class Variant>
[[nodiscard]] auto sleep_in(Variant& request) noexcept
    -> std::conditional_t<std::is_const_v<Variant>, const SleepRequest*, SleepRequest*> {
    if (auto* const idle = std::get_if<IdleSleepRequest>(&request)) return &idle->sleep;
    return std::get_if<SleepRequest>(&request);
}

/// The terms of `request`, a variant; null if it is no operation.
template <class Variant>
[[nodiscard]] auto terms_in(Variant& request) noexcept
    -> std::conditional_t<std::is_const_v<Variant>, const Terms*, Terms*> {
    if (auto* const sleep = sleep_in(request)) return sleep;
    if (auto* const release = std::get_if<ReleaseRequest>(&request)) return release;
    if (auto* const live = std::get_if<LiveRequest>(&request)) return live;
    if (auto* const call = std::get_if<CallRequest>(&request)) return call;
    return std::get_if<WakeRequest>(&request);
}

/// An instruction of a command, while the operation runs, to a process whose request is joint.
struct Directive {
    enum class Kind : std::uint8_t {
        hold_on = 0,     ///< others are not as far yet; said again and again, as a sign of life
        let_through = 1, ///< submissions that the gate holds: other processes may wait for them
        prepare = 2,     ///< all are drained: prepare the sleep
        commit = 3,      ///< all are ready: pass the point of no return
    };
    Kind kind = Kind::hold_on;
    /// For let_through: how many calls at most. It ends earlier if the device has to wait. Only for a member
    /// that is not drained.
    std::uint32_t count = 1;
    friend bool operator==(const Directive&, const Directive&) = default;
};

struct StatusRequest {};

/// Has the process refuse sleeps that are asked for from outside, or no longer. Answered as a status.
struct InhibitRequest {
    bool release = false;             ///< no longer; what the program itself inhibits stays
    std::optional<Milliseconds> time; ///< unset: until it is released
};

/// Sets the process's own timer, or takes it away. Answered as a status.
struct TimerRequest : Placement {
    Milliseconds after{0}; ///< it sleeps once it has been idle for so long; 0: no more
    bool deep = false;
    std::optional<OnTouch> on_touch; ///< unset: the default of the process, or else to wake
};

/// Adds "host" or "file", or that for one tag, as in "weights=file", to what `placement` says of stores.
/// Errors: invalid_argument (no such store or tag, or said already).
[[nodiscard]] Result<void> add_store(std::string_view word, Placement& placement);

/// How much of each tag runs from host memory, as in "weights=4GiB,kv_cache=1GiB"; without a tag it is that
/// of `own_tag`. Errors: invalid_argument (no such tag or size, or a tag twice).
[[nodiscard]] Result<std::map<std::string, Bytes>> parse_live_bytes(std::string_view words,
                                                                    std::string_view own_tag);

/// What agents ask each other about memory that one process, its owner, shares with others.
enum class SharingQuestion : std::uint8_t {
    memory = 0,    ///< of the owner: the memory
    wake = 1,      ///< the same; if it sleeps, it is to wake
    is_there = 2,  ///< of the owner: whether it has the memory, awake or asleep
    goes_down = 3, ///< of the owner: whether it goes to sleep in that party; the answer has the owner's epoch
    goes_along = 4, ///< of who opened it: whether that is so there
    has_passed = 5, ///< of anybody in that party: whether it has passed the point of no return
    exported = 6,   ///< of who has marked a descriptor: by which values its memory is asked for
    tells = 7,      ///< of anybody: whether its agent tells of all that the program imports
};

/// Asks about memory that a program has shared, by the values in its handle. Where the answer is no, it is
/// refused; not_owned: there is none; timed_out: it is not decided yet.
struct SharedMemoryRequest {
    std::array<std::uint64_t, 2> secret{}; ///< of the process that shares
    std::uint64_t address = 0;    ///< of the allocation there; exported: where the descriptor is locked
    std::uint64_t allocation = 0; ///< its number, because addresses are reused
    SharingQuestion question = SharingQuestion::memory;
    std::uint64_t party = 0; ///< of which the asker is; 0: none
    friend bool operator==(const SharedMemoryRequest&, const SharedMemoryRequest&) = default;
};

/// The answer. The memory itself, if that was asked for, comes with it as a descriptor.
struct SharedMemory {
    Bytes bytes = 0;                       ///< of the memory
    Bytes offset = 0;                      ///< of the allocation in it
    std::uint64_t number = 0;              ///< exported: of the allocation, and its address
    std::array<std::uint64_t, 2> secret{}; ///< exported
    friend bool operator==(const SharedMemory&, const SharedMemory&) = default;
};

} // namespace gpu_sleep::model
