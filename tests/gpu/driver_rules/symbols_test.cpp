// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Names, symbols and versions: what a look-up finds, and the null stream of programs that have one a thread.

#include "rules.hpp"

#include "simulated_entry_points.hpp"

using namespace gpu_sleep::driver_rules;

namespace {

constexpr cuuint64_t k_per_thread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

void* symbol(const char* name) {
    static void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    REQUIRE(library != nullptr);
    return ::dlsym(library, name);
}

void* look_up(const char* name, int version, cuuint64_t flags) {
    void* found = nullptr;
    cuGetProcAddress(name, &found, version, flags, nullptr);
    return found;
}

template <class Function>
Function* as(void* pointer) {
    REQUIRE(pointer != nullptr);
    return reinterpret_cast<Function*>(pointer);
}

struct Exported {
    const char* name;   ///< as documented
    const char* symbol; ///< as exported
    int version;
};

#define SIM_TEST_STRING(name) #name
#define SIM_TEST_SYMBOL(name) SIM_TEST_STRING(name)
#define SIM_TEST_ROW(name, version, trait) {#name, SIM_TEST_SYMBOL(name), version},
constexpr Exported k_exported[] = {GPU_SLEEP_SIM_ENTRY_POINTS(SIM_TEST_ROW)};

} // namespace

TEST_CASE("Driver: what names mean to programs with a default stream a thread", "[driver_rules]") {
    struct Meaning {
        const char* name;
        int version;
        const char* symbol;
    };
    const auto meaning = GENERATE(Meaning{"cuMemcpy", 7000, "cuMemcpy_ptds"},
                                  Meaning{"cuMemcpyHtoDAsync", 7000, "cuMemcpyHtoDAsync_v2_ptsz"},
                                  Meaning{"cuMemsetD2D16", 12000, "cuMemsetD2D16_v2_ptds"},
                                  Meaning{"cuLaunchKernelEx", 13000, "cuLaunchKernelEx_ptsz"},
                                  Meaning{"cuStreamBeginCapture", 13000, "cuStreamBeginCapture_v2_ptsz"},
                                  Meaning{"cuStreamGetCaptureInfo", 12000, "cuStreamGetCaptureInfo_v2_ptsz"},
                                  Meaning{"cuStreamGetCaptureInfo", 13000, "cuStreamGetCaptureInfo_v3_ptsz"},
                                  Meaning{"cuMemAllocAsync", 13000, "cuMemAllocAsync_ptsz"},
                                  Meaning{"cuMemPrefetchAsync", 12000, "cuMemPrefetchAsync_ptsz"},
                                  Meaning{"cuMemPrefetchAsync", 13000, "cuMemPrefetchAsync_v2_ptsz"},
                                  Meaning{"cuGraphLaunch", 13000, "cuGraphLaunch_ptsz"},
                                  Meaning{"cuMemAlloc", 13000, "cuMemAlloc_v2"});
    INFO(meaning.name << " at " << meaning.version);
    CHECK(symbol(meaning.symbol) != nullptr);
    CHECK(look_up(meaning.name, meaning.version, k_per_thread) == symbol(meaning.symbol));
    // Others never get these.
    const std::string plain = meaning.symbol;
    const bool is_own = plain.ends_with("_ptds") || plain.ends_with("_ptsz");
    const auto expected = is_own ? plain.substr(0, plain.size() - 5) : plain;
    CHECK(look_up(meaning.name, meaning.version, CU_GET_PROC_ADDRESS_LEGACY_STREAM) ==
          symbol(expected.c_str()));
    CHECK(look_up(meaning.name, meaning.version, 64) == nullptr);
}

TEST_CASE("Driver: a name is found from the version on that has its symbol", "[driver_rules]") {
    CHECK(look_up("cuMemcpy", 6050, 0) == symbol("cuMemcpy"));
    CHECK(look_up("cuMemcpy", 6050, k_per_thread) == nullptr); // there were no such streams
    for (const auto flags : {cuuint64_t{CU_GET_PROC_ADDRESS_LEGACY_STREAM}, k_per_thread})
        CHECK(look_up("cuMemcpyHtoDAsync", 0, flags) == nullptr);
}

TEST_CASE("Driver: the first look-up there was is still there", "[driver_rules]") {
    using LookUp = CUresult(const char*, void**, int, cuuint64_t);
    auto* const first = as<LookUp>(symbol("cuGetProcAddress"));
    CHECK(reinterpret_cast<void*>(first) == look_up("cuGetProcAddress", 11030, 0));
    CHECK(look_up("cuGetProcAddress", 12000, 0) == symbol("cuGetProcAddress_v2"));
    void* found = nullptr;
    CHECK(first("cuMemAlloc", &found, 11030, 0) == CUDA_SUCCESS);
    CHECK(found == symbol("cuMemAlloc_v2"));
    CHECK(first("cuNothing", &found, 11030, 0) == CUDA_ERROR_NOT_FOUND);
    CHECK(found == symbol("cuMemAlloc_v2")); // as it was
}

TEST_CASE_METHOD(OnRange, "Driver: the null stream of a thread", "[driver_rules]") {
    auto* const memset = as<decltype(cuMemsetD8Async)>(symbol("cuMemsetD8Async_ptsz"));
    auto* const query = as<decltype(cuStreamQuery)>(symbol("cuStreamQuery_ptsz"));
    auto* const launch_own = as<decltype(cuLaunchKernel)>(symbol("cuLaunchKernel_ptsz"));
    auto* const begin = as<decltype(cuStreamBeginCapture)>(symbol("cuStreamBeginCapture_v2_ptsz"));
    auto* const end = as<decltype(cuStreamEndCapture)>(symbol("cuStreamEndCapture_ptsz"));
    auto* const fill = as<decltype(cuMemsetD32)>(symbol("cuMemsetD32_v2_ptds"));
    auto* const out = as<decltype(cuMemcpyDtoH)>(symbol("cuMemcpyDtoH_v2_ptds"));
    auto* const within = as<decltype(cuMemcpyDtoD)>(symbol("cuMemcpyDtoD_v2_ptds"));
    {
        // Non-blocking work holds nobody back. The thread's own stream is a blocking one: the legacy stream
        // is not done before it.
        const auto other = make_stream();
        const auto spin = kernel("sim_spin");
        const Gate gate(other);
        std::uint64_t milliseconds = 200;
        void* arguments[] = {&milliseconds};
        REQUIRE(launch_own(spin, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_SUCCESS);
        CHECK(query(nullptr) == CUDA_ERROR_NOT_READY);
        CHECK(cuStreamQuery(CU_STREAM_PER_THREAD) == CUDA_ERROR_NOT_READY);
        CHECK(cuStreamQuery(nullptr) == CUDA_ERROR_NOT_READY);
        REQUIRE(cuStreamSynchronize(CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
    }
    // A capture of it, which a legacy stream never has.
    REQUIRE(begin(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    REQUIRE(memset(range.address, 1, 16, nullptr) == CUDA_SUCCESS);
    REQUIRE(memset(range.address, 2, 16, nullptr) == CUDA_SUCCESS);
    CUgraph graph = nullptr;
    REQUIRE(end(nullptr, &graph) == CUDA_SUCCESS);
    std::size_t count = 0;
    REQUIRE(cuGraphGetNodes(graph, nullptr, &count) == CUDA_SUCCESS);
    CHECK(count == 2);
    REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
    // It records nothing that is synchronous by its name.
    std::array<std::byte, 64> host{};
    const std::array<std::function<CUresult()>, 3> synchronous{
        [&] { return fill(range.address, 7, 4); },
        [&] { return out(host.data(), range.address, host.size()); },
        [&] { return within(range.address + 64, range.address, 64); }};
    for (const auto& call : synchronous) {
        REQUIRE(begin(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
        CHECK(call() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        CHECK(end(nullptr, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
}

TEST_CASE("Driver: every entry point is found, by symbol and by look-up", "[driver_rules]") {
    // Those that have a newer symbol, which cuda.h does not use for the name.
    const std::map<std::string_view, const char*> newest{{"cuCtxGetDevice", "cuCtxGetDevice_v2"},
                                                         {"cuCtxSynchronize", "cuCtxSynchronize_v2"},
                                                         {"cuStreamGetCtx", "cuStreamGetCtx_v2"}};
    for (const auto& [name, exported, version] : k_exported) {
        INFO(name);
        void* const by_symbol = ::dlsym(RTLD_DEFAULT, exported);
        CHECK(by_symbol != nullptr);
        void* now = nullptr;
        void* then = nullptr;
        CUdriverProcAddressQueryResult result{};
        CHECK(cuGetProcAddress(name, &now, 13000, 0, &result) == CUDA_SUCCESS);
        CHECK(cuGetProcAddress(name, &then, version, 0, nullptr) == CUDA_SUCCESS);
        if (name == std::string_view("cuGraphInstantiate")) {
            // The look-up has a function of its own for it.
            CHECK(now != nullptr);
            CHECK(now != by_symbol);
            CHECK(then == now);
            continue;
        }
        const auto newer = newest.find(name);
        CHECK(now == (newer == newest.end() ? by_symbol : symbol(newer->second)));
        CHECK(then == by_symbol);
    }
}

TEST_CASE("Driver: look-ups as the CUDA runtime makes them", "[driver_rules]") {
    void* function = nullptr;
    CUdriverProcAddressQueryResult result{};
    CHECK(cuGetProcAddress("", &function, 0, 0, &result) == CUDA_SUCCESS);
    CHECK(function == nullptr);
    CHECK(cuGetProcAddress("cuGetProcAddress", &function, 12000, 0, &result) == CUDA_SUCCESS);
    CHECK(function == reinterpret_cast<void*>(&cuGetProcAddress));
    CHECK(cuGetProcAddress("cuGetProcAddress", &function, 11030, 0, &result) == CUDA_SUCCESS);
    CHECK(function == ::dlsym(RTLD_DEFAULT, "cuGetProcAddress"));
    // The status never says that nothing was found: the pointer does, and the result if it is asked for.
    const auto is_nothing = [&](const char* name, int version, CUdriverProcAddressQueryResult* asked) {
        function = &result;
        CHECK(cuGetProcAddress(name, &function, version, 0, asked) == CUDA_SUCCESS);
        return function == nullptr;
    };
    CHECK(is_nothing("", 0, &result));
    CHECK(is_nothing("cuNoSuchThing", 13000, &result));
    CHECK(result == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    CHECK(is_nothing("cuNoSuchThing", 13000, nullptr));
    CHECK(is_nothing("cuMemCreate", 10000, &result));
    CHECK(result == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    CHECK(is_nothing("cuMemCreate", 10000, nullptr));
    CHECK(cuGetProcAddress("cuEventElapsedTime", &function, 11000, 0, &result) == CUDA_SUCCESS);
    CHECK(function == ::dlsym(RTLD_DEFAULT, "cuEventElapsedTime"));
}
