// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Routines of a program that is not linked to libcuda, and finds it late. `driver`: itself, by dlopen and
// dlsym; `plugin FILE`: through a library; `deep FILE`: through one that is bound to its own dependencies
// first; `apart FILE`: through one in a namespace of its own. In between it closes what it opened.

#include "../interception/routines.hpp"

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace gpu_sleep::test {
namespace {

template <class Function>
Function* find(void* library, const char* name) {
    return reinterpret_cast<Function*>(::dlsym(library, name));
}

constexpr std::size_t k_bytes = std::size_t{4} << 20;

void require(bool is_so, const char* what) {
    if (is_so) return;
    const char* reason = ::dlerror();
    std::fprintf(stderr, "%s: %s\n", what, reason ? reason : "failed");
    std::exit(99);
}

void say_and_wait(const char* text) {
    char line[64];
    std::puts(text);
    std::fflush(stdout);
    if (!std::fgets(line, sizeof line, stdin)) std::exit(0);
}

std::uint64_t use_driver(void* driver) {
    const auto init = find<int(unsigned)>(driver, "cuInit");
    const auto retain = find<int(void**, int)>(driver, "cuDevicePrimaryCtxRetain");
    const auto set = find<int(void*)>(driver, "cuCtxSetCurrent");
    const auto take = find<int(std::uint64_t*, std::size_t)>(driver, "cuMemAlloc_v2");
    require(init && retain && set && take, "dlsym");
    void* context = nullptr;
    std::uint64_t address = 0;
    require(init(0) == 0 && retain(&context, 0) == 0 && set(context) == 0 && take(&address, k_bytes) == 0,
            "CUDA");
    return address;
}

int find_driver_twice(void) {
    require(::dlsym(RTLD_NEXT, "dlsym") == ::dlsym(RTLD_DEFAULT, "dlsym"),
            "what follows this program was looked up as what follows a library");
    require(!::dlsym(RTLD_DEFAULT, "cuInit"), "a driver, though none is loaded");
    for (int i = 0; i < 2; ++i) {
        void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        require(driver != nullptr, "dlopen");
        require(!::dlsym(driver, "cuNoSuchThing") && ::dlerror(), "an unknown symbol was found");
        require(!::dlsym(driver, "cuMulticastBindMem"), "a symbol that the driver lacks was found");
        require(!::dlsym(RTLD_DEFAULT, "cuMulticastBindMem"),
                "a symbol that the driver lacks was found everywhere");
        use_driver(driver);
        require(::dlclose(driver) == 0, "dlclose");
        say_and_wait(i == 0 ? "ready" : "again");
    }
    return 0;
}

int load_plugin(const std::string& file, int flags, long namespace_id) {
    for (int i = 0; i < 2; ++i) {
        void* plugin = namespace_id == LM_ID_BASE ? ::dlopen(file.c_str(), RTLD_NOW | flags)
                                                  : ::dlmopen(namespace_id, file.c_str(), RTLD_NOW | flags);
        require(plugin != nullptr, file.c_str());
        const auto take = find<int(std::uint64_t*, std::size_t)>(plugin, "plugin_allocate");
        const auto touch = find<int(std::uint64_t, std::size_t)>(plugin, "plugin_touch");
        std::uint64_t address = 0;
        require(take && touch && take(&address, k_bytes) == 0 && touch(address, k_bytes) == 0, "the plug-in");
        say_and_wait(i == 0 ? "ready" : "again");
        require(touch(address, k_bytes) == 0, "the plug-in's touch");
        require(::dlclose(plugin) == 0, "dlclose");
    }
    if (flags & RTLD_DEEPBIND) say_and_wait("done"); // who wakes it is to have its answer
    return 0;
}

const AddRoutines g_routines({
    {"driver", [](const auto&) { return find_driver_twice(); }},
    {"plugin", [](const auto& words) { return load_plugin(words.at(0), RTLD_LOCAL, LM_ID_BASE); }},
    {"deep",
     [](const auto& words) { return load_plugin(words.at(0), RTLD_LOCAL | RTLD_DEEPBIND, LM_ID_BASE); }},
    {"apart", [](const auto& words) { return load_plugin(words.at(0), RTLD_LOCAL, LM_ID_NEWLM); }},
});

} // namespace
} // namespace gpu_sleep::test
