// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The promises about memory, on one device: contents, spans, damage, and small allocations.

#include "base/exit_status.hpp"
#include "support/gpu.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

using namespace gpu_sleep;
using namespace gpu_sleep::test;

namespace {

constexpr Bytes k_bytes = 64 * k_mib;

Words zeros(Bytes bytes) {
    return Words(bytes / sizeof(std::uint32_t));
}

/// Addresses of this process, readable and writable, of no file.
struct Mapping {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    bool is_protected = false; ///< out of reach of reads and writes
    friend bool operator<(const Mapping& a, const Mapping& b) {
        return std::tie(a.begin, a.end, a.is_protected) < std::tie(b.begin, b.end, b.is_protected);
    }
};

std::set<Mapping> private_memory() {
    std::set<Mapping> found;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        std::istringstream words(line);
        Mapping mapping;
        char dash = 0;
        std::string rights;
        std::string offset;
        std::string device;
        std::uint64_t inode = 0;
        words >> std::hex >> mapping.begin >> dash >> mapping.end >> rights >> offset >> device >> inode;
        mapping.is_protected = rights == "---p";
        if ((rights == "rw-p" || mapping.is_protected) && inode == 0) found.insert(mapping);
    }
    return found;
}

/// Whether both pages are equal. Looks at memory that is not the test's own, which sanitizers would object
/// to.
__attribute__((no_sanitize("address", "thread"), noinline)) bool
equal_pages(const volatile std::uint64_t* a, const volatile std::uint64_t* b) {
    for (std::size_t i = 0; i < 4096 / sizeof(std::uint64_t); ++i)
        if (a[i] != b[i]) return false;
    return true;
}

/// Where in the memory that is new since `before` a page begins with the beginning of `contents`; null if
/// none. It can be written to: the agent has put what it keeps out of reach.
std::byte* find_kept(const std::set<Mapping>& before, const Words& contents) {
    constexpr std::uintptr_t k_page = 4096;
    for (const auto& mapping : private_memory()) {
        if (before.contains(mapping)) continue;
        if (mapping.is_protected) {
            const auto bytes = mapping.end - mapping.begin;
            const bool may_be_kept = bytes >= k_bytes && bytes < 2 * k_bytes; // drivers reserve far more
            if (!may_be_kept ||
                ::mprotect(reinterpret_cast<void*>(mapping.begin), bytes, PROT_READ | PROT_WRITE) != 0)
                continue;
        }
        for (auto page = mapping.begin; page < mapping.end; page += k_page) {
            auto* memory = reinterpret_cast<std::byte*>(page);
            if (equal_pages(reinterpret_cast<const std::uint64_t*>(page),
                            reinterpret_cast<const std::uint64_t*>(contents.data())))
                return memory;
        }
    }
    return nullptr;
}

} // namespace

TEST_CASE("Level 1: memory is free while asleep, and contents come back", "[basic]") {
    const Gpu gpu(0);
    const TaggedMemory weights("weights", k_bytes);
    const TaggedMemory cache("kv_cache", k_bytes);
    const auto weights_contents = random_words(k_bytes, 1);
    const auto cache_contents = random_words(k_bytes, 2);
    weights.write(weights_contents);
    cache.write(cache_contents);
    const auto free_awake = gpu.free_bytes();

    REQUIRE(command("gpu-sleep") == 0);
    CHECK(gpu.free_bytes() >= free_awake + 2 * k_bytes * 9 / 10); // others come and go
    REQUIRE(command("gpu-wake", {"--tags", "kv_cache"}) == 0);
    CHECK(cache.read() == cache_contents);
    CHECK(gpu_sleep_asleep_bytes() == k_bytes);
    REQUIRE(command("gpu-wake") == 0);
    CHECK(weights.read() == weights_contents);
}

TEST_CASE("Level 2: contents are dropped, but for preserved spans", "[basic]") {
    constexpr Bytes k_span_offset = 5 * k_mib + 12;
    constexpr Bytes k_span_bytes = 3 * k_mib + 20;
    const Gpu gpu(0);
    const TaggedMemory weights("weights", k_bytes);
    const auto contents = random_words(k_bytes, 3);
    weights.write(contents);
    check(gpu_sleep_preserve(static_cast<std::byte*>(weights.pointer()) + k_span_offset, k_span_bytes));

    REQUIRE(command("gpu-sleep", {"--level", "2"}) == 0);
    REQUIRE(command("gpu-wake") == 0);
    auto expected = zeros(k_bytes);
    constexpr auto k_first = k_span_offset / sizeof(std::uint32_t);
    std::copy_n(contents.begin() + k_first, k_span_bytes / sizeof(std::uint32_t), expected.begin() + k_first);
    CHECK(weights.read() == expected);
}

TEST_CASE("Damage: a bit that flips in host memory is detected, and can be given up", "[basic]") {
    const Gpu gpu(0);
    const TaggedMemory weights("weights", k_bytes);
    const auto contents = random_words(k_bytes, 4);
    weights.write(contents);
    const auto memory_awake = private_memory();
    REQUIRE(command("gpu-sleep") == 0);
    auto* kept = find_kept(memory_awake, contents);
    REQUIRE(kept != nullptr);
    kept[k_bytes / 2 + 17] ^= std::byte{8};

    CHECK(command("gpu-wake") == exit_status::damaged);
    CHECK(gpu_sleep_asleep_bytes() == k_bytes);
    CHECK(command("gpu-wake") == exit_status::damaged);
    REQUIRE(command("gpu-sleep", {"--level", "2"}) == 0);
    REQUIRE(command("gpu-wake") == 0);
    CHECK(weights.read() == zeros(k_bytes));
}

TEST_CASE("Small allocations: ten thousand share ranges, and each keeps its contents", "[basic]") {
    constexpr std::size_t k_count = 10'000;
    constexpr Bytes k_small_bytes = 4 * k_kib;
    const Gpu gpu(0);
    const auto contents = random_words(k_count * k_small_bytes, 5);
    constexpr auto k_words = k_small_bytes / sizeof(std::uint32_t);
    const auto part = [&](std::size_t i) {
        const auto first = contents.begin() + static_cast<std::ptrdiff_t>(i * k_words);
        return Words(first, first + k_words);
    };
    const auto free_before = gpu.free_bytes();
    std::vector<TaggedMemory> memory;
    for (std::size_t i = 0; i < k_count; ++i) {
        memory.emplace_back("buffers", k_small_bytes);
        memory.back().write(part(i));
    }
    CHECK(free_before - gpu.free_bytes() < 2 * k_count * k_small_bytes);

    REQUIRE(command("gpu-sleep") == 0);
    REQUIRE(command("gpu-wake") == 0);
    std::size_t intact = 0;
    for (std::size_t i = 0; i < k_count; ++i) intact += memory[i].read() == part(i) ? 1 : 0;
    CHECK(intact == k_count);
}
