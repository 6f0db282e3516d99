// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the static libstdc++ and libgcc ask of a newer glibc: with these, what is built on such a system runs
// on older ones. Sources: glibc's manual, "Single-Threaded Optimizations" (2.32) and _dl_find_object (2.35);
// arc4random(3) (2.36), which is for std::random_device.

#include <dlfcn.h>
#include <link.h>
#include <sys/random.h>

#include <cstdint>

#define GPU_SLEEP_OWN extern "C" __attribute__((visibility("hidden")))

GPU_SLEEP_OWN std::uint32_t arc4random() noexcept {
    std::uint32_t number = 0;
    while (::getrandom(&number, sizeof(number), 0) != sizeof(number)) {
    }
    return number;
}

GPU_SLEEP_OWN char __libc_single_threaded;
char __libc_single_threaded = 0; // there are others, for all that is known

#if __GLIBC_PREREQ(2, 35)
namespace {

// The C library's own takes no lock. It is looked up when this is loaded, because that takes one.
using Find = int (*)(void*, dl_find_object*);
const auto g_find = reinterpret_cast<Find>(::dlvsym(RTLD_DEFAULT, "_dl_find_object", "GLIBC_2.35"));

/// What is found begins as an address alone.
int find_in(dl_phdr_info* library, std::size_t /*size*/, void* found) {
    auto& object = *static_cast<dl_find_object*>(found);
    const auto address = reinterpret_cast<ElfW(Addr)>(object.dlfo_map_start);
    bool is_inside = false;
    object.dlfo_eh_frame = nullptr;
    for (int i = 0; i < library->dlpi_phnum; ++i) {
        const auto& part = library->dlpi_phdr[i];
        const auto begin = library->dlpi_addr + part.p_vaddr;
        if (part.p_type == PT_LOAD && address - begin < part.p_memsz) is_inside = true;
        if (part.p_type == PT_GNU_EH_FRAME) object.dlfo_eh_frame = reinterpret_cast<void*>(begin);
    }
    return is_inside && object.dlfo_eh_frame ? 1 : 0;
}

} // namespace

/// Of what is found, libgcc reads `dlfo_eh_frame` alone.
GPU_SLEEP_OWN int _dl_find_object(void* address, dl_find_object* found) noexcept {
    if (g_find) return g_find(address, found);
    found->dlfo_map_start = address;
    return ::dl_iterate_phdr(find_in, found) == 1 ? 0 : -1;
}
#endif
