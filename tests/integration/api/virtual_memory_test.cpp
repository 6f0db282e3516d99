// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program's own virtual memory: what keeps it on the GPU, and what does not.

#include "callbacks.hpp"
#include "support/simulated_driver/testing.hpp"

using namespace gpu_sleep::test;
using sim::testing::Range;

namespace {

/// How much sleeps if everything is put to sleep.
std::size_t bytes_that_sleep() {
    sleep();
    const auto bytes = gpu_sleep_asleep_bytes();
    wake();
    return bytes;
}

constexpr auto k_part = sim::testing::k_granularity;

/// Three parts of addresses, of which the first and the last are mapped.
class Holed : NotCopied {
public:
    Holed() {
        check(cuMemAddressReserve(&begin, bytes, 0, 0, 0));
        last = begin + 2 * k_part;
        for (const auto address : {begin, last}) {
            const auto handle = sim::testing::create(k_part);
            check(cuMemMap(address, k_part, 0, handle, 0));
            check(cuMemRelease(handle));
        }
    }
    ~Holed() {
        CHECK(cuMemUnmap(begin, bytes) == CUDA_SUCCESS);
        CHECK(cuMemAddressFree(begin, bytes) == CUDA_SUCCESS);
    }
    /// Of the whole span.
    [[nodiscard]] CUresult grant(int device,
                                 CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) const {
        return sim::testing::grant(begin, bytes, device, flags);
    }

    static constexpr std::size_t bytes = 3 * k_part;
    CUdeviceptr begin = 0, last = 0;
};

bool has_access(CUdeviceptr address, int device) {
    const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device};
    unsigned long long flags = 0;
    check(cuMemGetAccess(&flags, &location, address));
    return flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

CUresult set_synchronous(CUdeviceptr address, unsigned value) {
    return cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address);
}

} // namespace

TEST_CASE_METHOD(Gpu, "Virtual memory: what cannot be mapped twice sleeps, what is shared stays", "[api]") {
    const Range range(4 * k_mib);
    int descriptor = -1;
    CHECK(cuMemExportToShareableHandle(&descriptor, range.handle(), CU_MEM_HANDLE_TYPE_FABRIC, 0) !=
          CUDA_SUCCESS);
    CHECK(cuMemGetHandleForAddressRange(&descriptor, range.address, range.bytes,
                                        CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) != CUDA_SUCCESS);
    CHECK(cuMulticastBindMem(0, 0, range.handle(), 0, range.bytes, 0) != CUDA_SUCCESS);
    CHECK(cuMulticastBindAddr(0, 0, range.address, range.bytes, 0) != CUDA_SUCCESS);
    CHECK(cuMemMap(range.address, range.bytes, 0, range.handle(), 0) != CUDA_SUCCESS); // where it is already
    check(set_synchronous(range.address, 0));
    CHECK(bytes_that_sleep() == range.bytes);
    check(cuMemExportToShareableHandle(&descriptor, range.handle(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                       0));
    CHECK(::close(descriptor) == 0);
    CHECK(bytes_that_sleep() == 0);
}

TEST_CASE_METHOD(Gpu, "Virtual memory: what another device may hold by its address stays", "[api]") {
    const Range range(4 * k_mib);
    check(set_synchronous(range.address, 1));
    CHECK(bytes_that_sleep() == 0);
}

TEST_CASE_METHOD(Gpu, "Virtual memory: what is mapped at several addresses stays, alike at each", "[api]") {
    const Range range(4 * k_mib);
    CHECK(bytes_that_sleep() == range.bytes);
    const auto second = sim::testing::reserve(range.bytes);
    check(cuMemMap(second, range.bytes, 0, range.handle(), 0));
    CHECK(bytes_that_sleep() == 0);
    check(sim::testing::grant(second, range.bytes, 0));
    CHECK(bytes_that_sleep() == 0);
    const auto words = random_words(range.bytes, 1);
    check(cuMemcpyHtoD(range.address, words.data(), range.bytes));
    Words found(words.size());
    check(cuMemcpyDtoH(found.data(), second, range.bytes));
    CHECK(found == words);
    check(cuMemUnmap(second, range.bytes));
    check(cuMemAddressFree(second, range.bytes));
}

TEST_CASE_METHOD(Gpu, "Virtual memory: devices let at it at once are let at it after a sleep, too", "[api]") {
    constexpr auto k_reserved = 4 * k_mib;
    const auto handle = driver_testing::create(k_reserved);
    const auto address = sim::testing::reserve(k_reserved);
    check(cuMemMap(address, k_reserved, 0, handle, 0));
    std::array<CUmemAccessDesc, 2> grants{};
    for (int device = 0; device < 2; ++device)
        grants[static_cast<std::size_t>(device)] = {{CU_MEM_LOCATION_TYPE_DEVICE, device},
                                                    CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check(cuMemSetAccess(address, k_reserved, grants.data(), grants.size()));
    {
        const Gpu other(1);
        const auto fills = [&](unsigned char value) {
            return cuMemsetD8(address, value, k_reserved) == CUDA_SUCCESS &&
                   cuCtxSynchronize() == CUDA_SUCCESS;
        };
        CHECK(fills(1));
        CHECK(bytes_that_sleep() == k_reserved);
        CHECK(fills(2));
    }
    check(cuMemUnmap(address, k_reserved));
    check(cuMemRelease(handle));
    check(cuMemAddressFree(address, k_reserved));
}

TEST_CASE_METHOD(Gpu, "Virtual memory: addresses are not given back while what they show sleeps", "[api]") {
    const Range range(4 * k_mib);
    const auto words = random_words(range.bytes, 1);
    check(cuMemcpyHtoD(range.address, words.data(), range.bytes));
    CHECK(cuMemAddressFree(range.address, range.bytes) == CUDA_ERROR_INVALID_VALUE); // as awake
    sleep();
    CHECK(cuMemAddressFree(range.address, range.bytes) == CUDA_ERROR_INVALID_VALUE);
    wake();
    Words found(words.size());
    check(cuMemcpyDtoH(found.data(), range.address, range.bytes));
    CHECK(found == words);
}

TEST_CASE_METHOD(Gpu, "Virtual memory: what lies behind a hole keeps the access that it had", "[api]") {
    const Holed span;
    SECTION("none: then nobody can copy it, and it stays") {
        check(span.grant(0));
        CHECK(bytes_that_sleep() == k_part);
        CHECK(has_access(span.begin, 0));
        CHECK_FALSE(has_access(span.last, 0));
    }
    SECTION("its own device's alone: a wake gives no other") {
        for (const auto address : {span.begin, span.last}) check(sim::testing::grant(address, k_part, 0));
        check(span.grant(1));
        CHECK(bytes_that_sleep() == 2 * k_part);
        CHECK(has_access(span.begin, 1));
        CHECK(has_access(span.last, 0));
        CHECK_FALSE(has_access(span.last, 1));
    }
    SECTION("and it sleeps after what lies before the hole lost it") {
        for (const auto address : {span.begin, span.last}) check(sim::testing::grant(address, k_part, 0));
        const auto words = random_words(k_part, 2);
        check(cuMemcpyHtoD(span.last, words.data(), k_part));
        check(span.grant(0, CU_MEM_ACCESS_FLAGS_PROT_NONE));
        CHECK(bytes_that_sleep() == k_part);
        CHECK_FALSE(has_access(span.begin, 0));
        Words found(words.size());
        check(cuMemcpyDtoH(found.data(), span.last, k_part));
        CHECK(found == words);
    }
}

TEST_CASE_METHOD(Gpu, "Virtual memory: memory of others between the program's own is no hole", "[api]") {
    const Holed span;
    const Range exported(k_part);
    int descriptor = -1;
    check(cuMemExportToShareableHandle(&descriptor, exported.handle(),
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CUmemGenericAllocationHandle imported = 0;
    check(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(std::intptr_t{descriptor}),
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CHECK(::close(descriptor) == 0);
    check(cuMemMap(span.begin + k_part, k_part, 0, imported, 0));
    check(span.grant(0));
    CHECK(bytes_that_sleep() == 2 * k_part);
    CHECK(has_access(span.last, 0));
    check(cuMemRelease(imported));
}

TEST_CASE_METHOD(Gpu, "Virtual memory: a span with a hole is unmapped as a whole, and once more", "[api]") {
    {
        const Holed span;
        for (const auto address : {span.begin, span.last}) check(sim::testing::grant(address, k_part, 0));
        CHECK(bytes_that_sleep() == 2 * k_part);
        check(cuMemUnmap(span.begin, span.bytes));
        CHECK(sim_live_objects().mapped_bytes == 0);
        CHECK(sim_live_objects().physical_bytes == 0);
        CHECK(bytes_that_sleep() == 0);
    } // which unmaps, where nothing is any more
}

TEST_CASE_METHOD(Gpu, "Virtual memory: it is mapped and unmapped while after-wake callbacks run", "[api]") {
    const Range slept(4 * k_mib);
    const Range cached(4 * k_mib);
    const auto map = [&] {
        return cuMemMap(cached.address, cached.bytes, 0, cached.handle(), 0) == CUDA_SUCCESS &&
               sim::testing::grant(cached.address, cached.bytes, 0) == CUDA_SUCCESS;
    };
    const auto unmap = [&] { return cuMemUnmap(cached.address, cached.bytes) == CUDA_SUCCESS; };
    REQUIRE(unmap());
    bool is_done = false;
    const Callbacks callbacks({}, [&] {
        // As an allocator does under its mutex, for which the callback waits.
        auto allocator = std::async(std::launch::async, [&] { return map() && unmap() && map(); });
        is_done = allocator.wait_for(k_patience) == std::future_status::ready && allocator.get();
        return 0;
    });
    cycle();
    CHECK(is_done);
}
