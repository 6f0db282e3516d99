/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright the gpu-sleep authors. */
/* A plug-in that looks a function up as it is loaded: NAME in the library FILE. */

#include <dlfcn.h>

__attribute__((constructor)) static void look_up(void) {
    void* const library = dlopen(FILE, RTLD_NOW);
    if (library) dlsym(library, NAME);
}
