// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The terms of gpu-sleep as plain data: levels, policies, states, requests and reports. The commands, the
// protocol and the agent share them.

#pragma once

#include "base/error.hpp"
#include "base/gpu_pair.hpp"
#include "base/units.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace gpu_sleep::model {

/// How deep a sleep is.
enum class Level : std::uint8_t {
    pause = 0, ///< the program's work waits, and all its memory stays where it is
    keep = 1,  ///< contents are kept
    drop = 2,  ///< what no policy or span preserves is dropped
};

/// What a sleep does with the contents of a tag.
enum class Retention : std::uint8_t {
    offload = 0,  ///< kept at level 1, dropped at level 2 (the default)
    preserve = 1, ///< kept at every level
    discard = 2,  ///< dropped at every level
};

struct Policy {
    Retention retention = Retention::offload;
    bool refillable = false; ///< the program declared that it can fill the tag again after a drop
};

/// Where the bytes of one backing are.
enum class Residence : std::uint8_t {
    device = 0,  ///< in GPU memory: awake
    kept = 1,    ///< released, and its contents kept
    dropped = 2, ///< released without being kept; reads as zero when it wakes
    damaged = 3, ///< released, and what was kept turned out to be damaged when it was to wake
};

/// What the residences of all backings of a tag, or of a process, add up to.
enum class State : std::uint8_t {
    awake = 0,
    asleep = 1,
    partial = 2, ///< some of it asleep, some awake
    damaged = 3, ///< asleep, and some of it damaged
    paused = 4,  ///< all of it in GPU memory, and no work passes
};

/// Whether none of it sleeps.
[[nodiscard]] constexpr bool is_resident(State state) noexcept {
    return state == State::awake || state == State::paused;
}

/// What a touch does: work that reaches the gate and may not pass.
enum class OnTouch : std::uint8_t {
    wait = 0, ///< it waits until the process is awake (the default)
    wake = 1, ///< it wakes the process, then goes on
    fail = 2, ///< it fails with an error of the driver's own kind
};

/// Where a sleep keeps contents.
enum class Store : std::uint8_t {
    host = 0, ///< pinned host memory (the default)
    file = 1, ///< a file of a directory, made smaller
};

/// All stores there are.
inline constexpr std::array k_stores{Store::host, Store::file};

/// The store of one tag.
struct TagStore {
    std::string tag;
    Store store = Store::host;
    friend bool operator==(const TagStore&, const TagStore&) = default;
};

/// How the gate stands while something of a process is asleep.
enum class GateMode : std::uint8_t {
    shut = 0,    ///< no work passes (the default, unless the program has declared that part separable)
    checked = 1, ///< work passes that names no sleeping address
};

/// What the gate lets through right now.
enum class GateState : std::uint8_t {
    open = 0,    ///< all work
    checked = 1, ///< work that names no sleeping address
    shut = 2,    ///< none
};

/// The tag of a range that was given none.
inline constexpr std::string_view k_default_tag = "default";
inline constexpr std::size_t k_max_tag_length = 64;

/// Bytes of a process's name.
inline constexpr std::size_t k_max_name_length = 64;

/// What is_valid_name() asks for, in words.
inline constexpr std::string_view k_name_rule =
    "a name: 1 to 64 printable bytes, and not a number, which would be a process id";

/// Whether a person can read and type `name`: it has 1 to 64 bytes, is printable(), and is not a number,
/// which commands read as a pid.
[[nodiscard]] bool is_valid_name(std::string_view name);

/// Whether `text` consists of digits: commands read it as a pid, so it cannot be a name.
[[nodiscard]] bool is_number(std::string_view text) noexcept;

/// A tag is 1 to 64 characters of letters, digits, '_', '-', '.' and ':'.
[[nodiscard]] bool is_valid_tag(std::string_view tag) noexcept;

/// What whoever asks for an operation says of it, whichever it is.
struct Terms {
    bool dry_run = false;
    /// For callbacks and for draining the device, together; of a wake for callbacks, and, with `wait`, for
    /// the requests before it; of a release for its turn.
    Milliseconds timeout{30'000};
    bool bounds_all = false; ///< `timeout` includes all until the point of no return, also copying
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

/// What sleeps, and what becomes of its contents. A pause says nothing of it.
struct Choice : Placement {
    std::vector<std::string> tags;    ///< empty means every tag
    std::vector<std::string> keep;    ///< tags treated as `preserve` by this request
    std::vector<std::string> discard; ///< tags treated as `discard` by this request
    bool require_refill = false;      ///< refuse when a tag that would be dropped has no declared refill
    bool copy_all = false;            ///< copy contents also where they are retained and have not changed
    /// Compare what is kept in host memory with what the GPU holds, before the GPU's memory is released.
    bool check_copies = false;
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
    /// Directive.
    bool joint = false;
    friend bool operator==(const SleepRequest&, const SleepRequest&) = default;
};

/// A sleep if the program has been idle for so long (Report::idle_seconds), and stays so until the point of
/// no return; otherwise nothing changes, and the report says why. Nothing waits for its turn. What sleeps
/// already stays as it is; but where a store is named, it moves there once it has been asleep or idle for so
/// long, and nothing waits for it.
struct IdleSleepRequest : SleepRequest {
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

/// Refuses a pause that asks for what one cannot do. Errors: invalid_argument.
[[nodiscard]] Result<void> check_pause(const SleepRequest& request);

/// Wakes a process.
struct WakeRequest : Terms {
    std::vector<std::string> tags; ///< empty means every tag
    Milliseconds wait{0}; ///< how long to try again when GPU memory is short; other requests run meanwhile
    /// Of `tags`, those that are woken before the others, each once the one before it is awake and its
    /// callbacks have run. What is awake stays so if a later one fails.
    std::vector<std::string> order{};
    /// Where GPU memory is short, put others of the same user to sleep, the least recently used first.
    bool make_room = false;
    Milliseconds min_awake{30'000}; ///< with `make_room`: leave alone who was woken less than so long ago
    bool joint = false; ///< one of several that wake together: once all is ready, it waits for a Directive
    /// Of a process that sleeps deeply: it comes back to other GPUs. Lists every GPU that the driver sees,
    /// with the one that takes its place; empty: to where it was.
    std::vector<GpuPair> gpus{};
    /// Of what runs from host memory, how much comes back to the GPU, once all that sleeps is awake.
    Bytes live_bytes = k_all_bytes;
};

/// The sleep that `request`, a variant, asks for, also one that is only for what is idle; null if it is
/// another verb.
template <class Variant>
[[nodiscard]] auto sleep_in(Variant& request) noexcept
    -> std::conditional_t<std::is_const_v<Variant>, const SleepRequest*, SleepRequest*> {
    if (auto* const idle = std::get_if<IdleSleepRequest>(&request)) return idle;
    return std::get_if<SleepRequest>(&request);
}

/// The terms of `request`, a variant; null if it is no operation.
template <class Variant>
[[nodiscard]] auto terms_in(Variant& request) noexcept
    -> std::conditional_t<std::is_const_v<Variant>, const Terms*, Terms*> {
    if (auto* const sleep = std::get_if<SleepRequest>(&request)) return sleep;
    if (auto* const idle = std::get_if<IdleSleepRequest>(&request)) return idle;
    if (auto* const release = std::get_if<ReleaseRequest>(&request)) return release;
    if (auto* const live = std::get_if<LiveRequest>(&request)) return live;
    return std::get_if<WakeRequest>(&request);
}

/// What a command says, while the operation runs, to a process whose request is joint.
struct Directive {
    enum class Kind : std::uint8_t {
        hold_on = 0,     ///< others are not as far yet; said again and again, as a sign of life
        let_through = 1, ///< submissions that the gate holds: other processes may wait for them
        prepare = 2,     ///< all are drained: prepare the sleep
        commit = 3,      ///< all are ready: pass the point of no return
    };
    Kind kind = Kind::hold_on;
    /// Of let_through: how many at most; it ends before, once the device has to wait. One of a member that
    /// is not drained.
    std::uint32_t count = 1;
    friend bool operator==(const Directive&, const Directive&) = default;
};

struct StatusRequest {};

/// Has the process refuse sleeps that are asked for from outside, or no longer. Answered as a status.
struct InhibitRequest {
    bool release = false;             ///< no longer; what the program itself inhibits stays
    std::optional<Milliseconds> time; ///< unset: until it is released
};

/// One tag on one device. Sizes in bytes of GPU address space.
struct TagReport {
    std::string tag;
    int device = 0;
    Policy policy;
    State state = State::awake;
    std::uint64_t ranges = 0;  ///< backings
    Bytes bytes = 0;           ///< all of them
    Bytes resident = 0;        ///< of those, in GPU memory
    Bytes kept = 0;            ///< contents held in host memory or in files
    Bytes in_files = 0;        ///< of those, in files
    Bytes dropped = 0;         ///< asleep without contents
    Bytes damaged = 0;         ///< asleep with contents that differ from their seal, or whose file is
    bool needs_refill = false; ///< awake, but dropped in an earlier sleep and not yet reported refilled
    Bytes allocated = 0;       ///< the size that the program requested
    Bytes host_backed = 0;     ///< awake, in host memory that the GPU uses in place
};

/// A kind of work that a sleep or a wake consists of.
enum class Step : std::uint8_t {
    populate = 0,    ///< giving pages to host memory; where contents are relayed, writing them there, too
    pin = 1,         ///< making them page-locked
    await_host = 2,  ///< a copy's wait for host memory that is being populated and pinned
    fingerprint = 3, ///< taking or comparing fingerprints
    copy = 4,        ///< copies across the link, and setting to zero; what the moving thread waits for them
    create = 5,      ///< GPU memory
    map = 6,
    access = 7, ///< allowing devices to use what is mapped
    unmap = 8,
    release = 9, ///< GPU memory
};

/// All steps there are, in the order of their numbers.
inline constexpr std::array k_steps{Step::populate, Step::pin,    Step::await_host, Step::fingerprint,
                                    Step::copy,     Step::create, Step::map,        Step::access,
                                    Step::unmap,    Step::release};

/// Seconds for each of k_steps. Steps run side by side, and several threads at one step: the sum of all may
/// be more than the operation takes.
using StepTimes = std::array<double, k_steps.size()>;

struct DeviceReport {
    int device = 0;
    std::string name;
    Bytes released = 0;    ///< GPU memory that this operation gave back (sleep) or took (wake)
    Bytes kept = 0;        ///< contents this operation moved to, or brought back from, their store
    Bytes dropped = 0;     ///< contents this operation dropped, or ranges it set to zero
    Bytes free_before = 0; ///< free GPU memory as the driver reported it; 0 when it was not asked
    Bytes free_after = 0;  ///< likewise; in a dry run, what it would be
    Bytes total = 0;
    Bytes stored = 0;    ///< of those kept by a sleep, what takes room: all but blocks of zeros
    Bytes copied = 0;    ///< of those stored, what had changed since the last sleep, and was copied
    StepTimes steps{};   ///< where the time of this operation went
    Bytes relocated = 0; ///< contents of what slept already that a sleep moved to another store
    /// "GPU-..." or "MIG-...", as nvidia-smi has it; empty if the driver does not say.
    std::string uuid{};
};

/// The kind of residual memory that is no GPU memory: what runs from host memory, and has to stay there.
inline constexpr const char* k_residual_of_host = "host";

/// Memory that always stays on the GPU: all of one kind on one device.
struct Residual {
    std::string kind; ///< such as managed, imported, exported, graph, multiple_mappings, array, pool or ipc
    int device = 0;
    Bytes bytes = 0;
    std::uint64_t count = 0; ///< allocations
    std::string reason;      ///< for a person: why it stays
};

/// A wake that found too little GPU memory, and is tried again until there is enough or its time limit is
/// over.
struct WaitingWake {
    std::vector<std::string> tags; ///< as it was asked for; empty means every tag
    bool by_touch = false;         ///< requested by work that the gate holds, not by a command
    double seconds = 0;            ///< since it was tried first
    std::string reason;            ///< for a person: what was missing in the last try
    std::uint32_t place = 0;       ///< in the line of those that make room, from 1; 0: it is not in that line
};

/// What lets GPU memory go, takes it back, or moves what is kept.
enum class Transition : std::uint8_t {
    sleep = 0,
    wake = 1,
    move = 2, ///< what slept already went to another store, and nothing else fell asleep
};

/// All transitions there are, in the order of their numbers.
inline constexpr std::array k_transitions{Transition::sleep, Transition::wake, Transition::move};

/// Bounds in seconds of the classes in which transitions are counted by how long they took.
inline constexpr std::array k_duration_bounds{0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                              1.0,  2.5,   5.0,  10., 30.,  60.};

/// For each of k_duration_bounds how many took as long at most, and longer than the bound before; at last
/// those that took longer than all bounds.
using DurationCounts = std::array<std::uint64_t, k_duration_bounds.size() + 1>;

struct FailureCount {
    ErrorCode code = ErrorCode::internal;
    std::uint64_t count = 0;
};

/// The transitions of one kind since the agent started. Each is counted when it ends, and its time runs from
/// the request to the answer, waits for its turn and for GPU memory among it. What changes nothing is none.
struct TransitionCounts {
    Transition transition = Transition::sleep;
    DurationCounts done{};            ///< those that succeeded
    double done_seconds = 0;          ///< of all those together
    std::vector<FailureCount> failed; ///< each error once
};

enum class Operation : std::uint8_t { status = 0, sleep = 1, wake = 2 };

/// Seconds spent in each phase of an operation; phases overlap only where noted.
struct PhaseTimes {
    double callbacks = 0;
    double drain = 0;
    double transfer = 0; ///< preparing host memory, fingerprints and copying (or copying and verifying)
    double release = 0;  ///< unmapping and releasing (or creating and mapping)
    double total = 0;
};

/// What an agent of this version can do that not every one could, each by a name that stays.
inline constexpr std::array<std::string_view, 3> k_features{"pause", "deep", "joint"};

/// Whose report it is.
struct Identity {
    std::int32_t pid = 0; ///< in the process's own namespace
    std::string name;     ///< given by the program or its environment; may be empty
    std::string group;    ///< of processes that belong together, given by the environment; may be empty
    std::string version;  ///< of the agent; empty if it is too old to say
    std::vector<std::string> features; ///< of k_features, or of those of its own version
    bool intercepts = false;           ///< the program's own allocations are intercepted
};

/// What an operation has done, or would do.
struct Deed {
    Operation operation = Operation::status;
    Level level = Level::keep; ///< of a sleep
    bool dry_run = false;      ///< nothing was changed; the numbers are those of a real run
    bool changed = false;      ///< false when the process was already as asked
    PhaseTimes times;
    double longest_pause = 0; ///< seconds for which work was held back at most, of what moved while it ran
    std::vector<std::string> dropped_without_refill; ///< tags dropped by this sleep with no declared refill
    std::vector<std::string> notes; ///< sentences for a person, such as what could not be done
};

/// How the process stands afterwards, and since when.
struct Standing {
    State state = State::awake; ///< of the whole process
    double state_seconds = 0;   ///< how long the process has been in its state; 0 right after a change
    /// How long the program has given the GPU no work, and the GPU has had none of it to do; counted in steps
    /// of some seconds, and 0 while it works. Unset where that cannot be known.
    std::optional<double> idle_seconds;
    bool inhibited = false;                   ///< sleeps that are asked for from outside are refused
    std::optional<double> inhibited_seconds;  ///< for how much longer; unset where there is no limit
    std::optional<double> seconds_since_wake; ///< since memory came back last; unset if it never slept
    Bytes woken_bytes = 0;    ///< contents that the last wake brought back, of those that brought any back
    double woken_seconds = 0; ///< how long that took, until work could go on
    std::vector<TransitionCounts> transitions; ///< each kind that has happened; only in a status
};

/// Where contents are kept afterwards.
struct Holdings {
    Bytes host_bytes = 0;     ///< host memory that the agent holds for contents
    Bytes file_bytes = 0;     ///< what its files take on disk
    Bytes retained_bytes = 0; ///< host memory that holds contents of what is awake, for the next sleep
    std::vector<std::string> directories; ///< of its files of contents, as it sees them
    Bytes unreleased_bytes = 0;           ///< of what sleeps, GPU memory that the driver did not release
};

/// How work is met.
struct Touches {
    GateState gate = GateState::open;
    OnTouch on_touch = OnTouch::wait; ///< what a touch does; of this sleep, or the default of the process
    std::uint64_t waiting = 0;        ///< threads that the gate holds now
    std::uint64_t touches = 0;        ///< touches that it has held since the process started
    std::string last_touch; ///< the entry point that was held last, such as cuLaunchKernel; may be empty
    std::vector<WaitingWake> wakes_waiting; ///< for GPU memory; only in a status
};

/// What the driver has taken.
struct Deepness {
    /// Asleep, and the driver has taken the rest as well, its context among it: nothing of it is on a GPU.
    bool deep = false;
    Bytes deep_bytes = 0;     ///< GPU memory that this has freed, as the driver's management library saw it
    std::string deep_refusal; ///< for a person: why a deep sleep of it would be refused; empty: nothing known
};

/// The answer to a request that succeeded: what was done, and the state of the process afterwards.
struct Report : Identity, Deed, Standing, Holdings, Touches, Deepness {
    std::vector<TagReport> tags;       ///< every tag of the process, afterwards
    std::vector<DeviceReport> devices; ///< every device it holds ranges on
    std::vector<Residual> residual;
};

/// The progress of an operation. Sent often; losing one is harmless.
struct Progress {
    enum class Phase : std::uint8_t {
        callbacks = 0,
        drain = 1,
        transfer = 2,
        release = 3,
        verify = 4,
        waiting = 5,
        deep = 6,    ///< it sleeps, and keeps from the driver: who asked may lock and checkpoint it, and then
                     ///< shuts its side of the connection
        drained = 7, ///< of a joint sleep: it waits for a Directive
        ready = 8    ///< of a joint request: the same
    };
    Phase phase = Phase::callbacks;
    Bytes done = 0;
    Bytes total = 0;
    std::string tag{}; ///< what is being woken, where an order was given; empty for the rest, and otherwise
    std::uint64_t held = 0; ///< threads that the gate holds and could let through; in phase drained
};

/// A failed request: why, and the state of the process, or of the requested part, afterwards.
struct Failure {
    Error error;
    State state = State::awake;
};

[[nodiscard]] std::string_view to_string(Retention retention) noexcept;
[[nodiscard]] std::string_view to_string(Residence residence) noexcept;
[[nodiscard]] std::string_view to_string(State state) noexcept;
[[nodiscard]] std::string_view to_string(OnTouch on_touch) noexcept;
[[nodiscard]] std::string_view to_string(GateMode gate) noexcept;
[[nodiscard]] std::string_view to_string(Store store) noexcept;
[[nodiscard]] std::string_view to_string(GateState gate) noexcept;
[[nodiscard]] std::string_view to_string(Operation operation) noexcept;
[[nodiscard]] std::string_view to_string(Step step) noexcept;
[[nodiscard]] std::string_view to_string(Transition transition) noexcept;
[[nodiscard]] std::string_view to_string(Progress::Phase phase) noexcept;

/// The part of the kept contents of `tag` that is in `store`.
[[nodiscard]] Bytes kept_in(const TagReport& tag, Store store) noexcept;
/// All that succeeded.
[[nodiscard]] std::uint64_t done_of(const TransitionCounts& counts) noexcept;
/// The place for what the agent holds in `store`.
[[nodiscard]] Bytes& held_in(Holdings& holdings, Store store) noexcept;

/// The word's value, or nothing for any other word.
[[nodiscard]] std::optional<OnTouch> parse_on_touch(std::string_view word) noexcept;
[[nodiscard]] std::optional<GateMode> parse_gate_mode(std::string_view word) noexcept;
[[nodiscard]] std::optional<Store> parse_store(std::string_view word) noexcept;

/// Adds "host" or "file", or that for one tag, as in "weights=file", to what `placement` says of stores.
/// Errors: invalid_argument (no such store or tag, or said already).
[[nodiscard]] Result<void> add_store(std::string_view word, Placement& placement);

/// How much of each tag runs from host memory, as in "weights=4GiB,kv_cache=1GiB"; without a tag it is that
/// of `own_tag`. Errors: invalid_argument (no such tag or size, or a tag twice).
[[nodiscard]] Result<std::map<std::string, Bytes>> parse_live_bytes(std::string_view words,
                                                                    std::string_view own_tag);

/// The exit status of a command after `failure`; see exit_status.
[[nodiscard]] int exit_status_of(const Failure& failure, Operation asked = Operation::sleep) noexcept;

} // namespace gpu_sleep::model
