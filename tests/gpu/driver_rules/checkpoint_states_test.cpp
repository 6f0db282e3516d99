// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which step of a checkpoint may follow which, and what becomes of it when one of the two processes ends or
// there is no room.

#include "checkpointed.hpp"

using namespace gpu_sleep::driver_rules;

TEST_CASE("Driver: a step of a checkpoint that is not its state's turn is refused", "[driver_rules]") {
    Target target;
    CHECK(target.checkpoint() == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(target.restore() == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(target.unlock() == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(target.state() == CU_PROCESS_STATE_RUNNING);

    REQUIRE(target.lock() == CUDA_SUCCESS);
    CHECK(target.lock() == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(target.restore() == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(target.state() == CU_PROCESS_STATE_LOCKED);

    REQUIRE(target.checkpoint() == CUDA_SUCCESS);
    CHECK(target.lock() == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(target.checkpoint() == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(target.unlock() == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(target.state() == CU_PROCESS_STATE_CHECKPOINTED);

    REQUIRE(target.restore() == CUDA_SUCCESS);
    CHECK(target.restore() == CUDA_ERROR_ILLEGAL_STATE);
    REQUIRE(target.unlock() == CUDA_SUCCESS);
    CHECK(target.unlock() == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(target.ask(Order::check_contents) == 'y');
}

TEST_CASE("Driver: a lock that is taken back has changed nothing", "[driver_rules]") {
    Target target;
    REQUIRE(target.lock() == CUDA_SUCCESS);
    REQUIRE(target.unlock() == CUDA_SUCCESS);
    CHECK(target.state() == CU_PROCESS_STATE_RUNNING);
    CHECK(target.ask(Order::check_contents) == 'y');
}

TEST_CASE("child: locks and checkpoints another and ends", "[.child]") {
    say_ready();
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    const int pid = std::atoi(std::getenv("SIM_TEST_PID"));
    CUcheckpointLockArgs args{};
    args.timeoutMs = 10'000;
    REQUIRE(cuCheckpointProcessLock(pid, &args) == CUDA_SUCCESS);
    if (std::getenv("SIM_TEST_CHECKPOINT"))
        REQUIRE(cuCheckpointProcessCheckpoint(pid, nullptr) == CUDA_SUCCESS);
    ::_exit(0);
}

TEST_CASE("Driver: what one process locked or checkpointed another restores and unlocks", "[driver_rules]") {
    Target target;
    const auto pid = "SIM_TEST_PID=" + std::to_string(target.pid());
    REQUIRE(OtherRun("child: locks and checkpoints another and ends", {pid}).passed());
    CHECK(target.state() == CU_PROCESS_STATE_LOCKED);
    REQUIRE(target.unlock() == CUDA_SUCCESS);
    REQUIRE(
        OtherRun("child: locks and checkpoints another and ends", {pid, "SIM_TEST_CHECKPOINT=1"}).passed());
    CHECK(target.state() == CU_PROCESS_STATE_CHECKPOINTED);
    REQUIRE(target.restore() == CUDA_SUCCESS);
    REQUIRE(target.unlock() == CUDA_SUCCESS);
    CHECK(target.ask(Order::check_contents) == 'y');
}

TEST_CASE("Driver: a process that is killed in any state of a checkpoint holds no memory", "[driver_rules]") {
    share_devices();
    const Session session;
    for (const int steps : {0, 1, 2, 3}) {
        INFO(steps);
        const auto before = free_bytes();
        Target target;
        if (steps >= 1) REQUIRE(target.lock() == CUDA_SUCCESS);
        if (steps >= 2) REQUIRE(target.checkpoint() == CUDA_SUCCESS);
        if (steps >= 3) REQUIRE(target.restore() == CUDA_SUCCESS);
        const int pid = target.pid();
        target.process().end_with(SIGKILL);
        CHECK(free_bytes() + Target::k_bytes > before);
        CUprocessState state{};
        CHECK(cuCheckpointProcessGetState(pid, &state) != CUDA_SUCCESS);
        CHECK(cuCheckpointProcessLock(pid, nullptr) != CUDA_SUCCESS);
        CHECK(cuCheckpointProcessCheckpoint(pid, nullptr) != CUDA_SUCCESS);
        CHECK(cuCheckpointProcessRestore(pid, nullptr) != CUDA_SUCCESS);
        CHECK(cuCheckpointProcessUnlock(pid, nullptr) != CUDA_SUCCESS);
    }
}

TEST_CASE("child: uses no driver", "[.child]") {
    say_ready();
    ::pause();
}

TEST_CASE("Driver: a process that uses no driver has no state", "[driver_rules]") {
    share_devices();
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    OtherRun other("child: uses no driver", {});
    REQUIRE(other.is_ready());
    CUprocessState state{};
    CUcheckpointLockArgs args{};
    args.timeoutMs = 1000;
    CHECK(cuCheckpointProcessGetState(other.pid(), &state) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cuCheckpointProcessLock(other.pid(), &args) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cuCheckpointProcessGetState(0, &state) == CUDA_ERROR_OPERATING_SYSTEM); // there is no such process
}

TEST_CASE("Driver: a process is checkpointed without cuInit in who does it", "[driver_rules]") {
    Target target; // which calls none
    REQUIRE(target.lock() == CUDA_SUCCESS);
    REQUIRE(target.checkpoint() == CUDA_SUCCESS);
    CHECK(target.state() == CU_PROCESS_STATE_CHECKPOINTED);
    REQUIRE(cuInit(0) == CUDA_SUCCESS); // which a restore needs, unless persistence mode is on
    REQUIRE(target.restore() == CUDA_SUCCESS);
    REQUIRE(target.unlock() == CUDA_SUCCESS);
    CHECK(target.ask(Order::check_contents) == 'y');
}

TEST_CASE("child: locks another that is at work without end", "[.child]") {
    say_ready();
    const auto status = cuCheckpointProcessLock(std::atoi(std::getenv("SIM_TEST_PID")), nullptr);
    ::_exit(status == CUDA_SUCCESS ? 0 : 1);
}

TEST_CASE("Driver: a process stays locked if who waits to lock it is killed", "[driver_rules]") {
    Target target;
    REQUIRE(target.ask(Order::spin) == 'y');
    OtherRun locker("child: locks another that is at work without end",
                    {"SIM_TEST_PID=" + std::to_string(target.pid())});
    REQUIRE(locker.is_ready());
    for (int tries = 200; target.state() != CU_PROCESS_STATE_LOCKED && tries > 0; --tries)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    locker.end_with(SIGKILL);
    CHECK(target.lock(100) == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(target.state() == CU_PROCESS_STATE_LOCKED);
    CHECK(target.ask(Order::let_go) == 'y');
    CHECK(target.unlock() == CUDA_SUCCESS);
    CHECK(target.ask(Order::check_contents) == 'y');
}

TEST_CASE("Driver: what is asked of a stopped process waits", "[driver_rules]") {
    Target target;
    target.process().signal(SIGSTOP);
    std::atomic<int> state{-2};
    std::thread asker([&] { state = target.state(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    CHECK(state == -2);
    target.process().signal(SIGCONT);
    asker.join();
    CHECK(state == CU_PROCESS_STATE_RUNNING);
}

TEST_CASE("Driver: a process that was restored without room stays checkpointed for good", "[driver_rules]") {
    Target target;
    const Session session;
    REQUIRE(target.lock() == CUDA_SUCCESS);
    REQUIRE(target.checkpoint() == CUDA_SUCCESS);
    std::vector<CUdeviceptr> filling;
    for (auto piece = std::size_t{8} << 30; piece >= k_granularity;) {
        CUdeviceptr address = 0;
        if (cuMemAlloc(&address, piece) == CUDA_SUCCESS)
            filling.push_back(address);
        else
            piece /= 2;
    }
    CHECK(target.restore() == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(target.state() == CU_PROCESS_STATE_CHECKPOINTED);
    for (const auto address : filling) CHECK(cuMemFree(address) == CUDA_SUCCESS);
    CHECK(target.restore() == CUDA_ERROR_OPERATING_SYSTEM);
    CHECK(target.state() == CU_PROCESS_STATE_CHECKPOINTED);
    CHECK(target.unlock() == CUDA_ERROR_ILLEGAL_STATE);
    target.process().end_with(SIGTERM);
}

TEST_CASE("Driver: reserved arguments of a checkpoint have to be zero", "[driver_rules]") {
    Target target;
    CUcheckpointLockArgs args{};
    args.timeoutMs = 1000;
    args.reserved1[6] = 1;
    CHECK(cuCheckpointProcessLock(target.pid(), &args) == CUDA_ERROR_INVALID_VALUE);
    CHECK(target.state() == CU_PROCESS_STATE_RUNNING);
    REQUIRE(target.lock() == CUDA_SUCCESS);
    CUcheckpointCheckpointArgs checkpoint{};
    checkpoint.reserved[7] = 1;
    CHECK(cuCheckpointProcessCheckpoint(target.pid(), &checkpoint) == CUDA_ERROR_INVALID_VALUE);
    CHECK(target.state() == CU_PROCESS_STATE_LOCKED);
    CHECK(target.unlock() == CUDA_SUCCESS);
}
