// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory by the API: the tag it gets, PyTorch's two functions, another device's access, devices at once.

#include "callbacks.hpp"
#include "support/files_of.hpp"
#include "support/sanitized.hpp"
#include "support/simulated_driver/testing.hpp"

#include <pthread.h>

using namespace gpu_sleep::test;

namespace {

/// How much of `tag` there is, in bytes that sleep; 0 for a tag that nobody named.
std::size_t bytes_of(const char* tag) {
    const auto slept = gpu_sleep_sleep(1, tag, 0);
    if (slept == GPU_SLEEP_ERROR_UNKNOWN_TAG) return 0;
    check(slept);
    const auto bytes = gpu_sleep_asleep_bytes();
    wake();
    return bytes;
}

/// What `field` of the memory that the program keeps on the GPU says in gpu-ps; "none" without such memory.
std::string kept_on_gpu(const std::string& field) {
    const auto told = run({{command_file("gpu-ps"), std::to_string(::getpid()), "--json"}});
    for (int i = 0;; ++i) {
        const auto row = "/processes/0/report/residual/" + std::to_string(i) + "/";
        const auto found = told.json(row + "kind");
        if (found == "pinned" || found == "none") return told.json(row + field);
    }
}

/// As PyTorch calls it; freed at the end.
class TorchMemory : NotCopied {
public:
    explicit TorchMemory(ssize_t bytes)
        : pointer_(gpu_sleep_torch_malloc(bytes, 0, nullptr)), bytes_(bytes) {}
    ~TorchMemory() { gpu_sleep_torch_free(pointer_, bytes_, 0, nullptr); }

    [[nodiscard]] bool is_null() const noexcept { return pointer_ == nullptr; }

private:
    void* pointer_;
    ssize_t bytes_;
};

std::atomic<int> g_times_named{0}; ///< a thread of the agent's
std::atomic<int> g_times_asked{0}; ///< a thread was started that asks PyTorch

template <class Body>
[[nodiscard]] Clock::duration time_of(Body body) {
    const auto start = Clock::now();
    body();
    return Clock::now() - start;
}

} // namespace

/// In place of the C library's.
extern "C" __attribute__((visibility("default"))) int pthread_setname_np(pthread_t /*thread*/,
                                                                         const char* name) {
    ++g_times_named;
    g_times_asked += std::string_view(name) == "gpu-sleep-trim";
    return 0;
}

TEST_CASE("API: a name has 64 bytes at most, and is no number", "[api]") {
    const auto longest = std::string(62, 'n') + "\xC3\xBC"; // 63 characters
    CHECK(gpu_sleep_set_name(longest.c_str()) == GPU_SLEEP_OK);
    CHECK(gpu_sleep_set_name((longest + "n").c_str()) == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    CHECK(std::string_view(gpu_sleep_last_error()).find("64 bytes of printable UTF-8") !=
          std::string_view::npos);
    CHECK(gpu_sleep_set_name("1234") == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    CHECK(std::string_view(gpu_sleep_last_error()).find("process id") != std::string_view::npos);
    CHECK(gpu_sleep_set_name("a\033[2J") == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    CHECK(gpu_sleep_set_name("1234b") == GPU_SLEEP_OK);
    CHECK(gpu_sleep_set_name("") == GPU_SLEEP_OK);
}

TEST_CASE_METHOD(Gpu, "Scopes: the innermost of the thread names what is allocated", "[api]") {
    check(gpu_sleep_push_tag("outer"));
    const TorchMemory first(4 * k_mib);
    check(gpu_sleep_push_tag("inner"));
    const TorchMemory second(8 * k_mib);
    const TaggedMemory unnamed(nullptr, 2 * k_mib);
    const TaggedMemory named("named", 6 * k_mib);
    auto popped_elsewhere = GPU_SLEEP_OK;
    void* elsewhere = nullptr;
    std::thread([&] {
        popped_elsewhere = gpu_sleep_pop_tag();
        gpu_sleep_alloc(&elsewhere, 12 * k_mib, 0, nullptr);
    }).join();
    CHECK(popped_elsewhere == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    check(gpu_sleep_pop_tag());
    const TorchMemory third(16 * k_mib);
    check(gpu_sleep_pop_tag());
    CHECK(gpu_sleep_pop_tag() == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    CHECK(std::string_view(gpu_sleep_last_error()).find("no tag scope") == 0);
    CHECK(bytes_of("outer") == 20 * k_mib);
    CHECK(bytes_of("inner") == 10 * k_mib);
    CHECK(bytes_of("named") == 6 * k_mib);
    CHECK(bytes_of("default") == 12 * k_mib);
    check(gpu_sleep_free(elsewhere));
}

TEST_CASE("PyTorch: its allocator gets memory, and NULL where there is none", "[api]") {
    const Gpu gpu(0);
    const auto before = gpu.free_bytes();
    {
        const TorchMemory memory(64 * k_mib);
        REQUIRE_FALSE(memory.is_null());
        CHECK(gpu.free_bytes() + 64 * k_mib <= before);
        CHECK(TorchMemory(0).is_null());
        CHECK(TorchMemory(-1).is_null());
        CHECK(TorchMemory(ssize_t{1} << 40).is_null());
        CHECK(TorchMemory(4096).is_null() == false); // what failed has broken nothing
        sleep();
        CHECK(gpu_sleep_asleep_bytes() >= 64 * k_mib);
    } // frees what sleeps
    CHECK(gpu_sleep_asleep_bytes() == 0);
    wake();
    CHECK(gpu.free_bytes() + 2 * k_mib >= before);
}

TEST_CASE_METHOD(Gpu, "Access: what another device was allowed to read it reads after a sleep too", "[api]") {
    const TaggedMemory memory("weights", 4 * k_mib);
    const auto words = random_words(memory.bytes(), 1);
    memory.write(words);
    check(gpu_sleep_allow_access(memory.pointer(), 1));
    const Gpu reader(1);
    const TaggedMemory copy("copy", memory.bytes(), 1);
    const auto copies = [&] {
        copy.write(random_words(copy.bytes(), 2));
        const auto read = sim::testing::launch(sim::testing::kernel("sim_copy"), nullptr, copy.address(),
                                               memory.address(), std::uint64_t{words.size()});
        return read == CUDA_SUCCESS && cuCtxSynchronize() == CUDA_SUCCESS && copy.read() == words;
    };
    CHECK(copies());
    for (int i = 0; i < 2; ++i) {
        cycle();
        CHECK(copies());
    }
    CHECK(gpu_sleep_allow_access(memory.pointer(), 99) == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    int local = 0;
    CHECK(gpu_sleep_allow_access(&local, 1) == GPU_SLEEP_ERROR_NOT_OWNED);
}

TEST_CASE_METHOD(Gpu, "Virtual memory: mapping it into arrays leaves what the call is given", "[api]") {
    const sim::testing::Range range(4 * k_mib);
    CUarrayMapInfo map{};
    map.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    map.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
    map.memHandle.memHandle = range.handle();
    for (int i = 0; i < 2; ++i) {
        CHECK(cuMemMapArrayAsync(&map, 1, nullptr) == CUDA_SUCCESS);
        CHECK(map.memHandle.memHandle == range.handle());
    }
}

TEST_CASE_METHOD(Gpu, "Retained: the program sets how much stays on the host for the next sleep", "[api]") {
    const TaggedMemory weights("weights", 4 * k_mib);
    const auto contents = random_words(4 * k_mib, 5);
    weights.write(contents);
    const auto copies_of_next_sleep = [&] {
        cycle();
        sim_reset_counts();
        sleep();
        const auto copies = sim_calls("cuMemcpyDtoHAsync");
        wake();
        CHECK(weights.read() == contents);
        return copies;
    };
    CHECK(copies_of_next_sleep() == 0);
    check(gpu_sleep_set_retained(4 * k_mib - 1));
    CHECK(copies_of_next_sleep() == 1);
    check(gpu_sleep_set_retained(UINT64_MAX));
    CHECK(copies_of_next_sleep() == 0);
}

TEST_CASE_METHOD(Gpu, "Kept: the program reads what is kept in host memory, and what is retained", "[api]") {
    const TaggedMemory weights("weights", 4 * k_mib);
    const TaggedMemory cache("cache", 2 * k_mib);
    auto contents = random_words(4 * k_mib, 5);
    std::fill_n(contents.begin() + (k_mib / 4), k_mib / 4, 0); // a block of zeros, which has no place
    weights.write(contents);
    const auto others = random_words(2 * k_mib, 6);
    cache.write(others);
    Words read(contents.size() - 200);
    const auto* const inner = static_cast<const std::uint32_t*>(weights.pointer()) + 100;
    const auto try_reading = [&] {
        return gpu_sleep_read_kept(inner, read.size() * sizeof(read.front()), read.data());
    };
    const auto is_read = [&] {
        std::fill(read.begin(), read.end(), 7);
        check(try_reading());
        return std::equal(read.begin(), read.end(), contents.begin() + 100);
    };
    CHECK(try_reading() == GPU_SLEEP_ERROR_REFUSED);
    sleep();
    CHECK(is_read());
    CHECK(gpu_sleep_read_kept(inner, 4 * k_mib, read.data()) == GPU_SLEEP_ERROR_NOT_OWNED);
    CHECK(gpu_sleep_read_kept(inner, 0, read.data()) == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    wake();
    weights.write(random_words(4 * k_mib, 7));
    CHECK(is_read());
    weights.write(contents);
    check(gpu_sleep_set_retained(0));
    CHECK(try_reading() == GPU_SLEEP_ERROR_REFUSED);
    check(gpu_sleep_set_retained(UINT64_MAX));
    check(gpu_sleep_preserve(weights.pointer(), k_mib));
    check(gpu_sleep_sleep(2, "weights", 0));
    CHECK(try_reading() == GPU_SLEEP_ERROR_REFUSED);
    check(gpu_sleep_read_kept(weights.pointer(), k_mib, read.data()));
    CHECK(std::equal(read.begin(), read.begin() + k_mib / 4, contents.begin()));
    wake();
    weights.write(contents);

    const Scratch scratch;
    CHECK(gpu_sleep_sleep_in_files(1, nullptr, "weights", "files", 0) == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    check(gpu_sleep_sleep_in_files(1, nullptr, "weights", scratch.path().c_str(), 0));
    CHECK_FALSE(files_in(scratch.path()).empty());
    CHECK(try_reading() == GPU_SLEEP_ERROR_REFUSED);
    Words kept(others.size());
    check(gpu_sleep_read_kept(cache.pointer(), 2 * k_mib, kept.data()));
    CHECK((kept == others)); // nobody wants to see them
    wake();
    CHECK((weights.read() == contents));
    CHECK((cache.read() == others));
}

TEST_CASE_METHOD(Gpu, "Kept: what is retained of a shared range is nobody's", "[api]") {
    auto first = std::make_optional<TaggedMemory>("shared", 4 * k_kib);
    const TaggedMemory second("shared", 4 * k_kib);
    const auto secret = random_words(4 * k_kib, 5);
    first->write(secret);
    Words read(secret.size());
    sleep();
    check(gpu_sleep_read_kept(first->pointer(), 4 * k_kib, read.data()));
    CHECK((read == secret));
    wake();
    const auto address = first->address();
    first.reset();
    const TaggedMemory third("shared", 4 * k_kib);
    REQUIRE(third.address() == address);
    CHECK(gpu_sleep_read_kept(third.pointer(), 4 * k_kib, read.data()) == GPU_SLEEP_ERROR_REFUSED);
}

TEST_CASE_METHOD(Gpu, "On the GPU: what the program keeps there stays with its neighbours; listed", "[api]") {
    const TaggedMemory awake("awake", 4 * k_mib); // so that work on what is not asleep passes the gate
    const TaggedMemory sleeps("registered", 4 * k_mib);
    auto kept = std::make_optional<TaggedMemory>("registered", 4 * k_kib);
    auto neighbour = std::make_optional<TaggedMemory>("registered", 4 * k_kib);
    const auto words = random_words(4 * k_kib, 5);
    neighbour->write(words);
    CHECK(kept_on_gpu("bytes") == "none");
    check(gpu_sleep_keep_on_gpu(static_cast<std::byte*>(kept->pointer()) + 100));
    sleep("registered");
    CHECK(gpu_sleep_asleep_bytes() == sleeps.bytes());
    CHECK(neighbour->read() == words);
    CHECK(kept_on_gpu("bytes") == std::to_string(2 * k_mib)); // the range that they share
    CHECK(kept_on_gpu("reason") == "the program keeps it on the GPU");
    CHECK(gpu_sleep_keep_on_gpu(sleeps.pointer()) == GPU_SLEEP_ERROR_REFUSED);
    wake();
    kept.reset();
    neighbour.reset();
    CHECK(kept_on_gpu("bytes") == "none");
}

TEST_CASE_METHOD(Gpu, "Waking within a limit: where copying takes longer, all sleeps on, whole", "[api]") {
    const TaggedMemory weights("weights", 4 * k_mib);
    const auto contents = random_words(4 * k_mib, 5);
    weights.write(contents);
    sleep();
    sim_delay("cuMemcpyHtoDAsync", 500'000);
    const auto limited = gpu_sleep_wake_within(nullptr, 0, 100);
    sim_clear();
    CHECK(limited == GPU_SLEEP_ERROR_TIMED_OUT);
    CHECK(gpu_sleep_asleep_bytes() == weights.bytes());
    wake();
    CHECK(weights.read() == contents);
}

TEST_CASE("Prepared: the program has host memory made ready for its next sleep", "[api]") {
    constexpr Bytes k_two_pieces = 64 * k_mib; // two pieces
    const Gpu gpu(0);
    const TaggedMemory weights("weights", k_two_pieces);
    const auto contents = random_words(k_two_pieces, 5);
    weights.write(contents);
    const auto registrations = [] { return sim_live_objects().host_registrations; };
    const auto before = registrations();
    check(gpu_sleep_prepare());
    for (int i = 0; i < 2000 && registrations() != before + 2; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(registrations() == before + 2);
    sim_reset_counts();
    sleep();
    CHECK(sim_calls("cuMemHostRegister") == 0);
    wake();
    CHECK(weights.read() == contents);
}

TEST_CASE("Devices: several sleep and wake at the same time", "[api]") {
    const Gpu first(0);
    const Gpu second(1);
    const TaggedMemory firsts("first", 4 * k_mib, 0);
    const TaggedMemory seconds("second", 4 * k_mib, 1);
    sleep(); // makes ready what is made once
    wake();
    unsigned char value = 0;
    const auto change = [&] { // so that there is something to copy
        ++value;
        first.enter();
        check(cuMemsetD8(firsts.address(), value, firsts.bytes()));
        second.enter();
        check(cuMemsetD8(seconds.address(), value, seconds.bytes()));
    };
    // One copy each way for a device, which alone takes this long: one after the other takes twice as long.
    const Milliseconds k_copy{is_sanitized() ? 2'000 : 500};
    for (const auto* name : {"cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync"})
        sim_delay(name, std::chrono::microseconds(k_copy).count());
    for (const auto* tag : {"first", "second"}) {
        change();
        CHECK(time_of([&] { sleep(tag); }) >= k_copy);
        CHECK(time_of([&] { wake(tag); }) >= k_copy);
    }
    constexpr int k_tries = 5; // the machine may have been busy
    bool has_slept = false, has_woken = false;
    for (int i = 0; i < k_tries && !(has_slept && has_woken); ++i) {
        change();
        has_slept |= time_of([] { sleep(); }) < 2 * k_copy;
        has_woken |= time_of([] { wake(); }) < 2 * k_copy;
    }
    sim_clear();
    CHECK(has_slept);
    CHECK(has_woken);
}

TEST_CASE_METHOD(Gpu, "Freeing: it waits for work that may use the memory, however small that is", "[api]") {
    const auto bytes = GENERATE(std::size_t{4096}, 4 * k_mib);
    const TaggedMemory neighbour("work", 4096);
    const auto stream = sim::testing::make_stream();
    auto* const memory = allocate_tagged("work", bytes);
    const auto faults = sim_fault_counts().illegal_accesses;
    constexpr Milliseconds k_work{200};
    sim_delay("cuMemsetD8Async", std::chrono::microseconds(k_work).count());
    const auto queue = [&] {
        check(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(memory), 7, bytes, stream));
    };
    CHECK(time_of(queue) < k_work); // what is queued does not wait
    check(gpu_sleep_free(memory));
    CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
    sim_clear();
    check(cuStreamDestroy(stream));
    CHECK(sim_fault_counts().illegal_accesses == faults);
}

TEST_CASE("Freeing: it waits for the work in contexts of the program's own", "[api]") {
    const Gpu gpu(0);
    CUcontext own = nullptr;
    CUctxCreateParams parameters{};
    check(cuCtxCreate(&own, &parameters, 0, 0));
    const auto stream = sim::testing::make_stream();
    auto* const memory = allocate_tagged("work", 4 * k_mib);
    const auto faults = sim_fault_counts().illegal_accesses;
    sim_delay("cuMemsetD8Async", 200'000);
    check(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(memory), 7, 4 * k_mib, stream));
    if (GENERATE(false, true)) gpu.enter();
    check(gpu_sleep_free(memory));
    CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
    sim_clear();
    check(cuCtxDestroy(own));
    CHECK(sim_fault_counts().illegal_accesses == faults);
}

TEST_CASE("Freeing: it waits for no device that cannot reach the memory", "[api]") {
    const Gpu other(1);
    const auto stream = sim::testing::make_stream();
    const sim::testing::Gate work(stream); // which ends after the free
    const Gpu gpu(0);
    auto* const memory = allocate_tagged("work", 4 * k_mib);
    auto freed = std::async(std::launch::async, [&] { return gpu_sleep_free(memory); });
    CHECK(ends(freed));
    work.release();
    CHECK(freed.get() == GPU_SLEEP_OK);
    other.enter();
    check(cuStreamDestroy(stream));
}

TEST_CASE_METHOD(Gpu, "Freeing: it breaks no capture that is under way", "[api]") {
    const auto stream = sim::testing::make_stream();
    auto* const memory = allocate_tagged("work", GENERATE(std::size_t{4096}, 4 * k_mib));
    check(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(gpu_sleep_free(memory) == GPU_SLEEP_ERROR_CAPTURE_IN_PROGRESS);
    CUgraph graph = nullptr;
    check(cuStreamEndCapture(stream, &graph));
    check(cuGraphDestroy(graph));
    check(cuStreamDestroy(stream));
    check(gpu_sleep_free(memory));
}

TEST_CASE_METHOD(Gpu, "Freeing: what is not of the API is not its to free", "[api]") {
    const sim::testing::Range range(4 * k_mib);
    const auto plain = sim::testing::allocate(4 * k_mib);
    const TaggedMemory memory("weights", 4 * k_mib);
    for (const auto address : {range.address, plain, memory.address() + 512})
        CHECK(gpu_sleep_free(reinterpret_cast<void*>(address)) == GPU_SLEEP_ERROR_NOT_OWNED);
    for (const auto address : {range.address, plain, memory.address()})
        check(cuMemsetD8(address, 1, 4 * k_mib));
    check(cuMemFree(plain));
}

TEST_CASE_METHOD(Gpu, "Freeing: memory that could not be freed is known as before", "[api]") {
    auto* const memory = allocate_tagged("weights", 4 * k_mib);
    sim_fail("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN, SIM_ONCE);
    CHECK(gpu_sleep_free(memory) != GPU_SLEEP_OK);
    sleep();
    int device = -1;
    CHECK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                reinterpret_cast<CUdeviceptr>(memory)) == CUDA_SUCCESS); // asleep, too
    CHECK(device == 0);
    wake();
    check(gpu_sleep_free(memory));
    CHECK(gpu_sleep_free(memory) == GPU_SLEEP_ERROR_NOT_OWNED);
}

TEST_CASE("Allocating: what fails leaves no tag behind", "[api]") {
    const TaggedMemory memory("weights", 4 * k_mib);
    void* pointer = nullptr;
    CHECK(gpu_sleep_alloc(&pointer, 0, 0, "ghost") == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    CHECK(gpu_sleep_alloc(&pointer, k_mib, 99, "ghost") == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    CHECK(gpu_sleep_alloc(&pointer, std::size_t{1} << 50, 0, "ghost") ==
          GPU_SLEEP_ERROR_OUT_OF_DEVICE_MEMORY);
    CHECK(gpu_sleep_sleep(1, "ghost", 0) == GPU_SLEEP_ERROR_UNKNOWN_TAG);
    CHECK(gpu_sleep_alloc(&pointer, 0, 0, "weights") == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    CHECK(bytes_of("weights") == 4 * k_mib);
}

TEST_CASE("Preserving: a span lies within what was asked for", "[api]") {
    const Gpu gpu(0);
    const TaggedMemory memory("weights", 3 * k_mib); // in a range of four
    auto* const start = static_cast<std::byte*>(memory.pointer());
    CHECK(gpu_sleep_preserve(start + k_mib, 3 * k_mib) == GPU_SLEEP_ERROR_NOT_OWNED);
    CHECK(gpu_sleep_keep_on_gpu(&gpu) == GPU_SLEEP_ERROR_NOT_OWNED);
    check(gpu_sleep_preserve(start + k_mib, 2 * k_mib));
    const auto words = random_words(memory.bytes(), 1);
    memory.write(words);
    check(gpu_sleep_sleep(2, nullptr, 0));
    wake();
    const auto found = memory.read();
    CHECK(
        std::all_of(found.begin(), found.begin() + k_mib / sizeof(words[0]), [](auto w) { return w == 0; }));
    CHECK(std::equal(found.begin() + k_mib / sizeof(words[0]), found.end(),
                     words.begin() + k_mib / sizeof(words[0])));
}

TEST_CASE("Sleeping: a program without Python is not asked for PyTorch's unused memory", "[api]") {
    const TaggedMemory memory("weights", 4 * k_mib);
    cycle();
    CHECK(g_times_asked == 0);
    CHECK(g_times_named > 0); // the agent names its threads by the function here
}
