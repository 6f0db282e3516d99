// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the GPU codes on its way to host memory comes back whole, whichever way it comes, and is found damaged
// where it is.

#include "support/blocks.hpp"
#include "support/engine_fixture.hpp"
#include "support/files_of.hpp"

using namespace gpu_sleep::test;
using model::Store;

namespace {

sleep::Transactions::Options options(Bytes retained = 64 * k_mib, unsigned relay_threads = 0) {
    auto made = retaining(retained);
    made.relay_threads = relay_threads;
    made.relay_from = 0;
    return made;
}

void put(EngineFixture& fixture, std::size_t index, const ByteVector& bytes) {
    auto& contents = fixture.allocations()[index].contents;
    std::memcpy(contents.data(), bytes.data(), std::min(contents.size(), bytes.size()));
    fixture.refill();
}

/// A process with weights, of which the code saves 30 percent.
struct Weights {
    static constexpr Bytes k_bytes = 8 * k_mib;
    explicit Weights(sleep::Transactions::Options made = options(), std::size_t times = 1) : fixture(made) {
        fixture.add(0, "weights", times * k_bytes);
        ByteVector bytes;
        const auto part = normal_bf16(k_bytes / 2);
        for (std::size_t i = 0; i < times; ++i) {
            bytes.insert(bytes.end(), part.begin() + static_cast<std::ptrdiff_t>(i * k_mib), part.end());
            bytes.insert(bytes.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(i * k_mib));
        }
        put(fixture, 0, bytes);
    }
    [[nodiscard]] const contents::KeptRange& kept() {
        return fixture.engine().contents().at(
            fixture.ledger().find(fixture.allocations()[0].address)->kept.range);
    }
    [[nodiscard]] std::size_t coded_blocks() {
        return static_cast<std::size_t>(
            std::ranges::count_if(kept().blocks, [](const auto& block) { return block.place.is_coded(); }));
    }

    EngineFixture fixture;
};

} // namespace

TEST_CASE("Coded: contents of every kind come back, and take less host memory where that pays", "[coded]") {
    EngineFixture fixture(options(64 * k_mib, GENERATE(0U, 2U)));
    for (const auto& kind : block_contents()) {
        const auto index = fixture.add(0, "weights", 2 * k_mib);
        put(fixture, index, kind.make(2 * k_mib));
    }
    Bytes all = 0;
    for (const auto& each : fixture.allocations()) all += each.contents.size();
    for (int round = 0; round < 2; ++round) {
        REQUIRE(fixture.sleep(level(1)));
        CHECK(fixture.host_bytes() < all * 95 / 100);
        fixture.wake_whole();
    }
}

TEST_CASE("Coded: weights take seven tenths of what they are, and a request can have them raw", "[coded]") {
    Weights weights(options(0));
    REQUIRE(weights.fixture.sleep(level(1)));
    CHECK(weights.coded_blocks() == 8);
    CHECK(weights.fixture.host_bytes() < Weights::k_bytes * 71 / 100);
    weights.fixture.wake_whole();
    REQUIRE(weights.fixture.sleep(raw()));
    CHECK(weights.coded_blocks() == 0);
    CHECK(weights.fixture.host_bytes() == Weights::k_bytes);
    weights.fixture.wake_whole();
}

TEST_CASE("Coded: a changed block stays where it is, or moves where it no longer fits", "[coded]") {
    Weights weights;
    REQUIRE(weights.fixture.sleep(level(1)));
    const auto before = weights.kept().blocks;
    weights.fixture.wake_whole();
    auto changed = normal_bf16(Weights::k_bytes / 2);
    std::rotate(changed.begin(), changed.begin() + 2 * k_mib, changed.end());
    const auto fill = [&](std::ptrdiff_t block, std::string_view kind) {
        const auto contents = block_contents();
        const auto found = std::ranges::find(contents, kind, &BlockContents::name);
        const auto made = found->make(k_mib);
        std::copy(made.begin(), made.end(), changed.begin() + block * static_cast<std::ptrdiff_t>(k_mib));
    };
    fill(0, "random");
    fill(1, "bf16 of two scales"); // a tenth larger
    fill(2, "bf16 of one sign");   // of another class, and no larger
    put(weights.fixture, 0, changed);
    REQUIRE(weights.fixture.sleep(level(1)));
    const auto& after = weights.kept().blocks;
    CHECK_FALSE(after[0].place.is_coded());
    CHECK(after[1].place.is_coded());
    CHECK(after[2].place.block_class != before[2].place.block_class);
    for (std::size_t i = 0; i < after.size(); ++i) CHECK(after[i].place.is_where(before[i].place) == (i > 1));
    weights.fixture.wake_whole();
    weights.fixture.cycle();
}

TEST_CASE("Coded: blocks pass through as much memory as the GPU can spare", "[coded]") {
    using contents::scratch_for;
    CHECK(scratch_for(20 * k_gib, 100 * k_gib) == contents::k_scratch);
    CHECK(scratch_for(8 * k_mib, 100 * k_gib) == 16 * k_mib);
    CHECK(scratch_for(20 * k_gib, 160 * k_mib) == 40 * k_mib);
    CHECK(scratch_for(20 * k_gib, 124 * k_mib) == 0);
    CHECK(scratch_for(8 * k_mib, 60 * k_mib) == 0);
}

TEST_CASE("Coded: a half of the scratch is filled anew once what was in it is done with", "[coded]") {
    Weights weights(options(0), GENERATE(1U, 8U)); // one turn, or three
    const Full full(130 * k_mib);
    const auto copies_of_wake = [&] {
        REQUIRE(weights.fixture.sleep(level(1)));
        sim_reset_counts();
        weights.fixture.wake_whole();
        return sim_calls("cuMemcpyHtoDAsync");
    };
    const auto copies = copies_of_wake();
    const auto* const slow = GENERATE("cuLaunchKernel", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync");
    CAPTURE(slow);
    sim_delay(slow, 100'000);
    CHECK(copies_of_wake() == copies); // nothing came damaged, or it would be copied again
    sim_clear();
}

TEST_CASE("Coded: a GPU without memory to spare decodes from host memory, or the processors do", "[coded]") {
    Weights weights(options(0));
    const bool is_pinned = GENERATE(true, false);
    if (!is_pinned) sim_fail("cuMemHostRegister", 1, CUDA_ERROR_UNKNOWN, SIM_FOREVER);
    REQUIRE(weights.fixture.sleep(level(1)));
    REQUIRE(weights.coded_blocks() == 8);
    const Full full(Weights::k_bytes);
    sim_reset_counts();
    weights.fixture.wake_whole();
    CHECK(sim_calls("cuMemAlloc") == 0);
    CHECK((sim_calls("cuMemcpyHtoDAsync") == 0) == is_pinned);
    sim_clear();
    REQUIRE(weights.fixture.sleep(level(1))); // without memory to code in, it is raw
    CHECK(weights.coded_blocks() == 0);
    weights.fixture.wake_whole();
}

TEST_CASE("Coded: what is damaged on the way is brought once more, where it lies it is named", "[coded]") {
    Weights weights(options(0));
    REQUIRE(weights.fixture.sleep(level(1)));
    SECTION("on the way") {
        sim_corrupt_copy("cuMemcpyHtoDAsync", 1);
        weights.fixture.wake_whole();
        CHECK(sim_fault_counts().corrupted_copies == 1);
    }
    SECTION("as it is decoded") {
        sim_corrupt_copy("cuLaunchKernel", 1);
        weights.fixture.wake_whole();
    }
    SECTION("where it lies") {
        const auto offset = GENERATE(0U, 5U, 200U, 600'000U); // in the head, the offsets, the codes
        weights.fixture.flip_kept_bit(0, 3 * k_mib + offset, 4);
        CHECK(error_of(weights.fixture.wake()).code == ErrorCode::damaged);
        CHECK(weights.fixture.state() == model::State::damaged);
    }
}

TEST_CASE("Coded: parts can be read while they sleep", "[coded]") {
    Weights weights(options(0));
    REQUIRE(weights.fixture.sleep(level(1)));
    const auto& expected = weights.fixture.allocations()[0].contents;
    for (const Span part : {Span{0, 1}, Span{k_mib - 3, 7}, Span{3 * k_mib + 1234, 2 * k_mib}}) {
        std::vector<std::uint8_t> found(part.bytes);
        REQUIRE(contents::Contents::read(weights.kept(), part, reinterpret_cast<std::byte*>(found.data())));
        CHECK(std::equal(found.begin(), found.end(),
                         expected.begin() + static_cast<std::ptrdiff_t>(part.offset)));
    }
    weights.fixture.flip_kept_bit(0, 0, 0);
    std::byte byte{};
    CHECK(contents::Contents::read(weights.kept(), {0, 1}, &byte).error().code == ErrorCode::damaged);
}

TEST_CASE("Coded: contents move to files decoded, and those that are damaged stay", "[coded]") {
    Weights weights(options(0));
    const Scratch scratch;
    REQUIRE(weights.fixture.sleep(level(1)));
    const bool is_damaged = GENERATE(false, true);
    if (is_damaged) weights.fixture.flip_kept_bit(0, k_mib + 5000, 1);
    const auto moved = weights.fixture.sleep(in_files(scratch, true));
    CHECK(static_cast<bool>(moved) == !is_damaged);
    if (is_damaged) {
        CHECK(moved.error().code == ErrorCode::damaged);
        return;
    }
    CHECK(weights.fixture.host_bytes() == 0);
    weights.fixture.wake_whole();
}

TEST_CASE("Coded: checked copies are coded anew where they are damaged while the GPU has memory", "[coded]") {
    Weights weights;
    weights.fixture.cycle();
    weights.fixture.flip_kept_bit(0, 2 * k_mib + 77, 2);
    auto request = level(1);
    request.check_copies = true;
    REQUIRE(weights.fixture.sleep(request));
    CHECK(weights.coded_blocks() == 8);
    weights.fixture.wake_whole();
}

TEST_CASE("Coded: memory that has changed since it was measured is not taken for what it was", "[coded]") {
    Weights weights;
    const auto& api = weights.fixture.api();
    contents::Save save(weights.fixture.engine().contents(), {}, 1);
    auto context = need(driver::PrimaryContext::retain(api, 0));
    const auto session = need(driver::DeviceSession::open(api, std::move(context)));
    static_cast<void>(save.add({0, "weights"}, Store::host, weights.fixture.allocations()[0].address,
                               {{0, Weights::k_bytes}}));
    REQUIRE(save.seal(*session));
    put(weights.fixture, 0, random_bytes(Weights::k_bytes));
    save.lay_out();
    REQUIRE(save.begin());
    const sleep::Control control;
    contents::ProgressCounter progress(control, save.figures(0).moved);
    CHECK(error_of(save.take(*session, progress)).code == ErrorCode::refused);
}

TEST_CASE("Coded: what a program preserves lies at any address, and is kept as it is", "[coded]") {
    Weights weights;
    auto& backing = *weights.fixture.ledger().find(weights.fixture.allocations()[0].address);
    ledger::Ledger::preserve(backing, {k_mib + 8, 4 * k_mib});
    REQUIRE(weights.fixture.sleep(level(2)));
    CHECK(weights.coded_blocks() == 0);
    REQUIRE(weights.fixture.wake());
    const auto& found = weights.fixture.read(0);
    const auto& expected = weights.fixture.allocations()[0].contents;
    constexpr std::ptrdiff_t k_from = k_mib + 8;
    CHECK(std::equal(found.begin() + k_from, found.begin() + k_from + 4 * k_mib, expected.begin() + k_from));
}

TEST_CASE("Coded: a dry run needs no more than what is retained", "[coded]") {
    Weights weights;
    weights.fixture.cycle();
    CHECK(weights.fixture.slept(dry(level(1))).notes.empty());
    REQUIRE(weights.fixture.sleep(raw())); // which what is unchanged becomes, too
    CHECK(weights.coded_blocks() == 0);
    weights.fixture.wake_whole();
}
