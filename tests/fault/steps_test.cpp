// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The agent's operations in the test's own process: a sleep and a wake end at each of their steps, because a
// call of the driver fails there or the asker withdraws. Afterwards the process is as it was, and can be
// asked again. And what one request decides.

#include "lifecycle/transitions.hpp"
#include "operations/operations.hpp"
#include "support/printed.hpp"
#include "support/process.hpp"
#include "support/result_printing.hpp"
#include "support/sweep.hpp"
#include "support/weights.hpp"

using namespace gpu_sleep::agent;
using namespace gpu_sleep::test;
using model::State;
using server::Asker;

namespace {

constexpr Bytes k_bytes = 3 * k_mib;
constexpr int k_callbacks = 2;

/// The one process: it has memory under two tags, and callbacks that must come in pairs.
class Program {
public:
    static Program& instance() {
        static auto& program = *new Program; // as an agent is
        return program;
    }

    [[nodiscard]] Result<model::Report> run(
        const server::Operation& operation,
        const server::ProgressSink& progress = [](const model::Progress&) { return true; }) {
        const auto* const sleep = model::sleep_in(operation);
        const auto asker = sleep && sleep->deep ? Asker::program : Asker::command; // none waits to lock it
        const server::ProgressSink told = [&](const model::Progress& at) {
            const bool locks = sleep && sleep->for_lock && at.phase == model::Progress::Phase::deep;
            return progress(at) && !locks; // the lock is there at once
        };
        return guarded([&] { return operations_.run(operation, {told, others_, asker}); });
    }
    /// All is as it was, the gate is open, and nothing is under way or owed.
    void check_awake() {
        CHECK(operations_.status.state() == State::awake);
        CHECK(gate::Gate::is_open());
        CHECK(prepared_ == resumed_);
        for (std::size_t i = 0; i < addresses_.size(); ++i) {
            std::vector<std::uint8_t> bytes(k_bytes);
            REQUIRE(cuMemcpyDtoH(bytes.data(), addresses_[i], k_bytes) == CUDA_SUCCESS);
            CHECK(bytes == contents_[i]);
        }
        check_is_over();
    }
    void wake() {
        model::WakeRequest request;
        request.joint = true;
        REQUIRE(run(request));
        check_awake();
    }
    /// Its work waits, and callbacks that were told of more have heard that it did not come.
    void check_paused() {
        CHECK(operations_.status.state() == State::paused);
        CHECK_FALSE(gate::Gate::is_open());
        CHECK(prepared_ == resumed_);
        check_is_over();
    }
    void check_asleep() {
        CHECK(operations_.status.state() == State::asleep);
        CHECK_FALSE(gate::Gate::is_open());
        CHECK(prepared_ == resumed_ + k_callbacks);
        check_is_over();
    }
    /// How often callbacks were told of a sleep.
    [[nodiscard]] static int sleeps_told() { return prepared_; }
    [[nodiscard]] operations::Operations& operations() { return operations_; }
    [[nodiscard]] ProgramMemory& memory() { return memory_; }
    /// The names of the steps of the last operation.
    [[nodiscard]] static std::vector<std::string> steps() {
        std::vector<std::string> names;
        constexpr std::size_t k_time = 13; // "07:46:50.123 "
        for (const auto& line : log::recent_steps()) {
            CHECK_THAT(line, !mentions("under way"));
            const auto name = line.substr(k_time, line.rfind(": ") - k_time);
            if (name == "sleep" || name == "wake") names.clear();
            names.push_back(name);
        }
        return names;
    }

private:
    Program() {
        REQUIRE(intercepts());
        auto api = need(driver::Api::load());
        REQUIRE(driver::initialise(api));
        context_ = &*new auto(driver::PrimaryContext::retain(api, 0));
        REQUIRE(*context_);
        REQUIRE(cuCtxSetCurrent((*context_)->get()) == CUDA_SUCCESS);
        operations_.deep.set_means(operations::DeepSleep::find_means());
        memory_.set_up(
            api, [](Milliseconds) {}, [](int) { return nullptr; });
        memory_.start();
        for (const auto* const tag : {"weights", "cache"}) {
            const auto address = need(memory_.allocate(0, tag, k_bytes));
            addresses_.push_back(address);
            fill_without_zeros(contents_.emplace_back(k_bytes), addresses_.size());
            REQUIRE(cuMemcpyHtoD(address, contents_.back().data(), k_bytes) == CUDA_SUCCESS);
        }
        for (int i = 0; i < k_callbacks; ++i)
            operations_.callbacks.add([](const gpu_sleep_event*, void*) { return ++prepared_, 0; },
                                      [](const gpu_sleep_event*, void*) { return ++resumed_, 0; }, nullptr,
                                      Milliseconds(10'000));
    }
    void check_is_over() {
        CHECK(gate::Gate::holds_all() == operations::DeepSleep::is_deep());
        operations_.turnstile.hold(false); // which waits for an operation that has the turn
        CHECK(operations_.turnstile.resume());
    }

    inline static int prepared_ = 0;
    inline static int resumed_ = 0;
    Result<driver::PrimaryContext>* context_ = nullptr;
    ProgramMemory memory_{TouchRule(), std::numeric_limits<Bytes>::max()};
    operations::Operations operations_{memory_, "", []() noexcept {}};
    /// Who sleep and wake together with it: they are always ready.
    const server::DirectiveSource others_ = [is_drained = false](Milliseconds) mutable {
        using Kind = model::Directive::Kind;
        is_drained = !is_drained;
        return Result<std::optional<model::Directive>>(
            model::Directive{is_drained ? Kind::prepare : Kind::commit});
    };
    std::vector<driver::DeviceAddress> addresses_;
    std::vector<std::vector<std::uint8_t>> contents_;
};

model::SleepRequest sleep_request(model::Level level = model::Level::keep) {
    model::SleepRequest request;
    request.level = level;
    request.joint = true;
    request.force = true; // the test calls the driver itself
    return request;
}

model::SleepRequest deep_request() {
    auto request = sleep_request();
    request.deep = !is_thread_sanitized(); // with which there is no process outside
    return request;
}

model::WakeRequest wake_request() {
    model::WakeRequest request;
    request.joint = true;
    return request;
}

/// From a deep sleep, on the other GPU.
model::WakeRequest wake_elsewhere() {
    auto request = wake_request();
    const auto gpu = [](int device) {
        return driver::device_uuid(Program::instance().memory().api(), device);
    };
    request.gpus = {{gpu(0), gpu(1)}, {gpu(1), gpu(0)}};
    return request;
}

/// Steps that are a part of another.
const std::map<std::string, std::string> k_parts{
    {"copy contents", "move contents"},
    {"keep calls from the driver", "have the driver checkpoint"},
    {"look how deeply it sleeps", "have the driver checkpoint"},
    {"driver: restore", "have the driver bring it back"},
    {"driver: unlock", "have the driver bring it back"},
};

/// Has `operation` end at each word to its asker, and at each call of the driver that fails. `mend` sees to
/// what came of it. Returns the steps at which it ended.
template <class Mend>
std::set<std::string> sweep(const server::Operation& operation, Mend&& mend) {
    auto& program = Program::instance();
    std::set<std::string> ends;
    const auto note = [&](bool has_failed) {
        const auto steps = Program::steps();
        if (has_failed) ends.insert(steps.back());
        mend(has_failed);
    };
    // "*" leaves out those of the driver's checkpoint.
    for (const auto* const name :
         {"*", "cuCheckpointProcessGetState", "cuCheckpointProcessRestore", "cuCheckpointProcessUnlock"})
        for_each_call([&](int call) {
            std::string_view failed;
            const auto done = with_driver_failure(
                call, failed, [&] { return program.run(operation); }, CUDA_ERROR_UNKNOWN, SIM_ONCE, name);
            INFO("after " << failed << " failed");
            note(!done);
            return !failed.empty();
        });
    for_each_call([&](int word) {
        int words = 0;
        const auto done = program.run(operation, [&](const model::Progress&) { return ++words != word; });
        INFO("withdrawn at word " << word);
        note(!done);
        return words >= word;
    });
    return ends;
}

/// Those of `steps` in which no sweep ended.
std::vector<std::string> never(const std::vector<std::string>& steps, std::set<std::string> ends) {
    std::vector<std::string> rest;
    for (const auto& [part, whole] : k_parts)
        if (ends.contains(part)) ends.insert(whole);
    for (const auto& step : steps)
        if (!ends.contains(step)) rest.push_back(step);
    return rest;
}

/// A request that is refused, and what makes it so.
struct Refusal {
    const char* step; ///< at which it ends
    ErrorCode code;
    server::Operation request;
    std::function<void(operations::Operations&)> before = [](auto&) {};
    std::function<void(operations::Operations&)> after = [](auto&) {};
};

std::vector<Refusal> refusals() {
    const auto sleep = [](auto&& change) {
        auto request = sleep_request();
        request.joint = false;
        request.timeout = Milliseconds(50);
        change(request);
        return request;
    };
    model::WakeRequest elsewhere;
    elsewhere.gpus = {{"GPU-0", "GPU-1"}};
    model::WakeRequest of_nobody;
    of_nobody.tags = {"nobody"};
    return {
        {"ask whether it may sleep", ErrorCode::inhibited, sleep([](auto&) {}),
         [](auto& its) { its.inhibitors.add(); }, [](auto& its) { CHECK(its.inhibitors.remove()); }},
        {"ask whether it may sleep", ErrorCode::invalid_argument, sleep([](auto& request) {
             request.level = model::Level::pause;
             request.tags = {"weights"};
         })},
        {"ask whether it may sleep", ErrorCode::inhibited,
         sleep([](auto& request) { request.level = model::Level::pause; }),
         [](auto& its) { its.inhibitors.add(); }, [](auto& its) { CHECK(its.inhibitors.remove()); }},
        {"wait for other operations", ErrorCode::timed_out, sleep([](auto&) {}),
         [](auto& its) { its.turnstile.hold(false); }, [](auto& its) { CHECK(its.turnstile.resume()); }},
        {"wait for other operations", ErrorCode::timed_out,
         sleep([](auto& request) { request.level = model::Level::pause; }),
         [](auto& its) { its.turnstile.hold(false); }, [](auto& its) { CHECK(its.turnstile.resume()); }},
        {"look whether it can sleep deeply", ErrorCode::driver_failed,
         sleep([](auto& request) { request.deep = true; }),
         [](auto&) { sim_fail("cuCheckpointProcessGetState", 1, CUDA_ERROR_UNKNOWN, SIM_ONCE); },
         [](auto&) { sim_clear(); }},
        {"look what is to sleep", ErrorCode::unknown_tag,
         sleep([](auto& request) { request.tags = {"nobody"}; })},
        {"look what is to sleep", ErrorCode::invalid_argument, sleep([](auto& request) {
             request.keep = {"weights"};
             request.discard = {"weights"};
         })},
        {"look what is to sleep", ErrorCode::invalid_argument,
         sleep([](auto& request) { request.store = model::Store::file; })},
        {"look how it sleeps", ErrorCode::invalid_argument, elsewhere},
        {"look for GPU memory", ErrorCode::unknown_tag, of_nobody},
    };
}

} // namespace

TEST_CASE("Steps: a sleep that ends at any of them changes nothing", "[steps]") {
    auto& program = Program::instance();
    const auto request = deep_request();
    REQUIRE(program.run(request));
    const auto steps = Program::steps();
    program.check_asleep();
    REQUIRE(program.run(wake_request()));
    auto ends = sweep(request, [&](bool has_failed) {
        CHECK(operations::DeepSleep::is_deep() == (request.deep && !has_failed));
        const bool sleeps = program.operations().status.state() == State::asleep; // and not deeply
        if (has_failed && sleeps) CHECK(k_parts.contains(Program::steps().back()));
        if (has_failed && !sleeps) program.check_awake();
        if (has_failed) REQUIRE(program.run(request));
        CHECK(operations::DeepSleep::is_deep() == request.deep);
        program.check_asleep();
        program.wake();
    });
    const auto pause = sleep_request(model::Level::pause);
    ends.merge(sweep(pause, [&](bool has_failed) {
        if (has_failed) {
            program.check_awake();
            REQUIRE(program.run(pause));
        }
        program.check_paused();
        program.wake();
    }));
    for (const auto& row : refusals()) ends.insert(row.step);
    // A step belongs here only if nothing can end a sleep in it.
    std::vector<std::string> expected{"sleep", "release GPU memory", "set what GPU work does",
                                      "settle the gate", "unpin host memory"};
    if (!request.deep) expected.emplace_back("have the driver checkpoint");
    if (sweep_stride() == 1) CHECK(never(steps, ends) == expected);
}

TEST_CASE("Steps: after a sleep for a lock by others nothing is pinned until the wake", "[steps]") {
    auto& program = Program::instance();
    auto request = sleep_request();
    request.for_lock = true;
    const auto pinned = [] { return sim_live_objects().host_registrations; };
    REQUIRE(program.run(sleep_request()));
    const auto pinned_else = pinned();
    program.wake();
    const auto check_left = [&](const std::vector<std::string>& tags) {
        const auto pinned_before = pinned();
        static_cast<void>(program.operations().tidy());
        if (!tags.empty()) CHECK(pinned() == pinned_before);
        auto noted = program.operations().status.report().lock_tags;
        std::ranges::sort(noted);
        CHECK(noted == tags);
        CHECK(program.memory().may_call_driver() == tags.empty());
    };
    REQUIRE(program.run(request));
    CHECK(pinned() < pinned_else);
    check_left({"cache", "weights"});
    program.wake();
    sim_fail("cuMemHostUnregister", 1, CUDA_ERROR_UNKNOWN, SIM_FOREVER);
    const auto stays_pinned = program.run(request);
    sim_clear();
    CHECK_THAT(error_of(stays_pinned).message,
               mentions("asleep, but not locked: the driver did not unpin all"));
    program.check_asleep();
    program.wake();
    auto& memory = program.memory();
    memory.set_live_bytes("late", k_bytes);
    const auto late = memory.allocate(0, "late", k_bytes);
    REQUIRE(late);
    auto of_nothing = request;
    of_nothing.tags = {"none"};
    of_nothing.ignore_unknown_tags = true;
    CHECK_THAT(error_of(program.run(of_nothing)).message, mentions("it uses 4.00 MiB in host memory"));
    check_left({});
    REQUIRE(program.run(request)); // takes it out
    check_left({"cache", "late", "weights"});
    program.wake();
    CHECK(memory.free(*late));
    sweep(request, [&](bool has_failed) {
        const bool sleeps = program.operations().status.state() == State::asleep;
        if (has_failed && !sleeps) program.check_awake();
        if (has_failed) REQUIRE(program.run(request));
        program.check_asleep();
        check_left({"cache", "weights"});
        program.wake();
        check_left({});
    });
}

TEST_CASE("Steps: host memory that came since the sleep is not the driver's; it sleeps on", "[steps]") {
    if (is_thread_sanitized()) return; // with which there is no process outside
    auto& program = Program::instance();
    auto& memory = program.memory();
    memory.set_live_bytes("late", k_bytes);
    std::optional<driver::DeviceAddress> late;
    const auto slept = program.run(deep_request(), [&](const model::Progress&) {
        if (!late && program.operations().status.state() == State::asleep)
            if (const auto placed = memory.allocate(0, "late", k_bytes)) late = *placed;
        return true;
    });
    CHECK_THAT(error_of(slept).message, mentions("asleep, but not deeply: it uses 4.00 MiB in host memory"));
    REQUIRE(late);
    CHECK(memory.free(*late));
    program.check_asleep();
    REQUIRE(program.run(deep_request()));
    program.wake();
}

TEST_CASE("Steps: a sleep or wake of a paused process that ends at any leaves it paused", "[steps]") {
    if (is_sanitized()) return; // a sanitizer sees the same code in the other cases
    auto& program = Program::instance();
    const auto pause = sleep_request(model::Level::pause);
    REQUIRE(program.run(pause));
    for (const bool wakes : {false, true}) {
        const auto request = wakes ? server::Operation(wake_request()) : deep_request();
        const auto ends = sweep(request, [&](bool has_failed) {
            const bool sleeps = program.operations().status.state() == State::asleep; // and not deeply
            if (has_failed && !sleeps) program.check_paused();
            if (has_failed) REQUIRE(program.run(request));
            if (!wakes) {
                program.check_asleep();
                const auto again = program.run(pause); // changes nothing of what sleeps
                REQUIRE(again);
                CHECK_FALSE(again->changed);
                CHECK(operations::DeepSleep::is_deep() == deep_request().deep);
                REQUIRE(program.run(wake_request()));
            }
            program.check_awake();
            REQUIRE(program.run(pause));
        });
        CHECK(ends.size() > (sweep_stride() == 1 ? 1 : 0));
    }
    program.wake();
}

TEST_CASE("Steps: the end of others' pause leaves a paused process asleep that has gone deep", "[steps]") {
    if (is_thread_sanitized()) return; // with which there is no process outside
    auto& program = Program::instance();
    REQUIRE(program.run(sleep_request(model::Level::pause)));
    REQUIRE(program.run(deep_request()));
    model::WakeRequest of_others;
    of_others.tags = {"nobody"};
    of_others.ignore_unknown_tags = true;
    CHECK_FALSE(need(program.run(of_others)).changed);
    CHECK(operations::DeepSleep::is_deep());
    program.wake();
}

TEST_CASE("Steps: a wake that ends at any of them leaves all asleep", "[steps]") {
    auto& program = Program::instance();
    std::vector<std::string> steps;
    std::set<std::string> ends;
    const auto sweep_wake = [&](const model::SleepRequest& request, const model::WakeRequest& wake) {
        REQUIRE(program.run(request));
        REQUIRE(program.run(wake));
        steps = Program::steps();
        REQUIRE(program.run(request));
        ends.merge(sweep(wake, [&](bool has_failed) {
            if (has_failed) {
                program.check_asleep();
                REQUIRE(program.run(wake));
            }
            program.check_awake();
            REQUIRE(program.run(request));
        }));
        REQUIRE(program.run(wake));
    };
    sweep_wake(sleep_request(), wake_request());
    if (deep_request().deep) sweep_wake(deep_request(), wake_elsewhere());
    sweep_wake(deep_request(), wake_request());
    for (const auto& row : refusals()) ends.insert(row.step);
    // Likewise. There is room, and the gate of a process of which all sleeps has let nothing through that
    // could be waited for.
    std::vector<std::string> expected{"wake",
                                      "wait for GPU memory",
                                      "shut the gate",
                                      "callbacks after the wake",
                                      "settle the gate",
                                      "move host memory back to the GPU",
                                      "give host memory back"};
    if (!deep_request().deep) std::erase(expected, "wait for GPU memory"); // the refusals show it
    if (sweep_stride() == 1) CHECK(never(steps, ends) == expected);
}

TEST_CASE("Steps: a pause says nothing of contents that move", "[steps]") {
    auto& program = Program::instance();
    std::set<model::Progress::Phase> told;
    REQUIRE(program.run(sleep_request(model::Level::pause),
                        [&](const model::Progress& at) { return told.insert(at.phase), true; }));
    CHECK(told.contains(model::Progress::Phase::drain));
    CHECK_FALSE(told.contains(model::Progress::Phase::transfer));
    program.wake();
}

TEST_CASE("Transitions: what a failed wake had brought back goes again with the next deep sleep", "[steps]") {
    lifecycle::Transitions transitions;
    const auto bytes_of = [&](server::Operation operation, const model::Report& report) {
        const auto transition = need(transitions.count(operation, report, 1));
        server::Job job;
        job.operation = std::move(operation);
        return transitions.describe(transition, job, report, "").bytes;
    };
    model::Report deep;
    deep.changed = deep.deep = true;
    deep.deep_bytes = 500;
    deep.state = State::asleep;
    model::Report awake;
    awake.changed = true;
    model::Report shallow;
    shallow.changed = true;
    shallow.state = State::asleep;
    shallow.devices.emplace_back().released = 30;
    enum class Next { deep_sleep, sleep, wake };
    const auto next = GENERATE(Next::deep_sleep, Next::sleep, Next::wake);
    CHECK(bytes_of(sleep_request(), deep) == 500);
    const model::Failure failure{make_error(ErrorCode::out_of_device_memory, "no room"), State::asleep};
    REQUIRE(transitions.count(wake_request(), failure, 1)); // the gate is not deep
    const auto sum = transitions.asleep_byte_seconds();
    std::this_thread::sleep_for(Milliseconds(20));
    CHECK(transitions.asleep_byte_seconds() == sum);
    if (next == Next::deep_sleep) CHECK(bytes_of(sleep_request(), deep) == 500);
    if (next == Next::sleep) CHECK(bytes_of(sleep_request(), shallow) == 30);
    CHECK(bytes_of(wake_request(), awake) == (next == Next::sleep ? 0 : 500));
    CHECK(bytes_of(sleep_request(), deep) == 500);
}

TEST_CASE("Steps: what a process refuses, at which step and with what error", "[steps]") {
    auto& program = Program::instance();
    for (const auto& row : refusals()) {
        INFO(row.step << ", " << traits(row.code).name);
        row.before(program.operations());
        CHECK(error_of(program.run(row.request)).code == row.code);
        CHECK(Program::steps().back() == row.step);
        row.after(program.operations());
        program.check_awake();
        if (const auto* const sleep = std::get_if<model::SleepRequest>(&row.request)) {
            // A dry run says why it would be refused, and changes nothing.
            auto dry = *sleep;
            dry.dry_run = true;
            row.before(program.operations());
            const auto rehearsed = program.run(dry);
            CHECK((rehearsed ? rehearsed->refusal_code : rehearsed.error().code) == row.code);
            row.after(program.operations());
            program.check_awake();
        }
    }
}

TEST_CASE("Steps: what sleeps moves to files once unused, and stays while work waits for it", "[steps]") {
    auto& program = Program::instance();
    const Scratch files;
    model::IdleSleepRequest request;
    request.sleep.store = model::Store::file;
    request.sleep.store_is_named = true;
    request.sleep.directory = files.path();
    const auto in_files = [](const model::Report& report) {
        return model::sum_of(report.tags, &model::TagReport::in_files);
    };
    auto asleep = sleep_request();
    asleep.on_touch = model::OnTouch::wait;
    REQUIRE(program.run(asleep));
    std::thread work([] { CHECK(gate::Passage(gate::Touch::submits, "cuWork").admitted()); });
    REQUIRE(becomes_true([] { return gate::Gate::instance().waiting().held_now == 1; }));
    const auto stays = need(program.run(request));
    CHECK_FALSE(stays.changed);
    CHECK(stays.refusal == "work waits for it to wake");
    CHECK(in_files(stays) == 0);
    program.wake();
    work.join();
    REQUIRE(program.run(asleep));
    const auto moves = need(program.run(request));
    CHECK(moves.refusal.empty());
    CHECK(in_files(moves) > 0);
    program.wake();
}

TEST_CASE("Steps: a dry run changes nothing and tells no callback; who just woke is left alone", "[steps]") {
    auto& program = Program::instance();
    const auto told = Program::sleeps_told();
    auto request = sleep_request();
    request.joint = false;
    request.dry_run = true;
    CHECK(need(program.run(request)).devices.at(0).released >= 2 * k_bytes);
    request.dry_run = false;
    REQUIRE(program.run(sleep_request()));
    model::WakeRequest dry_wake;
    dry_wake.dry_run = true;
    REQUIRE(program.run(dry_wake));
    program.check_asleep();
    REQUIRE(program.run(wake_request()));
    CHECK(Program::sleeps_told() == told + k_callbacks);
    request.min_awake = Milliseconds(600'000);
    const auto early = need(program.run(request));
    CHECK_FALSE(early.changed);
    REQUIRE_FALSE(early.notes.empty());
    CHECK(early.notes.front().find("it was woken") == 0);
    program.check_awake();
}
