/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright the gpu-sleep authors. */
/* A program that is not linked to libcuda, and finds it late: `driver`: itself, by dlopen and dlsym; `plugin
 * FILE`: through a library; `deep FILE`: through one that is bound to its own dependencies first; `apart
 * FILE`: through one in a namespace of its own. In between it closes what it opened. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t k_bytes = (size_t)4 << 20;

static void require(int is_so, const char* what) {
    if (is_so) return;
    const char* reason = dlerror();
    fprintf(stderr, "%s: %s\n", what, reason ? reason : "failed");
    exit(99);
}

static void say_and_wait(const char* text) {
    char line[64];
    puts(text);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(0);
}

static uint64_t use_driver(void* driver) {
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    int (*retain)(void**, int) = (int (*)(void**, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*set)(void*) = (int (*)(void*))dlsym(driver, "cuCtxSetCurrent");
    int (*take)(uint64_t*, size_t) = (int (*)(uint64_t*, size_t))dlsym(driver, "cuMemAlloc_v2");
    require(init && retain && set && take, "dlsym");
    void* context = NULL;
    uint64_t address = 0;
    require(init(0) == 0 && retain(&context, 0) == 0 && set(context) == 0 && take(&address, k_bytes) == 0,
            "CUDA");
    return address;
}

static int find_driver_twice(void) {
    require(!dlsym(RTLD_DEFAULT, "cuInit"), "a driver, though none is loaded");
    for (int i = 0; i < 2; ++i) {
        void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        require(driver != NULL, "dlopen");
        require(!dlsym(driver, "cuNoSuchThing") && dlerror(), "an unknown symbol was found");
        require(!dlsym(driver, "cuMulticastBindMem"), "a symbol that the driver lacks was found");
        require(!dlsym(RTLD_DEFAULT, "cuMulticastBindMem"),
                "a symbol that the driver lacks was found everywhere");
        use_driver(driver);
        require(dlclose(driver) == 0, "dlclose");
        say_and_wait(i == 0 ? "ready" : "again");
    }
    return 0;
}

static int load_plugin(const char* file, int flags, long namespace_id) {
    for (int i = 0; i < 2; ++i) {
        void* plugin = namespace_id == LM_ID_BASE ? dlopen(file, RTLD_NOW | flags)
                                                  : dlmopen(namespace_id, file, RTLD_NOW | flags);
        require(plugin != NULL, file);
        int (*take)(uint64_t*, size_t) = (int (*)(uint64_t*, size_t))dlsym(plugin, "plugin_allocate");
        int (*touch)(uint64_t, size_t) = (int (*)(uint64_t, size_t))dlsym(plugin, "plugin_touch");
        uint64_t address = 0;
        require(take && touch && take(&address, k_bytes) == 0 && touch(address, k_bytes) == 0, "the plug-in");
        say_and_wait(i == 0 ? "ready" : "again");
        require(touch(address, k_bytes) == 0, "the plug-in's touch");
        require(dlclose(plugin) == 0, "dlclose");
    }
    if (flags & RTLD_DEEPBIND) say_and_wait("done"); /* who wakes it is to have its answer */
    return 0;
}

int main(int count, char** arguments) {
    const char* how = count > 1 ? arguments[1] : "";
    if (strcmp(how, "driver") == 0) return find_driver_twice();
    if (count < 3) return 2;
    if (strcmp(how, "plugin") == 0) return load_plugin(arguments[2], RTLD_LOCAL, LM_ID_BASE);
    if (strcmp(how, "deep") == 0) return load_plugin(arguments[2], RTLD_LOCAL | RTLD_DEEPBIND, LM_ID_BASE);
    if (strcmp(how, "apart") == 0) return load_plugin(arguments[2], RTLD_LOCAL, LM_ID_NEWLM);
    return 2;
}
