// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A server that names its GPU memory and takes part in its sleeps. It runs without gpu-run. Each line of its
// standard input is a request: "sum" answers a checksum of the weights and the tables, any other line comes
// back by way of the cache. A request wakes the server. The guide "C and C++" builds it.

#include <cuda.h>
#include <gpu_sleep/gpu_sleep.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr std::size_t k_weights = 4 << 20; // words
constexpr std::size_t k_tables = 1024;     // words, at the end of the weights' memory
constexpr std::size_t k_cache_bytes = 16 << 20;
constexpr std::uint32_t k_wake_wait_ms = 60'000;

void check(CUresult result, const char* call) {
    if (result == CUDA_SUCCESS) return;
    std::fprintf(stderr, "server: %s failed with CUDA error %d\n", call, static_cast<int>(result));
    std::exit(EXIT_FAILURE);
}

void check(gpu_sleep_status status) {
    if (status == GPU_SLEEP_OK) return;
    std::fprintf(stderr, "server: %s\n", gpu_sleep_last_error());
    std::exit(EXIT_FAILURE);
}

class Server {
public:
    Server() {
        check(cuInit(0), "cuInit");
        check(cuDevicePrimaryCtxRetain(&context_, 0), "cuDevicePrimaryCtxRetain");
        check(cuCtxSetCurrent(context_), "cuCtxSetCurrent");
        check(gpu_sleep_hold()); // until the callbacks are there
        weights_ = allocate((k_weights + k_tables) * sizeof(std::uint32_t), "weights");
        cache_ = allocate(k_cache_bytes, "kv_cache");
        check(gpu_sleep_set_policy("weights", GPU_SLEEP_OFFLOAD,
                                   1)); // level 2 drops them, and load() fills them again
        check(gpu_sleep_set_policy("kv_cache", GPU_SLEEP_DISCARD, 1)); // no sleep keeps it
        load();
        make_tables();
        check(gpu_sleep_add_callback(before_sleep, after_wake, this, 0, nullptr));
        check(gpu_sleep_resume());
    }
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    std::string answer(std::string request) {
        std::unique_lock lock(mutex_);
        while (!may_work_) { // asleep
            lock.unlock();
            if (gpu_sleep_wake(nullptr, k_wake_wait_ms) != GPU_SLEEP_OK) return gpu_sleep_last_error();
            lock.lock();
        }
        if (request == "sum") return std::to_string(checksum());
        request.resize(std::min(request.size(), k_cache_bytes));
        check(cuMemcpyHtoD(cache_, request.data(), request.size()), "cuMemcpyHtoD");
        check(cuMemcpyDtoH(request.data(), cache_, request.size()), "cuMemcpyDtoH");
        return request;
    }

private:
    static CUdeviceptr allocate(std::size_t bytes, const char* tag) {
        void* memory = nullptr;
        check(gpu_sleep_alloc(&memory, bytes, 0, tag));
        return reinterpret_cast<CUdeviceptr>(memory);
    }

    // A real server reads a file.
    void load() const {
        std::vector<std::uint32_t> words(k_weights);
        std::iota(words.begin(), words.end(), 1U);
        check(cuMemcpyHtoD(weights_, words.data(), words.size() * sizeof(words[0])), "cuMemcpyHtoD");
    }

    // Small buffers that no file has, such as scales found by calibration: every sleep keeps them.
    void make_tables() const {
        std::vector<std::uint32_t> words(k_tables);
        std::generate(words.begin(), words.end(), std::random_device());
        const auto bytes = words.size() * sizeof(words[0]);
        const auto tables = weights_ + k_weights * sizeof(words[0]);
        check(cuMemcpyHtoD(tables, words.data(), bytes), "cuMemcpyHtoD");
        check(gpu_sleep_preserve(reinterpret_cast<void*>(tables), bytes));
    }

    std::uint64_t checksum() const {
        std::vector<std::uint32_t> words(k_weights + k_tables);
        check(cuMemcpyDtoH(words.data(), weights_, words.size() * sizeof(words[0])), "cuMemcpyDtoH");
        std::uint64_t sum = 0;
        for (const auto word : words) sum = sum * 31 + word;
        return sum;
    }

    // Both callbacks run on a thread of the agent. A request holds the mutex while it uses the GPU, so
    // locking it waits for the running request.
    static int before_sleep(const gpu_sleep_event*, void* user) {
        auto& server = *static_cast<Server*>(user);
        const std::lock_guard lock(server.mutex_);
        server.may_work_ = false;
        return 0;
    }

    static int after_wake(const gpu_sleep_event* event, void* user) {
        auto& server = *static_cast<Server*>(user);
        const std::lock_guard lock(server.mutex_);
        check(cuCtxSetCurrent(server.context_), "cuCtxSetCurrent");
        for (std::size_t i = 0; i < event->dropped_tag_count; ++i) {
            if (std::string_view(event->dropped_tags[i]) == "weights") server.load();
            check(gpu_sleep_mark_refilled(event->dropped_tags[i])); // an empty cache needs no contents
        }
        server.may_work_ = gpu_sleep_asleep_bytes() == 0; // other tags may still sleep
        return 0;
    }

    CUcontext context_ = nullptr;
    CUdeviceptr weights_ = 0;
    CUdeviceptr cache_ = 0;
    std::mutex mutex_;
    bool may_work_ = true; // guarded by mutex_
};

} // namespace

int main() {
    Server server;
    for (std::string request; std::getline(std::cin, request);)
        std::cout << server.answer(request) << std::endl;
}
