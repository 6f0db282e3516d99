// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Arenas for tests, and their preparation.

#pragma once

#include "store/arena_preparer.hpp"
#include "support/failing_call.hpp"
#include "support/mapping.hpp"
#include "support/result_printing.hpp"

namespace gpu_sleep::test {

using Arenas = std::vector<std::unique_ptr<store::HostArena>>;

[[nodiscard]] inline std::unique_ptr<store::HostArena> make_arena(Bytes bytes,
                                                                  store::Pinner* pinner = nullptr) {
    auto arena = store::HostArena::create(bytes, pinner);
    REQUIRE(arena);
    return *std::move(arena);
}

/// Adds a piece that is ready to `stock`.
[[nodiscard]] inline Result<void> grow(store::HostArena& stock, store::Pinner* pinner) {
    const auto piece = make_arena(store::HostArena::k_piece_bytes, pinner);
    GPU_SLEEP_TRY(piece->make_ready());
    stock.absorb(*piece, 1);
    return {};
}

[[nodiscard]] inline Arenas make_arenas(std::size_t count, Bytes bytes, store::Pinner* pinner = nullptr) {
    Arenas arenas;
    for (std::size_t i = 0; i < count; ++i) arenas.push_back(make_arena(bytes, pinner));
    return arenas;
}

[[nodiscard]] inline std::unique_ptr<store::ArenaPreparer>
start(const Arenas& arenas, const store::ArenaPreparer::Options& options) {
    std::vector<store::HostArena*> pointers;
    for (const auto& arena : arenas) pointers.push_back(arena.get());
    auto preparer = store::ArenaPreparer::start(std::move(pointers), options);
    REQUIRE(preparer);
    return *std::move(preparer);
}

/// A budget that stays until the tests end, and leaves `reserve`.
[[nodiscard]] inline store::HostBudget& budget_of(std::function<store::Headroom()> headroom,
                                                  Bytes reserve = 256 * k_mib) {
    static std::deque<store::HostBudget> s_budgets;
    store::HostBudget::Options options;
    options.directory.clear();
    options.reserve = reserve;
    options.headroom = std::move(headroom);
    return s_budgets.emplace_back(std::move(options));
}

[[nodiscard]] inline store::ArenaPreparer::Options
with_headroom(std::function<store::Headroom()> headroom, unsigned threads = 6, Bytes reserve = 256 * k_mib) {
    store::ArenaPreparer::Options options;
    options.threads = threads;
    options.budget = &budget_of(std::move(headroom), reserve);
    options.patience = Milliseconds(0);
    return options;
}

[[nodiscard]] inline store::Headroom plenty() {
    return {std::numeric_limits<Bytes>::max(), "nothing"};
}

/// What of their pieces has all its pages.
[[nodiscard]] inline Bytes populated(const Arenas& arenas) {
    Bytes sum = 0;
    for (const auto& arena : arenas)
        for (std::size_t i = 0; i < arena->piece_count(); ++i)
            if (is_populated(arena->piece(i))) sum += arena->piece(i).size();
    return sum;
}

/// Prepares 1 MiB on a thread for which `calls` fail. Nothing where the system does not allow that.
[[nodiscard]] inline std::optional<Result<void>> prepare_under(std::initializer_list<FailingCall> calls) {
    const auto arena = make_arena(k_mib);
    Result<void> result;
    const bool was_run = with_failing_calls(calls, [&] {
        auto preparer = store::ArenaPreparer::start({arena.get()}, with_headroom(plenty));
        result = preparer ? (*preparer)->wait(*arena, 0) : Result<void>(preparer.error());
    });
    if (!was_run) return std::nullopt;
    CHECK(is_populated(arena->piece(0)) == result.has_value());
    return result;
}

} // namespace gpu_sleep::test
