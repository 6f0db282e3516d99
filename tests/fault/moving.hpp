// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What sleeps in one store and moves to the other.

#pragma once

#include "support/engine_fixture.hpp"
#include "support/files_of.hpp"

namespace gpu_sleep::test {

/// Two tags on two devices that sleep at `home`: zeros, holes, spans, short blocks; they move to other() and
/// back.
struct Sleeper {
    explicit Sleeper(model::Store from = model::Store::host) : home(from) {
        fixture.add(0, "weights", 5 * k_mib);
        fixture.fill(0, {2 * k_mib, k_mib}, 0);
        fixture.add(0, "weights", 70'000);
        fixture.add(0, "kv_cache", 3 * k_mib);
        fixture.add(1, "weights", 2 * k_mib);
        ledger::Ledger::preserve(backing(2), {123, 456'789});
        awake = sim_live_objects();
        fall_asleep();
    }

    void fall_asleep() {
        auto request = request_to(home);
        request.level = model::Level::drop;
        request.keep = {"weights"};
        REQUIRE(fixture.sleep(request));
        REQUIRE(is_in(home));
    }
    [[nodiscard]] model::SleepRequest request_to(model::Store store) const {
        auto request = in_files(scratch, true);
        request.store = store;
        if (store == model::Store::host) request.directory.clear();
        return request;
    }
    [[nodiscard]] model::Store other() const {
        return home == model::Store::host ? model::Store::file : model::Store::host;
    }
    [[nodiscard]] Result<void> move(model::Report* report = nullptr) {
        return fixture.sleep(request_to(other()), report);
    }
    [[nodiscard]] Result<void> move_back() { return fixture.sleep(request_to(home)); }

    [[nodiscard]] ledger::Backing& backing(std::size_t allocation) {
        return *fixture.ledger().find(fixture.allocations()[allocation].address);
    }
    [[nodiscard]] Bytes bytes_in(model::Store store) {
        Bytes sum = 0;
        for (const auto& [address, each] : fixture.ledger().backings())
            if (each.is_asleep() && each.kept.range != 0)
                sum += fixture.engine().contents().bytes_in(store, each.kept.range);
        return sum;
    }
    /// Whether all sleeps there, and nothing elsewhere.
    [[nodiscard]] bool is_in(model::Store store) {
        const bool is_file = store == model::Store::file;
        return fixture.state() == model::State::asleep && bytes_in(store) > 8 * k_mib &&
               bytes_in(is_file ? model::Store::host : model::Store::file) == 0 &&
               (fixture.host_bytes() == 0) == is_file && (fixture.file_bytes() > 0) == is_file &&
               files() == (is_file ? 3U : 0U);
    }
    [[nodiscard]] std::size_t files() const { return files_in(scratch.file("sleep")).size(); }
    /// Wakes it, and looks at every byte.
    void check_whole() {
        REQUIRE(fixture.wake());
        for (std::size_t i = 0; i < fixture.allocations().size(); ++i) {
            auto expected = fixture.allocations()[i].contents;
            if (i == 2) { // dropped, but for its span
                std::fill(expected.begin(), expected.begin() + 123, 0);
                std::fill(expected.begin() + 123 + 456'789, expected.end(), 0);
            }
            INFO("allocation " << i);
            CHECK(fixture.read(i) == expected);
        }
        CHECK(files() == 0);
        CHECK(fixture.host_bytes() == 0);
        CHECK(sim_fault_counts().illegal_accesses == 0);
        fixture.refill();
    }
    /// What the driver has registered of the host.
    [[nodiscard]] std::uint64_t registered() const {
        return sim_live_objects().host_registrations - awake.host_registrations;
    }

    const model::Store home;
    Scratch scratch;
    EngineFixture fixture;
    sim_live awake{};
};

} // namespace gpu_sleep::test
