// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Finding a symbol in a loaded library, without the loader and without the C library.

#pragma once

#include "freestanding/no_c_library.hpp"

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>

namespace gpu_sleep::freestanding {

/// The part of a library's dynamic section that finds symbols by name.
struct Symbols {
    const ElfW(Sym) * symbols = nullptr;
    const char* names = nullptr;
    const std::uint32_t* hashes = nullptr;

    /// `base` is where the library lies, and `entry` begins its dynamic section.
    Symbols(ElfW(Addr) base, const ElfW(Dyn) * entry) {
        for (; entry->d_tag != DT_NULL; ++entry) {
            // The loader may or may not have added where the library lies.
            const auto value = entry->d_un.d_ptr;
            const auto address = value < base ? value + base : value;
            if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(address);
            if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(address);
            if (entry->d_tag == DT_GNU_HASH) hashes = reinterpret_cast<const std::uint32_t*>(address);
        }
    }

    /// Returns the library's symbol `name`, or null. Source: the GNU hash table, as binutils writes it.
    [[nodiscard]] const ElfW(Sym) * find(const char* name) const {
        if (!symbols || !names || !hashes) return nullptr;
        const auto bucket_count = hashes[0];
        const auto first_hashed = hashes[1];
        const auto filter_words = hashes[2];
        const auto* const buckets = hashes + 4 + filter_words * (sizeof(ElfW(Addr)) / sizeof(std::uint32_t));
        const auto* const chains = buckets + bucket_count;
        std::uint32_t hash = 5381;
        for (const char* at = name; *at != '\0'; ++at) hash = hash * 33 + static_cast<unsigned char>(*at);
        auto index = bucket_count != 0 ? buckets[hash % bucket_count] : 0;
        if (index < first_hashed) return nullptr;
        for (;; ++index) {
            const auto chained = chains[index - first_hashed];
            const auto& symbol = symbols[index];
            if ((chained | 1U) == (hash | 1U) && symbol.st_shndx != SHN_UNDEF &&
                is_same(names + symbol.st_name, name))
                return &symbol;
            if ((chained & 1U) != 0) return nullptr;
        }
    }
};

} // namespace gpu_sleep::freestanding
