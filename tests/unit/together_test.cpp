// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Who is told what, and when, of processes that go together: a member at a time, and ranks of a job.

#include "client/together.hpp"
#include "support/catch.hpp"

#include <ostream>

using namespace gpu_sleep;
using namespace gpu_sleep::client;
using Phase = model::Progress::Phase;
using Kind = Together::Kind;
using Words = std::vector<Together::Word>;

namespace gpu_sleep::client {
std::ostream& operator<<(std::ostream& out, const Together::Word& word) {
    return out << word.member << ":" << static_cast<int>(word.directive.kind);
}
} // namespace gpu_sleep::client

namespace {

/// Members, and a clock that stands still until it is told.
struct Scene {
    Clock::time_point now{std::chrono::hours{1}};
    Together together;
    std::map<std::size_t, std::uint64_t> heard; ///< of let_through, by member

    static constexpr Milliseconds k_long{3'600'000};
    explicit Scene(std::size_t members, bool is_sleep = true, Milliseconds limit = k_long)
        : together(members, is_sleep, now + limit) {}

    void say(std::size_t member, Phase phase, std::uint64_t held = 0) {
        together.hear(member, {phase, heard[member], 0, held}, now);
    }
    /// All are asked, and have begun to drain.
    static Scene begun(std::size_t members, bool is_sleep = true, Milliseconds limit = k_long) {
        Scene scene(members, is_sleep, limit);
        for (std::size_t i = 0; i < members; ++i) {
            REQUIRE(scene.together.next_to_ask() == i);
            scene.say(i, Phase::drain);
        }
        return scene;
    }
    Words after(Milliseconds time) {
        now += time;
        const auto words = together.due(now);
        for (const auto& word : words) heard[word.member] += word.directive.kind == Kind::let_through;
        return words;
    }
    Words due() { return after(Milliseconds(0)); }
};

Words to_all(std::size_t members, Kind kind) {
    Words words;
    for (std::size_t i = 0; i < members; ++i) words.push_back({i, {kind}});
    return words;
}

} // namespace

TEST_CASE("Together: a member is asked when the one before it has begun", "[together]") {
    Scene scene(2);
    CHECK(scene.together.next_to_ask() == 0U);
    CHECK(scene.together.next_to_ask() == std::nullopt);
    scene.say(0, Phase::waiting);
    CHECK(scene.together.next_to_ask() == 1U);
    scene.say(1, Phase::waiting);
    CHECK(scene.together.next_to_ask() == std::nullopt);
}

TEST_CASE("Together: nobody is asked any more once one has failed", "[together]") {
    Scene scene(3);
    REQUIRE(scene.together.next_to_ask() == 0U);
    scene.together.end(0, true);
    CHECK(scene.together.next_to_ask() == std::nullopt);
    CHECK(scene.together.why_not(scene.now) == Together::Why::member_failed);
}

TEST_CASE("Together: all prepare once all are drained, and commit once all are ready", "[together]") {
    auto scene = Scene::begun(3);
    scene.say(0, Phase::drained);
    scene.say(1, Phase::drained);
    CHECK(scene.due().empty());
    scene.say(2, Phase::drained);
    CHECK(scene.due() == to_all(3, Kind::prepare));
    CHECK(scene.due().empty());
    scene.say(0, Phase::transfer);
    scene.say(0, Phase::ready);
    scene.say(2, Phase::ready);
    CHECK_FALSE(scene.together.all_are_ready());
    scene.say(1, Phase::ready);
    CHECK(scene.together.all_are_ready());
    CHECK(scene.together.commit() == std::vector<std::size_t>{0, 1, 2});
    CHECK_FALSE(scene.together.all_are_ready());
    scene.together.end(1, true); // which comes too late to matter
    CHECK(scene.together.why_not(scene.now) == std::nullopt);
    CHECK(scene.after(Milliseconds(60'000)).empty());
}

TEST_CASE("Together: a member with nothing to do keeps nobody waiting", "[together]") {
    auto scene = Scene::begun(3);
    scene.together.end(0, false); // awake already, say
    scene.say(1, Phase::ready);   // nothing to drain
    scene.say(2, Phase::drained);
    CHECK(scene.due() == Words{{2, {Kind::prepare}}});
    scene.say(2, Phase::ready);
    REQUIRE(scene.together.all_are_ready());
    CHECK(scene.together.commit() == std::vector<std::size_t>{1, 2});
}

TEST_CASE("Together: where all are done before they were ready, nobody is told anything", "[together]") {
    auto scene = Scene::begun(2);
    scene.together.end(0, false);
    scene.together.end(1, false);
    CHECK_FALSE(scene.together.all_are_ready());
    CHECK(scene.due().empty());
}

TEST_CASE("Together: drained members let one through, and only while another is not drained", "[together]") {
    auto scene = Scene::begun(3);
    scene.say(1, Phase::drained, 2);
    scene.say(2, Phase::drained, 0);
    CHECK(scene.due().empty());
    CHECK(scene.after(Together::k_rest) == Words{{1, {Kind::let_through}}});
    CHECK(scene.after(Together::k_rest).empty()); // it drains again
    --scene.heard[1];
    scene.say(1, Phase::drained, 1); // as it was before
    ++scene.heard[1];
    CHECK(scene.after(Together::k_rest).empty());
    scene.say(1, Phase::drained, 1);
    scene.say(0, Phase::drained, 4);
    CHECK(scene.due() == to_all(3, Kind::prepare));
}

TEST_CASE("Together: nothing is let through while members come and go", "[together]") {
    auto scene = Scene::begun(2);
    for (int i = 0; i < 20; ++i) {
        scene.say(1, Phase::drained, 1);
        CHECK(scene.after(Together::k_rest - Milliseconds(1)).empty());
    }
    CHECK(scene.after(Milliseconds(1)) == Words{{1, {Kind::let_through}}});
}

TEST_CASE("Together: members that are not drained let through only when nobody drained could", "[together]") {
    auto scene = Scene::begun(2);
    CHECK(scene.after(Together::k_rest_of_undrained - Milliseconds(1)).empty());
    CHECK(scene.after(Milliseconds(1)) == to_all(2, Kind::let_through));
    CHECK(scene.after(Together::k_rest) == to_all(2, Kind::let_through));
    scene.say(1, Phase::drained, 0); // its next submission is on its way
    CHECK(scene.after(Together::k_rest_of_undrained).empty());
    scene.say(1, Phase::drained, 1);
    CHECK(scene.after(Together::k_rest) == Words{{1, {Kind::let_through}}});
    scene.say(1, Phase::drained, 0);
    CHECK(scene.after(Together::k_rest_beside_drained) == Words{{0, {Kind::let_through}}});
    CHECK(scene.after(Together::k_rest_beside_drained) == Words{{1, {Kind::hold_on}}}); // more rarely
    CHECK(scene.after(Together::k_rest_beside_drained) ==
          Words{{0, {Kind::let_through}}, {1, {Kind::hold_on}}});
}

TEST_CASE("Together: nothing is let through for a member that does not wait for its device", "[together]") {
    auto scene = Scene::begun(2);
    scene.say(1, Phase::callbacks);
    CHECK(scene.after(Milliseconds(10'000)).empty());
    const auto wakes = GENERATE(false, true);
    CHECK(Scene::begun(1, !wakes).after(Milliseconds(10'000)).empty() == wakes);
}

TEST_CASE("Together: those that wait hear that the command lives", "[together]") {
    auto scene = Scene::begun(2);
    scene.say(0, Phase::ready);
    scene.say(1, Phase::callbacks);
    CHECK(scene.due().empty());
    for (int i = 0; i < 100; ++i) CHECK(scene.after(Together::k_sign_of_life) == Words{{0, {Kind::hold_on}}});
}

TEST_CASE("Together: all go back when the command was stopped for too long", "[together]") {
    auto scene = Scene::begun(2);
    scene.say(0, Phase::ready);
    CHECK(scene.due().empty());
    scene.now += Together::k_longest_silence;
    scene.say(1, Phase::ready);
    CHECK(scene.due().empty());
    CHECK(scene.together.why_not(scene.now) == Together::Why::command_was_stopped);
}

TEST_CASE("Together: all go back when some are not ready in time", "[together]") {
    auto scene = Scene::begun(2, true, Milliseconds(1'000));
    scene.say(0, Phase::ready);
    CHECK(scene.together.next_time(scene.now) <= scene.now + Milliseconds(1'000));
    scene.now += Milliseconds(1'000);
    CHECK(scene.together.why_not(scene.now) == Together::Why::late);
    CHECK_FALSE(scene.together.is_behind(0));
    CHECK(scene.together.is_behind(1));
    scene.say(1, Phase::ready);
    CHECK(scene.together.why_not(scene.now) == std::nullopt); // just so
}

namespace {

/// Ranks of a job, each with the same steps of twenty rounds: submissions that end at once, and such as end
/// only together with that of another rank, or of all others. At the end of a step the program waits for its
/// device.
class RankedJob {
public:
    enum class Kind : std::uint8_t {
        all_reduce,
        pipeline,  ///< a ring
        pipelines, ///< two that know nothing of each other
        grid,      ///< two, and an all-reduce over both at the end of a step
        pairs,     ///< pipelines of two
        and_alone, ///< a pipeline, and a rank that works alone
    };

    RankedJob(Kind kind, std::size_t ranks) : ranks_(ranks) {
        for (std::size_t rank = 0; rank < ranks; ++rank)
            for (int step = 0; step < k_steps; ++step) add_step(kind, rank, step);
    }

    /// Whether the rank's device is done with all that it was given.
    [[nodiscard]] bool is_drained(std::size_t rank) const { return ranks_[rank].done == ranks_[rank].given; }
    /// Whether a submission of it would come to the gate.
    [[nodiscard]] bool holds(std::size_t rank) const {
        const auto& [program, given, done] = ranks_[rank];
        const bool waits = given > 0 && program[given - 1].what == What::wait && !is_drained(rank);
        return given < program.size() && !waits;
    }
    void submit(std::size_t rank) {
        ++ranks_[rank].given;
        for (bool has_changed = true; std::exchange(has_changed, false);)
            for (std::size_t i = 0; i < ranks_.size(); ++i)
                for (; !is_drained(i) && can_end(i); has_changed = true) ++ranks_[i].done;
    }
    [[nodiscard]] std::size_t least_given() const {
        return std::min_element(ranks_.begin(), ranks_.end(),
                                [](const auto& one, const auto& other) { return one.given < other.given; })
            ->given;
    }

private:
    static constexpr int k_steps = 12, k_rounds = 20;
    enum class What : std::uint8_t { alone, reduce, send, receive, wait };
    struct Submission {
        What what;
        std::size_t peer = 0;
        int round = 0;
    };
    struct Rank {
        std::vector<Submission> program;
        std::size_t given = 0, done = 0;
    };

    void add_step(Kind kind, std::size_t rank, int step) {
        auto& program = ranks_[rank].program;
        const auto stages = kind == Kind::pipeline    ? ranks_.size()
                            : kind == Kind::pairs     ? 2
                            : kind == Kind::and_alone ? ranks_.size() - 1
                                                      : ranks_.size() / 2;
        const auto first = rank / stages * stages;
        const auto before = first + (rank - first + stages - 1) % stages;
        const auto after = first + (rank - first + 1) % stages;
        for (int round = step * k_rounds; round < (step + 1) * k_rounds; ++round) {
            program.insert(program.end(), 2, {What::alone});
            if (kind == Kind::all_reduce) program.push_back({What::reduce, 0, round});
            if (kind == Kind::all_reduce || rank >= ranks_.size() / stages * stages) continue;
            if (rank != first) program.push_back({What::receive, before, round});
            program.insert(program.end(), 2, {What::alone});
            program.push_back({What::send, after, round});
            if (rank == first) program.push_back({What::receive, before, round});
        }
        if (kind == Kind::grid) program.push_back({What::reduce, 0, step * k_rounds});
        program.push_back({What::wait});
    }
    /// Whether the rank has come to its part, or is past it.
    [[nodiscard]] bool is_at(std::size_t rank, What what, std::size_t peer, int round) const {
        const auto& [program, given, done] = ranks_[rank];
        const auto end = program.begin() + static_cast<std::ptrdiff_t>(std::min(done + 1, given));
        return std::any_of(program.begin(), end, [&](const Submission& each) {
            return each.what == what && each.round == round && (what == What::reduce || each.peer == peer);
        });
    }
    [[nodiscard]] bool can_end(std::size_t rank) const {
        const auto& [what, peer, round] = ranks_[rank].program[ranks_[rank].done];
        if (what == What::send) return is_at(peer, What::receive, rank, round);
        if (what == What::receive) return is_at(peer, What::send, rank, round);
        for (std::size_t i = 0; what == What::reduce && i < ranks_.size(); ++i)
            if (!is_at(i, what, 0, round)) return false;
        return true;
    }

    std::vector<Rank> ranks_;
};

} // namespace

TEST_CASE("Together: ranks that were stopped anywhere come to a common point, and soon", "[together]") {
    const auto kind =
        GENERATE(RankedJob::Kind::all_reduce, RankedJob::Kind::pipeline, RankedJob::Kind::pipelines,
                 RankedJob::Kind::pairs, RankedJob::Kind::and_alone, RankedJob::Kind::grid);
    const std::size_t ranks = GENERATE(2U, 4U, 8U);
    if (ranks == 2 && kind >= RankedJob::Kind::pipelines) return; // nobody to pass anything on to
    std::mt19937 random(GENERATE(1U, 2U));
    RankedJob job(kind, ranks);
    for (const auto least = 100 + random() % 300; job.least_given() < least;) {
        const auto rank = random() % ranks; // runs ahead
        for (auto count = random() % 150; count > 0 && job.holds(rank); --count) job.submit(rank);
    }
    auto scene = Scene::begun(ranks);
    const auto start = scene.now;
    const Milliseconds each_takes(GENERATE(0, 1, 2));
    struct Member {
        std::uint32_t owed = 0; ///< of what it was told to let through
        Clock::time_point busy_until{};
        bool told = false; ///< that it is drained
    };
    std::vector<Member> members(ranks);
    for (bool all = false; !all;) {
        REQUIRE(scene.now - start < Milliseconds(10'000)); // a request's usual limit is thirty seconds
        for (std::size_t i = 0; i < ranks; ++i) {
            auto& [owed, busy_until, told] = members[i];
            while (owed > 0 && job.holds(i) && scene.now >= busy_until) {
                const bool was_drained = job.is_drained(i); // then it ends once its device waits
                job.submit(i);
                busy_until = scene.now + each_takes;
                owed = was_drained && !job.is_drained(i) ? 0 : owed - 1;
            }
        }
        for (std::size_t i = 0; i < ranks; ++i) {
            auto& [owed, busy_until, told] = members[i];
            if (told || !job.is_drained(i) || scene.now < busy_until || (owed > 0 && job.holds(i))) continue;
            owed = 0;
            scene.say(i, Phase::drained, job.holds(i));
            told = true;
        }
        for (const auto& [member, directive] : scene.after(Milliseconds(1))) {
            all = all || directive.kind == Kind::prepare;
            if (directive.kind != Kind::let_through) continue;
            members[member].owed += directive.count;
            members[member].told = false;
        }
    }
    for (std::size_t i = 0; i < ranks; ++i) CHECK(job.is_drained(i));
}
