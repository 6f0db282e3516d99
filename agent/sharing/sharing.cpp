// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What processes share stays on the GPU, unless all that have it go to sleep together. Then each keeps its
// contents: who opened it may outlive its owner. A wake gets it from the owner again.

#include "sharing/sharing.hpp"

#include "common/interception.hpp"
#include "intercepted/virtual_memory.hpp"
#include "sharing/inside.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <thread>

namespace gpu_sleep::agent::sharing {

std::optional<std::array<std::uint64_t, 2>> secret() {
    using Words = std::array<std::uint64_t, 2>;
    static const auto s_secret = []() -> std::optional<Words> {
        Words words{};
        return ::getrandom(words.data(), sizeof words, 0) == sizeof words ? std::optional(words)
                                                                          : std::nullopt;
    }();
    return s_secret;
}

Result<driver::PhysicalMemory> import_memory(const driver::Api& api, int memory) {
    CUmemGenericAllocationHandle handle = 0;
    auto* const descriptor = reinterpret_cast<void*>(static_cast<std::intptr_t>(memory));
    GPU_SLEEP_DRIVER_TRY(api, cuMemImportFromShareableHandle, "cannot open shared memory", &handle,
                         descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    return driver::PhysicalMemory(api, handle);
}

Result<server::SharedMemory> ask_until_awake(const ProcessIdentity& owner, model::SharedMemoryRequest asked) {
    constexpr Milliseconds k_between_tries{20};
    constexpr Milliseconds k_silence{3'000};
    asked.question = model::SharingQuestion::wake;
    const auto start = Clock::now();
    for (bool is_said = false;;) {
        auto shared = server::ask_for_memory(owner, asked, Clock::now() + k_patience);
        if (shared || shared.error().code != ErrorCode::refused) return shared;
        if (Clock::now() - start > k_silence && !std::exchange(is_said, true))
            log::warning("memory of process {} is opened once that is awake: gpu-wake {}", owner.pid,
                         owner.pid);
        if (!gate::step_aside(k_between_tries, gate::Touch::takes, "memory of another process"))
            return make_error(ErrorCode::cancelled, "the gate is closed");
    }
}

bool has_ended(const ProcessIdentity& process) {
    const auto start_time = start_time_of(process.pid);
    if (!start_time) return start_time.error().code == ErrorCode::no_process;
    if (*start_time != process.start_time) return true;
    const auto stat = stat_of(process.pid); // it lives on when its first thread has ended
    return stat && (stat->state == 'Z' || stat->state == 'X') && stat->threads <= 1;
}

bool is_gone_soon(const ProcessIdentity& process) {
    constexpr unsigned k_ends = 0x4; // PF_EXITING: it, or its first thread alone
    constexpr Milliseconds k_between_looks{5};
    for (const auto until = Clock::now() + k_until_told; Clock::now() < until;) {
        if (has_ended(process)) return true;
        const auto stat = stat_of(process.pid);
        if (stat && (stat->flags & k_ends) == 0) return false;
        std::this_thread::sleep_for(k_between_looks);
    }
    return false;
}

namespace {

constexpr Milliseconds k_between_questions{2};

/// Whether a process has ended, or runs another program, which has no agent yet.
bool is_gone(const ProcessIdentity& process) {
    return process.pid != 0 && (has_ended(process) || has_no_agent(process.pid));
}

std::optional<std::uint64_t> epoch_of(const HeldFile* epochs) {
    std::uint64_t epoch = 0;
    const bool is_read =
        epochs && epochs->is_held() && ::pread(epochs->get(), &epoch, sizeof epoch, 0) == sizeof epoch;
    return is_read ? std::optional(epoch) : std::nullopt;
}

/// Calls `use(import, backing)` for all that is open.
template <class Use>
void for_each_import(LockedMemory& locked, const Use& use) {
    auto& imports = books().imports;
    const MutexLock lock(imports.mutex);
    for (auto& import : imports.all) use(import, *locked.ledger().find(import.at));
}

/// For its owner, which asks.
void note_whether_it_stays(Import& import, const ledger::Backing& backing) noexcept {
    import.stays = backing.stay_reason && backing.stay_reason != k_of_another_process;
}

/// Finds which other processes have memory that is to sleep.
class Others {
public:
    /// Which of those that may have it has it, and does not go along; the pid is 0 if that cannot be told.
    /// Who does not answer is not asked again.
    [[nodiscard]] std::optional<pid_t> in_the_way(const std::vector<ProcessIdentity>& importers,
                                                  model::SharedMemoryRequest asked) {
        asked.question = model::SharingQuestion::goes_along;
        const auto patience = asked.party != 0 ? k_patience : k_until_told;
        for (const auto& importer : importers) {
            if (importer.pid != 0 && has_ended(importer)) continue;
            if (std::ranges::find(silent_, importer) != silent_.end()) return importer.pid;
            const auto goes = agents_.ask(importer, asked, Clock::now() + patience);
            if (goes && asked.party == 0) return importer.pid; // it sleeps there
            if (goes || goes.error().code == ErrorCode::not_owned || is_gone(importer)) continue;
            if (goes.error().code != ErrorCode::refused) {
                if (importer.pid != 0 && is_gone_soon(importer)) continue;
                silent_.push_back(importer);
            }
            return importer.pid;
        }
        return std::nullopt;
    }
    /// The same of memory whose owner, which knew who has it, has ended.
    [[nodiscard]] std::optional<pid_t> heir_of(const model::SharedMemoryRequest& asked) {
        if (!may_be_heirs_) may_be_heirs_ = others_with_agents();
        return in_the_way(*may_be_heirs_, asked);
    }

private:
    server::Agents agents_;
    std::vector<ProcessIdentity> silent_;
    std::optional<std::vector<ProcessIdentity>> may_be_heirs_;
};

std::string stays_with(Bytes bytes, pid_t other) {
    const auto why = other == 0
                         ? "a descriptor of them is open, or on its way, or with a process that has no agent"
                         : fmt::format("shared with process {}, which keeps them there", other);
    return fmt::format("{} stay on the GPU: {}", format_bytes(bytes), why);
}

/// The owner's part of agree_on_shared().
void decide_on_own(ProgramMemory& memory, const model::SleepRequest& request,
                   std::vector<std::string>& stays) {
    auto& shared = memory.shared_ranges();
    const auto words = secret().value_or(std::array<std::uint64_t, 2>{});
    const auto ranges = shared.begin_deciding();
    Others others;
    std::set<CUdeviceptr> staying; // of a range that several allocations share, all have to go
    std::set<std::uint64_t> by_descriptor;
    const auto stay = [&](CUdeviceptr address, pid_t other) {
        const auto& range = ranges.at(address);
        staying.insert(address - range.offset);
        stays.push_back(stays_with(range.bytes, other));
    };
    for (const auto& [address, range] : ranges) {
        if (staying.contains(address - range.offset)) continue;
        const auto other = others.in_the_way(
            range.importers,
            {.secret = words, .address = address, .allocation = range.allocation, .party = request.party});
        if (other)
            stay(address, *other);
        else if (range.by_descriptor)
            by_descriptor.insert(address);
    }
    for (const auto number : exported_elsewhere(by_descriptor)) stay(number, 0);
    std::set<driver::DeviceAddress> going;
    memory.with_lock([&](LockedMemory& locked) {
        for (const auto& [address, range] : ranges) {
            auto* const backing = locked.ledger().find(range.place);
            const bool is_awake =
                backing && !backing->is_asleep() && (backing->stays_in_common || !backing->stay_reason);
            if (!is_awake || staying.contains(address - range.offset)) continue;
            if (!model::means_tag(request.tags, locked.ledger().tag(backing->tag).name)) continue;
            backing->stay_reason = nullptr;
            going.insert(address);
        }
        shared.decide(going);
    });
}

/// Memory that this process has opened.
struct Opening {
    ProcessIdentity from;
    model::SharedMemoryRequest asked;
    CUdeviceptr place = 0;
    Bytes bytes = 0;
    std::shared_ptr<HeldFile> epochs{}; ///< as for Import
    std::uint64_t epoch = 0;
    bool is_in_common = false;
};
std::vector<Opening> openings(LockedMemory& locked, bool are_asleep) {
    std::vector<Opening> found;
    for_each_import(locked, [&](const Import& import, const ledger::Backing& backing) {
        if (backing.imported && backing.is_asleep() == are_asleep)
            found.push_back({import.from, import.asked, backing.address, backing.bytes, import.epochs,
                             import.epoch, import.is_in_common});
    });
    return found;
}

/// Asks the owner until it is decided there. Errors: those of server::ask_for_memory(); timed_out, cancelled.
Result<server::SharedMemory> ask_until_decided(server::Agents& agents, const Opening& opening,
                                               std::uint64_t party, Clock::time_point deadline,
                                               const std::function<bool()>& keep_going) {
    auto asked = opening.asked;
    asked.question = model::SharingQuestion::goes_down;
    asked.party = party;
    for (;;) {
        auto said = agents.ask(opening.from, asked, Clock::now() + k_patience);
        if (said || said.error().code != ErrorCode::timed_out || Clock::now() >= deadline) return said;
        if (!keep_going()) return make_error(ErrorCode::cancelled, "the request was withdrawn");
        std::this_thread::sleep_for(k_between_questions);
    }
}

/// What has no owner any more becomes this process's own. False if it was closed meanwhile.
bool adopt(LockedMemory& locked, CUdeviceptr place) {
    auto* const backing = locked.ledger().find(place);
    if (!backing || !backing->imported) return false;
    backing->imported = false;
    if (backing->stay_reason == k_of_another_process) backing->stay_reason = nullptr;
    adopt_mapping(locked, place);
    return true;
}

/// The part of agree_on_shared() of who opened it. Its owner counts on what was said to it: where that is not
/// known to stay, it has to go, or nothing does.
Result<void> follow_owners(ProgramMemory& memory, std::uint64_t party, std::vector<std::string>& stays,
                           Clock::time_point deadline, const std::function<bool()>& keep_going) {
    server::Agents agents;
    Others others;
    std::map<pid_t, std::shared_ptr<HeldFile>> epochs; // one file for all that an owner has
    for (const auto& each : memory.with_lock([](auto& locked) { return openings(locked, false); })) {
        auto said = ask_until_decided(agents, each, party, deadline, keep_going);
        const auto code = said ? ErrorCode::internal : said.error().code;
        if (!said && is_gone(each.from)) {
            if (each.is_in_common) {
                stays.push_back(fmt::format("{} stay on the GPU: other allocations of process {}, which has "
                                            "ended, lie beside what it shared",
                                            format_bytes(each.bytes), each.from.pid));
                continue;
            }
            const auto other = others.heir_of(each.asked);
            if (other || is_left_anywhere(each.asked))
                stays.push_back(stays_with(each.bytes, other.value_or(0)));
            else
                memory.with_lock([&](LockedMemory& locked) { adopt(locked, each.place); });
            continue;
        }
        if (code == ErrorCode::refused || code == ErrorCode::not_owned) {
            stays.push_back(stays_with(each.bytes, each.from.pid));
            continue;
        }
        if (!said) return std::move(said).error();
        bool is_ready = true; // or closed meanwhile
        memory.with_lock([&](LockedMemory& locked) {
            for_each_import(locked, [&](Import& import, ledger::Backing& backing) {
                if (backing.address != each.place) return;
                auto& of_owner = epochs[each.from.pid];
                if (!of_owner) of_owner = std::make_shared<HeldFile>(std::move(said->memory));
                import.epochs = of_owner;
                const auto epoch = epoch_of(of_owner.get());
                is_ready = epoch && backing.stay_reason == k_of_another_process;
                import.epoch = epoch.value_or(0);
                import.goes = is_ready;
                if (is_ready) backing.stay_reason = nullptr;
            });
        });
        if (!is_ready)
            return make_error(ErrorCode::driver_failed,
                              "memory that process {} shares with it cannot sleep here", each.from.pid);
    }
    return {};
}

/// Who has opened memory of this process, and whose memory it has, all of it or what goes with that party;
/// the pid is 0 where that cannot be told.
std::vector<ProcessIdentity> all_sharers(ProgramMemory& memory, std::uint64_t party = 0) {
    std::vector<ProcessIdentity> found;
    const auto add = [&](const ProcessIdentity& other) {
        if (std::ranges::find(found, other) == found.end()) found.push_back(other);
    };
    for (const auto& [address, range] : memory.shared_ranges().all())
        if (party == 0 || range.party == party) std::ranges::for_each(range.importers, add);
    auto& imports = books().imports;
    const MutexLock lock(imports.mutex);
    for (const auto& import : imports.all)
        if (party == 0 || import.goes) add(import.from);
    return found;
}

Error no_such_memory() {
    return make_error(ErrorCode::not_owned, "there is no such shared memory");
}

/// The handle that is asked for, if the ledger does not have its memory any more: that stays, and who had it
/// gets it again.
const Handle* find_what_stays(Handles& all, const model::SharedMemoryRequest& request)
    GPU_SLEEP_REQUIRES(all.mutex) {
    const auto* const handle = request.address == request.allocation ? all.find(request.address) : nullptr;
    return handle && handle->is_exported && handle->real != 0 ? handle : nullptr;
}

/// Errors: not_owned; those of driver::export_memory().
Result<server::SharedMemory> open_what_stays(const driver::Api& api,
                                             const model::SharedMemoryRequest& request) {
    auto& all = books().handles;
    const MutexLock lock(all.mutex);
    const auto* const handle = find_what_stays(all, request);
    if (!handle) return no_such_memory();
    return server::SharedMemory{{handle->bytes, 0}, GPU_SLEEP_TRY(driver::export_memory(api, handle->real))};
}

/// Whether this process has that memory of its own, awake or asleep.
bool is_there(const SharedRanges& ranges, const model::SharedMemoryRequest& request) {
    const auto all = ranges.all();
    const auto found = all.find(request.address);
    auto& handles = books().handles;
    const MutexLock lock(handles.mutex);
    return (found != all.end() && found->second.allocation == request.allocation) ||
           find_what_stays(handles, request);
}

/// An answer without memory.
Result<server::SharedMemory> without_memory(Result<void> said) {
    return said ? server::SharedMemory() : Result<server::SharedMemory>(std::move(said).error());
}

/// Whether what this process has opened of that memory sleeps when its owner does, which asks. Errors:
/// refused (it does not); not_owned (there is none of it here).
Result<void> goes_along(const model::SharedMemoryRequest& request, bool is_in_party) {
    const auto is_it = [&](const auto& import) {
        return import.asked.secret == request.secret && import.asked.allocation == request.allocation;
    };
    const auto stays = [&](const Import& import) {
        return is_it(import) && !import.is_asleep && (!is_in_party || import.stays);
    };
    bool is_here = false;
    bool goes = false;
    {
        auto& imports = books().imports;
        const MutexLock lock(imports.mutex);
        is_here = std::ranges::any_of(imports.all, is_it);
        goes = std::ranges::none_of(imports.passing, is_it) && std::ranges::none_of(imports.all, stays);
    }
    if (!goes || !can_go(request)) return make_error(ErrorCode::refused, "it does not go to sleep");
    return is_here ? Result<void>() : no_such_memory();
}

} // namespace

Result<server::SharedMemory> share(const model::SharedMemoryRequest& request, pid_t asker) {
    using Question = model::SharingQuestion;
    const auto with = memory();
    if (!with) return no_such_memory();
    auto& ranges = with->shared_ranges();
    if (request.question == Question::exported) return answer_of_exports(request);
    if (request.question == Question::goes_along)
        return without_memory(goes_along(request, request.party != 0 && request.party == ranges.party()));
    if (request.question == Question::has_passed) return without_memory(ranges.has_passed(request.party));
    if (request.question == Question::tells)
        return without_memory(intercepts() ? Result<void>() : no_such_memory());
    if (request.secret != secret()) return no_such_memory();
    if (request.question == Question::is_there)
        return without_memory(is_there(ranges, request) ? Result<void>() : no_such_memory());
    if (request.question == Question::goes_down)
        return server::SharedMemory{{}, GPU_SLEEP_TRY(ranges.goes_down(request))};
    if (!with->may_call_driver()) return make_error(ErrorCode::refused, "it sleeps deeply");
    const auto is_allocated = [&] {
        if (request.address == request.allocation) return true; // a handle, with whose mapping its range goes
        const auto known = books().allocations.find(request.address);
        return known && known->id == request.allocation;
    };
    std::optional<ProcessIdentity> who; // nobody: it is in another pid namespace
    if (asker != 0) who = ProcessIdentity{asker, GPU_SLEEP_TRY(start_time_of(asker))};
    auto opened = ranges.open(with->api(), request, who, is_allocated);
    if (opened)
        return server::SharedMemory{{opened->range.bytes, opened->range.offset}, std::move(opened->memory)};
    return opened.error().code == ErrorCode::not_owned ? open_what_stays(with->api(), request)
                                                       : std::move(opened).error();
}

void expect_shared_to_go(ProgramMemory& memory, LockedMemory& locked) {
    const auto goes = [](ledger::Backing* backing, const char* reason) {
        if (backing && !backing->is_asleep() && backing->stay_reason == reason)
            backing->stay_reason = nullptr;
    };
    for (const auto& [address, range] : memory.shared_ranges().all())
        goes(locked.ledger().find(range.place), range.reason);
    for_each_import(locked,
                    [&](const Import&, ledger::Backing& backing) { goes(&backing, k_of_another_process); });
}

void prepare_imports(ProgramMemory& memory) noexcept {
    ignoring_errors([&] { map_loose_imports(memory); });
    memory.with_lock([](LockedMemory& locked) { for_each_import(locked, note_whether_it_stays); });
    ignoring_errors(leave_tickets_of_imports);
}

Result<std::vector<std::string>> agree_on_shared(ProgramMemory& memory, const model::SleepRequest& request,
                                                 Clock::time_point deadline,
                                                 const std::function<bool()>& keep_going) {
    std::vector<std::string> stays;
    decide_on_own(memory, request, stays);
    GPU_SLEEP_TRY(follow_owners(memory, request.party, stays, deadline, keep_going));
    return stays;
}

bool party_has_passed(ProgramMemory& memory, std::uint64_t party) {
    constexpr Milliseconds k_hearsay{500}; // longer than it takes from one to the next
    const auto others = all_sharers(memory, party);
    memory.shared_ranges().withdraw_from_party();
    model::SharedMemoryRequest asked;
    asked.question = model::SharingQuestion::has_passed;
    asked.party = party;
    const auto start = Clock::now();
    for (bool may_be_told = !others.empty(); may_be_told;) {
        may_be_told = Clock::now() - start < k_hearsay;
        for (const auto& other : others) {
            const auto said = server::ask_for_memory(other, asked, Clock::now() + k_patience);
            if (said) return true;
            may_be_told |= said.error().code == ErrorCode::timed_out && !has_ended(other);
        }
        std::this_thread::sleep_for(k_between_questions);
    }
    return false;
}

bool shares_any(ProgramMemory& memory) {
    return !memory.shared_ranges().all().empty() || !imported_handles().empty() ||
           !all_sharers(memory).empty();
}

std::uint64_t party_of_one(ProgramMemory& memory) {
    const auto words = secret();
    const auto ranges = memory.shared_ranges().all();
    const auto imports = imported_handles();
    const auto opened = memory.with_lock([](auto& locked) { return openings(locked, false); });
    const auto is_orphan = [](const Opening& each) { return has_ended(each.from); };
    Others others;
    const auto has_others = [&](const PassingImport& import) {
        return !has_ended(import.from) || others.heir_of(import.asked);
    };
    // Of descriptors it is not known who has them, nor who is about to open what nobody has opened.
    const auto may_be_elsewhere = [&](const auto& each) {
        const auto& [address, range] = each;
        return range.by_descriptor || range.importers.empty() ||
               others.in_the_way(range.importers,
                                 {.secret = *words, .address = address, .allocation = range.allocation});
    };
    const auto is_awake = [](const auto& each) { return !each.second.is_asleep; };
    const bool has_any =
        !imports.empty() || std::ranges::any_of(ranges, is_awake) || std::ranges::any_of(opened, is_orphan);
    const bool is_alone = words && has_any && std::ranges::none_of(imports, has_others) &&
                          std::ranges::none_of(ranges, may_be_elsewhere);
    return is_alone ? words->back() | 1 : 0;
}

std::vector<std::uint64_t> sharers(ProgramMemory& memory) {
    std::set<std::uint64_t> pids;
    for (const auto& each : all_sharers(memory))
        if (each.pid != 0 && !has_ended(each)) pids.insert(static_cast<std::uint64_t>(each.pid));
    return {pids.begin(), pids.end()};
}

void settle_shared(ProgramMemory& memory, LockedMemory& locked, std::uint64_t waking,
                   const std::function<bool(ledger::TagId)>& wakes) {
    memory.shared_ranges().settle(
        [&](const SharedRanges::Range& range) -> driver::PhysicalMemory::Handle {
            auto* const backing = locked.ledger().find(range.place);
            if (!backing) return 0;
            const bool is_woken = waking != 0 && backing->mapped && wakes(backing->tag);
            if (backing->is_asleep() && !is_woken) return 0;
            if (!backing->is_asleep() && !backing->stay_reason) {
                backing->stay_reason = range.reason;
                backing->stays_in_common = true;
            }
            return backing->handle;
        },
        waking);
    for_each_import(locked, [=](Import& import, ledger::Backing& backing) {
        import.is_asleep = backing.is_asleep();
        if (waking == 0) import.goes = false;
        if (backing.imported && !import.is_asleep && !backing.stay_reason)
            backing.stay_reason = k_of_another_process;
        note_whether_it_stays(import, backing);
    });
    if (waking == 0) unmap_loose_imports(memory, locked);
    put_descriptors_back(locked);
}

bool any_import_sleeps(LockedMemory& locked) {
    return !openings(locked, true).empty();
}

/// Whether another process, where that memory slept as well when its owner ended, has made it its own before.
/// `epochs` is the owner's file: by a lock there, others see from now on that this process has.
bool is_adopted_twice(const HeldFile& epochs, std::uint64_t allocation) {
    constexpr auto k_most = std::uint64_t{1} << 62;
    const auto path = fmt::format("/proc/thread-self/fd/{}", epochs.get());
    LockedFile own(UniqueFd(open_file(AT_FDCWD, path.c_str(), O_RDWR | O_CLOEXEC)));
    if (!own) return false;
    const auto at = static_cast<off_t>(sizeof(std::uint64_t) + allocation % k_most);
    if (own.lock(LockedFile::Holder::descriptor, at, 1) != LockedFile::Lock::taken) return true;
    auto& imports = books().imports;
    const MutexLock lock(imports.mutex);
    imports.adopted.push_back(std::move(own));
    return false;
}

std::vector<std::string> adopt_orphans(ProgramMemory& memory) {
    std::vector<std::string> notes;
    for (const auto& each : memory.with_lock([](auto& locked) { return openings(locked, true); })) {
        auto asked = each.asked;
        asked.question = model::SharingQuestion::is_there;
        const auto said = server::ask_for_memory(each.from, asked, Clock::now() + k_patience);
        if (said || (said.error().code != ErrorCode::not_owned && !is_gone(each.from))) continue;
        const bool are_lost = epoch_of(each.epochs.get()) != each.epoch;
        const bool is_own = memory.with_lock([&](LockedMemory& locked) {
            auto* const backing = locked.ledger().find(each.place);
            if (!backing || !backing->is_asleep() || !adopt(locked, each.place)) return false;
            if (are_lost) {
                locked.contents().forget(std::exchange(backing->kept, {}).range);
                ledger::Ledger::move(*backing, model::Residence::dropped);
            }
            return true;
        });
        if (!is_own) continue;
        if (are_lost)
            notes.push_back(fmt::format("{} are zero: process {}, which shared them, woke without this one "
                                        "and gave them up",
                                        format_bytes(each.bytes), each.from.pid));
        else if (is_adopted_twice(*each.epochs, each.asked.allocation))
            notes.push_back(
                fmt::format("{} are shared no more: process {}, which shared them, has ended, and "
                            "each other process has them for itself",
                            format_bytes(each.bytes), each.from.pid));
    }
    return notes;
}

Result<void> fetch_imports(const driver::Api& api, std::span<ledger::Backing* const> wanted,
                           std::vector<UnsharedFd>& descriptors, const model::WakeRequest& request,
                           Clock::time_point deadline, const std::function<bool()>& keep_going) {
    server::Agents agents;
    descriptors.reserve(descriptors.size() + wanted.size());
    const log::Step step("open shared memory again");
    for (auto* const backing : wanted) {
        std::optional<Opening> of; // closed meanwhile: it stays asleep
        {
            auto& imports = books().imports;
            const MutexLock lock(imports.mutex);
            for (auto& import : imports.all)
                if (import.at == backing->address) {
                    of = {import.from, import.asked, backing->address};
                    import.is_asleep = false; // an owner that falls asleep again has to wait for it
                    import.goes = request.joint;
                }
        }
        if (!of) continue;
        of->asked.party = request.party;
        of->asked.question =
            request.with_sharers ? model::SharingQuestion::wake : model::SharingQuestion::memory;
        for (;;) {
            auto shared = agents.ask(of->from, of->asked, Clock::now() + k_patience);
            if (shared) {
                auto& memory = descriptors.emplace_back(std::move(shared->memory));
                backing->handle = GPU_SLEEP_TRY(import_memory(api, memory.get())).release();
                break;
            }
            if (shared.error().code == ErrorCode::unknown_tag) break;
            if (shared.error().code != ErrorCode::refused) return std::move(shared).error();
            const bool is_member = request.members.empty() || // or that is not known
                                   std::ranges::count(request.members, of->from.pid) != 0;
            const bool waits = request.with_sharers || (request.joint && is_member);
            if (!waits && !request.tags.empty()) break; // it was not asked for
            if (!waits)
                return make_error(ErrorCode::driver_failed,
                                  "it shares memory with process {} ({}), which sleeps: gpu-wake "
                                  "--with-sharers wakes both, or --tree or --group if that has both",
                                  of->from.pid, name_of(of->from.pid));
            if (Clock::now() >= deadline)
                return make_error(ErrorCode::timed_out, "process {}, which has memory of it, did not wake",
                                  of->from.pid);
            if (!keep_going()) return make_error(ErrorCode::cancelled, "the request was withdrawn");
            std::this_thread::sleep_for(k_between_questions);
        }
    }
    return {};
}

} // namespace gpu_sleep::agent::sharing
