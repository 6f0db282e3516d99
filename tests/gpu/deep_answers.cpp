// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program of deep_answers.py: makes calls of the driver awake, and again when it is told to, so that the
// answers of a deep sleep can be held against the driver's own. What is undefined awake, such as a call about
// what is destroyed, it makes in the deep sleep alone, where it must not reach the driver.

#include "declared_entry_points.hpp"
#include "programs/checked.hpp"
#include "support/driver_kernels.hpp"

#include <cuda.h>

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using Handle = std::uint64_t; // of whatever the driver gives out: pointers, addresses, numbers
using Call = std::function<int()>;

constexpr int k_wrong = -2;   ///< success, and another answer
constexpr int k_missing = -1; ///< this driver has no such entry point, or cannot make what it takes

/// Calls the entry point with these bits as its arguments.
template <class... Arguments>
int call(const char* symbol, Arguments... arguments) {
    auto* const function = reinterpret_cast<CUresult (*)(Arguments...)>(::dlsym(RTLD_DEFAULT, symbol));
    return function ? static_cast<int>(function(arguments...)) : k_missing;
}

template <class Type>
Handle bits(Type handle) {
    if constexpr (std::is_pointer_v<Type>)
        return reinterpret_cast<Handle>(handle);
    else
        return handle;
}

/// What is no handle of anything, in memory that can be read.
Handle wild() {
    alignas(64) static std::array<std::byte, 4096> memory{};
    return bits(memory.data());
}

/// Makes something, and returns its handle; none: the driver cannot.
using Maker = std::function<Handle()>;

template <class Type>
Maker maker(std::function<CUresult(Type*)> make) {
    return [make = std::move(make)] {
        Type made{};
        return make(&made) == CUDA_SUCCESS ? bits(made) : Handle{0};
    };
}

CUresult make_array(CUarray* array) {
    CUDA_ARRAY3D_DESCRIPTOR wanted{};
    wanted.Width = wanted.Height = 64;
    wanted.Format = CU_AD_FORMAT_FLOAT;
    wanted.NumChannels = 1;
    wanted.Flags = CUDA_ARRAY3D_SURFACE_LDST;
    return cuArray3DCreate(array, &wanted);
}

CUresult make_mipmapped(CUmipmappedArray* array) {
    CUDA_ARRAY3D_DESCRIPTOR wanted{};
    wanted.Width = wanted.Height = 64;
    wanted.Format = CU_AD_FORMAT_FLOAT;
    wanted.NumChannels = 1;
    return cuMipmappedArrayCreate(array, &wanted, 2);
}

CUresult make_exec(CUgraphExec* exec) {
    CUgraph graph = nullptr;
    CHECKED(cuGraphCreate(&graph, 0));
    const auto made = cuGraphInstantiate(exec, graph, 0);
    CHECKED(cuGraphDestroy(graph));
    return made;
}

// Found at run time: the simulated driver has neither textures nor surfaces.
CUresult make_texture(CUtexObject* object) {
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    CHECKED(make_array(&resource.res.array.hArray));
    CUDA_TEXTURE_DESC texture{};
    return static_cast<CUresult>(call("cuTexObjectCreate", object, &resource, &texture, nullptr));
}

CUresult make_surface(CUsurfObject* object) {
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    CHECKED(make_array(&resource.res.array.hArray));
    return static_cast<CUresult>(call("cuSurfObjectCreate", object, &resource));
}

CUresult make_captured_event(CUevent* event) {
    CUstream stream = nullptr;
    CUgraph graph = nullptr;
    CHECKED(cuEventCreate(event, 0));
    CHECKED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECKED(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECKED(cuEventRecord(*event, stream));
    return cuStreamEndCapture(stream, &graph);
}

int on_thread_without_context(const Call& what) {
    int status = 0;
    std::thread([&] { status = what(); }).join();
    return status;
}

/// A call, and whether it is answered in a deep sleep; else it is held.
struct Case {
    bool is_answered = false;
    std::function<Call()> prepare; ///< awake; an empty one: it cannot be made here
};

class Cases {
public:
    Cases() {
        const auto stream = maker<CUstream>([](auto* made) { return cuStreamCreate(made, 0); });
        const auto event = maker<CUevent>([](auto* made) { return cuEventCreate(made, 0); });
        for (const auto* symbol :
             {"cuStreamQuery", "cuStreamQuery_ptsz", "cuStreamSynchronize", "cuStreamSynchronize_ptsz"}) {
            add_poll(symbol, stream, "cuStreamDestroy_v2");
            for (const Handle standard : {0, 1, 2})
                add(symbol + std::string(" of the default stream ") + std::to_string(standard), true,
                    [=] { return call(symbol, standard); });
        }
        for (const auto* symbol : {"cuEventQuery", "cuEventSynchronize"}) {
            add_poll(symbol, event, "cuEventDestroy_v2");
            add(symbol + std::string(" of null"), false, [=] { return call(symbol, Handle{0}); });
            add_with(symbol + std::string(" of a captured one"), false, maker<CUevent>(make_captured_event),
                     [=](Handle one) { return call(symbol, one); });
        }
        const auto synchronize = [] { return call("cuCtxSynchronize"); };
        add("cuCtxSynchronize", true, synchronize);
        add("cuCtxSynchronize without a context", false,
            [=] { return on_thread_without_context(synchronize); });
        const auto context = maker<CUcontext>([](auto* made) { return cuCtxGetCurrent(made); });
        add_with("cuCtxSynchronize_v2", true, context,
                 [](Handle one) { return call("cuCtxSynchronize_v2", one); });
        add("cuCtxSynchronize_v2 of what is none", false, [] { return call("cuCtxSynchronize_v2", wild()); });

        static CUcontext s_context = nullptr;
        CHECKED(cuCtxGetCurrent(&s_context));
        add("cuCtxGetCurrent", true, [] {
            CUcontext current = nullptr;
            const int status = call("cuCtxGetCurrent", &current);
            return status == CUDA_SUCCESS && current != s_context ? k_wrong : status;
        });
        add("cuCtxGetCurrent into nowhere", false, [] { return call("cuCtxGetCurrent", Handle{0}); });
        const auto device_says = [](auto... which) {
            return [=] {
                CUdevice device = -1;
                const int status =
                    call(sizeof...(which) == 0 ? "cuCtxGetDevice" : "cuCtxGetDevice_v2", &device, which...);
                return status == CUDA_SUCCESS && device != 0 ? k_wrong : status;
            };
        };
        add("cuCtxGetDevice", true, device_says());
        add("cuCtxGetDevice without a context", false,
            [=] { return on_thread_without_context(device_says()); });
        add("cuCtxGetDevice_v2", true, device_says(s_context));
        add("cuCtxGetDevice_v2 of null", true, device_says(Handle{0}));
        add("cuCtxGetDevice_v2 of what is none", false, device_says(wild()));
        const auto primary_state = [](CUdevice which, int expected) {
            unsigned flags = 0;
            int active = -1;
            const int status = call("cuDevicePrimaryCtxGetState", which, &flags, &active);
            return status == CUDA_SUCCESS && active != expected ? k_wrong : status;
        };
        add("cuDevicePrimaryCtxGetState", true, [=] { return primary_state(0, 1); });
        add("cuDevicePrimaryCtxGetState of what is none", false, [=] { return primary_state(1000, 0); });
        const auto exchange = [](CUstreamCaptureMode* mode) {
            return call("cuThreadExchangeStreamCaptureMode", mode);
        };
        add("cuThreadExchangeStreamCaptureMode and back", true, [=] {
            auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
            const int first = exchange(&mode);
            const bool was_global = mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
            const int second = exchange(&mode);
            const bool was_relaxed = mode == CU_STREAM_CAPTURE_MODE_RELAXED;
            return first + second == 0 && !(was_global && was_relaxed) ? k_wrong : first + second;
        });
        add("cuThreadExchangeStreamCaptureMode of null", false, [=] { return exchange(nullptr); });
        const auto set = [](CUcontext other) { return call("cuCtxSetCurrent", other); };
        add("cuCtxSetCurrent of what it is", true, [=] { return set(s_context); });
        add("cuCtxSetCurrent of null", false, [=] { return set(nullptr); });
        add("cuCtxSetCurrent without a context", false,
            [=] { return on_thread_without_context([=] { return set(s_context); }); });

        for (const auto* symbol : {"cuEventDestroy", "cuEventDestroy_v2"}) add_end(symbol, event);
        for (const auto* symbol : {"cuStreamDestroy", "cuStreamDestroy_v2"}) add_end(symbol, stream);
        const auto memory = [](std::size_t bytes) {
            return maker<CUdeviceptr>([=](auto* made) { return cuMemAlloc(made, bytes); });
        };
        add_end("cuMemFree_v2", memory(std::size_t{4} << 20));
        add_with("cuMemFree_v2 of little", true, memory(256),
                 [](Handle one) { return call("cuMemFree_v2", one); });
        add_with("cuMemFree_v2 within it", false, memory(std::size_t{4} << 20),
                 [](Handle one) { return call("cuMemFree_v2", one + 256); });
        add("cuMemFree of what is none", false, [] { return call("cuMemFree", 4096U); });
        add_end("cuMemFreeHost", maker<void*>([](auto* made) { return cuMemHostAlloc(made, 4096, 0); }));
        add_end("cuArrayDestroy", maker<CUarray>(make_array));
        add_end("cuMipmappedArrayDestroy", maker<CUmipmappedArray>(make_mipmapped));
        add_end("cuModuleUnload", maker<CUmodule>([](auto* made) {
                    return cuModuleLoadData(made, gpu_sleep::driver_testing::k_kernels_ptx);
                }));
        add_end("cuLibraryUnload", maker<CUlibrary>([](auto* made) {
                    return cuLibraryLoadData(made, gpu_sleep::driver_testing::k_kernels_ptx, nullptr, nullptr,
                                             0, nullptr, nullptr, 0);
                }));
        add_end("cuGraphDestroy", maker<CUgraph>([](auto* made) { return cuGraphCreate(made, 0); }), false);
        add_end("cuGraphExecDestroy", maker<CUgraphExec>(make_exec));
        add_end("cuTexObjectDestroy", maker<CUtexObject>(make_texture));
        add_end("cuSurfObjectDestroy", maker<CUsurfObject>(make_surface));

        static std::size_t s_free = 0;
        static std::size_t s_total = 0;
        const auto info = [] { return call("cuMemGetInfo_v2", &s_free, &s_total); };
        add("cuMemGetInfo", true, info);
        add("cuMemGetInfo without a context", false, [=] { return on_thread_without_context(info); });
        add("cuMemGetInfo into nowhere", false, [] { return call("cuMemGetInfo_v2", Handle{0}, Handle{0}); });
    }

    [[nodiscard]] const std::map<std::string, Case>& all() const { return all_; }

private:
    void add(std::string name, bool is_answered, Call what) {
        all_[std::move(name)] = {is_answered, [what = std::move(what)] { return what; }};
    }
    void add_with(std::string name, bool is_answered, Maker make, std::function<int(Handle)> what) {
        all_[std::move(name)] = {is_answered, [make = std::move(make), what = std::move(what)]() -> Call {
                                     const auto one = make();
                                     if (one == 0) return {};
                                     return [=] { return what(one); };
                                 }};
    }
    void add_poll(const std::string& symbol, const Maker& make, const char* destroy) {
        const auto poll = [symbol](Handle one) { return call(symbol.c_str(), one); };
        add_with(symbol, true, make, poll);
        add_with(symbol + " of what is destroyed", false, make, [=](Handle one) {
            call(destroy, one);
            return poll(one);
        });
        add_with(
            symbol + " of what was destroyed awake", false,
            [=] {
                const auto one = make();
                call(destroy, one);
                return one;
            },
            poll);
        add(symbol + " of what is none", false, [=] { return poll(wild()); });
    }
    /// Of what is alive it is put off, unless the agent does not know whether it is.
    void add_end(const std::string& symbol, const Maker& make, bool is_answered = true) {
        const auto end = [symbol](Handle one) { return call(symbol.c_str(), one); };
        add_with(symbol, is_answered, make, end);
        add_with(symbol + " twice", false, make, [=](Handle one) {
            end(one);
            return end(one);
        });
        add(symbol + " of null", false, [=] { return end(0); });
        add(symbol + " of what is none", false, [=] { return end(wild()); });
    }

    std::map<std::string, Case> all_;
};

void say(const std::string& words) {
    std::cout << words << std::endl; // each line is waited for
}

std::string read_line() {
    std::string line;
    if (!std::getline(std::cin, line)) std::exit(0);
    return line;
}

/// Makes the calls that are to be answered, of what is alive; "ready"; then all calls. A line for each: its
/// name, behind a status.
void compare() {
    const Cases cases;
    std::map<std::string, Call> prepared;
    for (const bool is_last : {false, true}) { // what is made later may get a handle that was destroyed
        for (const auto& [name, one] : cases.all()) {
            if (name.ends_with("destroyed awake") != is_last) continue;
            const auto first = one.prepare();
            const int status = !first ? k_missing : one.is_answered ? first() : CUDA_ERROR_SYSTEM_NOT_READY;
            say(std::to_string(status) + " " + name);
            if (status != k_missing) prepared[name] = one.prepare();
        }
    }
    say("ready");
    read_line();
    for (const auto& [name, call] : prepared) say(std::to_string(call()) + " " + name);
    say("done");
    read_line();
}

/// Calls every entry point with nothing but zeros; a line for each that did not fail as a refused one does.
void call_all() {
    static constexpr const char* k_symbols[] = {
#define GPU_SLEEP_SYMBOL(name, ...) #name,
        GPU_SLEEP_INTERCEPTED(GPU_SLEEP_SYMBOL)
#undef GPU_SLEEP_SYMBOL
    };
    say("ready");
    read_line();
    for (const auto* symbol : k_symbols) {
        constexpr Handle k_zero = 0;
        const int status = call(symbol, k_zero, k_zero, k_zero, k_zero, k_zero, k_zero, k_zero, k_zero,
                                k_zero, k_zero, k_zero, k_zero);
        if (status != k_missing && status != CUDA_ERROR_SYSTEM_NOT_READY)
            say(symbol + std::string(" ") + std::to_string(status));
    }
    say("done");
    read_line();
}

/// Polls what is alive without pause; for each line the number of polls so far, and of those that failed.
void poll() {
    CUstream stream = nullptr;
    CUevent event = nullptr;
    CHECKED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECKED(cuEventCreate(&event, 0));
    CHECKED(cuEventRecord(event, stream));
    CHECKED(cuCtxSynchronize());
    CUcontext context = nullptr;
    CHECKED(cuCtxGetCurrent(&context));
    std::atomic<unsigned long> polls{0};
    std::atomic<unsigned long> failures{0};
    std::thread([&] {
        CUdevice device = 0;
        for (;; ++polls)
            for (const auto status :
                 {cuCtxSetCurrent(context), cuCtxGetDevice(&device), cuStreamQuery(stream),
                  cuStreamQuery(nullptr), cuEventQuery(event), cuCtxSynchronize()})
                failures += status != CUDA_SUCCESS;
    }).detach();
    say("ready");
    for (;;) {
        read_line();
        say(std::to_string(polls) + " " + std::to_string(failures));
    }
}

/// Frees memory of a pool of the driver's, and waits for that; what the pool reserves then; "ready". Frees
/// some again; for the first line the answer of a synchronisation, for the second what the pool reserves.
void wait_for_pool() {
    CUstream stream = nullptr;
    CUmemoryPool pool = nullptr;
    CUmemPoolProps wanted{};
    wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    wanted.maxSize = std::size_t{1} << 30; // so that the agent leaves it to the driver
    CHECKED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECKED(cuMemPoolCreate(&pool, &wanted));
    const auto free_some = [&] {
        CUdeviceptr some = 0;
        CHECKED(cuMemAllocFromPoolAsync(&some, std::size_t{64} << 20, pool, stream));
        CHECKED(cuMemFreeAsync(some, stream));
    };
    const auto reserved = [&] {
        cuuint64_t bytes = 0;
        CHECKED(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes));
        return std::to_string(bytes);
    };
    free_some();
    CHECKED(cuStreamSynchronize(stream));
    say(reserved());
    free_some();
    say("ready");
    read_line();
    say(std::to_string(call("cuStreamSynchronize", stream)));
    read_line();
    say(reserved());
    read_line();
}

/// For the first line the answer to a change of the thread's capture mode; for the second, after a call that
/// depends on it, what it was in the driver.
void change_capture_mode() {
    CUcontext context = nullptr;
    CUevent event = nullptr;
    std::atomic<bool> captures{false};
    CHECKED(cuCtxGetCurrent(&context));
    CHECKED(cuEventCreate(&event, 0));
    const auto change = [](CUstreamCaptureMode to) {
        auto mode = to;
        const int status = call("cuThreadExchangeStreamCaptureMode", &mode);
        return std::to_string(status) + " " + std::to_string(static_cast<int>(mode));
    };
    say("ready");
    read_line();
    say(change(CU_STREAM_CAPTURE_MODE_RELAXED));
    read_line();
    std::thread([&] {
        CUstream stream = nullptr;
        CHECKED(cuCtxSetCurrent(context));
        CHECKED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        CHECKED(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        captures = true;
        std::this_thread::sleep_for(std::chrono::hours(1));
    }).detach();
    while (!captures) std::this_thread::yield();
    CHECKED(cuEventQuery(event)); // which breaks the capture unless this thread's mode is relaxed
    say(change(CU_STREAM_CAPTURE_MODE_GLOBAL));
    read_line();
}

/// With a context beside the primary one: for the first line the answer to the end of an event.
void end_beside_another_context(CUcontext primary) {
    CUcontext other = nullptr;
    CUevent event = nullptr;
    CHECKED(cuCtxCreate(&other, nullptr, 0, 0));
    CHECKED(cuCtxSetCurrent(primary));
    CHECKED(cuEventCreate(&event, 0));
    say("ready");
    read_line();
    say(std::to_string(call("cuEventDestroy_v2", event)));
    read_line();
}

/// Has a kernel write where nothing is; "ready"; for each line the answer of a synchronisation.
void fail() {
    CUmodule module = nullptr;
    CUfunction fill = nullptr;
    CHECKED(cuModuleLoadData(&module, gpu_sleep::driver_testing::k_kernels_ptx));
    CHECKED(cuModuleGetFunction(&fill, module, "sim_fill"));
    CUdeviceptr nowhere = CUdeviceptr{1} << 45;
    std::uint64_t count = 1;
    unsigned value = 1;
    void* parameters[] = {&nowhere, &count, &value};
    CHECKED(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    say("ready");
    for (;;) {
        read_line();
        say(std::to_string(call("cuCtxSynchronize")));
    }
}

} // namespace

int main(int count, char** arguments) {
    const std::string what = count > 1 ? arguments[1] : "";
    CHECKED(cuInit(0));
    CUcontext context = nullptr;
    CHECKED(cuDevicePrimaryCtxRetain(&context, 0));
    CHECKED(cuCtxSetCurrent(context));
    CUdeviceptr memory = 0; // some that sleeps
    if (what != "--fail") CHECKED(cuMemAlloc(&memory, std::size_t{4} << 20));
    if (what == "--all")
        call_all();
    else if (what == "--poll")
        poll();
    else if (what == "--pool")
        wait_for_pool();
    else if (what == "--capture-mode")
        change_capture_mode();
    else if (what == "--contexts")
        end_beside_another_context(context);
    else if (what == "--fail")
        fail();
    else
        compare();
    return 0;
}
