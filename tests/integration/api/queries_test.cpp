// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Questions about memory that sleeps, or is on its way: they wait for nobody.

#include "callbacks.hpp"
#include "support/simulated_driver/testing.hpp"

using namespace gpu_sleep::test;
using sim::testing::Range;

namespace {

constexpr long long k_none = CU_MEM_ACCESS_FLAGS_PROT_NONE;
constexpr long long k_read_write = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

/// What the device may do with the memory; an error as its negative number.
long long access(CUdeviceptr address, int device) {
    unsigned long long flags = ~0ULL;
    const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device};
    const auto status = cuMemGetAccess(&flags, &location, address);
    return status == CUDA_SUCCESS ? static_cast<long long>(flags) : -static_cast<long long>(status);
}

/// Sleeps on a thread of its own, slowly.
class SlowSleep : NotCopied {
public:
    SlowSleep() {
        const auto calls = sim_calls(k_copy);
        sim_delay(k_copy, std::chrono::microseconds(std::chrono::seconds(2)).count());
        done_ = std::async(std::launch::async, [] { return gpu_sleep_sleep(1, nullptr, 0); });
        while (sim_calls(k_copy) == calls) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ~SlowSleep() { sim_clear(); }

    [[nodiscard]] bool goes_on() const { return waits(done_); }
    [[nodiscard]] gpu_sleep_status finish() { return done_.get(); }

private:
    static constexpr char k_copy[] = "cuMemcpyDtoHAsync";
    std::future<gpu_sleep_status> done_;
};

} // namespace

TEST_CASE_METHOD(Gpu, "Queries: who may reach memory is told the same of what sleeps", "[api]") {
    const Range range(4 * k_mib);
    const TaggedMemory memory("weights", 4 * k_mib);
    check(gpu_sleep_allow_access(memory.pointer(), 1));
    const auto plain = sim::testing::allocate(4 * k_mib);
    const std::vector<std::pair<long long, long long>> expected = {
        {access(range.address + 1, 0), k_read_write},
        {access(range.address, 1), k_none},
        {access(memory.address(), 0), k_read_write},
        {access(memory.address(), 1), k_read_write},
        {access(plain, 0), k_none}, // as of the driver's own
        {access(range.address, 99), -CUDA_ERROR_INVALID_DEVICE},
    };
    for (const auto& [awake, right] : expected) CHECK(awake == right);
    sleep();
    auto asked = std::async(std::launch::async, [&] {
        return std::vector<long long>{
            access(range.address + 1, 0), access(range.address, 1), access(memory.address(), 0),
            access(memory.address(), 1),  access(plain, 0),         access(range.address, 99)};
    });
    CHECK_FALSE(waits(asked));
    wake();
    const auto answers = asked.get();
    for (std::size_t i = 0; i < answers.size(); ++i) CHECK(answers[i] == expected[i].second);
    CHECK(access(range.address, 0) == k_read_write);
    check(cuMemFree(plain));
}

TEST_CASE_METHOD(Gpu, "Queries: nothing is known of what lies past an allocation, awake or asleep", "[api]") {
    constexpr std::size_t k_odd_bytes = 5 * k_mib; // of a range of 6 MiB
    CUdeviceptr plain = 0, pooled = 0;
    check(cuMemAlloc(&plain, k_odd_bytes));
    check(cuMemAllocAsync(&pooled, k_odd_bytes, nullptr));
    const TaggedMemory memory("weights", k_odd_bytes);
    const auto answers = [&](CUdeviceptr address) {
        CUdeviceptr begin = 0;
        std::size_t bytes = 0;
        unsigned type = 99, types = 99;
        auto attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        void* data = &types;
        return std::vector<long long>{cuMemGetAddressRange(&begin, &bytes, address),
                                      static_cast<long long>(begin != 0 ? address - begin : 0),
                                      static_cast<long long>(bytes),
                                      cuPointerGetAttribute(&type, attribute, address),
                                      type,
                                      cuPointerGetAttributes(1, &attribute, &data, address),
                                      types,
                                      access(address, 0)};
    };
    const std::vector<long long> beyond{CUDA_ERROR_NOT_FOUND,     0, 0, CUDA_ERROR_INVALID_VALUE, 99, 0, 0,
                                        -CUDA_ERROR_INVALID_VALUE};
    for (int round = 0; round < 3; ++round) {
        INFO(round);
        for (const auto address : {plain, pooled, memory.address()}) {
            CHECK(answers(address + k_odd_bytes) == beyond);
            const auto last = answers(address + k_odd_bytes - 1);
            CHECK(last[0] == CUDA_SUCCESS);
            CHECK(last[1] == k_odd_bytes - 1);
            CHECK(last[2] == k_odd_bytes);
            CHECK(last[3] == CUDA_SUCCESS);
            CHECK(last[6] == CU_MEMORYTYPE_DEVICE);
        }
        if (round == 0) sleep();
        if (round == 1) wake();
    }
    check(cuMemFree(pooled));
    check(cuMemFree(plain));
}

TEST_CASE_METHOD(Gpu, "Queries: a thread without a context is told the same awake and asleep", "[api]") {
    CUdeviceptr plain = 0, freed = 0;
    check(cuMemAlloc(&plain, 4 * k_mib));
    check(cuMemAlloc(&freed, 4 * k_mib));
    const TaggedMemory memory("weights", 4 * k_mib);
    const Range range(4 * k_mib);
    const auto ask = [&] {
        const auto answers = [&] {
            std::vector<CUresult> told;
            for (const auto address : {plain, memory.address(), range.address}) {
                CUdeviceptr begin = 0;
                std::size_t bytes = 0;
                int device = -1;
                told.push_back(cuMemGetAddressRange(&begin, &bytes, address));
                told.push_back(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address));
            }
            return told;
        };
        return std::async(std::launch::async, answers).get();
    };
    const auto awake = ask();
    for (std::size_t i = 0; i < awake.size(); ++i)
        CHECK(awake[i] == (i % 2 == 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS));
    sleep();
    CHECK(ask() == awake);
    CHECK(std::async(std::launch::async, [=] { return cuMemFree(freed); }).get() == CUDA_SUCCESS);
    wake();
    CHECK(ask() == awake);
    check(cuMemFree(plain));
}

TEST_CASE_METHOD(Gpu, "Queries: plain memory is its context's, and a pool's is no context's", "[api]") {
    CUcontext context = nullptr;
    check(cuCtxGetCurrent(&context));
    CUdeviceptr plain = 0, pooled = 0;
    check(cuMemAlloc(&plain, 4 * k_mib));
    check(cuMemAllocAsync(&pooled, 4 * k_mib, nullptr));
    const auto owner = [](CUdeviceptr address) {
        auto* found = reinterpret_cast<CUcontext>(1);
        check(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_CONTEXT, address));
        return found;
    };
    CHECK(owner(plain) == context);
    CHECK(owner(pooled) == nullptr);
    sleep();
    CHECK(owner(plain) == context);
    CHECK(owner(pooled) == nullptr);
    wake();
    check(cuMemFree(pooled));
    check(cuMemFree(plain));
}

TEST_CASE_METHOD(Gpu, "Queries: no two allocations have the same id, whoever made them", "[api]") {
    const auto id_of = [](CUdeviceptr address) {
        unsigned long long id = 0;
        check(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address));
        return id;
    };
    void* host = nullptr;
    check(cuMemHostAlloc(&host, 4096, 0));
    const auto id_of_host = id_of(reinterpret_cast<CUdeviceptr>(host));
    unsigned long long id = 0;
    do { // until it is past the other's
        const auto plain = sim::testing::allocate(4096);
        id = id_of(plain);
        check(cuMemFree(plain));
        REQUIRE(id != id_of_host);
    } while (id < id_of_host);
    check(cuMemFreeHost(host));
}

TEST_CASE_METHOD(Gpu, "Queries: the C API's memory is described alike asleep, and has no handle", "[api]") {
    const TaggedMemory first("weights", 4096);
    const TaggedMemory second("weights", 4096);
    const Range range(4 * k_mib);
    using Description = std::vector<unsigned long long>;
    const auto describe = [&] {
        Description answers;
        for (const auto address : {second.address(), range.address}) {
            CUdeviceptr begin = 0;
            std::size_t bytes = 0;
            check(cuMemGetAddressRange(&begin, &bytes, address));
            answers.insert(answers.end(), {begin, bytes});
            unsigned is_legacy = 7;
            unsigned long long types = 7;
            check(
                cuPointerGetAttribute(&is_legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address));
            check(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, address));
            answers.insert(answers.end(), {is_legacy, types});
            CUmemGenericAllocationHandle handle = 0;
            const auto retained = cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(address));
            answers.push_back(retained);
            if (retained == CUDA_SUCCESS) check(cuMemRelease(handle));
        }
        return answers;
    };
    const auto awake = describe();
    CHECK(awake == Description{second.address(), 4096, 0, 0, CUDA_ERROR_INVALID_VALUE, range.address,
                               4 * k_mib, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_SUCCESS});
    sleep();
    CHECK(describe() == awake);
    wake();
}

TEST_CASE_METHOD(Gpu, "Queries: a handle is found and described while contents move", "[api]") {
    const Range range(4 * k_mib);
    SlowSleep slow;
    auto asked = std::async(std::launch::async, [&] {
        CUmemGenericAllocationHandle handle = 0;
        CUmemAllocationProp properties{};
        const auto retained = cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(range.address));
        const auto described = cuMemGetAllocationPropertiesFromHandle(&properties, handle);
        const auto released = cuMemRelease(handle);
        return retained == CUDA_SUCCESS && described == CUDA_SUCCESS && released == CUDA_SUCCESS &&
               handle == range.handle() && properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    });
    CHECK_FALSE(waits(asked));
    CHECK(access(range.address, 0) == k_read_write);
    CHECK(slow.goes_on());
    check(slow.finish());
    wake();
    CHECK(asked.get());
}
