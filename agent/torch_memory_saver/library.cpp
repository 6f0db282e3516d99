// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// torch_memory_saver's C functions on the agent's C API. Its backups belong to allocations, and the agent's
// to tags: so a tag of theirs becomes one of the agent's for each kind of backup.

#include "login/agent_places.hpp"
#include "torch_memory_saver/saver.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace gpu_sleep::saver {
namespace {

#define GPU_SLEEP_USED(use)                                                                                  \
    use(alloc) use(free) use(set_policy) use(set_retained) use(sleep) use(sleep_in_files) use(wake)          \
        use(mark_refilled) use(read_kept) use(keep_on_gpu) use(last_error)

/// The agent's functions.
struct Agent {
#define GPU_SLEEP_DECLARE(name) decltype(&gpu_sleep_##name) name = nullptr;
    GPU_SLEEP_USED(GPU_SLEEP_DECLARE)
#undef GPU_SLEEP_DECLARE
};

/// The message of this thread's last call, or "" if it has not failed. No string: memory is freed when a
/// thread's objects are gone, too.
thread_local char t_error[1024];
thread_local gpu_sleep_status t_status = GPU_SLEEP_OK;

void note_error(std::string_view message) noexcept {
    t_error[message.copy(t_error, sizeof(t_error) - 1)] = '\0';
}

/// Returns `status`, and keeps it and `message` for tms_last_status() and tms_last_error().
gpu_sleep_status fail(gpu_sleep_status status, std::string_view message) {
    note_error(message);
    return t_status = status;
}

/// Opens the agent that is loaded, that of GPU_SLEEP_AGENT, or the installed one. Null, and t_error, if there
/// is none.
void* open_agent() {
    if (auto* const loaded = ::dlopen(login::k_agent, RTLD_NOW | RTLD_NOLOAD)) return loaded;
    const char* named = std::getenv("GPU_SLEEP_AGENT");
    void* found = named && *named != '\0' ? ::dlopen(named, RTLD_NOW) : nullptr;
    for (const char* place = login::k_agent_places; !found && *place != '\0'; place += std::strlen(place) + 1)
        found = ::dlopen(place, RTLD_NOW);
    if (!found) note_error(std::string("the gpu-sleep agent cannot be loaded: ") + ::dlerror());
    return found;
}

/// Null, and t_error, where there is none, or one that is too old.
const Agent* agent() {
    static std::mutex s_mutex;
    static Agent s_agent;
    static bool s_is_found = false;
    const std::lock_guard lock(s_mutex);
    if (s_is_found) return &s_agent;
    void* const library = open_agent();
    if (!library) return nullptr;
    bool is_whole = true;
#define GPU_SLEEP_FIND(name)                                                                                 \
    s_agent.name = reinterpret_cast<decltype(s_agent.name)>(::dlsym(library, "gpu_sleep_" #name));           \
    is_whole &= s_agent.name != nullptr;
    GPU_SLEEP_USED(GPU_SLEEP_FIND)
#undef GPU_SLEEP_FIND
    if (!is_whole) note_error("the loaded gpu-sleep agent is older than torch_memory_saver's stand-in");
    s_is_found = is_whole;
    return is_whole ? &s_agent : nullptr;
}

bool is_true(const char* variable) {
    const char* value = std::getenv(variable);
    constexpr std::string_view k_true[] = {"1", "true", "TRUE", "yes",
                                           "YES"}; // Python refuses what is neither
    return value && std::find(std::begin(k_true), std::end(k_true), value) != std::end(k_true);
}

std::string variable_or(const char* variable, const char* otherwise) {
    const char* value = std::getenv(variable);
    return value && *value != '\0' ? value : otherwise;
}

/// Private, as the agent demands: it makes what is missing so.
std::string default_disk_directory() {
    return variable_or("TMPDIR", "/tmp") + "/torch_memory_saver-" + std::to_string(::geteuid());
}

/// Where a pause keeps contents.
enum class Backup { none, cpu, disk };

/// Memory of one tag of theirs with one kind of backup.
struct Tag {
    std::string name; ///< the agent's
    Backup backup = Backup::none;
    std::size_t allocations = 0; ///< that may be paused
};

/// Frees what allocate_host() made.
struct HostDeleter {
    bool is_pinned = false;
    void operator()(std::uint8_t* memory) const {
        auto* const free = reinterpret_cast<int (*)(void*)>(runtime_function("cudaFreeHost"));
        if (!is_pinned) delete[] memory;
        if (is_pinned && free) static_cast<void>(free(memory));
    }
};
using HostMemory = std::unique_ptr<std::uint8_t[], HostDeleter>;

/// Page-locked if that is asked for and can be had. May wait for the program, as frees may: its work is held.
HostMemory allocate_host(std::size_t bytes, bool is_pinned) {
    auto* const allocate =
        reinterpret_cast<int (*)(void**, std::size_t, unsigned)>(runtime_function("cudaHostAlloc"));
    void* memory = nullptr;
    if (is_pinned && allocate && allocate(&memory, bytes, 0) == 0)
        return {static_cast<std::uint8_t*>(memory), HostDeleter{true}};
    return {new std::uint8_t[bytes], HostDeleter{}};
}

/// A copy of part of an allocation.
struct Copy {
    HostMemory memory;
    bool is_fresh = false; ///< of the last pause
};
using Copies = std::map<std::pair<std::uintptr_t, std::size_t>, Copy>;

struct Allocation {
    std::size_t bytes = 0;
    int device = 0;
    Tag* tag = nullptr;
    bool pins_copies = false;
    std::uint64_t number = 0; ///< later ones have higher numbers
    bool is_paused = false;   ///< by the last call that was about it
    bool is_resident = false; ///< never paused
    /// Copies that the program asked for, by address and size. A copy lives until it is freed, or resumed
    /// without being retained.
    Copies copies;
};

/// All of it in this process. Each library of a mode has its own.
struct Memory {
    /// Guards what follows. Not held over calls of the agent that may wait for the program: its callbacks
    /// allocate and free. Those over which it is held wait for copying at most.
    std::mutex mutex;
    std::multimap<std::pair<std::string, Backup>, Tag> tags; ///< for files, one for each allocation
    std::map<std::uintptr_t, Allocation> allocations;
    std::uint64_t last_number = 0; ///< of an allocation
    pid_t process = 0;             ///< whose they are; a child of fork() has only the tables
    std::string disk_directory = variable_or("TMS_DISK_BACKUP_DIR", default_disk_directory().c_str());
    std::atomic<std::uint64_t> margin{0};
    std::atomic<bool> retains{is_true("TMS_RETAIN_CPU_BACKUP")};
    std::atomic<bool> agent_retains{true}; ///< what it was last told
};

/// Never destroyed: memory is freed when the process ends, too.
Memory& memory() {
    static auto* const s_memory = new Memory;
    return *s_memory;
}

bool is_plain(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

/// The agent's tag for one of theirs, which may be any text: unlike others, and unlike what programs under
/// gpu-run have for memory outside of regions. `number` is that of no other.
std::string agents_name(const std::string& tag, Backup backup, bool is_first, std::size_t number) {
    constexpr const char* k_suffixes[] = {":none", ":cpu", ":disk"};
    constexpr std::size_t k_longest = 40;
    auto name = tag.substr(0, k_longest);
    for (auto& c : name)
        if (!is_plain(c)) c = '_';
    if (name != tag || name.empty() || !is_first) name += ':' + std::to_string(number);
    return name + k_suffixes[static_cast<std::size_t>(backup)];
}

/// The tag of the calling thread's next allocation, made where there is none; null, and t_error, if the agent
/// does not take its policy. With the mutex held.
Tag* tag_of(const Config& wanted, const Agent& its) {
    const auto backup = wanted.disk_backup ? Backup::disk : wanted.cpu_backup ? Backup::cpu : Backup::none;
    auto& all = memory().tags;
    const auto [first, last] = all.equal_range({wanted.tag, backup});
    // A file is of a tag, and callers expect one for each allocation.
    const auto found = std::find_if(first, last, [&](const auto& each) {
        return backup != Backup::disk || each.second.allocations == 0;
    });
    if (found != last) return &found->second;
    Tag tag{agents_name(wanted.tag, backup, first == last, all.size() + 1), backup};
    // Only a sleep of level 2, as a pause is, drops what has no backup: whoever asks for level 1 expects all.
    const bool is_kept = backup != Backup::none;
    const auto retention = is_kept ? GPU_SLEEP_PRESERVE : GPU_SLEEP_OFFLOAD;
    if (its.set_policy(tag.name.c_str(), retention, !is_kept) == GPU_SLEEP_OK)
        return &all.emplace(std::pair(wanted.tag, backup), std::move(tag))->second;
    note_error(its.last_error());
    return nullptr;
}

/// Whether so much may be allocated on the current device.
bool is_within_margin(std::size_t bytes) {
    const auto margin = memory().margin.load();
    if (margin == 0) return true;
    auto* const get_info =
        reinterpret_cast<int (*)(std::size_t*, std::size_t*)>(runtime_function("cudaMemGetInfo"));
    std::size_t free = 0;
    std::size_t total = 0;
    return !get_info || get_info(&free, &total) != 0 || (margin <= free && bytes <= free - margin);
}

/// Returns the tags of the program's `tag` that have memory; all such tags if it is null or "". The caller
/// holds the mutex.
std::vector<Tag*> tags_of(const char* tag) {
    std::vector<Tag*> found;
    for (auto& [key, each] : memory().tags)
        if (each.allocations > 0 && (!tag || *tag == '\0' || key.first == tag)) found.push_back(&each);
    return found;
}

std::string listed(const std::vector<Tag*>& tags, bool only_disk = false) {
    std::string list;
    for (const auto* tag : tags)
        if (!only_disk || tag->backup == Backup::disk) list += (list.empty() ? "" : ",") + tag->name;
    return list;
}

/// Calls `use` for each allocation of `tags` that may be paused. With the mutex held.
template <class Use>
void for_each_of(const std::vector<Tag*>& tags, Use&& use) {
    for (auto& [address, allocation] : memory().allocations)
        if (!allocation.is_resident && std::find(tags.begin(), tags.end(), allocation.tag) != tags.end())
            use(allocation);
}

/// Runs `change(agent, tags)` for their `tag`, and notes how the memory is then that there was before.
/// Whether it sleeps or is awake by somebody else's word makes no difference.
template <class Change>
int change(const char* tag, bool pauses, Change&& change) {
    std::unique_lock lock(memory().mutex);
    const auto tags = tags_of(tag);
    const auto last_number = memory().last_number;
    const bool is_parents = memory().process != ::getpid();
    bool is_any = false;
    bool changes = false;
    for_each_of(tags, [&](const Allocation& allocation) {
        is_any = true;
        changes |= allocation.is_paused != pauses;
    });
    lock.unlock();
    if (!is_any) return GPU_SLEEP_OK; // a tag may be about to get its first one
    if (is_parents)
        return fail(GPU_SLEEP_ERROR_NOT_OWNED,
                    "the memory of regions belongs to the process that forked this one");
    const auto* const its = agent(); // it has their memory
    if (!changes)
        return fail(GPU_SLEEP_ERROR_INVALID_ARGUMENT,
                    (tag && *tag != '\0' ? "'" + std::string(tag) + "'" : "all memory of regions") +
                        (pauses ? " is already paused" : " is not paused"));
    if (const gpu_sleep_status status = change(*its, tags)) return fail(status, its->last_error());
    std::vector<Copies> dropped; // freed without the mutex, for that may wait
    lock.lock();
    for_each_of(tags, [&](Allocation& allocation) {
        if (allocation.number > last_number) return;
        allocation.is_paused = pauses;
        if (pauses)
            for (auto& [part, copy] : allocation.copies) copy.is_fresh = false;
        else if (!memory().retains)
            dropped.push_back(std::exchange(allocation.copies, {}));
    });
    lock.unlock();
    return GPU_SLEEP_OK;
}

/// The allocation that `bytes` from `address` on lie in; null if there is none. With the mutex held.
Allocation* find(std::uintptr_t address, std::size_t bytes) {
    auto& all = memory().allocations;
    const auto next = all.upper_bound(address);
    if (next == all.begin()) return nullptr;
    auto& [begin, found] = *std::prev(next);
    const auto offset = address - begin;
    return offset < found.bytes && bytes <= found.bytes - offset ? &found : nullptr;
}

/// Runs the body of a function that a C program calls, and returns what it does, or `otherwise` where memory
/// is short.
template <class Result, class Body>
Result guarded(Result otherwise, Body&& body) noexcept {
    try {
        fail(GPU_SLEEP_OK, {});
        return body();
    } catch (const std::exception&) {
        fail(GPU_SLEEP_ERROR_OUT_OF_HOST_MEMORY, "too little host memory is available");
        return otherwise;
    }
}

} // namespace

Config::Config()
    : is_region(is_true("TMS_INIT_ENABLE")), cpu_backup(is_true("TMS_INIT_ENABLE_CPU_BACKUP")),
      disk_backup(is_true("TMS_INIT_ENABLE_DISK_BACKUP")),
      cpu_backup_backend(variable_or("TMS_INIT_CPU_BACKUP_BACKEND", "pinned")) {}

Config& config() {
    thread_local Config t_config;
    return t_config;
}

void* runtime_function(const char* name) {
    if (void* const next = ::dlsym(RTLD_NEXT, name)) return next;
    for (const char* file : {"libcudart.so.13", "libcudart.so.12"})
        if (void* const runtime = ::dlopen(file, RTLD_LAZY | RTLD_NOLOAD))
            if (void* const found = ::dlsym(runtime, name)) return found;
    return nullptr;
}

gpu_sleep_status allocate(void** pointer, std::size_t bytes, int device) {
    return guarded(GPU_SLEEP_ERROR_OUT_OF_HOST_MEMORY, [&] {
        const auto* const its = agent();
        if (!its) return GPU_SLEEP_ERROR_INTERNAL;
        if (!is_within_margin(bytes))
            return fail(GPU_SLEEP_ERROR_OUT_OF_DEVICE_MEMORY, "less than memory_margin_bytes would be free");
        // What takes host memory comes first: later, there would be an allocation without a record.
        std::map<std::uintptr_t, Allocation> records;
        records[0] = {.bytes = bytes,
                      .device = device,
                      .pins_copies = config().cpu_backup_backend == "pinned",
                      .copies = {}};
        auto record = records.extract(records.begin());
        std::unique_lock lock(memory().mutex);
        auto* const tag = tag_of(config(), *its);
        if (!tag) return GPU_SLEEP_ERROR_OUT_OF_HOST_MEMORY;
        ++tag->allocations; // now, so that no other thread takes the tag
        lock.unlock();
        const auto status = its->alloc(pointer, bytes, device, tag->name.c_str());
        lock.lock();
        if (status != GPU_SLEEP_OK) {
            --tag->allocations;
            return fail(status, its->last_error());
        }
        record.key() = reinterpret_cast<std::uintptr_t>(*pointer);
        record.mapped().tag = tag;
        record.mapped().number = ++memory().last_number;
        memory().allocations.insert(std::move(record));
        memory().process = ::getpid();
        return status;
    });
}

gpu_sleep_status release(void* pointer) {
    return guarded(GPU_SLEEP_ERROR_OUT_OF_HOST_MEMORY, [&] {
        std::unique_lock lock(memory().mutex);
        auto freed = memory().allocations.extract(
            reinterpret_cast<std::uintptr_t>(pointer)); // it may be had again at once
        if (freed.empty()) return GPU_SLEEP_ERROR_NOT_OWNED;
        auto& allocation = freed.mapped();
        allocation.tag->allocations -= !allocation.is_resident;
        lock.unlock();
        const auto* const its = agent();
        const auto status = its->free(pointer);
        if (status == GPU_SLEEP_OK) return status;
        lock.lock();
        allocation.tag->allocations += !allocation.is_resident;
        memory().allocations.insert(std::move(freed));
        return fail(status, its->last_error());
    });
}

extern "C" {
#pragma GCC visibility push(default)

/// Returns the error of this thread's last call of a function of this library; "" if that succeeded.
const char* tms_last_error() {
    return t_error;
}

/// Returns the status of the last call whose result cannot tell of a failure; for tms_keep_resident().
int tms_last_status() {
    return t_status;
}

void tms_set_interesting_region(bool value) {
    config().is_region = value;
}
bool tms_get_interesting_region() {
    return config().is_region;
}
void tms_set_current_tag(const char* tag) {
    config().tag = tag ? tag : "";
}
const char* tms_get_current_tag() {
    return config().tag.c_str();
}
void tms_set_enable_cpu_backup(bool value) {
    config().cpu_backup = value;
}
bool tms_get_enable_cpu_backup() {
    return config().cpu_backup;
}
void tms_set_cpu_backup_backend(const char* backend) {
    config().cpu_backup_backend = backend ? backend : "";
}
const char* tms_get_cpu_backup_backend() {
    return config().cpu_backup_backend.c_str();
}
void tms_set_enable_disk_backup(bool value) {
    config().disk_backup = value;
}
bool tms_get_enable_disk_backup() {
    return config().disk_backup;
}
void tms_set_retain_cpu_backup(bool value) {
    memory().retains = value;
}
bool tms_get_retain_cpu_backup() {
    return memory().retains;
}
void tms_set_disk_backup_dir(const char* directory) {
    const std::lock_guard lock(memory().mutex);
    memory().disk_directory = directory ? directory : "";
}
void set_memory_margin_bytes(std::uint64_t bytes) {
    memory().margin = bytes;
}

/// Returns a gpu_sleep_status; after a failure all is as it was.
int tms_pause(const char* tag) {
    return guarded(static_cast<int>(GPU_SLEEP_ERROR_OUT_OF_HOST_MEMORY), [&] {
        return change(tag, true, [](const Agent& its, const std::vector<Tag*>& tags) {
            const auto all = listed(tags);
            const auto for_files = listed(tags, true);
            if (for_files.empty()) return its.sleep(2, all.c_str(), 0);
            std::unique_lock lock(memory().mutex);
            const auto directory = memory().disk_directory;
            lock.unlock();
            return its.sleep_in_files(2, all.c_str(), for_files.c_str(), directory.c_str(), 0);
        });
    });
}

/// Returns a gpu_sleep_status; see gpu_sleep_wake().
int tms_resume(const char* tag) {
    return guarded(static_cast<int>(GPU_SLEEP_ERROR_OUT_OF_HOST_MEMORY), [&] {
        return change(tag, false, [](const Agent& its, const std::vector<Tag*>& tags) {
            const bool retains = memory().retains;
            if (memory().agent_retains.exchange(retains) != retains)
                its.set_retained(retains ? UINT64_MAX : 0);
            const auto status = its.wake(listed(tags).c_str(), 0);
            for (const auto* each : tags) // zeros are what the program expects
                if (status == GPU_SLEEP_OK && each->backup == Backup::none)
                    its.mark_refilled(each->name.c_str());
            return status;
        });
    });
}

/// Has no pause release the allocation that `pointer` lies in, until it is freed, and returns its size. 0 if
/// it is in none, and, with tms_last_status(), if the agent does not keep it.
std::uint64_t tms_keep_resident(const void* pointer) {
    return guarded(std::uint64_t{0}, [&]() -> std::uint64_t {
        const std::lock_guard lock(memory().mutex);
        auto* const found = find(reinterpret_cast<std::uintptr_t>(pointer), 1);
        if (!found || found->is_resident) return found ? found->bytes : 0;
        const auto* const its = agent(); // it has their memory
        if (const auto status = its->keep_on_gpu(pointer)) {
            fail(status, std::string("keep_resident requires an active allocation: ") + its->last_error());
            return 0;
        }
        found->is_resident = true;
        found->is_paused = false;
        --found->tag->allocations;
        return found->bytes;
    });
}

/// Writes the devices that have memory of the tag, in order, and returns how many there are.
std::uint32_t tms_affected_devices(const char* tag, int* devices, std::uint32_t capacity) {
    return guarded(std::uint32_t{0}, [&] {
        const std::lock_guard lock(memory().mutex);
        std::set<int> found;
        for_each_of(tags_of(tag), [&](const Allocation& allocation) { found.insert(allocation.device); });
        auto next = found.begin();
        for (std::uint32_t i = 0; i < capacity && next != found.end(); ++i) devices[i] = *next++;
        return static_cast<std::uint32_t>(found.size());
    });
}

/// A copy of the contents that are kept of paused memory, until the next pause or resume, or until it is
/// freed; of memory that is active, what is retained. Its address stays until it is dropped. Null if there is
/// none, with tms_last_error() where the caller may have expected one.
std::uint8_t* tms_get_cpu_backup_pointer(const std::uint8_t* pointer, std::uint64_t bytes) {
    return guarded(static_cast<std::uint8_t*>(nullptr), [&]() -> std::uint8_t* {
        const auto* const its = agent();
        if (!its) return nullptr;
        const auto address = reinterpret_cast<std::uintptr_t>(pointer);
        HostMemory spare; // freed last
        std::unique_lock lock(memory().mutex);
        for (;;) {
            auto* const allocation = find(address, bytes);
            if (!allocation) {
                fail(GPU_SLEEP_ERROR_NOT_OWNED, "the tensor's memory was not allocated in a region");
                return nullptr;
            }
            const auto known = allocation->copies.find({address, bytes});
            const bool is_known = known != allocation->copies.end();
            if (is_known && known->second.is_fresh) return known->second.memory.get();
            if (allocation->tag->backup == Backup::disk || (!allocation->is_paused && !memory().retains))
                return nullptr;
            if (!is_known && !spare) {
                const bool is_pinned = allocation->pins_copies;
                lock.unlock(); // the allocation may be freed meanwhile
                spare = allocate_host(bytes, is_pinned);
                lock.lock();
                continue;
            }
            auto& copy = is_known ? known->second : allocation->copies[{address, bytes}];
            if (!is_known) copy.memory = std::move(spare);
            const auto status = its->read_kept(pointer, bytes, copy.memory.get());
            if (status != GPU_SLEEP_OK && allocation->is_paused) fail(status, its->last_error());
            if (status != GPU_SLEEP_OK) return nullptr;
            copy.is_fresh = true;
            return copy.memory.get();
        }
    });
}

/// For torch.cuda.memory.CUDAPluggableAllocator.
void* tms_torch_malloc(ssize_t bytes, int device, void* /*stream*/) {
    void* pointer = nullptr;
    if (bytes <= 0 || allocate(&pointer, static_cast<std::size_t>(bytes), device) != GPU_SLEEP_OK)
        return nullptr;
    return pointer;
}
void tms_torch_free(void* pointer, ssize_t /*bytes*/, int /*device*/, void* /*stream*/) {
    static_cast<void>(release(pointer)); // nobody can be told
}

#pragma GCC visibility pop
} // extern "C"
} // namespace gpu_sleep::saver
