// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the program is, and what the environment and the deny lists say of it.

#include "login/wanted.hpp"

#include "freestanding/system_calls.hpp"
#include "freestanding/text.hpp"
#include "login/deny_list.hpp"
#include "login/environment.hpp"

#include <cstddef>

namespace gpu_sleep::login {
namespace {

using freestanding::begins_with;
using freestanding::next;

constexpr std::size_t k_max_path = 4096;
constexpr const char* k_machine_list = "/etc/gpu-sleep.deny";
constexpr const char* k_name = "/gpu-sleep.deny";

/// Adds `text` to the path; it becomes empty where there is no room.
void append(char (&path)[k_max_path], std::size_t& length, const char* text) {
    for (; *text != '\0' && length + 1 < k_max_path; ++text) path[length++] = *text;
    if (*text != '\0') length = 0;
    path[length] = '\0';
}

bool is_denied_by_user(const Program& program) {
    char path[k_max_path];
    std::size_t length = 0;
    const auto* const directory = variable(environ, "XDG_CONFIG_HOME");
    const auto* const home = variable(environ, "HOME");
    if (directory && *directory == '/') {
        append(path, length, directory);
    } else if (home && *home == '/') {
        append(path, length, home);
        append(path, length, "/.config");
    } else {
        return false;
    }
    append(path, length, k_name);
    return is_denied_by(path, program);
}

/// The words of the command line, as far as there is room, each with a zero at its end and one more.
template <std::size_t size>
void read_words(char (&words)[size]) {
    std::size_t length = 0;
    const int fd = freestanding::open_to_read("/proc/self/cmdline");
    for (long got = 1; fd >= 0 && got > 0 && length + 2 < size;) {
        got = freestanding::read_some(fd, words + length, size - length - 2);
        if (got > 0) length += static_cast<std::size_t>(got);
    }
    if (fd >= 0) freestanding::close_file(fd);
    words[length] = words[length + 1] = '\0';
}

bool runs_scripts(const char* name) {
    const char* interpreter = "python\0perl\0ruby\0julia\0node\0lua\0bash\0dash\0sh\0";
    for (; *interpreter != '\0'; interpreter = next(interpreter))
        if (begins_with(name, interpreter)) return true;
    return false;
}

} // namespace

bool is_wanted() {
    const auto* const disabled = variable(environ, "GPU_SLEEP_DISABLE");
    if (disabled && *disabled != '\0' && !freestanding::is_same(disabled, "0")) return false;
    char path[k_max_path];
    char words[k_max_path];
    freestanding::read_link("/proc/self/exe", path);
    read_words(words);
    Program program{path, words, ""};
    if (runs_scripts(freestanding::file_name(path)))
        for (const char* word = *words != '\0' ? next(words) : words; *word != '\0'; word = next(word)) {
            if (*word == '-') continue;
            program.script = word;
            break;
        }
    return !is_denied_by(k_machine_list, program) && !is_denied_by_user(program);
}

} // namespace gpu_sleep::login
