// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Another process is locked, checkpointed, restored and unlocked: what it has, what it may do meanwhile, what
// is free.

#include "checkpointed.hpp"

#include <sys/mman.h>

using namespace gpu_sleep::driver_rules;

namespace {

/// What the other process has, and how it obeys.
class Obedient {
public:
    Obedient() {
        plain_bytes_ = random_bytes(k_shown, 2);
        range_bytes_ = random_bytes(k_shown, 3);
        REQUIRE(cuMemAlloc(&plain_, Target::k_bytes) == CUDA_SUCCESS);
        write(plain_, plain_bytes_);
        write(range_.address, range_bytes_);
        const auto host_bytes = random_bytes(k_shown, 4);
        std::copy(host_bytes.begin(), host_bytes.end(), host_.data.begin());
        REQUIRE(cuMemHostAlloc(reinterpret_cast<void**>(&flag_), sizeof *flag_, 0) == CUDA_SUCCESS);
        *flag_ = 0;
        spin_ = kernel("sim_spin_until");
        add_ = kernel("sim_add");
        CUmodule failing = nullptr;
        REQUIRE(cuModuleLoadData(&failing, k_failing_ptx) == CUDA_SUCCESS);
        static_cast<void>(cuModuleGetFunction(&failing_, failing, "fail_assertion"));
        REQUIRE(cuMemAlloc(&count_, sizeof(std::uint32_t)) == CUDA_SUCCESS);
        REQUIRE(cuMemsetD32(count_, 100, 1) == CUDA_SUCCESS);
        stream_ = make_stream();
        REQUIRE(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
        REQUIRE(cuEventRecord(event_, stream_) == CUDA_SUCCESS);
        REQUIRE(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
        REQUIRE(launch(add_, stream_, count_, std::uint64_t{1}, std::uint32_t{1}) == CUDA_SUCCESS);
        REQUIRE(cuStreamEndCapture(stream_, &graph_) == CUDA_SUCCESS);
        REQUIRE(cuGraphInstantiate(&exec_, graph_, 0) == CUDA_SUCCESS);
        REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    }

    char obey(Order order) {
        switch (order) {
        case Order::check_contents: return yes(contents_are_right());
        case Order::read_host: return yes(host_is_right());
        case Order::hide_host: return yes(host_is_hidden());
        case Order::ask:
            return yes(cuEventQuery(event_) == CUDA_SUCCESS && cuCtxSynchronize() == CUDA_SUCCESS &&
                       free_bytes() > 0);
        case Order::managed: {
            CUdeviceptr managed = 0;
            return yes(cuMemAllocManaged(&managed, k_granularity, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
        }
        case Order::ask_state: {
            CUprocessState state{};
            return yes(cuCheckpointProcessGetState(::getpid(), &state) == CUDA_SUCCESS &&
                       state == CU_PROCESS_STATE_CHECKPOINTED);
        }
        case Order::restore_itself:
            return yes(cuCheckpointProcessRestore(::getpid(), nullptr) == CUDA_SUCCESS &&
                       cuCheckpointProcessUnlock(::getpid(), nullptr) == CUDA_SUCCESS);
        case Order::spin: return yes(launch(spin_, stream_, flag_) == CUDA_SUCCESS);
        case Order::fail: return fail_assertion();
        case Order::let_go: __atomic_store_n(flag_, 1U, __ATOMIC_RELEASE); return 'y';
        }
        return '?';
    }

private:
    static constexpr std::size_t k_shown = std::size_t{1} << 20;

    static char yes(bool right) { return right ? 'y' : 'n'; }
    static void write(CUdeviceptr to, const std::vector<std::byte>& bytes) {
        REQUIRE(cuMemcpyHtoD(to, bytes.data(), bytes.size()) == CUDA_SUCCESS);
    }
    static bool reads(CUdeviceptr from, const std::vector<std::byte>& bytes) {
        std::vector<std::byte> out(bytes.size());
        return cuMemcpyDtoH(out.data(), from, out.size()) == CUDA_SUCCESS && out == bytes;
    }
    char fail_assertion() {
        if (!failing_) return 's';
        const auto launched = launch(failing_, stream_);
        const auto status = launched == CUDA_SUCCESS ? cuStreamSynchronize(stream_) : launched;
        return status == CUDA_ERROR_ASSERT ? 'a' : status == CUDA_ERROR_ILLEGAL_INSTRUCTION ? 'i' : '?';
    }
    bool host_is_right() const {
        const auto bytes = random_bytes(k_shown, 4);
        return std::equal(bytes.begin(), bytes.end(), host_.data.begin());
    }
    bool host_is_hidden() {
        constexpr std::uintptr_t k_page = 4096;
        const auto begin = (reinterpret_cast<std::uintptr_t>(host_.data.data()) + k_page - 1) & ~(k_page - 1);
        return ::mprotect(reinterpret_cast<void*>(begin), k_shown - 2 * k_page, PROT_NONE) == 0;
    }
    bool contents_are_right() {
        if (cuGraphLaunch(exec_, stream_) != CUDA_SUCCESS || cuStreamSynchronize(stream_) != CUDA_SUCCESS)
            return false;
        return first_word(count_) == 100 + ++launches_ && reads(plain_, plain_bytes_) &&
               reads(range_.address, range_bytes_) && host_is_right();
    }

    std::vector<std::byte> plain_bytes_;
    std::vector<std::byte> range_bytes_;
    CUdeviceptr plain_ = 0;
    Range range_{Target::k_bytes};
    PageLocked host_{k_shown};
    std::uint32_t* flag_ = nullptr;
    CUfunction spin_ = nullptr;
    CUfunction add_ = nullptr;
    CUfunction failing_ = nullptr; ///< none on the simulated driver
    CUdeviceptr count_ = 0;
    CUstream stream_ = nullptr;
    CUevent event_ = nullptr;
    CUgraph graph_ = nullptr;
    CUgraphExec exec_ = nullptr;
    std::uint32_t launches_ = 0;
};

void checkpoint_and_restore(const Target& target) {
    REQUIRE(target.lock() == CUDA_SUCCESS);
    REQUIRE(target.checkpoint() == CUDA_SUCCESS);
    REQUIRE(target.restore() == CUDA_SUCCESS);
    REQUIRE(target.unlock() == CUDA_SUCCESS);
}

} // namespace

// It is killed by its parent.
TEST_CASE("child: obeys", "[.child]") {
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    auto* const context = retain_primary(0);
    REQUIRE(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    auto& obedient = *new Obedient;
    say_ready();
    for (std::string line; std::getline(std::cin, line);)
        std::cout << obedient.obey(static_cast<Order>(line.front())) << std::endl;
    ::_exit(1);
}

TEST_CASE("Driver: a process has everything as before after a checkpoint and a restore", "[driver_rules]") {
    Target target;
    for (int round = 0; round < 3; ++round) {
        CHECK(target.state() == CU_PROCESS_STATE_RUNNING);
        CHECK(target.ask(Order::check_contents) == 'y');
        REQUIRE(target.lock() == CUDA_SUCCESS);
        CHECK(target.state() == CU_PROCESS_STATE_LOCKED);
        REQUIRE(target.checkpoint() == CUDA_SUCCESS);
        CHECK(target.state() == CU_PROCESS_STATE_CHECKPOINTED);
        REQUIRE(target.restore() == CUDA_SUCCESS);
        CHECK(target.state() == CU_PROCESS_STATE_LOCKED);
        REQUIRE(target.unlock() == CUDA_SUCCESS);
    }
    CHECK(target.state() == CU_PROCESS_STATE_RUNNING);
    CHECK(target.ask(Order::check_contents) == 'y');
}

TEST_CASE("Driver: what a process has on the device is free while it is checkpointed", "[driver_rules]") {
    Target target;
    const Session session;
    constexpr auto k_all = 2 * Target::k_bytes;
    const auto before = free_bytes();
    REQUIRE(target.lock() == CUDA_SUCCESS);
    CHECK(free_bytes() < before + k_all / 2);
    REQUIRE(target.checkpoint() == CUDA_SUCCESS);
    CHECK(free_bytes() >= before + k_all);
    REQUIRE(target.restore() == CUDA_SUCCESS);
    CHECK(free_bytes() < before + k_all / 2);
    REQUIRE(target.unlock() == CUDA_SUCCESS);
}

TEST_CASE("Driver: calls wait while their process is locked or checkpointed", "[driver_rules]") {
    Target target;
    REQUIRE(target.lock() == CUDA_SUCCESS);
    target.tell(Order::check_contents);
    CHECK(target.answer(std::chrono::milliseconds(200)) == '-');
    REQUIRE(target.checkpoint() == CUDA_SUCCESS);
    CHECK(target.answer(std::chrono::milliseconds(200)) == '-');
    REQUIRE(target.restore() == CUDA_SUCCESS);
    CHECK(target.answer(std::chrono::milliseconds(200)) == '-');
    REQUIRE(target.unlock() == CUDA_SUCCESS);
    CHECK(target.answer() == 'y');
}

TEST_CASE("Driver: calls that only ask pass while their process is locked", "[driver_rules]") {
    Target target;
    REQUIRE(target.lock() == CUDA_SUCCESS);
    CHECK(target.ask(Order::ask) == 'y');
    REQUIRE(target.unlock() == CUDA_SUCCESS);
    CHECK(target.ask(Order::check_contents) == 'y');
}

TEST_CASE("Driver: a process with managed memory is not checkpointed, and goes on", "[driver_rules]") {
    Target target;
    REQUIRE(target.ask(Order::managed) == 'y');
    REQUIRE(target.lock() == CUDA_SUCCESS);
    CHECK(target.checkpoint() == CUDA_ERROR_NOT_SUPPORTED);
    CHECK(target.state() == CU_PROCESS_STATE_LOCKED);
    REQUIRE(target.unlock() == CUDA_SUCCESS);
    CHECK(target.ask(Order::check_contents) == 'y');
}

TEST_CASE("Driver: a checkpointed process can restore and unlock itself", "[driver_rules]") {
    Target target;
    REQUIRE(target.lock() == CUDA_SUCCESS);
    REQUIRE(target.checkpoint() == CUDA_SUCCESS);
    CHECK(target.ask(Order::ask_state) == 'y');
    CHECK(target.ask(Order::restore_itself) == 'y');
    CHECK(target.state() == CU_PROCESS_STATE_RUNNING);
    CHECK(target.ask(Order::check_contents) == 'y');
}

TEST_CASE("Driver: page-locked memory can be read while its process is checkpointed", "[driver_rules]") {
    Target target;
    REQUIRE(target.lock() == CUDA_SUCCESS);
    CHECK(target.ask(Order::read_host) == 'y');
    REQUIRE(target.checkpoint() == CUDA_SUCCESS);
    CHECK(target.ask(Order::read_host) == 'y');
    REQUIRE(target.restore() == CUDA_SUCCESS);
    REQUIRE(target.unlock() == CUDA_SUCCESS);
    CHECK(target.ask(Order::check_contents) == 'y');
}

TEST_CASE("Driver: a failed assertion is an illegal instruction after a restore", "[driver_rules]") {
    const bool is_restored = GENERATE(false, true);
    Target target;
    if (is_restored) checkpoint_and_restore(target);
    const char said = target.ask(Order::fail);
    if (said == 's') return gpu_sleep::test::skip("the simulated driver has no assertions");
    CHECK(said == (is_restored ? 'i' : 'a'));
}

TEST_CASE("Driver: a running kernel of a restored process is not interrupted for other processes",
          "[driver_rules]") {
    if (::dlsym(RTLD_DEFAULT, "sim_live_objects"))
        return gpu_sleep::test::skip("the simulated driver's processes do not take turns on a device");
    const bool is_restored = GENERATE(false, true);
    Target target;
    if (is_restored) checkpoint_and_restore(target);
    const OnRange session;
    auto* const add = kernel("sim_add");
    const auto run = [&] {
        return launch(add, nullptr, session.range.address, std::uint64_t{1}, std::uint32_t{1});
    };
    REQUIRE(run() == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    REQUIRE(target.ask(Order::spin) == 'y');
    std::this_thread::sleep_for(std::chrono::milliseconds(50)); // it has begun
    REQUIRE(run() == CUDA_SUCCESS);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const auto meanwhile = cuStreamQuery(nullptr);
    REQUIRE(target.ask(Order::let_go) == 'y');
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(meanwhile == (is_restored ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS));
}

TEST_CASE("Driver: a process that cannot reach its page-locked memory is checkpointed, and not restored",
          "[driver_rules]") {
    Target target;
    REQUIRE(target.ask(Order::hide_host) == 'y');
    REQUIRE(target.lock() == CUDA_SUCCESS);
    REQUIRE(target.checkpoint() == CUDA_SUCCESS);
    CHECK(target.restore() == CUDA_ERROR_INVALID_VALUE);
    CHECK(target.state() == CU_PROCESS_STATE_CHECKPOINTED);
    target.process().end_with(SIGTERM);
}

TEST_CASE("Driver: a lock waits for work, and gives up in time", "[driver_rules]") {
    using namespace std::chrono;
    Target target;
    REQUIRE(target.ask(Order::spin) == 'y');
    const auto begin = steady_clock::now();
    CHECK(target.lock(300) == CUDA_ERROR_NOT_READY);
    const auto waited = steady_clock::now() - begin;
    CHECK(waited >= milliseconds(290));
    CHECK(waited < seconds(5));
    CHECK(target.state() == CU_PROCESS_STATE_RUNNING);
    int meanwhile = -1;
    std::thread later([&] {
        std::this_thread::sleep_for(milliseconds(300));
        meanwhile = target.state();
        target.tell(Order::let_go);
    });
    CHECK(target.lock() == CUDA_SUCCESS);
    later.join();
    CHECK(meanwhile == CU_PROCESS_STATE_LOCKED);
    CHECK(target.answer() == 'y');
    CHECK(target.state() == CU_PROCESS_STATE_LOCKED);
    CHECK(target.unlock() == CUDA_SUCCESS);
    CHECK(target.ask(Order::check_contents) == 'y');
}

TEST_CASE("Driver: a process is restored on another GPU by a list of all GPUs", "[driver_rules]") {
    Target target;
    if (!has_two_devices()) return;
    const auto count = device_count();
    std::vector<CUcheckpointGpuPair> pairs(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
        REQUIRE(cuDeviceGetUuid(&pairs[static_cast<std::size_t>(i)].oldUuid, i) == CUDA_SUCCESS);
        const int place = i == 0 ? 1 : i == 1 ? 0 : i;
        REQUIRE(cuDeviceGetUuid(&pairs[static_cast<std::size_t>(i)].newUuid, place) == CUDA_SUCCESS);
    }
    const auto restore = [&](unsigned listed) {
        CUcheckpointRestoreArgs args{};
        args.gpuPairs = pairs.data();
        args.gpuPairsCount = listed;
        return cuCheckpointProcessRestore(target.pid(), &args);
    };
    for (int round = 0; round < 2; ++round) { // the second leaves it where it is
        REQUIRE(target.lock() == CUDA_SUCCESS);
        REQUIRE(target.checkpoint() == CUDA_SUCCESS);
        CHECK(restore(1) == CUDA_ERROR_INVALID_VALUE);
        CHECK(target.state() == CU_PROCESS_STATE_CHECKPOINTED);
        const auto status = round == 0 ? restore(static_cast<unsigned>(count)) : target.restore();
        CHECK(status == CUDA_SUCCESS);
        REQUIRE(target.unlock() == CUDA_SUCCESS);
        CHECK(target.ask(Order::check_contents) == 'y');
    }
}
