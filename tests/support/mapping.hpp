// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the kernel says about memory of this process: what is mapped, and what of it has pages.

#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace gpu_sleep::test {

/// A mapping of /proc/self/smaps. Sizes in bytes.
struct Mapping {
    std::uint64_t size = 0, resident = 0;
    std::string flags; ///< two letters each, with a blank before and after: " rd wr mr "
};

/// The mapping that begins at `begin`; nothing if none does.
[[nodiscard]] inline std::optional<Mapping> mapping_at(const void* begin) {
    std::ostringstream start;
    start << std::hex << reinterpret_cast<std::uintptr_t>(begin) << '-';
    std::ifstream smaps("/proc/self/smaps");
    std::string line;
    while (std::getline(smaps, line) && line.rfind(start.str(), 0) != 0) {
    }
    if (!smaps) return std::nullopt;
    Mapping mapping;
    while (std::getline(smaps, line)) {
        std::istringstream words(line);
        std::string key;
        std::uint64_t kib = 0;
        words >> key;
        if (key == "Size:" && words >> kib) mapping.size = kib * 1024;
        if (key == "Rss:" && words >> kib) mapping.resident = kib * 1024;
        if (key != "VmFlags:") continue;
        std::getline(words, mapping.flags);
        mapping.flags += ' ';
        break;
    }
    return mapping;
}

/// The size of everything that this process has mapped.
[[nodiscard]] inline std::uint64_t address_space_bytes() {
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

/// Whether anything is mapped at `address`, a page's.
[[nodiscard]] inline bool is_mapped(std::byte* address) {
    unsigned char page = 0;
    return ::mincore(address, 1, &page) == 0;
}

/// Whether every page of `memory`, which begins with a page, is there.
[[nodiscard]] inline bool is_populated(std::span<std::byte> memory) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> pages((memory.size() + page - 1) / page);
    if (::mincore(memory.data(), memory.size(), pages.data()) != 0) return false;
    return std::all_of(pages.begin(), pages.end(), [](unsigned char bits) { return (bits & 1U) != 0; });
}

} // namespace gpu_sleep::test
