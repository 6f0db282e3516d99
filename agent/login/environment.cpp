// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Finding and shortening LD_PRELOAD.

#include "login/environment.hpp"

#include "freestanding/text.hpp"

#include <elf.h>

extern "C" __attribute__((weak)) unsigned long getauxval(unsigned long kind);

namespace gpu_sleep::login {
namespace {

using freestanding::begins_with;
using freestanding::file_name;
using freestanding::is_same;

constexpr const char* k_library = "libgpu-sleep-login.so";
constexpr const char* k_preload = "LD_PRELOAD=";
/// They give a program another root, and their environment with it.
constexpr char k_container_programs[] = "apptainer\0singularity\0starter\0starter-suid\0podman\0buildah\0"
                                        "docker\0nerdctl\0ctr\0runc\0crun\0bwrap\0flatpak\0enroot\0ch-run\0"
                                        "shifter\0sarus\0chroot\0nsenter\0systemd-nspawn\0lxc-attach\0";

/// The name by which the kernel was asked for the program. Source: getauxval(3).
const char* executed_name() {
    const auto name = getauxval ? getauxval(AT_EXECFN) : 0;
    return name ? file_name(reinterpret_cast<const char*>(name)) : "";
}

bool enters_containers(const char* program) {
    for (const char* name = k_container_programs; *name != '\0'; name = freestanding::next(name))
        if (is_same(name, program)) return true;
    return false;
}

bool is_separator(char byte) {
    return byte == ':' || byte == ' ' || byte == '\t' || byte == '\n';
}

/// Whether the text up to the next separator is this library's path.
bool is_this_library(const char* path) {
    const char* name = path;
    for (; *path != '\0' && !is_separator(*path); ++path)
        if (*path == '/') name = path + 1;
    return begins_with(name, k_library);
}

/// Takes this library out of the list; the others stay in their order. Whether any is left.
bool shorten(char* list) {
    char* written = list;
    const char* at = list;
    while (*at != '\0') {
        const bool goes = is_this_library(at);
        if (!goes && written != list) *written++ = ':';
        for (; *at != '\0' && !is_separator(*at); ++at)
            if (!goes) *written++ = *at;
        while (is_separator(*at)) ++at;
    }
    *written = '\0';
    return written != list;
}

} // namespace

const char* variable(char** variables, const char* name) {
    for (; variables && *variables; ++variables) {
        if (!begins_with(*variables, name)) continue;
        const char* value = *variables;
        for (const char* at = name; *at != '\0'; ++at) ++value;
        if (*value == '=') return value + 1;
    }
    return nullptr;
}

void keep_from_containers(char** variables) {
    if (!variables || !enters_containers(executed_name())) return;
    auto** kept = variables;
    for (auto** each = variables; *each; ++each) {
        const bool stays = !begins_with(*each, k_preload) || shorten(*each + sizeof "LD_PRELOAD=" - 1);
        if (stays) *kept++ = *each;
    }
    *kept = nullptr;
}

} // namespace gpu_sleep::login
