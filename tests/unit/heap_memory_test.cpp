// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Allocating GPU memory where the host's runs out: at every allocation that it takes, once.

#include "memory/heap.hpp"
#include "support/catch.hpp"
#include "support/failing_new.hpp"

#include <new>

using namespace gpu_sleep::test;

namespace {

constexpr Bytes k_step = 512;

/// A heap, and what is allocated in it.
class Program {
public:
    Program() : heap_(api_, ledger_) { REQUIRE(api_.cuInit(0) == CUDA_SUCCESS); }

    /// Allocates while the host's memory fails once after so many allocations; negative: never. False where
    /// it failed.
    bool allocate(Bytes bytes, long left) {
        std::optional<driver::DeviceAddress> address;
        t_allocations_left = left;
        try {
            if (const auto given = heap_.allocate(0, tag_, bytes)) address = *given;
        } catch (const std::bad_alloc&) { // as the program's calls are answered
        }
        const bool has_failed = left >= 0 && t_allocations_left < 0;
        t_allocations_left = -1;
        CHECK((address || has_failed));
        if (address) add(*address, bytes);
        return !has_failed;
    }
    /// Every address is in an allocation of its own, and in no range without.
    void check() {
        std::map<std::uint64_t, Bytes> asked; // of each range
        for (const auto& [address, bytes] : live_) {
            const auto place = need(heap_.locate(address));
            asked[place.backing->address] += bytes;
        }
        for (const auto& [address, backing] : ledger_.backings()) {
            CHECK(static_cast<bool>(heap_.locate(address)));
            CHECK(asked[address] == backing.allocated);
        }
    }
    void free_all() {
        for (const auto& [address, bytes] : live_) CHECK(static_cast<bool>(heap_.free(address)));
        live_.clear();
        CHECK(ledger_.backings().empty());
    }

private:
    void add(driver::DeviceAddress address, Bytes bytes) {
        const auto after = live_.lower_bound(address);
        CHECK((after == live_.end() || address + bytes <= after->first));
        CHECK((after == live_.begin() || std::prev(after)->first + std::prev(after)->second <= address));
        live_.emplace(address, bytes);
    }

    driver::Api api_ = *driver::Api::load();
    ledger::Ledger ledger_;
    memory::Heap heap_;
    ledger::TagId tag_ = ledger_.tag_id("weights");
    std::map<driver::DeviceAddress, Bytes> live_;
};

} // namespace

TEST_CASE("Heap: what fails for want of memory leaves the rest as it was", "[heap]") {
    const auto bytes = GENERATE(Bytes{4096}, k_mib, 2 * k_mib);
    const auto before = GENERATE(Bytes{0}, Bytes{1024}, k_mib); // allocated already
    bool is_done = false;
    for (long left = 0; !is_done; ++left) {
        INFO(bytes << " bytes, beside " << before << ", after " << left);
        REQUIRE(left < 100);
        Program program;
        if (before != 0) REQUIRE(program.allocate(before, -1));
        is_done = program.allocate(bytes, left);
        program.check();
        for (const auto more : {2 * k_step, bytes, Bytes{8192}}) REQUIRE(program.allocate(more, -1));
        program.check();
        program.free_all();
    }
}

TEST_CASE("Heap: random allocations where memory runs out never overlap", "[heap]") {
    Program program;
    std::mt19937 random(11);
    for (int i = 0; i < 2'000; ++i)
        static_cast<void>(
            program.allocate(k_step * (1 + random() % 300), static_cast<long>(random() % 8) - 3));
    program.check();
    program.free_all();
}
