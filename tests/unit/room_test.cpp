// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Making room with agents that sleep, refuse and vanish.

#include "client/room.hpp"
#include "support/catch.hpp"
#include "support/fake_agent.hpp"

#include <sys/socket.h>
#include <sys/un.h>

using namespace gpu_sleep;
using namespace gpu_sleep::client;

namespace {

constexpr const char* k_crowded_gpu = "GPU-1";

/// A GPU that others fill.
struct Crowd {
    test::Scratch scratch;
    std::atomic<Bytes> free{0};
    std::deque<test::FakeAgent> agents;
    std::vector<client::Holder> holders;

    /// A process with `bytes`, idle for `idle` seconds, that answers a sleep by `answer`.
    void add(const char* title, Bytes bytes, double idle, const protocol::Reply& answer,
             Milliseconds delay = {}) {
        add(title, bytes, idle,
            [=, this](const protocol::Request& request, test::FakeConnection& connection) {
                const auto* const report = std::get_if<model::Report>(&answer);
                const bool is_dry = model::sleep_in(request)->dry_run;
                std::this_thread::sleep_for(delay);
                if (report && report->changed && !is_dry) free += bytes;
                connection.send(answer);
            });
    }
    /// The same, that is at it until the request is withdrawn.
    void add_slow(const char* title, Bytes bytes, double idle) {
        add(title, bytes, idle,
            [](const protocol::Request&, test::FakeConnection& connection) { connection.wait_for_close(); });
    }
    void add(const char* title, Bytes bytes, double idle, test::FakeAgent::Script script) {
        const auto path = scratch.file(title);
        agents.emplace_back(path, std::move(script));
        client::Holder holder{
            title, {}, [path]() -> Result<UniqueFd> {
                UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
                sockaddr_un address{};
                address.sun_family = AF_UNIX;
                std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
                if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
                    return make_error(ErrorCode::no_agent, "it has gone");
                return socket;
            }};
        holder.status.intercepts = true;
        holder.status.idle_seconds = idle;
        holder.status.tags.emplace_back().resident = bytes;
        holder.status.devices.emplace_back().uuid = k_crowded_gpu;
        holders.push_back(std::move(holder));
    }
    [[nodiscard]] RoomMade make_room(Bytes needed, bool is_dry_run = false) {
        auto request = room_request(Milliseconds(0));
        request.dry_run = is_dry_run;
        return make_room(needed, request);
    }
    [[nodiscard]] RoomMade make_room(Bytes needed, const model::SleepRequest& request) {
        const auto look = [&]() -> Result<BytesByGpu> {
            return BytesByGpu{{k_crowded_gpu, needed - std::min<Bytes>(needed, free)}};
        };
        return test::need(client::make_room(holders, look, request));
    }
    [[nodiscard]] std::vector<std::size_t> asked() const {
        std::vector<std::size_t> counts;
        for (const auto& agent : agents) counts.push_back(agent.requests().size());
        return counts;
    }
};

model::Report slept() {
    model::Report report;
    report.operation = model::Operation::sleep;
    report.changed = true;
    return report;
}

model::Report left_alone() {
    model::Report report;
    report.notes = {"it was woken 1.00 s ago"};
    return report;
}

using Counts = std::vector<std::size_t>;

} // namespace

TEST_CASE("Room: only as many are asked as are needed", "[room]") {
    Crowd crowd;
    crowd.add("old", 10, 500, slept());
    crowd.add("young", 10, 5, slept());
    CHECK(crowd.make_room(0).is_enough());
    CHECK(crowd.asked() == Counts{0, 0});
    const auto made = crowd.make_room(8);
    CHECK(made.is_enough());
    CHECK(crowd.asked() == Counts{1, 0});
    REQUIRE(made.slept.size() == 1);
    CHECK(made.slept[0].holder == 0);
    const auto requests = crowd.agents[0].requests();
    const auto& request = std::get<model::SleepRequest>(requests[0]);
    CHECK(request.on_touch == model::OnTouch::wake);
    CHECK(request.min_awake == Milliseconds(0));
}

TEST_CASE("Room: who is to be idle for it is asked so", "[room]") {
    Crowd crowd;
    crowd.add("old", 10, 500, slept());
    crowd.holders[0].only_if_idle = Milliseconds(5'000);
    CHECK(crowd.make_room(8).is_enough());
    const auto requests = crowd.agents[0].requests();
    REQUIRE(requests.size() == 1);
    const auto* const idle = std::get_if<model::IdleSleepRequest>(&requests[0]);
    REQUIRE(idle);
    CHECK(idle->only_if_idle == Milliseconds(5'000));
    CHECK(idle->sleep.on_touch == model::OnTouch::wake);
}

TEST_CASE("Room: who refuses is replaced by others, and is told of", "[room]") {
    Crowd crowd;
    crowd.add("failing", 10, 500,
              model::Failure{make_error(ErrorCode::inhibited, "sleeps are inhibited"), model::State::awake});
    crowd.add("early", 10, 400, left_alone());
    crowd.add("willing", 10, 5, slept());
    CHECK(crowd.make_room(10).is_enough());
    CHECK(crowd.asked() == Counts{1, 1, 1});
    const auto made = crowd.make_room(40);
    CHECK(made.missing == BytesByGpu{{k_crowded_gpu, 20}});
    REQUIRE(made.against.size() == 2);
    CHECK(made.against[0] == "failing has 10 B: sleeps are inhibited");
    CHECK(made.against[1] == "early has 10 B: it was woken 1.00 s ago");
}

TEST_CASE("Room: who turns out to be asleep already is not said to have memory", "[room]") {
    Crowd crowd;
    crowd.add("asleep", 10, 500, model::Report());
    const auto made = crowd.make_room(10);
    CHECK_FALSE(made.is_enough());
    CHECK(made.against.empty());
}

TEST_CASE("Room: nobody sleeps for what all together cannot give; who has gone is passed over", "[room]") {
    Crowd crowd;
    crowd.add("first", 10, 500, slept());
    const auto made = crowd.make_room(11);
    CHECK(made.slept.empty());
    CHECK(crowd.asked() == Counts{0});
    CHECK(made.against ==
          std::vector<std::string>{"first has 10 B: it could sleep, but that would not be enough"});
    CHECK_FALSE(made.wait);
    crowd.holders[0].connect = []() -> Result<UniqueFd> {
        return make_error(ErrorCode::no_agent, "it has gone");
    };
    CHECK_FALSE(crowd.make_room(10).is_enough());
}

TEST_CASE("Room: beside one that is slow others are asked, and it stays awake once there is room", "[room]") {
    Crowd crowd;
    crowd.add_slow("slow", 10, 500);
    crowd.add("willing", 10, 5, slept());
    const auto made = crowd.make_room(8);
    CHECK(made.is_enough());
    CHECK(crowd.asked() == Counts{1, 1});
    REQUIRE(made.slept.size() == 1);
    CHECK(made.slept[0].holder == 1);
}

TEST_CASE("Room: one that is slow is waited for where the others are not enough", "[room]") {
    Crowd crowd;
    crowd.add("slow", 10, 500, slept(), Milliseconds(1'500));
    crowd.add("small", 5, 5, slept());
    CHECK(crowd.make_room(10).is_enough());
    CHECK(crowd.asked() == Counts{1, 0});
}

TEST_CASE("Room: one that does not get ready is waited for no longer than the request says", "[room]") {
    Crowd crowd;
    crowd.add_slow("slow", 10, 500);
    auto request = room_request(Milliseconds(0));
    request.bounds_all = true;
    request.timeout = Milliseconds(1'500);
    const auto made = crowd.make_room(8, request);
    CHECK_FALSE(made.is_enough());
    REQUIRE(made.against.size() == 1);
    CHECK(made.against[0] == "slow has 10 B: it is going to sleep, but did not finish in time");
}

TEST_CASE("Room: who sleeps is told of also where nobody can look any more", "[room]") {
    Crowd crowd;
    crowd.add("first", 8 * k_gib, 60, slept());
    const auto look = [&]() -> Result<BytesByGpu> {
        if (crowd.free == 0) return BytesByGpu{{k_crowded_gpu, 4 * k_gib}};
        return make_error(ErrorCode::no_driver, "the GPU has gone");
    };
    const auto made = test::need(client::make_room(crowd.holders, look, room_request(Milliseconds(0))));
    CHECK(made.slept.size() == 1);
    CHECK_FALSE(made.is_enough());
    CHECK(made.error->code == ErrorCode::no_driver);
}

TEST_CASE("Room: a dry run asks once, and nothing changes", "[room]") {
    Crowd crowd;
    crowd.add("first", 10, 500, slept());
    CHECK(crowd.make_room(10, true).slept.size() == 1);
    CHECK(crowd.free == 0);
    CHECK(crowd.asked() == Counts{1});
    auto would_fail = left_alone();
    would_fail.devices.emplace_back().released = 10;
    refuse(would_fail, "it would fail");
    Crowd other;
    other.add("first", 10, 500, would_fail);
    CHECK(other.make_room(10, true).against == std::vector<std::string>{"first has 10 B: it would fail"});
}

TEST_CASE("Room: who was woken just now is waited for", "[room]") {
    Crowd crowd;
    crowd.add("first", 10, 0, slept());
    crowd.holders[0].status.seconds_since_wake = 1;
    auto request = room_request(Milliseconds(3'000));
    const auto made = client::make_room(
        crowd.holders,
        [] {
            return Result<BytesByGpu>(BytesByGpu{{k_crowded_gpu, 5}});
        },
        request);
    REQUIRE(made);
    CHECK(made->slept.empty());
    CHECK(made->wait == 2.);
    const auto failed = test::error_of(client::make_room(
        crowd.holders, []() -> Result<BytesByGpu> { return make_error(ErrorCode::driver_failed, "no"); },
        request));
    CHECK(failed.code == ErrorCode::driver_failed);
}

TEST_CASE("Room: for how long inhibitors alone stand against it", "[room]") {
    constexpr auto k_for_ever = std::numeric_limits<double>::infinity();
    Crowd crowd;
    crowd.add("first", 10, 500, slept());
    crowd.add("second", 10, 5, slept());
    CHECK(crowd.make_room(40).inhibited_for == 0); // more is missing
    crowd.holders[0].status.inhibited = true;
    CHECK(crowd.make_room(20).inhibited_for == k_for_ever);
    crowd.holders[0].status.inhibited_seconds = 9;
    CHECK(crowd.make_room(20).inhibited_for == 9);
    CHECK(crowd.make_room(40).inhibited_for == 0);
    CHECK(crowd.make_room(10).inhibited_for == 0); // the second is enough
}
