// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A program that uses the driver and knows nothing of gpu-sleep. It obeys commands, or runs the routine that
// its first argument names. Before the first command that needs it, it makes no call of the driver.

#include "base/fd.hpp"
#include "gpu_sleep/gpu_sleep.h"
#include "intercepted_share.hpp"
#include "intercepted_unknown.hpp"
#include "intercepted_work.hpp"
#include "routines.hpp"
#include "support/commanded.hpp"

#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <stop_token>
#include <system_error>
#include <thread>

namespace gpu_sleep::test {
namespace {

/// Everything the program holds; never destroyed.
struct Program {
    CUcontext context = nullptr;
    CUstream stream = nullptr;  ///< non-blocking
    CUstream capture = nullptr; ///< captured in
    CUmodule module = nullptr;
    CUgraphExec graph = nullptr;
    std::deque<Memory> memories; ///< a freed one keeps its number and has no address
};

Program& program() {
    static Program& instance = *new Program;
    return instance;
}

/// Makes everything at the first use: in the primary context, or in its own where TEST_OWN_CONTEXT is set.
Result<void> start() {
    auto& all = program();
    if (all.context) return {};
    GPU_SLEEP_TEST_CALL(cuInit, 0);
    if (std::getenv("TEST_OWN_CONTEXT")) {
        GPU_SLEEP_TEST_CALL(cuCtxCreate, &all.context, nullptr, 0, chosen_gpu());
    } else {
        GPU_SLEEP_TEST_CALL(cuDevicePrimaryCtxRetain, &all.context, chosen_gpu());
    }
    GPU_SLEEP_TEST_CALL(cuCtxSetCurrent, all.context);
    GPU_SLEEP_TEST_CALL(cuStreamCreate, &all.stream, CU_STREAM_NON_BLOCKING);
    GPU_SLEEP_TEST_CALL(cuStreamCreate, &all.capture, CU_STREAM_NON_BLOCKING);
    register_noise_kernel();
    GPU_SLEEP_TEST_CALL(cuModuleLoadData, &all.module, "any image has every kernel");
    return {};
}

Result<Memory*> memory(Words& words) {
    GPU_SLEEP_TRY(start());
    const auto number = next<std::size_t>(words, ~std::size_t{0});
    auto& all = program().memories;
    if (number >= all.size() || all[number].address == 0)
        return make_error(ErrorCode::invalid_argument, "there is no memory {}", number);
    return &all[number];
}

Result<void> synchronize() {
    GPU_SLEEP_TEST_CALL(cuStreamSynchronize, program().stream);
    return {};
}

/// The hash of the contents, after what is under way.
Answer hash_of(const Memory& which) {
    GPU_SLEEP_TRY(synchronize());
    return hash_of_contents(which);
}

// ---- The commands

/// alloc KIND BYTES: "NUMBER ADDRESS"
Answer do_allocate(Words& words) {
    GPU_SLEEP_TRY(start());
    const auto kind = next<std::string>(words);
    program().memories.push_back(GPU_SLEEP_TRY(allocate(kind, next<std::size_t>(words), program().stream)));
    return fmt::format("{} {:#x}", program().memories.size() - 1, program().memories.back().address);
}

/// fill NUMBER SEED: random bytes, by a kernel, or by a copy into an array; then the hash
Answer do_fill(Memory& which, Words& words) {
    const auto seed = next<std::uint64_t>(words);
    const auto count = std::uint64_t{which.bytes / sizeof(std::uint64_t)};
    if (which.array)
        GPU_SLEEP_TRY(fill_array(which, seed));
    else
        GPU_SLEEP_TRY(launch(program().module, k_noise_kernel, program().stream, which.address, count, seed));
    return hash_of(which);
}

/// launch NUMBER INCREMENT: adds it to every 32-bit word, by a kernel; then the hash
Answer do_launch(Memory& which, Words& words) {
    const auto count = std::uint64_t{which.bytes / sizeof(std::uint32_t)};
    const auto increment = next<std::uint32_t>(words);
    GPU_SLEEP_TRY(launch(program().module, "sim_add", program().stream, which.address, count, increment));
    return hash_of(which);
}

/// copy FROM TO: in the null stream, so in the order of everything else; then the hash of TO
Answer do_copy(Memory& from, Memory& to) {
    GPU_SLEEP_TRY(synchronize());
    GPU_SLEEP_TEST_CALL(cuMemcpyDtoDAsync, to.address, from.address, from.bytes, nullptr);
    GPU_SLEEP_TEST_CALL(cuStreamSynchronize, nullptr);
    return hash_of(to);
}

/// capture FROM TO: begins a capture and records a copy and an addition
Answer do_capture(Memory& from, Memory& to) {
    const auto stream = program().capture;
    GPU_SLEEP_TEST_CALL(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    GPU_SLEEP_TEST_CALL(cuMemcpyDtoDAsync, to.address, from.address, from.bytes, stream);
    GPU_SLEEP_TRY(launch(program().module, "sim_add", stream, to.address, std::uint64_t{to.bytes / 4}, 1U));
    return {};
}

/// capture_allocation FROM TO: as capture, by way of memory that the graph allocates and frees
Answer do_capture_allocation(Memory& from, Memory& to) {
    const auto stream = program().capture;
    const auto bytes = from.bytes;
    CUdeviceptr between = 0;
    GPU_SLEEP_TEST_CALL(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    GPU_SLEEP_TEST_CALL(cuMemAllocAsync, &between, bytes, stream);
    GPU_SLEEP_TEST_CALL(cuMemcpyDtoDAsync, between, from.address, bytes, stream);
    GPU_SLEEP_TRY(launch(program().module, "sim_add", stream, between, std::uint64_t{bytes / 4}, 1U));
    GPU_SLEEP_TEST_CALL(cuMemcpyDtoDAsync, to.address, between, bytes, stream);
    GPU_SLEEP_TEST_CALL(cuMemFreeAsync, between, stream);
    return {};
}

/// capture_within: captures nothing in another stream, as for the body of a conditional node
Answer do_capture_within(Words&) {
    CUgraph graph = nullptr;
    GPU_SLEEP_TEST_CALL(cuStreamBeginCapture, program().stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    GPU_SLEEP_TEST_CALL(cuStreamEndCapture, program().stream, &graph);
    GPU_SLEEP_TEST_CALL(cuGraphDestroy, graph);
    return {};
}

/// end_capture: makes the graph
Answer do_end_capture(Words&) {
    CUgraph graph = nullptr;
    GPU_SLEEP_TEST_CALL(cuStreamEndCapture, program().capture, &graph);
    GPU_SLEEP_TEST_CALL(cuGraphInstantiate, &program().graph, graph, 0);
    GPU_SLEEP_TEST_CALL(cuGraphDestroy, graph);
    return {};
}

/// replay NUMBER: clears it and launches the graph; then its hash
Answer do_replay(Memory& to, Words&) {
    GPU_SLEEP_TEST_CALL(cuMemsetD8Async, to.address, 0x5A, to.bytes, program().stream);
    GPU_SLEEP_TEST_CALL(cuGraphLaunch, program().graph, program().stream);
    return hash_of(to);
}

/// free NUMBER
Answer do_free(Memory& which, Words&) {
    GPU_SLEEP_TRY(release(which, program().stream));
    return synchronize(); // what was freed in its turn is free then
}

/// poll: the statuses of who asks or waits for the end of its work: cuStreamQuery, cuStreamSynchronize and
/// cuCtxSynchronize
Answer do_poll(Words&) {
    const auto& calls = cuda();
    return fmt::format("{} {} {}", static_cast<int>(calls.cuStreamQuery(program().stream)),
                       static_cast<int>(calls.cuStreamSynchronize(program().stream)),
                       static_cast<int>(calls.cuCtxSynchronize()));
}

/// shared_object KIND [HANDLE]: see make_shared_object()
Answer do_shared_object(Words& words) {
    GPU_SLEEP_TRY(start());
    const auto kind = next<std::string>(words);
    return make_shared_object(kind, next<std::string>(words));
}

/// query NUMBER OFFSET: "device TYPE DEVICE BEGIN BYTES", BEGIN and BYTES those of the allocation or mapping
Answer do_query(Memory& which, Words& words) {
    const auto address = which.address + next<std::size_t>(words);
    unsigned type = 0;
    int device = -1;
    CUdeviceptr begin = 0;
    std::size_t bytes = 0;
    GPU_SLEEP_TEST_CALL(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    GPU_SLEEP_TEST_CALL(cuPointerGetAttribute, &device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
    GPU_SLEEP_TEST_CALL(cuMemGetAddressRange, &begin, &bytes, address);
    return fmt::format("type {} device {} from {:#x} bytes {}", type, device, begin, bytes);
}

/// synchronous NUMBER: as asked for before a network card is given the address
Answer do_make_synchronous(Memory& which, Words&) {
    unsigned value = 1;
    GPU_SLEEP_TEST_CALL(cuPointerSetAttribute, &value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, which.address);
    return {};
}

/// share NUMBER: a handle for other processes, or for a pointer of a pool, in hexadecimal
Answer do_share(Memory& which, Words&) {
    if (which.kind == "shareable" || which.kind == "pointer") return export_pointer(which);
    CUipcMemHandle handle{};
    GPU_SLEEP_TEST_CALL(cuIpcGetMemHandle, &handle, which.address);
    return in_hexadecimal(std::as_bytes(std::span(handle.reserved)));
}

/// export_pool PATH: to who imports it there
Answer do_export_pool(Words& words) {
    GPU_SLEEP_TRY(start());
    return export_pool(next<std::string>(words));
}

/// import_pool PATH
Answer do_import_pool(Words& words) {
    GPU_SLEEP_TRY(start());
    return import_pool(next<std::string>(words));
}

/// open_imported_pool GPU
Answer do_open_imported_pool(Words& words) {
    return open_imported_pool(next<int>(words));
}

/// import_pointer HANDLE BYTES: as alloc
Answer do_import_pointer(Words& words) {
    const auto handle = next<std::string>(words);
    program().memories.push_back(GPU_SLEEP_TRY(import_pointer(handle, next<std::size_t>(words))));
    return fmt::format("{} {:#x}", program().memories.size() - 1, program().memories.back().address);
}

/// open HANDLE BYTES: memory of another process; as alloc
Answer do_open(Words& words) {
    GPU_SLEEP_TRY(start());
    CUipcMemHandle handle{};
    from_hexadecimal(next<std::string>(words), std::as_writable_bytes(std::span(handle.reserved)));
    Memory made;
    made.kind = "opened";
    made.bytes = next<std::size_t>(words);
    GPU_SLEEP_TEST_CALL(cuIpcOpenMemHandle, &made.address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    program().memories.push_back(made);
    return fmt::format("{} {:#x}", program().memories.size() - 1, made.address);
}

/// export NUMBER [PATH]: a descriptor, to who imports there; its number if it is kept
Answer do_export(Memory& which, Words& words) {
    const auto kept = GPU_SLEEP_TRY(export_memory(which, next<std::string>(words)));
    return kept < 0 ? std::string() : std::to_string(kept);
}

/// import PATH BYTES [keep|later]: as alloc; and the descriptor, if it is kept. Later: is mapped by
/// map_import HANDLE BYTES.
Answer do_map_import(Words& words) {
    const auto handle = next<CUmemGenericAllocationHandle>(words);
    program().memories.push_back(GPU_SLEEP_TRY(map_handle(handle, next<std::size_t>(words))));
    return fmt::format("{} {:#x}", program().memories.size() - 1, program().memories.back().address);
}
Answer do_import(Words& words) {
    GPU_SLEEP_TRY(start());
    const auto path = next<std::string>(words);
    const auto bytes = next<std::string>(words);
    const auto how = next<std::string>(words);
    int kept = -1;
    const auto handle = GPU_SLEEP_TRY(import_handle(path, how == "keep" ? &kept : nullptr));
    const auto mapping = fmt::format("{} {}", handle, bytes);
    if (how == "later") return mapping;
    Words words_to_map(mapping);
    return GPU_SLEEP_TRY(do_map_import(words_to_map)) + fmt::format(" {}", kept);
}

/// close NUMBER: memory of another process, not in the order of a stream, and waits for nothing
Answer do_close(Memory& which, Words&) {
    if (which.kind == "pointer") which.kind = "plain";
    return release(which, program().stream);
}

/// descriptors closed|taken|used|left: what a program does to those that it knows nothing of, of which one is
/// that of the agent's program outside; or it has hardly any number left, or as many as before
Answer do_descriptors(Words& words) {
    static std::vector<UniqueFd> used;
    static rlimit before{};
    constexpr rlim_t k_few = 64;
    const auto what = next<std::string>(words);
    std::vector<int> outside;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
        if (std::error_code none;
            std::filesystem::read_symlink(entry, none).filename() == "gpu-sleep-outside")
            outside.push_back(std::stoi(entry.path().filename()));
    if (what == "left") {
        used.clear();
        if (before.rlim_cur != 0) ::setrlimit(RLIMIT_NOFILE, &before);
    }
    if ((what == "closed" || what == "taken") && outside.empty())
        return make_error(ErrorCode::internal, "no such descriptor");
    UniqueFd other(::open("/dev/null", O_RDWR | O_CLOEXEC));
    for (const int number : outside) {
        if (what == "closed") ::close(number);
        if (what == "taken") ::dup2(other.get(), number);
    }
    if (what == "used") {
        ::getrlimit(RLIMIT_NOFILE, &before);
        const rlimit few{k_few, before.rlim_max};
        ::setrlimit(RLIMIT_NOFILE, &few);
        while (other) used.push_back(std::exchange(other, UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC))));
        constexpr std::size_t k_of_agent =
            4; // a connection, both ends of one to its program, and one to read
        for (std::size_t i = 0; i < k_of_agent; ++i) used.pop_back();
    }
    return {};
}

/// null_stream: "own" when it is the thread's, which can be captured in, or "shared"
Answer do_null_stream(Words&) {
    GPU_SLEEP_TRY(start());
    CUgraph graph = nullptr;
    if (cuda().cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS) return "shared";
    GPU_SLEEP_TEST_CALL(cuStreamEndCapture, nullptr, &graph);
    GPU_SLEEP_TEST_CALL(cuGraphDestroy, graph);
    return "own";
}

/// reset: ends the context, and everything in it
Answer do_reset(Words&) {
    GPU_SLEEP_TEST_CALL(cuDevicePrimaryCtxReset, 0);
    return {};
}

/// contexts MICROSECONDS: a thread ends a context of its own every so often, until it is told 0
Answer do_contexts(Words& words) {
    static std::jthread s_thread;
    const std::chrono::microseconds rest{next<int>(words)};
    s_thread = {};
    if (rest.count() == 0) return {};
    s_thread = std::jthread([rest](const std::stop_token& stop) {
        for (; !stop.stop_requested(); std::this_thread::sleep_for(rest)) {
            CUcontext context = nullptr;
            if (cuda().cuCtxCreate(&context, nullptr, 0, 0) != CUDA_SUCCESS) std::abort();
            if (cuda().cuCtxDestroy(context) != CUDA_SUCCESS) std::abort();
        }
    });
    return {};
}

/// fork [stays]: "STATUS" of a child that did nothing but end; or of none, for it lives as long as this
/// process
Answer do_fork(Words& words) {
    const bool stays = next<std::string>(words) == "stays";
    const auto child = ::fork();
    if (child == 0 && stays) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::pause();
    }
    if (child == 0) ::_exit(7);
    if (stays) return {};
    int status = -1;
    ::waitpid(child, &status, 0);
    return std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

/// end_slowly: the first thread ends at once, and all else a moment later
Answer do_end_slowly(Words&) {
    std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        ::_exit(0);
    }).detach();
    std::puts("ok ");
    std::fflush(stdout);
    ::syscall(SYS_exit, 0);
    return {};
}

/// adopt: the program is given the orphans of its descendants from now on
Answer do_adopt(Words&) {
    if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        return errno_error(ErrorCode::internal, errno, "prctl", "adopt");
    return {};
}

/// chroot DIRECTORY
Answer do_chroot(Words& words) {
    if (::chroot(next<std::string>(words).c_str()) != 0)
        return errno_error(ErrorCode::internal, errno, "chroot", "chroot");
    return {};
}

/// children [all]: the child that wait() finds, "running", or "none"; all: of any kind
Answer do_children(Words& words) {
    const bool all = next<std::string>(words) == "all";
    const auto child = ::waitpid(-1, nullptr, WNOHANG | (all ? __WALL : 0));
    return child < 0 ? "none" : child == 0 ? "running" : std::to_string(child);
}

/// load FILE [apart|deep]: loads a library; apart in a namespace of its own, deep bound to its own
/// dependencies first
Answer do_load(Words& words) {
    const auto file = next<std::string>(words);
    const auto how = next<std::string>(words);
    const auto where = how == "apart" ? LM_ID_NEWLM : LM_ID_BASE;
    if (::dlmopen(where, file.c_str(), RTLD_NOW | (how == "deep" ? RTLD_DEEPBIND : 0))) return {};
    return make_error(ErrorCode::invalid_argument, "{}", ::dlerror());
}

/// look_up WAY: cuFutureSubmit, as a symbol, or by the driver's own look-up; "same" if it was found before
Answer do_look_up(Words& words) {
    GPU_SLEEP_TRY(start());
    return look_up_unknown_call(next<std::string>(words));
}

/// submit NUMBER: sets every byte to 36 by what was looked up
Answer do_submit(Memory& which, Words&) {
    GPU_SLEEP_TRY(submit_by_unknown_call(which, program().stream));
    std::vector<unsigned char> contents(which.bytes);
    GPU_SLEEP_TRY(synchronize());
    GPU_SLEEP_TEST_CALL(cuMemcpyDtoH, contents.data(), which.address, contents.size());
    for (const auto byte : contents)
        if (byte != 36) return make_error(ErrorCode::internal, "a byte is {}", byte);
    return hash_of(which);
}

/// The agent's function of that name, found as by programs that may run without.
template <class Function>
Function* agent_function(const char* name) {
    return reinterpret_cast<Function*>(find_or_die(RTLD_DEFAULT, name));
}

/// "STATUS BYTES", how it was answered and what is asleep, and then why it failed
Answer answer_of(gpu_sleep_status status) {
    const auto asleep = agent_function<decltype(gpu_sleep_asleep_bytes)>("gpu_sleep_asleep_bytes")();
    const auto* const why = agent_function<decltype(gpu_sleep_last_error)>("gpu_sleep_last_error")();
    return fmt::format("{} {} {}", static_cast<int>(status), asleep, status == GPU_SLEEP_OK ? "" : why);
}

/// sleep_self LEVEL TIMEOUT_MS [TAGS]
Answer do_sleep_self(Words& words) {
    const auto level = next<int>(words);
    const auto timeout_ms = next<std::uint32_t>(words);
    const auto tags = next<std::string>(words);
    return answer_of(agent_function<decltype(gpu_sleep_sleep)>("gpu_sleep_sleep")(
        level, tags.empty() ? nullptr : tags.c_str(), timeout_ms));
}

/// wake_self
Answer do_wake_self(Words&) {
    return answer_of(agent_function<decltype(gpu_sleep_wake)>("gpu_sleep_wake")(nullptr, 0));
}

/// gpu_sleep_event as programs have it that were compiled before version 6.
struct OlderEvent {
    std::size_t struct_size;
    int level;
    std::size_t tag_count;
    const char* const* tags;
    std::size_t dropped_tag_count;
    const char* const* dropped_tags;
};

/// What callbacks were told since the last `told`. They run one after another, within a sleep or a wake.
std::string& told() {
    static std::string& words = *new std::string;
    return words;
}

/// callbacks: registers one pair that knows of deep sleeps, and one that is older
Answer do_callbacks(Words&) {
    const auto add = agent_function<decltype(gpu_sleep_add_callback)>("gpu_sleep_add_callback");
    const gpu_sleep_callback tell = [](const gpu_sleep_event* event, void*) {
        const bool has_deep = event->struct_size >= offsetof(gpu_sleep_event, deep) + sizeof event->deep;
        told() += fmt::format(" level {} deep {}", event->level, has_deep ? event->deep : -1);
        return 0;
    };
    const gpu_sleep_callback tell_older = [](const gpu_sleep_event* event, void*) {
        const auto& older = *reinterpret_cast<const OlderEvent*>(event);
        const bool is_whole = older.struct_size >= sizeof older && older.tag_count == 1;
        told() += fmt::format(", {} {}", is_whole ? older.tags[0] : "?", older.dropped_tag_count);
        return 0;
    };
    for (const auto callback : {tell, tell_older})
        if (add(callback, callback, nullptr, 0, nullptr) != GPU_SLEEP_OK)
            return make_error(ErrorCode::internal, "no callback");
    return {};
}

/// faults: "ILLEGAL BROKEN", what the driver was asked to do wrong
Answer do_faults(Words&) {
    const auto counts = GPU_SLEEP_TEST_CONTROL(sim_fault_counts)();
    return fmt::format("{} {}", counts.illegal_accesses, counts.broken_captures);
}

/// fail [NTH]: that call of the driver fails from now on, once, or none; how many have so far, and the last
Answer do_fail(Words& words) {
    GPU_SLEEP_TEST_CONTROL(sim_clear)();
    if (const auto nth = next<std::uint64_t>(words, 0); nth != 0)
        GPU_SLEEP_TEST_CONTROL(sim_fail)("*", nth, CUDA_ERROR_UNKNOWN, SIM_ONCE);
    return fmt::format("{} {}", GPU_SLEEP_TEST_CONTROL(sim_fault_counts)().injected_failures,
                       GPU_SLEEP_TEST_CONTROL(sim_last_failed)());
}

/// delay NAME MILLISECONDS: from now on that call of the driver takes so much longer
Answer do_delay(Words& words) {
    const auto name = next<std::string>(words);
    GPU_SLEEP_TEST_CONTROL(sim_delay)(name.c_str(), 1000 * next<unsigned>(words));
    return {};
}

/// second_gpu: begins to use another
Answer do_second_gpu(Words&) {
    CUcontext context = nullptr;
    GPU_SLEEP_TEST_CALL(cuDevicePrimaryCtxRetain, &context, 1);
    return {};
}

const Commands& commands() {
    static const Commands table = {
        {"start", [](Words&) { return start(); }},
        {"alloc", do_allocate},
        {"fill", about(memory, do_fill)},
        {"hash", about(memory, [](Memory& which, Words&) { return hash_of(which); })},
        {"launch", about(memory, do_launch)},
        {"copy", about_two(memory, do_copy)},
        {"capture", about_two(memory, do_capture)},
        {"capture_allocation", about_two(memory, do_capture_allocation)},
        {"capture_within", do_capture_within},
        {"end_capture", do_end_capture},
        {"replay", about(memory, do_replay)},
        {"free", about(memory, do_free)},
        {"poll", do_poll},
        {"shared_object", do_shared_object},
        {"destroy_shared", [](Words&) { return destroy_shared_object(); }},
        // multicast NUMBER: binds it to a group
        {"multicast", about(memory, [](Memory& which, Words&) { return bind_to_multicast(which); })},
        {"query", about(memory, do_query)},
        {"null_stream", do_null_stream},
        {"reset", do_reset},
        {"contexts", do_contexts},
        {"fork", do_fork},
        {"end_slowly", do_end_slowly},
        {"exec", [](Words&) { return ::execl("/bin/sleep", "sleep", "600", nullptr), Answer(); }},
        {"adopt", do_adopt},
        {"children", do_children},
        {"chroot", do_chroot},
        {"load", do_load},
        {"look_up", do_look_up},
        {"ask_version", [](Words&) { return std::to_string(version_by_unknown_call()); }},
        {"submit", about(memory, do_submit)},
        {"open", do_open},
        {"close", about(memory, do_close)},
        {"descriptors", do_descriptors},
        {"synchronous", about(memory, do_make_synchronous)},
        {"share", about(memory, do_share)},
        {"export", about(memory, do_export)},
        {"export_pool", do_export_pool},
        {"import_pool", do_import_pool},
        {"open_imported_pool", do_open_imported_pool},
        {"import_pointer", do_import_pointer},
        {"describe_imported",
         about(memory, [](Memory& which, Words&) { return describe_imported(which, program().stream); })},
        {"destroy_imported_pool", [](Words&) { return destroy_imported_pool(); }},
        {"close_descriptor", [](Words& w) { return ::close(next<int>(w)), Answer(); }},
        {"import", do_import},
        {"map_import", do_map_import},
        // release NUMBER: its handles; it stays mapped
        {"release", about(memory, [](Memory& which, Words&) { return release_handles(which.segments); })},
        {"callbacks", do_callbacks},
        // told: " level LEVEL deep DEEP, TAG DROPPED" for each sleep and wake since
        {"told", [](Words&) { return std::exchange(told(), {}); }},
        {"sleep_self", do_sleep_self},
        {"wake_self", do_wake_self},
        {"faults", do_faults},
        {"fail", do_fail},
        {"delay", do_delay},
        {"second_gpu", do_second_gpu},
        {"free_bytes", [](Words&) { return std::to_string(GPU_SLEEP_TEST_CONTROL(sim_free_bytes)(0)); }},
        {"pid", [](Words&) { return std::to_string(::getpid()); }},
        {"exit", [](Words& w) -> Answer { std::exit(next<int>(w)); }},
    };
    return table;
}

} // namespace
} // namespace gpu_sleep::test

int main(int count, char** words) {
    using namespace gpu_sleep::test;
    if (count < 2) {
        obey(commands());
        return EXIT_SUCCESS;
    }
    const auto routine = routines().find(words[1]);
    return routine == routines().end() ? 2 : routine->second({words + 2, words + count});
}
