// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Symbols of loaded libraries, found without the loader, are those that it finds.

#include "freestanding/elf_symbols.hpp"

#include "support/catch.hpp"

#include <dlfcn.h>

using gpu_sleep::freestanding::Symbols;

namespace {

/// Of all loaded libraries the first that defines `name`.
void* first_of(const char* name) {
    struct Wanted {
        const char* name;
        void* found;
    } wanted{name, nullptr};
    ::dl_iterate_phdr(
        [](dl_phdr_info* library, std::size_t, void* data) {
            auto& looked_for = *static_cast<Wanted*>(data);
            for (int i = 0; i < library->dlpi_phnum; ++i) {
                if (library->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
                const auto* const dynamic =
                    reinterpret_cast<const ElfW(Dyn)*>(library->dlpi_addr + library->dlpi_phdr[i].p_vaddr);
                const auto* const symbol = Symbols(library->dlpi_addr, dynamic).find(looked_for.name);
                if (symbol) looked_for.found = reinterpret_cast<void*>(library->dlpi_addr + symbol->st_value);
            }
            return looked_for.found ? 1 : 0;
        },
        &wanted);
    return wanted.found;
}

} // namespace

TEST_CASE("ELF symbols: what the loader finds is found", "[elf_symbols]") {
    for (const auto* name : {"dlopen", "getpid", "malloc", "cos"}) {
        INFO(name);
        void* const known = ::dlsym(RTLD_DEFAULT, name);
        if (known) CHECK(first_of(name) != nullptr);
    }
    CHECK(first_of("getpid") == ::dlsym(RTLD_DEFAULT, "getpid"));
    CHECK(first_of("no_library_has_this") == nullptr);
}
