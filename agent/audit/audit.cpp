// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// libgpu-sleep-audit.so: for programs that load plug-ins out of preloading's reach (RTLD_DEEPBIND, dlmopen).
// The loader tells it of each symbol that it binds (LD_AUDIT); what would be bound to libcuda itself is bound
// to the agent. Until a program calls the driver, and in a program without, it does nothing. It uses no
// library, not even the C library: the loader would load another one for it. Source: rtld-audit(7).

#include "freestanding/elf_symbols.hpp"
#include "freestanding/no_c_library.hpp"

#include <elf.h>
#include <link.h>

#include <cstdint>

namespace {

using gpu_sleep::freestanding::begins_with;
using gpu_sleep::freestanding::file_name;
using gpu_sleep::freestanding::is_same;
using gpu_sleep::freestanding::Symbols;

/// The libraries that matter, in the namespace of the program; null while they are not loaded. Changed by the
/// loader's calls only, which it makes one at a time; read by those that bind symbols at any time.
const link_map* g_agent = nullptr;
const link_map* g_driver = nullptr;

/// Whether the map's file is called `name`, with or without a version behind it.
bool is_called(const link_map& map, const char* name) {
    const char* file = file_name(map.l_name ? map.l_name : "");
    if (!begins_with(file, name)) return false;
    while (*name != '\0') {
        ++name;
        ++file;
    }
    return *file == '\0' || *file == '.';
}

bool is_driver(const link_map& map) {
    return is_called(map, "libcuda.so");
}
bool has_dlsym(const link_map& map) {
    return is_called(map, "libc.so") || is_called(map, "libdl.so");
}

const link_map* map_of(const std::uintptr_t* cookie) {
    return reinterpret_cast<const link_map*>(*cookie & ~std::uintptr_t{1});
}
/// Cookies are the maps' addresses; the lowest bit says that the library is in a namespace of its own.
bool is_apart(const std::uintptr_t* cookie) {
    return (*cookie & 1) != 0;
}

/// Whether the agent is to answer a reference from one library to another.
bool is_for_agent(const std::uintptr_t* from, const std::uintptr_t* to, const char* name) {
    const auto* const definer = map_of(to);
    const auto* const agent = __atomic_load_n(&g_agent, __ATOMIC_ACQUIRE);
    if (!agent || map_of(from) == agent || definer == agent || map_of(from) == definer) return false;
    // The C library of another namespace keeps its own errors of look-ups, which ours would not set.
    if (name[0] == 'd') return is_same(name, "dlsym") && has_dlsym(*definer) && !is_apart(to);
    if (name[0] != 'c' || name[1] != 'u' || !is_driver(*definer)) return false;
    // The agent calls the program's libcuda: a library that has one of its own alone keeps it.
    return !is_apart(to) || __atomic_load_n(&g_driver, __ATOMIC_ACQUIRE) != nullptr;
}

} // namespace

#define GPU_SLEEP_AUDIT extern "C" __attribute__((visibility("default")))

GPU_SLEEP_AUDIT unsigned la_version(unsigned version) {
    return version < LAV_CURRENT ? version : LAV_CURRENT;
}

GPU_SLEEP_AUDIT unsigned la_objopen(link_map* map, Lmid_t in, std::uintptr_t* cookie) {
    *cookie = reinterpret_cast<std::uintptr_t>(map) | (in == LM_ID_BASE ? 0 : 1);
    if (in == LM_ID_BASE && is_called(*map, "libgpu-sleep-agent.so"))
        __atomic_store_n(&g_agent, map, __ATOMIC_RELEASE);
    if (in == LM_ID_BASE && is_driver(*map)) __atomic_store_n(&g_driver, map, __ATOMIC_RELEASE);
    return LA_FLG_BINDFROM | (is_driver(*map) || has_dlsym(*map) ? LA_FLG_BINDTO : 0);
}

GPU_SLEEP_AUDIT unsigned la_objclose(std::uintptr_t* cookie) {
    if (map_of(cookie) == g_driver && !is_apart(cookie))
        __atomic_store_n(&g_driver, static_cast<const link_map*>(nullptr), __ATOMIC_RELEASE);
    return 0;
}

GPU_SLEEP_AUDIT std::uintptr_t la_symbind64(Elf64_Sym* symbol, unsigned /*index*/, std::uintptr_t* from,
                                            std::uintptr_t* to, unsigned* /*flags*/, const char* name) {
    if (!is_for_agent(from, to, name)) return symbol->st_value;
    const auto* const agent = __atomic_load_n(&g_agent, __ATOMIC_ACQUIRE);
    const auto* const ours = Symbols(agent->l_addr, agent->l_ld).find(name);
    return ours ? agent->l_addr + ours->st_value : symbol->st_value;
}
