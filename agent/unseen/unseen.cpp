// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading this process's mappings, where its libraries' calls lead, and which calls were noted.

#include "unseen/unseen.hpp"

#include "base/fd.hpp"
#include "base/files.hpp"
#include "base/symbols.hpp"
#include "freestanding/elf_symbols.hpp"
#include "registry/registry.hpp"

#include <cstring>

extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start[]; // from the linker: of the agent

namespace gpu_sleep::agent::unseen {
namespace {

using FileMapping = model::Mapping;

#if defined(__x86_64__)
constexpr unsigned k_called = R_X86_64_JUMP_SLOT, k_named = R_X86_64_GLOB_DAT;
#else
constexpr unsigned k_called = R_AARCH64_JUMP_SLOT, k_named = R_AARCH64_GLOB_DAT;
#endif

/// Reads this process's memory through the kernel, because another thread may unload it. Empty if not all of
/// it is there, or if it is implausibly large.
template <class T>
std::vector<T> read(const UniqueFd& own_memory, std::uintptr_t address, std::size_t bytes) {
    constexpr std::size_t k_most = std::size_t{64} << 20;
    std::vector<T> copy(bytes <= k_most ? bytes / sizeof(T) : 0);
    bytes = copy.size() * sizeof(T);
    const auto got = ::pread(own_memory.get(), copy.data(), bytes, static_cast<off_t>(address));
    if (got != static_cast<ssize_t>(bytes)) copy.clear();
    return copy;
}

/// Calls `visit` for each function that the library at `begin` calls in another: where that lies, and what
/// gives its name, 64 bytes of it. A call that is bound lazily, and not yet, leads into the library itself.
template <class Visit>
void for_each_call(const UniqueFd& own_memory, std::uintptr_t begin, const Visit& visit) {
    const auto header = read<ElfW(Ehdr)>(own_memory, begin, sizeof(ElfW(Ehdr)));
    if (header.empty() || std::memcmp(header[0].e_ident, ELFMAG, SELFMAG) != 0) return;
    auto base = begin;
    std::map<ElfW(Sxword), std::uintptr_t> dynamic;
    const auto size = header[0].e_phnum * sizeof(ElfW(Phdr));
    for (const auto& segment : read<ElfW(Phdr)>(own_memory, begin + header[0].e_phoff, size)) {
        if (segment.p_type == PT_LOAD && segment.p_offset == 0) base = begin - segment.p_vaddr;
        if (segment.p_type != PT_DYNAMIC) continue;
        for (const auto& entry : read<ElfW(Dyn)>(own_memory, base + segment.p_vaddr, segment.p_memsz))
            dynamic.emplace(entry.d_tag, entry.d_un.d_val);
    }
    const auto address = [&](ElfW(Sxword) tag) { // the loader may or may not have added where it lies
        return dynamic[tag] < base ? dynamic[tag] + base : dynamic[tag];
    };
    const auto name_of = [&](const ElfW(Rela) & call) {
        const auto at = address(DT_SYMTAB) + ELF64_R_SYM(call.r_info) * sizeof(ElfW(Sym));
        const auto symbol = read<ElfW(Sym)>(own_memory, at, sizeof(ElfW(Sym)));
        return symbol.empty() ? std::vector<char>()
                              : read<char>(own_memory, address(DT_STRTAB) + symbol[0].st_name, 64);
    };
    const auto unnamed = dynamic[DT_RELACOUNT] * sizeof(ElfW(Rela));
    for (const auto& [table, bytes] : {std::pair(address(DT_JMPREL), dynamic[DT_PLTRELSZ]),
                                       std::pair(address(DT_RELA) + unnamed, dynamic[DT_RELASZ] - unnamed)}) {
        auto calls = read<ElfW(Rela)>(own_memory, table, bytes);
        std::erase_if(calls, [](const auto& each) {
            return ELF64_R_TYPE(each.r_info) != k_called && ELF64_R_TYPE(each.r_info) != k_named;
        });
        if (calls.empty()) continue;
        const auto [first, last] = std::ranges::minmax(calls, {}, &ElfW(Rela)::r_offset);
        const auto slots = read<std::uintptr_t>(own_memory, base + first.r_offset,
                                                last.r_offset - first.r_offset + sizeof(std::uintptr_t));
        for (const auto& each : calls)
            if (!slots.empty())
                visit(slots[(each.r_offset - first.r_offset) / sizeof(std::uintptr_t)],
                      [&] { return name_of(each); });
    }
}

/// Whether a library with these mappings carries what finds the driver, such as a CUDA runtime.
bool names_driver(const UniqueFd& own_memory, std::span<const FileMapping> library) {
    constexpr std::size_t k_piece = std::size_t{1} << 20;
    for (const auto& each : library)
        for (auto at = each.begin; at < each.end; at += k_piece - model::k_driver_library.size()) {
            const auto piece = read<char>(own_memory, at, std::min(k_piece, each.end - at));
            const std::string_view text(piece.data(), piece.size());
            if (text.find(model::k_driver_library) != std::string_view::npos) return true;
        }
    return false;
}

/// The libraries whose calls lead past the agent: they were bound to their own dependencies first, or are in
/// a namespace of their own.
std::vector<model::UnseenUse> find_bypassing(const std::vector<FileMapping>& all) {
    const auto lookup = reinterpret_cast<std::uintptr_t>(real_dlsym());
    const auto home = std::ranges::find_if(
        all, [&](const FileMapping& each) { return each.begin <= lookup && lookup < each.end; });
    if (home == all.end()) return {};
    std::vector<FileMapping> drivers;
    std::vector<std::uintptr_t> lookups; // each namespace has its own
    for (const auto& each : all) {
        if (each.is_of(model::k_driver_library)) drivers.push_back(each);
        if (each.file == home->file && each.offset == home->offset)
            lookups.push_back(each.begin + (lookup - home->begin));
    }
    const auto own_memory = open_file(AT_FDCWD, "/proc/self/mem", O_RDONLY | O_CLOEXEC);
    const freestanding::Symbols own(reinterpret_cast<ElfW(Addr)>(__ehdr_start), _DYNAMIC);
    // A library that brings the agent late leaves entry points that only ask to the driver.
    const bool is_late = std::any_of(all.begin(), all.end(), [](const FileMapping& each) {
        return each.is_of("libgpu-sleep-login.so") || each.name().starts_with("torch_memory_saver_hook_mode");
    });
    std::vector<model::UnseenUse> uses;
    for (auto begin = all.begin(), end = begin; begin != all.end(); begin = end) {
        end = std::find_if(begin, all.end(), [&](const auto& each) { return each.file != begin->file; });
        // A device is not to be read.
        if (std::none_of(begin, end, [](const FileMapping& each) { return each.runs; })) continue;
        // The driver's own libraries call each other.
        if (begin->is_of(model::k_driver_library) || begin->name().starts_with("libnvidia-")) continue;
        bool calls = false, looks_up = false;
        for_each_call(own_memory, begin->begin, [&](std::uintptr_t target, const auto& name) {
            looks_up |= std::ranges::find(lookups, target) != lookups.end();
            const auto is_in = [&](const FileMapping& driver) {
                return driver.begin <= target && target < driver.end;
            };
            if (is_late || std::ranges::none_of(drivers, is_in)) return;
            auto text = name();
            text.push_back('\0');
            calls |= own.find(text.data()) != nullptr;
        });
        if (calls || (looks_up && names_driver(own_memory, {begin, end})))
            uses.push_back({"calls that bypass the agent; use gpu-run --audit", std::string(begin->name())});
    }
    return uses;
}

} // namespace

Result<std::vector<model::UnseenUse>> find_uses(Look look) {
    constexpr auto k_file = "/proc/self/maps";
    const auto mappings = read_small_file(k_file);
    if (!mappings) return errno_error(ErrorCode::io_failed, errno, "open or read", k_file);
    auto uses = model::unseen_libraries(*mappings);
    auto& unseen = registry::books().unseen;
    std::vector<model::UnseenUse> found;
    if (look == Look::calls) found = find_bypassing(model::parse_mappings(*mappings));
    const MutexLock lock(unseen.mutex);
    if (look == Look::calls) unseen.bypassing = std::move(found);
    uses.insert(uses.end(), unseen.bypassing.begin(), unseen.bypassing.end());
    for (auto& call : find_calls()) uses.push_back(std::move(call));
    return uses;
}

std::vector<model::UnseenUse> find_calls() {
    std::vector<model::UnseenUse> uses;
    for (const char* name : registry::books().unseen.calls)
        if (name) uses.push_back({"calls to the driver that this version does not know", name});
    return uses;
}

Result<void> check_all() {
    const auto uses = find_uses(Look::calls);
    if (!uses)
        return make_error(uses.error().code, "it is not known which libraries are loaded: {}",
                          uses.error().message);
    return uses->empty() ? Result<void>() : make_error(ErrorCode::unseen_library, "{}", words_for(*uses));
}

Result<void> check_calls() {
    const auto calls = find_calls();
    return calls.empty() ? Result<void>() : make_error(ErrorCode::unseen_library, "{}", words_for(calls));
}

std::string words_for(const std::vector<model::UnseenUse>& uses) {
    return "GPU use that the agent cannot see: " + model::list_of(uses);
}

} // namespace gpu_sleep::agent::unseen
