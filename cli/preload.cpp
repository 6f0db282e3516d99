// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Paths of the agent; searching PATH, and reading the headers of scripts and ELF files.

#include "cli/preload.hpp"

#include "base/fd.hpp"

#include <fmt/format.h>

#include <elf.h>
#include <sys/xattr.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

namespace gpu_sleep::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view k_login = "libgpu-sleep-login.so";
/// From the directory of the commands: as installed, as built, and as pip installs it.
constexpr std::array k_places = {GPU_SLEEP_LIBRARIES_FROM_COMMANDS, "../lib", "../libexec/gpu-sleep"};

bool is_library(std::string_view file, std::string_view library) {
    file.remove_prefix(file.rfind('/') + 1); // npos + 1 is 0
    return file == library || file.starts_with(std::string(library) + ".");
}

/// The list `before`, split at any of `separators`, behind `file`, which may be empty, and without the
/// libraries that `is_ours` means.
template <class IsOurs>
std::string put_first(const std::string& file, IsOurs&& is_ours, std::string_view before,
                      const char* separators) {
    auto value = file;
    while (!before.empty()) {
        const auto end = std::min(before.find_first_of(separators), before.size());
        const auto entry = before.substr(0, end);
        if (!entry.empty() && !is_ours(entry)) value.append(value.empty() ? "" : ":").append(entry);
        before.remove_prefix(std::min(end + 1, before.size()));
    }
    return value;
}

constexpr const char* k_preload_separators = ": \t\n";

bool is_agent(std::string_view entry) {
    return is_library(entry, k_agent_library) || is_library(entry, k_login);
}

#if defined(__x86_64__)
constexpr Elf64_Half k_machine = EM_X86_64;
#elif defined(__aarch64__)
constexpr Elf64_Half k_machine = EM_AARCH64;
#else
#error "say which machine the agent is built for"
#endif

/// The part of a script's first line that the kernel reads. Source: execve(2), "Interpreter scripts".
constexpr std::size_t k_script_line_bytes = 255;
/// More interpreters of interpreters than the kernel follows. Source: execve(2), ELOOP.
constexpr int k_max_interpreters = 5;
constexpr std::string_view k_default_shell = "/bin/sh";
constexpr std::size_t k_max_segments = 4096;

Refusal cannot_execute(const std::string& file, std::string_view reason) {
    return {k_status_cannot_execute, fmt::format("cannot run {}: {}", file, reason)};
}

Refusal cannot_preload(const std::string& file, std::string_view reason) {
    return {exit_status::usage, fmt::format("cannot load the agent into {}: {}", file, reason)};
}

/// Why `file` cannot be executed: an errno, or 0.
int obstacle(const std::string& file) {
    struct stat status {};
    if (::stat(file.c_str(), &status) != 0) return errno;
    if (S_ISDIR(status.st_mode)) return EISDIR;
    if (!S_ISREG(status.st_mode) || ::faccessat(AT_FDCWD, file.c_str(), X_OK, AT_EACCESS) != 0) return EACCES;
    return 0;
}

/// Up to `size` bytes of the file from `offset` on.
std::string read_at(int file, std::size_t offset, std::size_t size) {
    std::string bytes(size, '\0');
    std::size_t got = 0;
    while (got < size) {
        const auto more = ::pread(file, bytes.data() + got, size - got, static_cast<off_t>(offset + got));
        if (more < 0 && errno == EINTR) continue;
        if (more <= 0) break;
        got += static_cast<std::size_t>(more);
    }
    bytes.resize(got);
    return bytes;
}

template <class T>
std::optional<T> read_object(int file, std::size_t offset) {
    const auto bytes = read_at(file, offset, sizeof(T));
    T object{};
    if (bytes.size() != sizeof(T)) return std::nullopt;
    std::memcpy(&object, bytes.data(), sizeof(T));
    return object;
}

/// The interpreter that a script's first line names, or nothing.
std::string interpreter_of(std::string_view first_bytes) {
    auto line = first_bytes.substr(0, first_bytes.find('\n'));
    line.remove_prefix(2);
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    return std::string(line.substr(0, line.find_first_of(std::string_view(" \t\0", 3))));
}

/// The dynamic loader that an ELF file asks for, or nothing if it is linked statically.
std::optional<std::string> loader_of(int file, const Elf64_Ehdr& header) {
    for (std::size_t i = 0; i < header.e_phnum && i < k_max_segments; ++i) {
        const auto segment = read_object<Elf64_Phdr>(file, header.e_phoff + i * header.e_phentsize);
        if (!segment || segment->p_type != PT_INTERP) continue;
        auto path = read_at(file, segment->p_offset, std::min<std::size_t>(segment->p_filesz, 4096));
        path.resize(std::strlen(path.c_str()));
        return path;
    }
    return std::nullopt;
}

std::optional<Refusal> check_elf(int file, const std::string& name) {
    const auto header = read_object<Elf64_Ehdr>(file, 0);
    if (!header) return cannot_execute(name, "its ELF header is cut short");
    if (header->e_ident[EI_CLASS] != ELFCLASS64)
        return cannot_preload(name, "it is a 32-bit program, and the agent is 64-bit");
    if (header->e_ident[EI_DATA] != ELFDATA2LSB || header->e_machine != k_machine)
        return cannot_preload(name,
                              fmt::format("it is for another machine (ELF machine {})", header->e_machine));
    const auto loader = loader_of(file, *header);
    if (!loader)
        return cannot_preload(name, "it is statically linked, and nothing can be loaded into such a program "
                                    "from outside; link the agent into it, or link it dynamically");
    if (loader->find("/ld-musl-") != std::string::npos)
        return cannot_preload(name, "it uses the C library musl, but the agent needs the GNU C library");
    return std::nullopt;
}

std::optional<Refusal> check_privileges(int file, const std::string& name) {
    struct stat status {};
    if (::fstat(file, &status) != 0) return std::nullopt;
    constexpr std::string_view k_why = "the loader ignores LD_PRELOAD for such a program";
    if ((status.st_mode & S_ISUID) != 0)
        return cannot_preload(name, fmt::format("it is set-user-id, and {}", k_why));
    if ((status.st_mode & S_ISGID) != 0 && (status.st_mode & S_IXGRP) != 0)
        return cannot_preload(name, fmt::format("it is set-group-id, and {}", k_why));
    if (::fgetxattr(file, "security.capability", nullptr, 0) > 0)
        return cannot_preload(name, fmt::format("it has file capabilities, and {}", k_why));
    return std::nullopt;
}

} // namespace

Result<std::string> find_library(const std::string& directory, std::string_view library) {
    for (const auto* place : k_places) {
        std::error_code failure;
        const auto libraries = fs::canonical(fs::path(directory) / place, failure);
        const auto file = libraries / library;
        if (failure || !fs::exists(file, failure)) continue;
        // The loader splits at spaces and colons, and replaces what begins with a dollar sign.
        if (const auto at = file.native().find_first_of(" :\t\n$"); at != std::string::npos)
            return make_error(ErrorCode::invalid_argument,
                              "the agent cannot be loaded from {}: there is a '{}' in its path, which the "
                              "loader does not accept; install gpu-sleep elsewhere",
                              file.native(), file.native()[at]);
        return file.native();
    }
    return make_error(ErrorCode::io_failed, "{} is missing: it should be in {}", library,
                      (fs::path(directory) / k_places.front()).lexically_normal().native());
}

Result<std::string> find_login(const std::string& directory) {
    auto found = find_library(directory, k_login);
    // Shells are to read it between quotation marks.
    if (found && found->find_first_of("'\"\\!") != std::string::npos)
        return make_error(ErrorCode::invalid_argument,
                          "the agent cannot be put into an environment from {}: there is a quotation mark, a "
                          "backslash or an exclamation mark in its path; install gpu-sleep elsewhere",
                          *found);
    return found;
}

Result<void> check_open_to_all(const std::string& library) {
    for (fs::path path = library;; path = path.parent_path()) {
        std::error_code failure;
        const auto needed = path == library ? fs::perms::others_read : fs::perms::others_exec;
        if ((fs::status(path, failure).permissions() & needed) == fs::perms::none || failure)
            return make_error(ErrorCode::invalid_argument,
                              "other users cannot load the agent, because they may not {} {}; install "
                              "gpu-sleep where all can read it, such as /usr/local",
                              path == library ? "read" : "enter", path.native());
        if (path == path.parent_path()) return {};
    }
}

std::string with_agent(const std::string& agent, std::string_view before) {
    return put_first(agent, is_agent, before, k_preload_separators);
}

std::string without_agent(std::string_view before) {
    return put_first({}, is_agent, before, k_preload_separators);
}

std::string with_audit(const std::string& audit, std::string_view before) {
    return put_first(
        audit, [](std::string_view entry) { return is_library(entry, k_audit_library); }, before, ":");
}

std::variant<std::string, Refusal> find_program(const std::string& name, std::string_view search_path) {
    const auto not_found = [&](std::string_view where) {
        return Refusal{k_status_not_found, fmt::format("there is no command {}{}", name, where)};
    };
    if (name.find('/') != std::string::npos) {
        const int why = obstacle(name);
        if (why == ENOENT || why == ENOTDIR) return not_found("");
        if (why == EACCES)
            return cannot_execute(name, "it is not executable, or a directory in its path is closed");
        if (why != 0) return cannot_execute(name, std::strerror(why));
        return name;
    }
    if (name.empty()) return not_found("with an empty name");
    std::optional<Refusal> refusal;
    for (std::size_t begin = 0; begin <= search_path.size();) {
        const auto end = std::min(search_path.find(':', begin), search_path.size());
        const auto directory = search_path.substr(begin, end - begin);
        auto file = fmt::format("{}/{}", directory.empty() ? "." : directory, name);
        const int why = obstacle(file);
        if (why == 0) return file;
        if (why == EACCES && !refusal) refusal = cannot_execute(file, "it is not executable");
        begin = end + 1;
    }
    if (refusal) return *std::move(refusal);
    return not_found(" in PATH");
}

std::optional<Refusal> check_preloadable(const std::string& file) {
    std::string name = file;
    for (int depth = 0; depth <= k_max_interpreters; ++depth) {
        const UniqueFd opened(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
        if (!opened) return std::nullopt;
        const auto start = read_at(opened.get(), 0, k_script_line_bytes);
        if (start.starts_with(ELFMAG)) {
            if (auto refusal = check_privileges(opened.get(), name)) return refusal;
            return check_elf(opened.get(), name);
        }
        auto interpreter = start.starts_with("#!") ? interpreter_of(start) : std::string(k_default_shell);
        if (interpreter.empty()) return cannot_execute(name, "it names no interpreter after #!");
        if (const int why = obstacle(interpreter); why != 0)
            return Refusal{
                why == ENOENT ? k_status_not_found : k_status_cannot_execute,
                fmt::format("cannot run {}: its interpreter {}: {}", name, interpreter, std::strerror(why))};
        name = std::move(interpreter);
    }
    return cannot_execute(file, "its interpreters form a loop");
}

} // namespace gpu_sleep::cli
