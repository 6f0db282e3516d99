// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// libgpu-sleep-login.so: what the login environment preloads into every program (gpu-enable). It
// loads the agent once the program turns to libcuda, and passes the program's calls and look-ups on to it.
// Where the agent is not wanted, or cannot be loaded, they go where they would go without it. It needs no
// library and no version of one: whatever a container has for a C library, no program fails for it. A
// function that is missing is null here.

#include "declared_entry_points.hpp"
#include "freestanding/elf_symbols.hpp"
#include "freestanding/no_c_library.hpp"
#include "freestanding/trampolines.hpp"
#include "login/agent_places.hpp"
#include "login/deny_list.hpp"

#include <elf.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

extern "C" {
extern char** environ __attribute__((weak)); ///< the C library's; null where it has none
__attribute__((weak)) unsigned long getauxval(unsigned long kind);
__attribute__((weak)) void* dlopen(const char* file, int mode);
__attribute__((weak)) void* dlvsym(void* handle, const char* name, const char* version);
__attribute__((weak)) char* dlerror();
__attribute__((weak)) int dl_iterate_phdr(int (*visit)(dl_phdr_info*, std::size_t, void*), void* data);
__attribute__((weak)) const char* gnu_get_libc_version();
// From the linker: where this library begins and ends.
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));
}

namespace gpu_sleep::login {
namespace {

using freestanding::begins_with;
using freestanding::file_name;
using freestanding::is_same;
using freestanding::next;

// ---- standard error

constexpr int k_standard_error = 2;

bool read_standard_error(struct stat& status) {
    return freestanding::system_call(SYS_fstat, k_standard_error, reinterpret_cast<long>(&status)) == 0;
}

/// As the program had it when it began. One that closes it may have its data there later.
constinit struct stat g_standard_error {};

// ---- the environment: finding and shortening LD_PRELOAD

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
    for (const char* name = k_container_programs; *name != '\0'; name = next(name))
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

/// The value of a variable, or null. `variables` may be null.
const char* variable(char** variables, const char* name) {
    for (; variables && *variables; ++variables) {
        if (!begins_with(*variables, name)) continue;
        const char* value = *variables;
        for (const char* at = name; *at != '\0'; ++at) ++value;
        if (*value == '=') return value + 1;
    }
    return nullptr;
}

/// Takes this library out of LD_PRELOAD in `variables` if this is a program that enters containers or other
/// roots and hands its environment on.
void keep_from_containers(char** variables) {
    if (!variables || !enters_containers(executed_name())) return;
    auto** kept = variables;
    for (auto** each = variables; *each; ++each) {
        const bool stays = !begins_with(*each, k_preload) || shorten(*each + sizeof "LD_PRELOAD=" - 1);
        if (stays) *kept++ = *each;
    }
    *kept = nullptr;
}

// ---- what the program is, and what the environment and the deny lists say of it

constexpr std::size_t k_max_path = 4096;
constexpr const char* k_machine_list = "/etc/gpu-sleep.deny";
constexpr const char* k_user_list = "/gpu-sleep.deny";

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
    append(path, length, k_user_list);
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

/// Whether the agent is to be loaded into this program: not where GPU_SLEEP_DISABLE says so, not with
/// privileges that whoever has set the environment may lack (/etc/ld.so.preload reaches such programs), and
/// not into a program that a deny list means: /etc/gpu-sleep.deny, and gpu-sleep.deny in the user's directory
/// for configurations ($XDG_CONFIG_HOME, or $HOME/.config). Reads both files, and takes no memory.
bool is_wanted() {
    if (getauxval && getauxval(AT_SECURE) != 0) return false;
    const auto* const disabled = variable(environ, "GPU_SLEEP_DISABLE");
    if (disabled && *disabled != '\0' && !is_same(disabled, "0")) return false;
    char path[k_max_path];
    char words[k_max_path];
    freestanding::read_link("/proc/self/exe", path);
    read_words(words);
    Program program{path, words, ""};
    if (runs_scripts(file_name(path)))
        for (const char* word = *words != '\0' ? next(words) : words; *word != '\0'; word = next(word)) {
            if (*word == '-') continue;
            program.script = word;
            break;
        }
    return !is_denied_by(k_machine_list, program) && !is_denied_by_user(program);
}

// ---- the agent, and what the program is given of it

using Lookup = void* (*)(void* handle, const char* name);

// Constants of dlfcn.h, which would declare the functions above as always there.
constexpr int k_now = 2, k_no_load = 4, k_global = 0x100;
void* const k_next = reinterpret_cast<void*>(-1);

constexpr const char* k_driver = "libcuda.so.1";

// For each entry point but those that only ask: `said`.
#define GPU_SLEEP_IF_own(said) said
#define GPU_SLEEP_IF_own_passes(said) said
#define GPU_SLEEP_IF_own_shared(said) said
#define GPU_SLEEP_IF_own_shared_passes(said) said
#define GPU_SLEEP_IF_forwarding(said) said
#define GPU_SLEEP_IF_asking(said)

constexpr const char* k_names =
#define GPU_SLEEP_NAME(name, touch, hook) GPU_SLEEP_IF_##hook(#name "\0")
    GPU_SLEEP_DECLARED(GPU_SLEEP_NAME);
#undef GPU_SLEEP_NAME
#define GPU_SLEEP_ONE(name, touch, hook) GPU_SLEEP_IF_##hook(+1)
constexpr std::size_t k_name_count = 0 GPU_SLEEP_DECLARED(GPU_SLEEP_ONE);
#undef GPU_SLEEP_ONE

enum class Agent : int { undecided, absent, present };
constinit std::atomic<Agent> g_agent{Agent::undecided};
constinit std::atomic<Lookup> g_real_dlsym{nullptr};  ///< the C library's
constinit std::atomic<Lookup> g_agent_dlsym{nullptr}; ///< once the agent is present
constinit std::atomic<void*> g_driver{nullptr};

bool is_ours(const void* address) {
    return address >= static_cast<const void*>(__ehdr_start) && address < static_cast<const void*>(_end);
}

int find_dlsym_in(dl_phdr_info* library, std::size_t /*size*/, void* found) {
    for (int i = 0; i < library->dlpi_phnum; ++i) {
        if (library->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        const auto base = library->dlpi_addr;
        const auto* const dynamic = reinterpret_cast<const ElfW(Dyn)*>(base + library->dlpi_phdr[i].p_vaddr);
        const auto* const symbol = freestanding::Symbols(base, dynamic).find("dlsym");
        if (!symbol) continue;
        auto* const address = reinterpret_cast<void*>(base + symbol->st_value);
        if (is_ours(address)) continue;
        *static_cast<void**>(found) = address;
        return 1;
    }
    return 0;
}

/// The C library's dlsym. Null where there is none: then nobody calls ours.
Lookup real_dlsym() {
    if (const auto known = g_real_dlsym.load()) return known;
    void* found = nullptr;
    if (dlvsym) { // the versions under which glibc has it
        for (const char* version : {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"})
            if (!found) found = dlvsym(k_next, "dlsym", version);
    }
    if (!found && dl_iterate_phdr) dl_iterate_phdr(find_dlsym_in, &found); // another C library
    const auto real = reinterpret_cast<Lookup>(found);
    if (real) g_real_dlsym = real;
    return real;
}

/// libcuda if it is loaded.
void* driver() {
    if (auto* const known = g_driver.load()) return known;
    if (!dlopen) return nullptr;
    auto* const found = dlopen(k_driver, k_now | k_no_load);
    if (found) g_driver = found; // and never closed
    return found;
}

/// Whether standard error is still the program's, and takes a line at once.
bool can_say() {
    struct stat now; // not zeroed, for which a compiler calls memset()
    pollfd out{k_standard_error, POLLOUT, 0};
    const timespec at_once{};
    return read_standard_error(now) && now.st_dev == g_standard_error.st_dev &&
           now.st_ino == g_standard_error.st_ino &&
           freestanding::system_call(SYS_ppoll, reinterpret_cast<long>(&out), 1,
                                     reinterpret_cast<long>(&at_once)) == 1 &&
           out.revents == POLLOUT;
}

/// Says why the program has no agent, in one line.
void say(const char* why) {
    char line[512];
    std::size_t length = 0;
    for (const char* part : {"gpu-sleep: this process cannot be put to sleep: ", why})
        while (*part != '\0' && length + 1 < sizeof line) line[length++] = *part++;
    line[length++] = '\n';
    if (!can_say()) return;
    std::uint64_t harmful = 0; // what would end or stop the program
    for (const int signal : {SIGPIPE, SIGXFSZ, SIGTTOU}) harmful |= std::uint64_t{1} << (signal - 1);
    std::uint64_t before = 0;
    const long set = reinterpret_cast<long>(&harmful);
    const timespec at_once{};
    freestanding::system_call(SYS_rt_sigprocmask, SIG_BLOCK, set, reinterpret_cast<long>(&before),
                              sizeof before);
    const long written = freestanding::system_call(SYS_write, k_standard_error, reinterpret_cast<long>(line),
                                                   static_cast<long>(length));
    if (written == -EPIPE || written == -EFBIG)
        freestanding::system_call(SYS_rt_sigtimedwait, set, 0, reinterpret_cast<long>(&at_once),
                                  sizeof before);
    freestanding::system_call(SYS_rt_sigprocmask, SIG_SETMASK, reinterpret_cast<long>(&before), 0,
                              sizeof before);
}

Lookup load_agent(Lookup real) {
    if (!dlopen || !is_wanted()) return nullptr;
    auto* agent = dlopen(k_agent, k_now | k_no_load); // a program's own
    for (const char* place = k_agent_places; !agent && *place != '\0'; place = next(place))
        agent = dlopen(place, k_now | k_global);
    const auto found = agent ? reinterpret_cast<Lookup>(real(agent, "dlsym")) : nullptr;
    const char* const why = found || !dlerror ? nullptr : dlerror(); // it is not the program's
    if (why) say(why);
    return found;
}

/// Whether the agent is there, which is decided at the first question. Threads that ask at once come to the
/// same.
bool has_agent(Lookup real) {
    const auto known = g_agent.load();
    if (known != Agent::undecided) return known == Agent::present;
    const auto found = load_agent(real);
    if (found) g_agent_dlsym = found;
    g_agent = found ? Agent::present : Agent::absent;
    return found != nullptr;
}

/// Returns the function that the program is to call for the driver's `name`.
void* resolve(Lookup real, void* library, const char* name) {
    return has_agent(real) ? g_agent_dlsym.load()(library, name) : real(library, name);
}

/// Stands for each function that the driver lacks: CUDA_ERROR_NOT_FOUND.
int answer_for_missing() {
    return 500;
}

} // namespace

extern "C" freestanding::Found gpu_sleep_look_up(void* handle, const char* name) noexcept {
    const auto real = real_dlsym();
    const freestanding::Found ask_the_real_one{nullptr, real};
    if (!real || !freestanding::is_entry_point(name)) return ask_the_real_one;
    void* const address = real(handle, name);
    void* const library = driver();
    // The symbols of this library must not make a program believe that there is a driver, or a newer one.
    if (address && is_ours(address))
        return {library ? resolve(real, library, name) : real(k_next, name), nullptr};
    if (!address || !library || !has_agent(real)) return ask_the_real_one;
    // With RTLD_NEXT, the libraries that follow this one need not follow the agent, so it is not asked.
    if (handle == k_next && address == real(library, name)) return {resolve(real, library, name), nullptr};
    return {nullptr, g_agent_dlsym};
}

/// Returns the function for the entry point at `index` of the list, and keeps it in its slot once that is
/// settled.
extern "C" [[gnu::used]] void* gpu_sleep_first_called(std::size_t index) noexcept {
    const auto real = real_dlsym();
    void* const library = real ? driver() : nullptr;
    const char* name = k_names;
    for (auto skipped = index; skipped > 0; --skipped) name = next(name);
    void* const found = library ? resolve(real, library, name) : nullptr;
    if (found) std::atomic_ref(gpu_sleep_late_slots[index]).store(found);
    return found ? found : reinterpret_cast<void*>(&answer_for_missing);
}

extern "C" {
[[gnu::used]] constinit void* gpu_sleep_late_slots[k_name_count] = {};
}

/// The address sanitizer, where a program brings it as a library, ends a program in which another library
/// comes first, unless it is told that this is meant. A program's own function of this name comes before
/// ours.
extern "C" __attribute__((visibility("default"), used)) const char* __asan_default_options() {
    return "verify_asan_link_order=0";
}

/// The symbol with a version; see exports.map. The agent reads its value.
extern "C" __attribute__((visibility("default"), used)) const char gpu_sleep_login_library = k_intercepts;

namespace {

/// Has commands that enter a container not hand on the path of this library, which the container may lack:
/// its loader would complain to every program. glibc gives constructors the arguments of main; another C
/// library gives none, but is ready by now.
__attribute__((constructor)) void begin(int /*argc*/, char** /*argv*/, char** variables) {
    keep_from_containers(gnu_get_libc_version ? variables : environ);
    read_standard_error(g_standard_error);
}

} // namespace
} // namespace gpu_sleep::login

GPU_SLEEP_DLSYM

// The exported symbols, for programs that are linked to libcuda, in the order of k_names.
#define GPU_SLEEP_EXPORT(name, touch, hook) GPU_SLEEP_IF_##hook(GPU_SLEEP_FUNCTION(name, GPU_SLEEP_LATE_JUMP))
asm(GPU_SLEEP_LATE_JUMPS GPU_SLEEP_DECLARED(GPU_SLEEP_EXPORT));
